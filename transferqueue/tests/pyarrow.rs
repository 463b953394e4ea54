//! Stock pyarrow reads what the store maps to Arrow, from a file and over Flight, and writes it back. Skipped, and said so, where pyarrow is not installed.

use std::{
    fs::File,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use arrow::{array::RecordBatch, datatypes::Schema, ipc::writer::FileWriter};
use half::{bf16, f16};
use transferqueue::{
    Batch, Column, Definition, Dtype, Element, Kind, NewRow, Options, Outputs, PartitionId, RowId, Rows, Store,
    catalog::definition::{Birth, Partition},
    server,
};

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
def table_of(source):
    if not source.startswith("grpc://"):
        return pa.ipc.open_file(source).read_all()
    import pyarrow.flight as flight
    client = flight.connect(source)
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + sys.argv[2].encode())])
    try:
        list(client.list_flights())
        assert False, "listed without a token"
    except flight.FlightUnauthenticatedError as error:
        assert "authorization" in str(error), error
    flights = {tuple(info.descriptor.path): info for info in client.list_flights(options=options)}
    assert set(flights) == {(b"all",), (b"copy",), (b"own",)}, flights
    assert flights[(b"all",)].total_records == 3 and flights[(b"copy",)].total_records == 0
    schema = client.get_schema(flight.FlightDescriptor.for_path("all"), options).schema
    info = client.get_flight_info(flight.FlightDescriptor.for_path("all"), options)
    table = client.do_get(info.endpoints[0].ticket, options).read_all()
    assert table.schema == schema == info.schema, (table.schema, schema)
    some = flight.FlightDescriptor.for_path("all", "text", "ragged_f32")
    part = client.do_get(client.get_flight_info(some, options).endpoints[0].ticket, options).read_all()
    assert part.column_names == ["text", "ragged_f32"] and part.num_rows == 3
    # All of it goes back into another partition; a row made by hand goes into a third.
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("copy"), table.schema, options)
    with writer:
        writer.write_table(table)
        writer.done_writing()
        assert json.loads(answers.read().to_pybytes()) == {"rows": "0-2"}
    own = pa.table({"ragged_i64": pa.array([[7, 8, 9]], pa.list_(pa.int64()))})
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("own"), own.schema, options)
    with writer:
        writer.write_table(own)
        writer.done_writing()
        assert json.loads(answers.read().to_pybytes()) == {"rows": "0"}
    for wrong, said in [(pa.table({"nothing": [1]}), "nothing"), (pa.table({"ragged_i64": [[1.5]]}), "ragged_i64"),
                        (pa.table({"ragged_i64": pa.array([None], pa.list_(pa.int64()))}), "null")]:
        try:
            writer, _ = client.do_put(flight.FlightDescriptor.for_path("own"), wrong.schema, options)
            with writer:
                writer.write_table(wrong)
            assert False, f"took {wrong}"
        except pa.ArrowInvalid as error:
            assert said in str(error), error
        except flight.FlightError as error:
            assert said in str(error), error
    return table
table = table_of(sys.argv[1]).combine_chunks()
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

/// The interpreter, if it has pyarrow.
#[allow(clippy::print_stdout, reason = "a skipped test says so")]
fn python() -> Option<String> {
    let python = std::env::var("TQ_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let there = Command::new(&python).args(["-c", "import pyarrow.flight, numpy"]).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!(
            "skipped: pyarrow not found (`{python} -m pip install pyarrow numpy`, or name an interpreter in TQ_PYTHON)"
        );
        return None;
    }
    Some(python)
}

#[test]
fn stock_pyarrow_lists_reads_and_writes_every_kind_over_flight() {
    let Some(python) = python() else { return };
    let (columns, outputs) = columns();
    let birth = Birth::Put { capacity: None };
    let table = |name: &str| Partition { name: name.into(), columns: columns.clone(), birth: birth.clone() };
    let ragged = Column::new("ragged_i64", Kind::Ragged { dtype: Dtype::I64, inner: vec![] });
    let own = Partition { columns: vec![ragged], ..table("own") };
    let definition = Definition { partitions: vec![table("all"), table("copy"), own], ..Definition::default() };
    let store = Store::create(definition, Options::default()).unwrap();
    let session = store.session("feeder").unwrap();
    let soon = Instant::now() + Duration::from_secs(60);
    session.put(PartitionId(0), vec![NewRow::default(); 3], outputs, soon).unwrap();
    let server = server::serve(&store, &server::Options::default()).unwrap();
    let checked = Command::new(&python).args(["-c", CHECK, server.url(), server.token()]).status().unwrap();
    assert!(checked.success());
    // What pyarrow wrote is what it had read, bit for bit.
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let read = |partition| {
        let rows = Rows::run(RowId(0), 3);
        session.read(PartitionId(partition), Some(&rows), &names).unwrap().gather().unwrap()
    };
    assert_eq!(read(0), read(1));
    let made = session.read(PartitionId(2), None, &["ragged_i64"]).unwrap();
    assert_eq!(made.ragged::<i64>("ragged_i64").unwrap().row(0), [7, 8, 9]);
}

#[test]
fn stock_pyarrow_reads_every_kind() {
    let Some(python) = python() else { return };
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
