//! Reading a file back.

use std::{
    fs::File,
    io::{Read, Seek},
    path::{Path, PathBuf},
};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchReader},
    compute::concat_batches,
    datatypes::{UInt32Type, UInt64Type},
};
use parquet::arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReaderBuilder};
use serde::de::DeserializeOwned;
use tq_stage::ROW_COLUMNS;
use transferqueue::{Column, Span, Tags, arrow_map};

use crate::{ArchiveError, BatchName, Facts, facts::Checksum};

/// What a file says of one row besides its columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Row in the recorded run.
    pub row: u64,
    /// Its group there.
    pub group: u64,
    /// Position of its prompt in the recorded stream of prompts.
    pub ordinal: u64,
    /// Which sample of its group.
    pub sample: u32,
    /// Weight version at its admission.
    pub version: u64,
    /// Weight versions of its tokens.
    pub span: Option<Span>,
    /// Its tags.
    pub tags: Tags,
}

/// A file of an archive, opened: its footer is read, its pages are not.
#[derive(Debug)]
pub struct Recorded {
    path: PathBuf,
    facts: Facts,
    columns: Vec<Column>,
    builder: ParquetRecordBatchReaderBuilder<File>,
}

impl Recorded {
    /// Opens a file and checks its footer against its name.
    ///
    /// # Errors
    /// [`ArchiveError::Io`], [`ArchiveError::Damaged`].
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let file = File::open(path).map_err(ArchiveError::io(path, "open it"))?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(file)
            .map_err(|error| ArchiveError::damaged(path, format!("not readable as Parquet ({error})")))?;
        let facts: Facts = metadata(&builder, path, Facts::KEY)?;
        if facts.format != Facts::FORMAT {
            let found = format!("its form is {}, this program reads {}", facts.format, Facts::FORMAT);
            return Err(ArchiveError::damaged(path, found));
        }
        let name = BatchName { cycle: facts.cycle, index: facts.index }.to_string();
        if path.file_name().and_then(|found| found.to_str()) != Some(&name) {
            return Err(ArchiveError::damaged(path, format!("it holds the batch of `{name}`")));
        }
        let rows = builder.metadata().file_metadata().num_rows();
        if u64::try_from(rows) != Ok(facts.rows) {
            return Err(ArchiveError::damaged(path, format!("{rows} rows, while it was written with {}", facts.rows)));
        }
        let own = builder.schema().fields().iter().filter(|field| !ROW_COLUMNS.contains(&field.name().as_str()));
        let columns = own.map(|field| arrow_map::column(field)).collect::<Result<_, _>>();
        let columns = columns.map_err(|error| ArchiveError::damaged(path, error.to_string()))?;
        Ok(Self { path: path.to_owned(), facts, columns, builder })
    }

    /// Which batch it holds.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The archived columns, with the types and attributes they had in the store.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Checks every byte of the columns against the checksum that was written beside them.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`].
    pub fn verify(&self) -> Result<(), ArchiveError> {
        let checksum: Checksum = metadata(&self.builder, &self.path, Checksum::KEY)?;
        let mut file = File::open(&self.path).map_err(ArchiveError::io(&self.path, "open it"))?;
        file.rewind().map_err(ArchiveError::io(&self.path, "read it"))?;
        let (mut hasher, mut buffer, mut left) = (crc32fast::Hasher::new(), vec![0; 1 << 20], checksum.bytes);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            match file.read(&mut buffer[..most]).map_err(ArchiveError::io(&self.path, "read it"))? {
                0 => return Err(ArchiveError::damaged(&self.path, format!("{left} bytes are missing at its end"))),
                read => {
                    hasher.update(&buffer[..read]);
                    left -= read as u64;
                }
            }
        }
        match hasher.finalize() {
            found if found == checksum.crc32 => Ok(()),
            found => Err(ArchiveError::damaged(
                &self.path,
                format!("its checksum is {found:08x}, while it was written with {:08x}", checksum.crc32),
            )),
        }
    }

    /// Reads the rows with some of the columns.
    ///
    /// # Errors
    /// [`ArchiveError::Column`], [`ArchiveError::Damaged`].
    pub fn read(self, wanted: &[&str]) -> Result<Rows, ArchiveError> {
        if let Some(column) = wanted.iter().find(|name| !self.columns.iter().any(|column| column.name == **name)) {
            let have = self.columns.into_iter().map(|column| column.name).collect();
            return Err(ArchiveError::Column { path: self.path, column: (*column).to_owned(), have });
        }
        let path = self.path;
        let damaged = |error: String| ArchiveError::damaged(&path, error);
        let names = self.builder.schema().fields().iter().map(|field| field.name().as_str());
        let roots: Vec<usize> = names
            .enumerate()
            .filter(|(_, name)| ROW_COLUMNS.contains(name) || wanted.contains(name))
            .map(|(index, _)| index)
            .collect();
        let mask = ProjectionMask::roots(self.builder.parquet_schema(), roots);
        let reader = self.builder.with_projection(mask).build().map_err(|error| damaged(error.to_string()))?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|error| damaged(error.to_string()))?;
        let table = concat_batches(&schema, &batches).map_err(|error| damaged(error.to_string()))?;
        let heads =
            heads(&table).ok_or_else(|| damaged("what it says of its rows is not of the written types".into()))?;
        Ok(Rows { heads: heads.map_err(damaged)?, table })
    }
}

/// Rows of a file, in the batch's order.
#[derive(Clone, Debug)]
pub struct Rows {
    /// What is known of each.
    pub heads: Vec<Head>,
    table: RecordBatch,
}

impl Rows {
    /// A column that was asked for, in the Arrow type of the store.
    pub fn column(&self, name: &str) -> Option<&ArrayRef> {
        self.table.column_by_name(name)
    }

    /// Where each group begins, and the number of rows at the end: rows of a group stand together.
    pub fn groups(&self) -> Vec<usize> {
        let ids: Vec<u64> = self.heads.iter().map(|head| head.group).collect();
        let starts = (0..ids.len()).filter(|&row| row == 0 || ids[row] != ids[row - 1]);
        starts.chain([ids.len()]).collect()
    }
}

fn metadata<T: DeserializeOwned>(
    builder: &ParquetRecordBatchReaderBuilder<File>,
    path: &Path,
    key: &str,
) -> Result<T, ArchiveError> {
    let entries = builder.metadata().file_metadata().key_value_metadata().into_iter().flatten();
    let mut found = entries.filter(|entry| entry.key == key).filter_map(|entry| entry.value.as_deref());
    let text = found.next().ok_or_else(|| ArchiveError::damaged(path, format!("no `{key}` in its metadata")))?;
    serde_json::from_str(text).map_err(|error| ArchiveError::damaged(path, format!("`{key}` is `{text}` ({error})")))
}

/// `None`: columns are missing or of another type.
fn heads(table: &RecordBatch) -> Option<Result<Vec<Head>, String>> {
    let number = |name: &str| table.column_by_name(name)?.as_primitive_opt::<UInt64Type>();
    let (row, group, ordinal) = (number("row")?, number("group")?, number("ordinal")?);
    let (version, first, last) = (number("version")?, number("first_version")?, number("last_version")?);
    let sample = table.column_by_name("sample")?.as_primitive_opt::<UInt32Type>()?;
    let tags = table.column_by_name("tags")?.as_string_opt::<i32>()?;
    let head = |i: usize| {
        let span = first.is_valid(i) && last.is_valid(i);
        Ok(Head {
            row: row.value(i),
            group: group.value(i),
            ordinal: ordinal.value(i),
            sample: sample.value(i),
            version: version.value(i),
            span: span.then(|| Span { first: first.value(i), last: last.value(i) }),
            tags: serde_json::from_str(tags.value(i))
                .map_err(|error| format!("the tags of row {} are `{}` ({error})", row.value(i), tags.value(i)))?,
        })
    };
    Some((0..table.num_rows()).map(head).collect())
}
