//! Arrow values as JSON, and JSON as Python prints it.

use arrow::array::{
    Array, AsArray, BooleanArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    LargeListArray, LargeStringArray, ListArray, StringArray, StringViewArray, StructArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array,
};
use serde_json::{Map, Value, json};

/// The value at `row` of `array` as JSON, or the Arrow type that has no JSON form here.
pub(crate) fn from_arrow(array: &dyn Array, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    let any = array.as_any();
    macro_rules! plain {
        ($($kind:ty),*) => { $( if let Some(values) = any.downcast_ref::<$kind>() { return Ok(json!(values.value(row))); } )* };
    }
    plain!(
        StringArray,
        LargeStringArray,
        StringViewArray,
        BooleanArray,
        Int8Array,
        Int16Array,
        Int32Array,
        Int64Array,
        UInt8Array,
        UInt16Array,
        UInt32Array,
        UInt64Array,
        Float32Array,
        Float64Array
    );
    if let Some(fields) = any.downcast_ref::<StructArray>() {
        let mut object = Map::new();
        for (name, column) in fields.column_names().into_iter().zip(fields.columns()) {
            object.insert(name.to_string(), from_arrow(column, row)?);
        }
        return Ok(Value::Object(object));
    }
    let items = if let Some(list) = any.downcast_ref::<ListArray>() {
        list.value(row)
    } else if let Some(list) = any.downcast_ref::<LargeListArray>() {
        list.value(row)
    } else if array.data_type().is_null() {
        return Ok(Value::Null);
    } else if let Some(decoded) = dictionary(array, row) {
        return decoded;
    } else {
        return Err(array.data_type().to_string());
    };
    (0..items.len()).map(|i| from_arrow(&items, i)).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

/// Strings that pandas wrote as a categorical.
fn dictionary(array: &dyn Array, row: usize) -> Option<Result<Value, String>> {
    let coded = array.as_any_dictionary_opt()?;
    let key = *coded.normalized_keys().get(row)?;
    Some(from_arrow(coded.values().as_ref(), key))
}

/// Appends `value` as Python's `json.dumps(…, ensure_ascii=False)` writes it.
pub(crate) fn python_dumps(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let newline = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(separator);
                }
                newline(out, depth + 1);
                python_dumps(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push(']');
        }
        Value::Object(fields) if !fields.is_empty() => {
            out.push('{');
            for (i, (key, item)) in fields.iter().enumerate() {
                if i > 0 {
                    out.push_str(separator);
                }
                newline(out, depth + 1);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                python_dumps(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}
