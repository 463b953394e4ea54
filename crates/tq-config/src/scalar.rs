//! What a bare word stands for, in files and on the command line alike.

use crate::Value;

/// The value of an unquoted scalar: null, a boolean, a number, or else the text itself.
///
/// One rule for YAML files and overrides, that of Hydra's primitives: `true`/`false` and `null` in any case, integers
/// without leading zeros (`1_024` allowed), floats with a point or an exponent (`1e-6`), `inf` and `nan`. So `yes`,
/// `off`, `None`, `007`, `0x10` and `0.5_5.0` are text. A file may also write `~`, nothing, `.inf` and `.nan`.
#[must_use]
pub fn bare(text: &str) -> Value {
    match text.to_ascii_lowercase().as_str() {
        "null" => return Value::Null,
        "true" => return Value::Bool(true),
        "false" => return Value::Bool(false),
        "inf" | "+inf" => return Value::Float(f64::INFINITY),
        "-inf" => return Value::Float(f64::NEG_INFINITY),
        "nan" => return Value::Float(f64::NAN),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if is_integer(unsigned) {
        // A whole number beyond 64 bits stays text: a message then shows it as written, and nothing rounds it.
        return text.replace('_', "").parse().map_or_else(|_| Value::Str(text.to_owned()), Value::Int);
    }
    if is_float(unsigned)
        && let Ok(number) = text.replace('_', "").parse()
    {
        return Value::Float(number);
    }
    Value::Str(text.to_owned())
}

/// The value of a plain YAML scalar: [`bare`], and YAML's own words for null and non-finite floats.
#[must_use]
pub(crate) fn plain(text: &str) -> Value {
    match text {
        "" | "~" => Value::Null,
        _ => match text.to_ascii_lowercase().as_str() {
            ".inf" | "+.inf" => Value::Float(f64::INFINITY),
            "-.inf" => Value::Float(f64::NEG_INFINITY),
            ".nan" => Value::Float(f64::NAN),
            _ => bare(text),
        },
    }
}

/// Digits, single underscores between them allowed.
fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

fn is_integer(text: &str) -> bool {
    is_digits(text) && (text == "0" || !text.starts_with('0'))
}

fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let point = match mantissa.split_once('.') {
        Some((whole, "")) => is_digits(whole),
        Some(("", part)) => is_digits(part),
        Some((whole, part)) => is_digits(whole) && is_digits(part),
        None => exponent.is_some() && is_digits(mantissa),
    };
    point && exponent.is_none_or(|e| is_digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_follow_hydra() {
        for (text, value) in [
            ("1", Value::Int(1)),
            ("-1", Value::Int(-1)),
            ("+1", Value::Int(1)),
            ("1_000", Value::Int(1000)),
            ("1.5", Value::Float(1.5)),
            ("1e-6", Value::Float(1e-6)),
            ("1E5", Value::Float(1e5)),
            (".5", Value::Float(0.5)),
            ("5.", Value::Float(5.0)),
            ("-inf", Value::Float(f64::NEG_INFINITY)),
            ("TRUE", Value::Bool(true)),
            ("False", Value::Bool(false)),
            ("NULL", Value::Null),
        ] {
            assert_eq!(bare(text), value, "{text}");
        }
        for text in ["yes", "on", "None", "0x10", "007", "0.5_5.0", "1__0", "_1", "1_", ".", "e5", "", "-", "a.b"] {
            assert_eq!(bare(text), Value::Str(text.into()), "{text}");
        }
        assert!(matches!(bare("nan"), Value::Float(x) if x.is_nan()));
    }

    #[test]
    fn yaml_adds_its_words_for_null_and_infinity() {
        assert_eq!(plain(""), Value::Null);
        assert_eq!(plain("~"), Value::Null);
        assert_eq!(plain("-.inf"), Value::Float(f64::NEG_INFINITY));
        assert_eq!(plain("yes"), Value::Str("yes".into()));
    }
}
