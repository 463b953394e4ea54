use std::sync::Arc;

use arrow::{
    array::{ArrayRef, AsArray, Float32Array, Int32Array, ListArray, RecordBatch, StringArray, UInt8Array},
    datatypes::{Float32Type, Int32Type},
};

use super::*;
use crate::catalog::command::Sizes;

const DTYPES: [Dtype; 13] = [
    Dtype::F64,
    Dtype::F32,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::I64,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
    Dtype::U64,
    Dtype::U32,
    Dtype::U16,
    Dtype::U8,
    Dtype::Bool,
];

fn every_kind() -> Vec<Kind> {
    let mut kinds = vec![Kind::Utf8, Kind::Binary, Kind::Json];
    for dtype in DTYPES {
        kinds.extend([
            Kind::Dense { dtype, shape: vec![] },
            Kind::Dense { dtype, shape: vec![4] },
            Kind::Dense { dtype, shape: vec![2, 3] },
            Kind::Ragged { dtype, inner: vec![] },
            Kind::Ragged { dtype, inner: vec![2, 3] },
        ]);
    }
    kinds
}

#[test]
fn every_kind_comes_back_from_its_arrow_field() {
    for kind in every_kind() {
        let mut told = Column::new("c", kind);
        told.attributes.insert("distribution".into(), "full".into());
        assert_eq!(column(&field(&told).unwrap()).unwrap(), told);
    }
}

#[test]
fn marks_sit_on_the_columns_own_field() {
    let field = field(&Column::new("mask", Kind::Ragged { dtype: Dtype::Bool, inner: vec![] })).unwrap();
    assert_eq!(field.metadata()["tq.dtype"], "bool");
    let DataType::List(item) = field.data_type() else { panic!("ragged is a list") };
    assert_eq!((item.data_type(), item.metadata().len()), (&DataType::UInt8, 0));
}

#[test]
fn tensors_carry_their_shape_and_nothing_that_readers_trip_over() {
    let field = field(&Column::new("image", Kind::Dense { dtype: Dtype::F32, shape: vec![2, 3] })).unwrap();
    assert_eq!(field.metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");
    assert_eq!(field.metadata()["ARROW:extension:metadata"], r#"{"shape":[2,3]}"#);
}

#[test]
fn a_tables_foreign_to_the_store_are_read_or_refused_by_name() {
    let plain = Field::new("x", fixed(DataType::Float32, 3), true);
    assert_eq!(column(&plain).unwrap().kind, Kind::Dense { dtype: Dtype::F32, shape: vec![3] });
    let refused = column(&Field::new("when", DataType::Date32, true)).unwrap_err().to_string();
    assert!(refused.contains("`when`") && refused.contains("Date32"), "{refused}");
    let marks = HashMap::from([(DTYPE.to_owned(), "bf16".to_owned())]);
    let lie = column(&Field::new("x", DataType::Int64, false).with_metadata(marks)).unwrap_err().to_string();
    assert!(lie.contains("`tq.dtype` is `bf16`"), "{lie}");
    let permuted = HashMap::from([
        (EXTENSION.to_owned(), TENSOR.to_owned()),
        (EXTENSION_METADATA.to_owned(), r#"{"shape":[1,3],"permutation":[1,0]}"#.to_owned()),
    ]);
    assert!(column(&plain.with_metadata(permuted)).is_err());
}

#[test]
fn an_axis_of_length_zero_is_refused() {
    let error = field(&Column::new("none", Kind::Dense { dtype: Dtype::F32, shape: vec![2, 0] })).unwrap_err();
    assert!(error.to_string().contains("`none`"));
}

#[test]
fn sizes_count_the_payload_of_each_cell() {
    let ragged = Column::new("r", Kind::Ragged { dtype: Dtype::I32, inner: vec![] });
    let lists = |rows: Vec<Vec<i32>>| -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
            rows.into_iter().map(|row| Some(row.into_iter().map(Some))),
        ))
    };
    assert_eq!(sizes(&ragged, &lists(vec![vec![1, 2], vec![], vec![3]])).unwrap(), Sizes::Each(vec![8, 0, 4]));
    assert_eq!(sizes(&ragged, &lists(vec![vec![1], vec![2]])).unwrap(), Sizes::Uniform(4));
    let dense = Column::new("d", Kind::Dense { dtype: Dtype::F32, shape: vec![2, 3] });
    let tensor = dense_array(&dense.kind, 2, arrow::buffer::Buffer::from_vec(vec![0f32; 12]));
    assert_eq!(sizes(&dense, &tensor).unwrap(), Sizes::Uniform(24));
    let text = Column::new("t", Kind::Utf8);
    assert_eq!(sizes(&text, &StringArray::from(vec!["é", "abc"])).unwrap(), Sizes::Each(vec![2, 3]));
}

#[test]
fn a_slice_of_a_larger_array_is_copied_when_taken_over() {
    let column = Column::new("t", Kind::Ragged { dtype: Dtype::F32, inner: vec![] });
    let all = ListArray::from_iter_primitive::<Float32Type, _, _>(
        (0..100).map(|row| Some((0..row).map(move |i| Some((row * i) as f32)))),
    );
    let middle: ArrayRef = Arc::new(all.slice(50, 2));
    let owned = tight(&column, &middle).unwrap();
    assert_eq!(
        owned.as_list::<i32>().value(1).as_primitive::<Float32Type>(),
        all.value(51).as_primitive::<Float32Type>()
    );
    assert_eq!(leaf_bytes(&owned).unwrap().len(), (50 + 51) * 4);
    assert_eq!(leaf_bytes(&owned).unwrap().as_ptr() as usize % 64, 0);
}

#[test]
fn an_aligned_array_is_taken_over_without_a_copy() {
    let column = Column::new("r", Kind::Ragged { dtype: Dtype::F32, inner: vec![] });
    let mut values = arrow::buffer::MutableBuffer::new(0);
    values.extend_from_slice(&[1f32, 2.0, 3.0]);
    let array = ragged_array("r", &column.kind, &[1, 2], values.into()).unwrap();
    let owned = tight(&column, &array).unwrap();
    assert_eq!(leaf_bytes(&owned).unwrap().as_ptr(), leaf_bytes(&array).unwrap().as_ptr());
}

#[test]
fn wrong_types_nulls_and_illegal_values_are_refused_by_name() {
    let column = |kind| Column::new("c", kind);
    let scalar = |dtype| column(Kind::Dense { dtype, shape: vec![] });
    let refused = |column: &Column, array: ArrayRef| check(column, &array).unwrap_err().to_string();
    let wrong = refused(&scalar(Dtype::F32), Arc::new(Int32Array::from(vec![1])));
    assert!(wrong.contains("dense f32[]") && wrong.contains("Int32"), "{wrong}");
    let null = refused(&scalar(Dtype::F32), Arc::new(Float32Array::from(vec![Some(1.0), None])));
    assert!(null.contains("`c`: 1 cells"), "{null}");
    let inner = ListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.0), None])]);
    let inner = refused(&column(Kind::Ragged { dtype: Dtype::F32, inner: vec![] }), Arc::new(inner));
    assert!(inner.contains("null"), "{inner}");
    let flag = refused(&scalar(Dtype::Bool), Arc::new(UInt8Array::from(vec![0, 1, 2])));
    assert!(flag.contains("the byte 2"), "{flag}");
    let json = refused(&column(Kind::Json), Arc::new(StringArray::from(vec!["{}", "{"])));
    assert!(json.contains("row 1 does not parse"), "{json}");
}

#[test]
fn every_kind_survives_an_arrow_file() {
    for kind in every_kind() {
        let column = Column::new("c", kind.clone());
        let field = Arc::new(field(&column).unwrap());
        let array = sample(&kind);
        let schema = Arc::new(Schema::new(vec![field.clone()]));
        let batch = RecordBatch::try_new(schema.clone(), vec![array.clone()]).unwrap();
        let mut bytes = Vec::new();
        let mut writer = arrow::ipc::writer::StreamWriter::try_new(&mut bytes, &schema).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        let mut reader = arrow::ipc::reader::StreamReader::try_new(bytes.as_slice(), None).unwrap();
        assert_eq!(super::column(reader.schema().field(0)).unwrap(), column);
        let back = reader.next().unwrap().unwrap();
        assert_eq!(back.column(0), &array, "{kind}");
        assert_eq!(copy(&column, [back.column(0)]).unwrap().as_ref(), array.as_ref(), "{kind}");
    }
}

/// Three cells of a kind, no two alike.
fn sample(kind: &Kind) -> ArrayRef {
    let pattern = |dtype: Dtype, n: usize| -> arrow::buffer::Buffer {
        let bytes = (0..n * dtype.size()).map(|i| if dtype == Dtype::Bool { i as u8 % 2 } else { (i % 60) as u8 });
        let mut buffer = arrow::buffer::MutableBuffer::new(0);
        bytes.for_each(|byte| buffer.push(byte));
        buffer.into()
    };
    match kind {
        Kind::Dense { dtype, .. } => dense_array(kind, 3, pattern(*dtype, 3 * inner_len(kind))),
        Kind::Ragged { dtype, .. } => {
            ragged_array("c", kind, &[2, 0, 1], pattern(*dtype, 3 * inner_len(kind))).unwrap()
        }
        Kind::Utf8 | Kind::Binary => {
            bytes_array("c", kind, &[3, 0, 2], arrow::buffer::Buffer::from(b"abcde".as_slice())).unwrap()
        }
        Kind::Json => bytes_array("c", kind, &[2, 4, 3], arrow::buffer::Buffer::from(b"{}null1.5".as_slice())).unwrap(),
    }
}
