//! Writing data sets in verl's layout.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use parquet::arrow::ArrowWriter;

use crate::chat::Message;
use crate::error::{Error, Result};

/// A row to be written: verl's columns for a task whose reward follows from a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The conversation to be continued.
    pub prompt: Vec<Message>,
    /// Which task the row belongs to.
    pub data_source: String,
    /// The skill it exercises.
    pub ability: String,
    /// The right answer.
    pub ground_truth: String,
    /// Which part of the data it is in: `train` or `test`.
    pub split: String,
    /// Its number in that part.
    pub index: i64,
}

/// Writes `records` to `path` as parquet with the columns `data_source`, `prompt` (list of {content, role}), `ability`, `reward_model`
/// {ground_truth, style = "rule"} and `extra_info` {index, split}. The file appears under its name only when it is complete.
///
/// # Errors
/// [`Error::Io`] or [`Error::Parquet`], naming the file.
pub fn write_parquet(path: &Path, records: &[Record]) -> Result<()> {
    let batch = batch(records);
    let partial = path.with_extension("parquet.partial");
    let file = File::create(&partial).map_err(Error::io(&partial))?;
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).map_err(Error::parquet(&partial))?;
    writer.write(&batch).map_err(Error::parquet(&partial))?;
    writer.close().map_err(Error::parquet(&partial))?;
    std::fs::rename(&partial, path).map_err(Error::io(path))
}

fn batch(records: &[Record]) -> RecordBatch {
    let turns: Vec<&Message> = records.iter().flat_map(|r| &r.prompt).collect();
    let turn = structure(vec![
        ("content", strings(turns.iter().map(|m| m.content.as_str()))),
        ("role", strings(turns.iter().map(|m| m.role.as_str()))),
    ]);
    let lengths = OffsetBuffer::from_lengths(records.iter().map(|r| r.prompt.len()));
    let element = Field::new("element", turn.data_type().clone(), true);
    let prompt = ListArray::new(Arc::new(element), lengths, turn, None);
    let reward_model = structure(vec![
        ("ground_truth", strings(records.iter().map(|r| r.ground_truth.as_str()))),
        ("style", strings(records.iter().map(|_| "rule"))),
    ]);
    let extra_info = structure(vec![
        ("index", Arc::new(Int64Array::from_iter_values(records.iter().map(|r| r.index)))),
        ("split", strings(records.iter().map(|r| r.split.as_str()))),
    ]);
    RecordBatch::try_from_iter([
        ("data_source", strings(records.iter().map(|r| r.data_source.as_str()))),
        ("prompt", Arc::new(prompt) as ArrayRef),
        ("ability", strings(records.iter().map(|r| r.ability.as_str()))),
        ("reward_model", reward_model),
        ("extra_info", extra_info),
    ])
    .expect("every column has one value per record")
}

fn strings<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn structure(columns: Vec<(&str, ArrayRef)>) -> ArrayRef {
    let fields = columns.into_iter().map(|(name, array)| {
        let kind: DataType = array.data_type().clone();
        (Arc::new(Field::new(name, kind, true)), array)
    });
    Arc::new(StructArray::from(fields.collect::<Vec<_>>()))
}
