//! Between the catalog's types and messages. What comes from outside is checked here, once.

use arrow::array::ArrayRef;
use bytes::Bytes;
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};

use super::{Along, Answer, Cells, Outcome, Placed, Pointer, Put, Run, Spot, Ticket, Vector};
use crate::{
    arrow_map,
    catalog::command::{BatchRef, CellRun, ColumnRef, Sizes},
    gang::Values,
    ids::{ChunkId, ColumnId, PartitionId, Rows},
};

/// A value as the JSON that the event log would write.
pub(crate) fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("invariant: commands, replies and refusals are plain values").into()
}

/// And back; the error names what was expected.
pub(crate) fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("no {what}: {error}"))
}

/// A message of this package; the error names what was expected.
pub(crate) fn decode<M: Message + Default>(what: &str, bytes: &[u8]) -> Result<M, String> {
    M::decode(bytes).map_err(|error| format!("no {what}: {error}"))
}

impl Along {
    /// Cells of a plain array ([`arrow_map::plain`]), whatever position the command gives them.
    pub(crate) fn new(put: Put, array: &ArrayRef) -> Self {
        let [offsets, values] = [arrow_map::offset_bytes(array), arrow_map::leaf_bytes(array).unwrap_or_default()]
            .map(Bytes::copy_from_slice);
        Self { cell: 0, put, rows: array.len() as u32, offsets, values }
    }
}

impl Answer {
    pub(crate) fn new(outcome: Outcome) -> Self {
        Self { outcome: Some(outcome) }
    }
}

pub(crate) fn runs(rows: &Rows) -> Vec<Run> {
    rows.runs().iter().map(|&(first, len)| Run { first, len }).collect()
}

/// Rows from their runs; `None` when ids run over.
pub(crate) fn rows(runs: &[Run]) -> Option<Rows> {
    runs.iter().map(|run| (run.first, run.len)).collect::<Vec<_>>().try_into().ok()
}

impl From<&ColumnRef> for Pointer {
    fn from(column: &ColumnRef) -> Self {
        let cells =
            |run: &CellRun| Cells { chunk: run.chunk.0, generation: run.generation, slot: run.slot, len: run.len };
        Self {
            name: column.name.clone(),
            partition: column.partition.0,
            column: column.column.0.into(),
            runs: column.runs.iter().map(cells).collect(),
        }
    }
}

impl TryFrom<Pointer> for ColumnRef {
    type Error = String;

    fn try_from(pointer: Pointer) -> Result<Self, String> {
        let column = u16::try_from(pointer.column).map_err(|_| format!("no column has position {}", pointer.column))?;
        let run = |cells: &Cells| {
            let end = cells.slot.checked_add(cells.len);
            end.ok_or_else(|| format!("cells {}+{} of chunk {} run over", cells.slot, cells.len, cells.chunk))?;
            let (chunk, generation, slot, len) = (ChunkId(cells.chunk), cells.generation, cells.slot, cells.len);
            Ok::<_, String>(CellRun { chunk, generation, slot, len })
        };
        let runs = pointer.runs.iter().map(run).collect::<Result<_, _>>()?;
        Ok(Self { name: pointer.name, partition: PartitionId(pointer.partition), column: ColumnId(column), runs })
    }
}

impl From<&BatchRef> for Ticket {
    fn from(batch: &BatchRef) -> Self {
        let columns = batch.columns.iter().map(Pointer::from).collect();
        Self { incarnation: batch.incarnation, columns, rows: batch.rows.len() }
    }
}

impl From<&Values> for Vector {
    fn from(values: &Values) -> Self {
        // Little-endian, as everything here: `transferqueue` builds for no other host.
        let (dtype, data) = match values {
            Values::Bytes(bytes) => (0, Bytes::copy_from_slice(bytes)),
            Values::F32(values) => (1, Bytes::copy_from_slice(bytemuck::cast_slice(values))),
            Values::F64(values) => (2, Bytes::copy_from_slice(bytemuck::cast_slice(values))),
        };
        Self { dtype, data }
    }
}

impl TryFrom<Vector> for Values {
    type Error = String;

    fn try_from(vector: Vector) -> Result<Self, String> {
        let bytes = vector.data;
        let whole = |width: usize| match bytes.len() % width {
            0 => Ok(()),
            _ => Err(format!("a vector of {} bytes, elements have {width}", bytes.len())),
        };
        match vector.dtype {
            0 => Ok(Self::Bytes(bytes.to_vec())),
            1 => whole(4).map(|()| Self::F32(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())),
            2 => whole(8).map(|()| Self::F64(bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect())),
            other => Err(format!("a vector of type {other}; known are 0 (bytes), 1 (f32), 2 (f64)")),
        }
    }
}

impl Placed {
    pub(crate) fn new(chunk: ChunkId, slot: u32, sizes: &Sizes) -> Self {
        let (uniform, each) = match sizes {
            Sizes::Uniform(bytes) => (Some(*bytes), Vec::new()),
            Sizes::Each(each) => (None, each.clone()),
        };
        Self { spot: Some(Spot { chunk: chunk.0, slot }), uniform, each }
    }

    /// Where `cells` cells lie; the error says what does not fit.
    pub(crate) fn read(self, cells: usize) -> Result<(ChunkId, u32, Sizes), String> {
        let spot = self.spot.ok_or("the server does not say where the cells lie")?;
        let sizes = match self.uniform {
            Some(bytes) => Sizes::Uniform(bytes),
            None if self.each.len() == cells => Sizes::Each(self.each),
            None => return Err(format!("the server took {} cells, {cells} were sent", self.each.len())),
        };
        Ok((ChunkId(spot.chunk), spot.slot, sizes))
    }
}
