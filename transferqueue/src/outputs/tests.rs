use half::{bf16, f16};

use super::*;
use crate::{batch::Batch, schema::Column};

fn ragged(dtype: Dtype, inner: &[usize]) -> Column {
    Column::new("x", Kind::Ragged { dtype, inner: inner.to_vec() })
}

fn dense(dtype: Dtype, shape: &[usize]) -> Column {
    Column::new("x", Kind::Dense { dtype, shape: shape.to_vec() })
}

/// Each dtype as dense scalar, dense vector and ragged, value by value.
fn round_trip<T: Element>(values: [T; 6]) {
    let scalars = Batch::detached(&[dense(T::DTYPE, &[])], 6, Outputs::new().dense("x", values)).unwrap();
    assert_eq!(scalars.dense::<T>("x").unwrap().to_vec(), values);
    assert_eq!(scalars.dense::<T>("x").unwrap().scalar(4), values[4]);
    let pairs = Batch::detached(&[dense(T::DTYPE, &[2])], 3, Outputs::new().dense("x", values)).unwrap();
    assert_eq!(pairs.dense::<T>("x").unwrap().row(1), &values[2..4]);
    let rows = [&values[..1], &values[1..1], &values[1..6]];
    let lists = Batch::detached(&[ragged(T::DTYPE, &[])], 3, Outputs::new().ragged::<T>("x", rows)).unwrap();
    assert_eq!(lists.ragged::<T>("x").unwrap().iter().collect::<Vec<_>>(), rows);
    let rows = [&values[..4], &values[4..4], &values[4..]];
    let steps = Batch::detached(&[ragged(T::DTYPE, &[2])], 3, Outputs::new().ragged::<T>("x", rows)).unwrap();
    let steps = steps.ragged::<T>("x").unwrap();
    assert_eq!((steps.lens(), steps.total(), steps.inner_len()), (vec![2, 0, 1], 3, 2));
    assert_eq!(steps.row(2), rows[2]);
}

#[test]
fn every_dtype_comes_back_value_by_value() {
    round_trip::<f64>([0.5, -1.0, f64::MAX, f64::MIN_POSITIVE, 3.0, f64::INFINITY]);
    round_trip::<f32>([0.5, -1.0, f32::MAX, f32::MIN_POSITIVE, 3.0, f32::INFINITY]);
    round_trip::<f16>([0.5, -1.0, 65504.0, 1e-4, 3.0, 2.5].map(f16::from_f32));
    round_trip::<bf16>([0.5, -1.0, 1e30, 1e-30, 3.0, 2.5].map(bf16::from_f32));
    round_trip::<i64>([0, -1, i64::MAX, i64::MIN, 3, 4]);
    round_trip::<i32>([0, -1, i32::MAX, i32::MIN, 3, 4]);
    round_trip::<i16>([0, -1, i16::MAX, i16::MIN, 3, 4]);
    round_trip::<i8>([0, -1, i8::MAX, i8::MIN, 3, 4]);
    round_trip::<u64>([0, 1, u64::MAX, 2, 3, 4]);
    round_trip::<u32>([0, 1, u32::MAX, 2, 3, 4]);
    round_trip::<u16>([0, 1, u16::MAX, 2, 3, 4]);
    round_trip::<u8>([0, 1, u8::MAX, 2, 3, 4]);
    round_trip::<bool>([true, false, false, true, true, false]);
}

#[test]
fn text_bytes_and_documents_come_back_value_by_value() {
    let columns = [Column::new("t", Kind::Utf8), Column::new("b", Kind::Binary), Column::new("j", Kind::Json)];
    let outputs = Outputs::new()
        .utf8("t", ["", "ä→b"])
        .binary("b", [&b"\0\xff"[..], b""])
        .json("j", [serde_json::json!({"answer": [1, 2]}), serde_json::json!(null)]);
    let batch = Batch::detached(&columns, 2, outputs).unwrap();
    assert_eq!(batch.utf8("t").unwrap().iter().collect::<Vec<_>>(), ["", "ä→b"]);
    assert_eq!(batch.binary("b").unwrap().iter().collect::<Vec<_>>(), [&b"\0\xff"[..], b""]);
    let documents = batch.json("j").unwrap();
    assert_eq!(documents.parse::<serde_json::Value>(0).unwrap()["answer"][1], 2);
    let wrong = documents.parse::<Vec<u8>>(0).unwrap_err().to_string();
    assert!(wrong.starts_with("column `j`, row 0 of the batch:"), "{wrong}");
}

#[test]
fn outputs_that_do_not_fit_are_refused_by_name_and_number() {
    let refused = |column: Column, outputs: Outputs| Batch::detached(&[column], 2, outputs).unwrap_err().to_string();
    let cases = [
        (dense(Dtype::F32, &[]), Outputs::new().dense::<f32>("y", [1.0, 2.0]), "no column `y`; it has `x`"),
        (dense(Dtype::F32, &[]), Outputs::new().dense::<f32>("x", [1.0]), "has 1 rows, expected 2"),
        (
            dense(Dtype::F32, &[]),
            Outputs::new().dense::<f64>("x", [1.0, 2.0]),
            "is dense f32[], the output is dense f64",
        ),
        (dense(Dtype::F32, &[3]), Outputs::new().dense::<f32>("x", [0.0; 7]), "7 elements do not fill 2 rows of 3"),
        (ragged(Dtype::I32, &[]), Outputs::new().dense::<i32>("x", [1, 2]), "is ragged i32, the output is dense i32"),
        (ragged(Dtype::I32, &[]), Outputs::new().ragged::<i32>("x", [[1]]), "has 1 rows, expected 2"),
        (ragged(Dtype::I32, &[2]), Outputs::new().ragged::<i32>("x", [vec![1, 2], vec![3]]), "row 1 has 1 elements"),
        (Column::new("x", Kind::Json), Outputs::new().utf8("x", ["{}", "{}"]), "is json, the output is utf8"),
        (
            dense(Dtype::U8, &[]),
            Outputs::new().dense::<u8>("x", [1, 2]).dense::<u8>("x", [1, 2]),
            "column `x` is given twice",
        ),
    ];
    for (column, outputs, expected) in cases {
        let error = refused(column, outputs);
        assert!(error.contains(expected), "{error} should contain {expected}");
    }
    struct Never;
    impl Serialize for Never {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not today"))
        }
    }
    let unwritable = refused(Column::new("x", Kind::Json), Outputs::new().json("x", [Never]));
    assert_eq!(unwritable, "column `x`: row 0 cannot be written as json: not today");
}

#[test]
fn notes_reach_the_heads_of_a_detached_batch() {
    let tags = Tags::from([("level".to_owned(), crate::catalog::command::Tag::Int(3))]);
    let span = Span { first: 1, last: 2 };
    let batch = Batch::detached(&[], 2, Outputs::new().note(RowId(1), tags.clone(), Some(span))).unwrap();
    assert_eq!((&batch.heads()[1].tags, batch.heads()[1].span), (&tags, Some(span)));
}

#[test]
fn renaming_leaves_out_what_nobody_reads() {
    let outputs = Outputs::new().dense::<f32>("score", [1.0]).dense::<f32>("extra", [2.0]);
    let renamed = outputs.rename(|port| (port == "score").then(|| "reward".to_owned()));
    assert_eq!(renamed.columns().collect::<Vec<_>>(), ["reward"]);
}
