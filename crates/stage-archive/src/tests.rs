//! What goes into a file comes out of it; a file that is not whole is refused.

use std::{fs, path::PathBuf};

use half::{bf16, f16};
use tempfile::TempDir;
use transferqueue::{Batch, Column, Element, Kind, Outputs, RowId, Span, Tag};

use super::*;

/// Three rows in every kind and dtype, extreme values among them.
fn everything() -> (Vec<Column>, Outputs) {
    fn of<T: Element>(columns: &mut Vec<Column>, outputs: Outputs, values: [T; 6]) -> Outputs {
        let dtype = T::DTYPE;
        let mut add = |shape: &str, kind| {
            columns.push(Column::new(format!("{shape}_{dtype}"), kind));
            columns[columns.len() - 1].name.clone()
        };
        let scalar = add("scalar", Kind::Dense { dtype, shape: vec![] });
        let tensor = add("tensor", Kind::Dense { dtype, shape: vec![2, 1] });
        let ragged = add("ragged", Kind::Ragged { dtype, inner: vec![] });
        let steps = add("steps", Kind::Ragged { dtype, inner: vec![2] });
        outputs
            .dense(scalar, &values[..3])
            .dense(tensor, values)
            .ragged::<T>(ragged, [&values[..1], &values[1..1], &values[1..]])
            .ragged::<T>(steps, [&values[..2], &values[2..2], &values[2..]])
    }
    let mut columns =
        vec![Column::new("text", Kind::Utf8), Column::new("bytes", Kind::Binary), Column::new("json", Kind::Json)];
    columns[0].attributes.insert("distribution".into(), "full".into());
    let c = &mut columns;
    let outputs = Outputs::new()
        .utf8("text", ["", "é", "abc"])
        .binary("bytes", [&b""[..], b"\0\xff", b"x"])
        .json("json", [serde_json::json!({"a": [1]}), serde_json::json!(null), serde_json::json!("s")]);
    let odd = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE / 2.0, 1.5];
    let outputs = of(c, outputs, odd);
    let outputs = of(c, outputs, odd.map(|value| value as f32));
    let outputs = of(c, outputs, odd.map(f16::from_f64));
    let outputs = of(c, outputs, odd.map(bf16::from_f64));
    let outputs = of(c, outputs, [i64::MIN, -1, 0, 1, 2, i64::MAX]);
    let outputs = of(c, outputs, [i32::MIN, -1, 0, 1, 2, i32::MAX]);
    let outputs = of(c, outputs, [i16::MIN, -1, 0, 1, 2, i16::MAX]);
    let outputs = of(c, outputs, [i8::MIN, -1, 0, 1, 2, i8::MAX]);
    let outputs = of(c, outputs, [0, 1, 2, 3, 4, u64::MAX]);
    let outputs = of(c, outputs, [0, 1, 2, 3, 4, u32::MAX]);
    let outputs = of(c, outputs, [0, 1, 2, 3, 4, u16::MAX]);
    let outputs = of(c, outputs, [0, 1, 2, 3, 4, u8::MAX]);
    let outputs = of(c, outputs, [false, true, false, true, true, false]);
    (columns, outputs)
}

fn facts(rows: u64) -> Facts {
    Facts { format: Facts::FORMAT, partition: "samples".into(), cycle: 12, index: 3, last: false, rows, groups: rows }
}

/// A file with everything in it.
fn written() -> (TempDir, PathBuf, Vec<Column>, Batch) {
    let (columns, outputs) = everything();
    let tags = [("level".to_owned(), Tag::Int(-3)), ("share".to_owned(), Tag::Float(0.1 + 0.2))];
    let more = [("kept".to_owned(), Tag::Bool(true)), ("name".to_owned(), Tag::Text("a \"b\"".to_owned()))];
    let outputs = outputs.note(RowId(1), tags.into_iter().collect(), Some(Span { first: 4, last: 6 })).note(
        RowId(2),
        more.into_iter().collect(),
        None,
    );
    let batch = Batch::detached(&columns, 3, outputs).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &facts(3), &batch).unwrap();
    let path = folder.path().join("cycle_000012.mini_0003.parquet");
    (folder, path, columns, batch)
}

#[test]
fn every_kind_comes_back_as_it_was_with_type_attributes_tags_and_versions() {
    let (_folder, path, columns, batch) = written();
    let recorded = Recorded::open(&path).unwrap();
    recorded.verify().unwrap();
    assert_eq!(recorded.facts(), &facts(3));
    assert_eq!(recorded.columns(), &columns[..]);
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let rows = recorded.read(&names).unwrap();
    for (head, expected) in rows.heads.iter().zip(batch.heads()) {
        assert_eq!(
            (head.row, head.group, head.ordinal, head.sample, head.version),
            (expected.row.0, expected.group.0, expected.ordinal, expected.sample, expected.version)
        );
        assert_eq!((head.span, &head.tags), (expected.span, &expected.tags));
    }
    assert_eq!(rows.groups(), [0, 1, 2, 3]);
    let mut again = Outputs::new();
    for name in &names {
        again = again.array(*name, rows.column(name).unwrap().clone());
    }
    let again = Batch::detached(&columns, 3, again).expect("arrays of the columns' own types");
    for column in &columns {
        // Arrow compares buffers, so that a NaN equals itself and -0 is not 0.
        let bits = |batch: &Batch| batch.gather().unwrap().column_by_name(&column.name).unwrap().to_data();
        assert_eq!(bits(&again), bits(&batch), "{}", column.name);
    }
}

#[test]
fn a_batch_is_written_to_the_same_bytes_again() {
    let (folder, path, _, batch) = written();
    let first = fs::read(&path).unwrap();
    write(folder.path(), &facts(3), &batch).unwrap();
    assert!(fs::read(&path).unwrap() == first, "the file depends on more than its batch");
    assert_eq!(list(folder.path()).unwrap().len(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a draft is left");
}

#[test]
fn only_the_columns_that_are_asked_for_are_read_and_an_unknown_one_is_named() {
    let (_folder, path, ..) = written();
    let rows = Recorded::open(&path).unwrap().read(&["text"]).unwrap();
    assert!(rows.column("text").is_some() && rows.column("json").is_none());
    let error = Recorded::open(&path).unwrap().read(&["values"]).unwrap_err().to_string();
    assert!(
        error.contains("no column `values`") && error.contains("scalar_f32") && error.contains("keep: archive"),
        "{error}"
    );
}

#[test]
fn damage_is_found_and_said_by_file() {
    let (folder, path, ..) = written();
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let outcome = Recorded::open(&path).and_then(|recorded| recorded.verify());
        let said = outcome.expect_err("damaged").to_string();
        assert!(said.contains("cycle_000012.mini_0003.parquet"), "{said}");
        said
    };
    for kept in [0, 3, whole.len() / 2, whole.len() - 1] {
        refused(&whole[..kept]);
    }
    // Every byte of the pages counts; what the footer says is checked by whoever parses it.
    for at in [4, 100, whole.len() / 8] {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        let said = refused(&flipped);
        assert!(said.contains("checksum"), "byte {at}: {said}");
    }
    fs::write(&path, &whole).unwrap();
    let other = folder.path().join("cycle_000000.mini_0000.parquet");
    fs::rename(&path, &other).unwrap();
    let said = Recorded::open(&other).unwrap_err().to_string();
    assert!(said.contains("it holds the batch of `cycle_000012.mini_0003.parquet`"), "{said}");
}
