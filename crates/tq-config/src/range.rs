//! Which numbers a setting may have.

use std::fmt;

use crate::Refusal;

/// The numbers that make sense for a key. Infinities and NaN are in none of the ranges.
///
/// ```
/// use tq_config::Range;
///
/// assert!(Range::Within(0.0, 1.0).check("algorithm.lam", 0.95).is_ok());
/// let refusal = Range::Within(0.0, 1.0).check("algorithm.lam", 1.5).expect_err("more than 1");
/// assert_eq!(refusal.to_string(), "algorithm.lam: found 1.5; expected a number from 0 to 1");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// This or more.
    AtLeast(f64),
    /// More than this.
    Above(f64),
    /// From the first to the second, both included.
    Within(f64, f64),
    /// From the first to the second, the second left out.
    Below(f64, f64),
    /// From the first to the second, the first left out.
    AboveUpTo(f64, f64),
    /// −1, which stands for what the text says, or the number or more.
    MinusOneOr(&'static str, f64),
}

impl Range {
    /// Whether `value` is in the range.
    #[must_use]
    pub fn has(self, value: f64) -> bool {
        value.is_finite()
            && match self {
                Self::AtLeast(least) => value >= least,
                Self::Above(limit) => value > limit,
                Self::Within(least, most) => (least..=most).contains(&value),
                Self::Below(least, limit) => (least..limit).contains(&value),
                Self::AboveUpTo(limit, most) => value > limit && value <= most,
                #[expect(clippy::float_cmp, reason = "−1 is exact")]
                Self::MinusOneOr(_, least) => value == -1.0 || value >= least,
            }
    }

    /// Refuses a value of `key` that is not in the range.
    ///
    /// # Errors
    /// The refusal: key, value, range.
    pub fn check(self, key: impl Into<String>, value: f64) -> Result<(), Refusal> {
        if self.has(value) { Ok(()) } else { Err(Refusal::new(key, value.to_string(), self.to_string())) }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "a number of at least {least}"),
            Self::Above(limit) => write!(f, "a number above {limit}"),
            Self::Within(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Below(least, limit) => write!(f, "a number of at least {least} and below {limit}"),
            Self::AboveUpTo(limit, most) => write!(f, "a number above {limit} and at most {most}"),
            Self::MinusOneOr(meaning, least) => write!(f, "-1 ({meaning}) or at least {least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_belong_to_it_as_its_name_says() {
        for (range, inside, outside) in [
            (Range::AtLeast(0.0), [0.0, 7.0], [-0.1, f64::INFINITY]),
            (Range::Above(1.0), [1.1, 3.0], [1.0, f64::NAN]),
            (Range::Within(0.0, 1.0), [0.0, 1.0], [-0.1, 1.1]),
            (Range::Below(0.0, 1.0), [0.0, 0.999], [-0.1, 1.0]),
            (Range::AboveUpTo(0.0, 1.0), [0.1, 1.0], [0.0, 1.1]),
            (Range::MinusOneOr("all", 1.0), [-1.0, 1.0], [0.0, -2.0]),
        ] {
            assert!(inside.iter().all(|value| range.has(*value)), "{range}");
            assert!(outside.iter().all(|value| !range.has(*value)), "{range}");
        }
    }

    #[test]
    fn what_is_expected_reads_as_a_sentence() {
        let expected = |range: Range| range.check("k", f64::NAN).expect_err("NaN is in no range").to_string();
        assert_eq!(expected(Range::Below(0.0, 1.0)), "k: found NaN; expected a number of at least 0 and below 1");
        assert_eq!(expected(Range::AboveUpTo(0.0, 1.0)), "k: found NaN; expected a number above 0 and at most 1");
        assert_eq!(expected(Range::MinusOneOr("all", 1.0)), "k: found NaN; expected -1 (all) or at least 1");
    }
}
