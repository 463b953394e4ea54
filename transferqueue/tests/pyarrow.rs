//! Stock pyarrow reads what the store maps to Arrow. Skipped, and said so, where pyarrow is not installed.

use std::{
    fs::File,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use arrow::{array::RecordBatch, datatypes::Schema, ipc::writer::FileWriter};
use half::{bf16, f16};
use transferqueue::{Batch, Column, Dtype, Element, Kind, Outputs};

/// Values 0 to 5 in every dtype; python checks them by name.
fn columns() -> (Vec<Column>, Outputs) {
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
    let outputs = Outputs::new()
        .utf8("text", ["", "é", "abc"])
        .binary("bytes", [&b""[..], b"\0\xff", b"x"])
        .json("json", [serde_json::json!({"a": [1]}), serde_json::json!(null), serde_json::json!("s")]);
    let c = &mut columns;
    let outputs = of(c, outputs, [0f64, 1., 2., 3., 4., 5.]);
    let outputs = of(c, outputs, [0f32, 1., 2., 3., 4., 5.]);
    let outputs = of(c, outputs, [0f32, 1., 2., 3., 4., 5.].map(f16::from_f32));
    let outputs = of(c, outputs, [0f32, 1., 2., 3., 4., 5.].map(bf16::from_f32));
    let outputs = of(c, outputs, [0i64, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [0i32, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [0i16, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [0i8, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [0u64, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [0u32, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [0u16, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [0u8, 1, 2, 3, 4, 5]);
    let outputs = of(c, outputs, [false, true, false, true, true, false]);
    (columns, outputs)
}

const CHECK: &str = r#"
import json, sys
import numpy as np
import pyarrow as pa
table = pa.ipc.open_file(sys.argv[1]).read_all().combine_chunks()
assert table.num_rows == 3 and table.num_columns == 3 + 13 * 4
column = lambda name: table.column(name).chunk(0)
assert column("text").to_pylist() == ["", "é", "abc"]
assert column("bytes").to_pylist() == [b"", b"\0\xff", b"x"]
assert [json.loads(text) for text in column("json").to_pylist()] == [{"a": [1]}, None, "s"]
assert "json" in str(table.schema.field("json").type), table.schema.field("json").type
def plain(values, dtype):
    if dtype == "bf16":
        return (np.asarray(values, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(values, dtype=np.float64)
for dtype in "f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool".split():
    expected = np.array([0, 1, 0, 1, 1, 0] if dtype == "bool" else range(6), dtype=np.float64)
    def same(found, expected):
        found = plain(found, dtype)
        assert found.shape == expected.shape and (found == expected).all(), (dtype, found, expected)
    same(column(f"scalar_{dtype}").to_numpy(zero_copy_only=False), expected[:3])
    tensor = column(f"tensor_{dtype}")
    assert isinstance(tensor.type, pa.FixedShapeTensorType) and tensor.type.shape == [2, 1], tensor.type
    same(tensor.to_numpy_ndarray(), expected.reshape(3, 2, 1))
    for row, part in zip(column(f"ragged_{dtype}").to_pylist(), [expected[:1], expected[1:1], expected[1:]]):
        same(row, part)
    for row, part in zip(column(f"steps_{dtype}").to_pylist(), [expected[:2], expected[2:2], expected[2:]]):
        same(np.asarray(row).reshape(-1, 2), part.reshape(-1, 2))
    marks = table.schema.field(f"ragged_{dtype}").metadata or {}
    assert marks.get(b"tq.dtype", b"").decode() == (dtype if dtype in ("bf16", "bool") else ""), marks
print("read by pyarrow", pa.__version__)
"#;

#[test]
fn stock_pyarrow_reads_every_kind() {
    let python = std::env::var("TQ_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python).args(["-c", "import pyarrow, numpy"]).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!(
            "skipped: pyarrow not found (`{python} -m pip install pyarrow numpy`, or name an interpreter in TQ_PYTHON)"
        );
        return;
    }
    let (columns, outputs) = columns();
    let batch = Batch::detached(&columns, 3, outputs).unwrap().gather().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.arrow");
    write(&path, &batch);
    let checked = Command::new(&python).arg("-c").arg(CHECK).arg(&path).status().unwrap();
    assert!(checked.success());
}

fn write(path: &Path, batch: &RecordBatch) {
    let schema: Arc<Schema> = batch.schema();
    let mut writer =
        FileWriter::try_new(File::create(path).expect("a file"), &schema).expect("a schema that IPC carries");
    writer.write(batch).expect("a batch of that schema");
    writer.finish().expect("the footer");
    let dtypes = [Dtype::Bf16, Dtype::Bool];
    assert!(dtypes.iter().all(|dtype| schema.field_with_name(&format!("scalar_{dtype}")).is_ok()));
}
