//! A file with the live cells of one column: an Arrow IPC file with the columns `chunk`, `slot`, and the cells; a record batch
//! for each chunk, so that each can be let go by itself.
//!
//! Snapshots are made of such files, and so is what is spilled.

use std::{
    io::{self, Write},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array, UInt64Array},
    datatypes::{DataType, Field, Schema, UInt32Type, UInt64Type},
    error::ArrowError,
    ipc::writer::FileWriter,
};

use crate::{arrow_map, ids::ChunkId, ipc, schema::Column, unit::Grant};

/// The live slots of one chunk, as runs `(first, length)`, and the hold on it.
pub(crate) struct Live {
    pub(crate) grant: Grant,
    pub(crate) slots: Vec<(u32, u32)>,
}

/// A chunk's live cells as they were read: pieces by first slot.
pub(crate) struct Stored {
    pub(crate) id: ChunkId,
    pub(crate) pieces: Vec<(u32, ArrayRef)>,
}

/// Why a file is not read.
pub(crate) enum Unreadable {
    /// It is not what was written.
    Damaged(String),
    /// It is whole but of another column.
    Foreign { found: String, expected: String },
}

/// Writes the live cells of one column.
///
/// # Errors
/// What the file system or Arrow says.
pub(crate) fn write<'a>(
    out: &mut dyn Write,
    column: &Column,
    chunks: impl Iterator<Item = (&'a ChunkId, &'a Live)>,
) -> Result<(), ArrowError> {
    let field = arrow_map::field(column).expect("invariant: the schema was mapped when the column was written");
    let fields = vec![Field::new("chunk", DataType::UInt64, false), Field::new("slot", DataType::UInt32, false), field];
    let schema = Arc::new(Schema::new(fields));
    let mut writer = FileWriter::try_new(out, &schema)?;
    for (chunk, live) in chunks {
        let array = live_cells(column, live);
        let slots: UInt32Array = live.slots.iter().flat_map(|&(first, len)| first..first + len).collect();
        let ids = UInt64Array::from(vec![chunk.0; slots.len()]);
        let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(slots), array];
        writer.write(&RecordBatch::try_new(schema.clone(), columns)?)?;
    }
    writer.finish()
}

/// The live cells of a chunk in one array: its only piece as it is, or a copy of what lives, of one chunk at a time.
fn live_cells(column: &Column, live: &Live) -> ArrayRef {
    let pieces = live.grant.pieces();
    if let ([(0, piece)], [(0, len)]) = (pieces.as_slice(), live.slots.as_slice())
        && piece.len() == *len as usize
    {
        return piece.clone();
    }
    let mut slices = Vec::new();
    for &(first, len) in &live.slots {
        let (mut at, end) = (first, first + len);
        let mut index = pieces.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        while at < end {
            let (start, piece) = &pieces[index];
            let take = end.min(start + piece.len() as u32) - at;
            slices.push(piece.slice((at - start) as usize, take as usize));
            at += take;
            index += 1;
        }
    }
    arrow_map::copy(column, &slices).expect("invariant: the cells of one chunk fit one array")
}

/// Reads the chunks of a file of this column.
///
/// # Errors
/// [`Unreadable`].
pub(crate) fn read<S: ipc::Source>(file: ipc::File<S>, column: &Column) -> Result<Vec<Stored>, Unreadable> {
    let damaged = |found: &str| Unreadable::Damaged(found.to_owned());
    let fields = file.schema().clone();
    let stored = fields.fields().get(2).map(|field| field.data_type().clone());
    if fields.fields().len() != 3 || stored != Some(arrow_map::storage(&column.kind)) {
        let expected = format!("columns chunk, slot and `{}` ({})", column.name, column.kind);
        return Err(Unreadable::Foreign { found: format!("schema {fields}"), expected });
    }
    let mut chunks = Vec::new();
    for batch in file {
        let batch = batch.map_err(|error| damaged(&error.to_string()))?;
        let (Some(ids), Some(slots)) =
            (batch.column(0).as_primitive_opt::<UInt64Type>(), batch.column(1).as_primitive_opt::<UInt32Type>())
        else {
            return Err(damaged("chunk or slot numbers of another type"));
        };
        let Some(&id) = ids.values().first() else {
            continue;
        };
        if ids.values().iter().any(|other| *other != id) || slots.values().windows(2).any(|w| w[0] >= w[1]) {
            return Err(damaged("a batch with several chunks or slots out of order"));
        }
        if slots.values().last() == Some(&u32::MAX) || (0..3).any(|at| batch.column(at).null_count() > 0) {
            return Err(damaged("a batch with null cells, or a slot beyond the last one"));
        }
        let pieces = runs(slots.values()).into_iter().scan(0, |at, (first, len)| {
            let piece = batch.column(2).slice(*at, len as usize);
            *at += len as usize;
            Some((first, piece))
        });
        chunks.push(Stored { id: ChunkId(id), pieces: pieces.collect() });
    }
    Ok(chunks)
}

/// Runs `(first, length)` of ascending slots.
pub(crate) fn runs(slots: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &slot in slots {
        match runs.last_mut() {
            Some((first, len)) if *first + *len == slot => *len += 1,
            _ => runs.push((slot, 1)),
        }
    }
    runs
}

/// Counts and sums what passes to a file.
pub(crate) struct Summed<W> {
    pub(crate) inner: W,
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl<W: Write> Summed<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, crc: crc32fast::Hasher::new(), bytes: 0 }
    }

    /// How many bytes have passed, and their checksum.
    pub(crate) fn sum(self) -> (u64, u32) {
        (self.bytes, self.crc.finalize())
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
