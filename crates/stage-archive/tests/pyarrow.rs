//! Stock pyarrow and DuckDB read an archive. Skipped, and said so, where they are not installed.

use std::process::{Command, Stdio};

use stage_archive::{Facts, write};
use transferqueue::{Batch, Column, Dtype, Kind, Outputs, RowId, Span, Tag};

const PYARROW: &str = r#"
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
file = pq.ParquetFile(sys.argv[1])
facts = json.loads(file.metadata.metadata[b"tq.archive"])
assert (facts["partition"], facts["cycle"], facts["index"], facts["last"]) == ("samples", 7, 1, True), facts
table = file.read()
plain = {name: table.column(name).to_pylist() for name in table.column_names}
assert plain["row"] == [0, 1] and plain["group"] == [0, 1] and plain["ordinal"] == [0, 1] and plain["sample"] == [0, 0]
assert plain["first_version"] == [None, 4] and plain["last_version"] == [None, 6] and plain["version"] == [0, 0]
assert [json.loads(tags) for tags in plain["tags"]] == [{}, {"level": 3}]
assert plain["responses"] == [[5, 6], [7]] and plain["log_probs"] == [[-0.5], []]
assert plain["text"] == ["é", ""] and [json.loads(text) for text in plain["info"]] == [{"a": 1}, None]
assert [list(row) for row in plain["image"]] == [[1, 2, 3, 4], [5, 6, 7, 8]]
assert isinstance(table.schema.field("image").type, pa.FixedShapeTensorType), table.schema.field("image")
assert table.schema.field("image").type.shape == [2, 2] and plain["right"] == [1, 0]
assert table.schema.field("right").metadata[b"tq.dtype"] == b"bool"
assert table.schema.field("log_probs").type == pa.list_(pa.float32())
print("read by pyarrow", pa.__version__)
"#;

const DUCKDB: &str = r#"
import sys
import duckdb
folder = sys.argv[1].rsplit("/", 1)[0]
found = duckdb.sql(f"""select "row", len(responses), list_sum(log_probs), tags->>'level', image from '{folder}/*.parquet' order by "row" """).fetchall()
assert [tuple(row[:4]) for row in found] == [(0, 2, -0.5, None), (1, 1, None, "3")], found
assert [list(row[4]) for row in found] == [[1, 2, 3, 4], [5, 6, 7, 8]], found
print("read by DuckDB", duckdb.__version__)
"#;

/// The interpreter, if it has the module.
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
fn python(module: &str) -> Option<String> {
    let python = std::env::var("TQ_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!(
            "skipped: {module} not found (`{python} -m pip install {module}`, or name an interpreter in TQ_PYTHON)"
        );
        return None;
    }
    Some(python)
}

fn reads(module: &str, script: &str) {
    let Some(python) = python(module) else { return };
    let ragged = |dtype| Kind::Ragged { dtype, inner: vec![] };
    let columns = [
        Column::new("responses", ragged(Dtype::I64)),
        Column::new("log_probs", ragged(Dtype::F32)),
        Column::new("text", Kind::Utf8),
        Column::new("info", Kind::Json),
        Column::new("image", Kind::Dense { dtype: Dtype::U8, shape: vec![2, 2] }),
        Column::new("right", Kind::Dense { dtype: Dtype::Bool, shape: vec![] }),
    ];
    let outputs = Outputs::new()
        .ragged::<i64>("responses", [vec![5, 6], vec![7]])
        .ragged::<f32>("log_probs", [vec![-0.5], vec![]])
        .utf8("text", ["é", ""])
        .json("info", [serde_json::json!({"a": 1}), serde_json::json!(null)])
        .dense::<u8>("image", [1, 2, 3, 4, 5, 6, 7, 8])
        .dense::<bool>("right", [true, false])
        .note(RowId(1), [("level".to_owned(), Tag::Int(3))].into(), Some(Span { first: 4, last: 6 }));
    let batch = Batch::detached(&columns, 2, outputs).expect("outputs of these columns");
    let folder = tempfile::tempdir().expect("temporary folder");
    let partition = "samples".to_owned();
    let facts = Facts { format: Facts::FORMAT, partition, cycle: 7, index: 1, last: true, rows: 2, groups: 2 };
    write(folder.path(), &facts, &batch).expect("a file");
    let path = folder.path().join("cycle_000007.mini_0001.parquet");
    let checked = Command::new(python).args(["-c", script]).arg(&path).status().expect("the interpreter");
    assert!(checked.success());
}

#[test]
fn stock_pyarrow_reads_an_archive() {
    reads("pyarrow", PYARROW);
}

#[test]
fn stock_duckdb_reads_an_archive() {
    reads("duckdb", DUCKDB);
}
