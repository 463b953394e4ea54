//! One cut batch as one Parquet file, whole or not at all.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array},
    datatypes::{DataType, Field, Schema},
};
use fail::fail_point;
use parquet::{
    arrow::ArrowWriter,
    basic::Compression,
    errors::ParquetError,
    file::{metadata::KeyValue, properties::WriterProperties},
};
use tq_stage::ROW_COLUMNS;
use transferqueue::{Batch, Column, Kind, RowHead, Span, arrow_map};

use crate::{ArchiveError, BatchName, Facts, facts::Checksum, name::DRAFT};

/// Writes a batch into `folder` under its name and returns when it is on the disk. A file of that name is replaced.
///
/// # Errors
/// [`ArchiveError`] with the file.
pub fn write(folder: &Path, facts: &Facts, batch: &Batch) -> Result<(), ArchiveError> {
    let path = folder.join(BatchName { cycle: facts.cycle, index: facts.index }.to_string());
    fs::create_dir_all(folder).map_err(ArchiveError::io(folder, "create it"))?;
    let table = table(batch).map_err(ArchiveError::write(&path, "lay it out"))?;
    let draft = tempfile::Builder::new().prefix(DRAFT).tempfile_in(folder);
    let draft = draft.map_err(ArchiveError::io(folder, "create a file in it"))?;
    let failed = ArchiveError::write;

    let facts = serde_json::to_string(facts).expect("invariant: facts are plain values");
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_key_value_metadata(Some(vec![KeyValue::new(Facts::KEY.to_owned(), facts)]))
        .build();
    let hashing = Hashing { file: draft.as_file(), checksum: Checksum::default(), hasher: crc32fast::Hasher::new() };
    let mut writer =
        ArrowWriter::try_new(hashing, table.schema(), Some(properties)).map_err(failed(&path, "begin it"))?;
    writer.write(&table).map_err(failed(&path, "write it"))?;
    writer.flush().map_err(failed(&path, "write it"))?;
    // All pages are out, none is left in a buffer.
    writer.sync().map_err(ArchiveError::io(&path, "write it"))?;
    let checksum = serde_json::to_string(&writer.inner().checksum()).expect("invariant: two numbers");
    writer.append_key_value_metadata(KeyValue::new(Checksum::KEY.to_owned(), checksum));
    writer.close().map_err(failed(&path, "finish it"))?;

    draft.as_file().sync_all().map_err(ArchiveError::io(&path, "flush it"))?;
    fail_point!("archive::writing");
    draft.persist(&path).map_err(|error| ArchiveError::io(&path, "rename it")(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(ArchiveError::io(folder, "flush it"))?;
    fail_point!("archive::written");
    Ok(())
}

/// What is known of each row, then its columns.
fn table(batch: &Batch) -> Result<RecordBatch, ParquetError> {
    let columns = batch.gather().map_err(outside)?;
    let heads = batch.heads();
    let numbers =
        |of: &dyn Fn(&RowHead) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(heads.iter().map(of))) };
    let span = |of: &dyn Fn(&Span) -> u64| -> ArrayRef {
        Arc::new(heads.iter().map(|head| head.span.as_ref().map(of)).collect::<UInt64Array>())
    };
    let tags = heads.iter().map(|head| serde_json::to_string(&head.tags).expect("invariant: tags are plain values"));
    let described: [ArrayRef; 8] = [
        numbers(&|head| head.row.0),
        numbers(&|head| head.group.0),
        numbers(&|head| head.ordinal),
        Arc::new(UInt32Array::from_iter_values(heads.iter().map(|head| head.sample))),
        numbers(&|head| head.version),
        span(&|span| span.first),
        span(&|span| span.last),
        Arc::new(StringArray::from_iter_values(tags)),
    ];
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (name, array) in ROW_COLUMNS.into_iter().zip(described) {
        let nullable = name.ends_with("_version");
        fields.push(Arc::new(match array.data_type() {
            DataType::Utf8 => arrow_map::field(&Column::new(name, Kind::Json)).map_err(outside)?,
            plain => Field::new(name, plain.clone(), nullable),
        }));
        arrays.push(array);
    }
    fields.extend(columns.schema().fields().iter().cloned());
    arrays.extend(columns.columns().iter().cloned());
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

fn outside(error: impl std::error::Error + Send + Sync + 'static) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// A file that adds up what is written to it.
struct Hashing<'a> {
    file: &'a File,
    checksum: Checksum,
    hasher: crc32fast::Hasher,
}

impl Hashing<'_> {
    fn checksum(&self) -> Checksum {
        Checksum { crc32: self.hasher.clone().finalize(), ..self.checksum }
    }
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.checksum.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
