//! A partition: its rows, groups, cells, chunks and cut batches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::{
    super::{
        bits::Bits,
        command::{RowHead, Sampled, SpillFile},
        definition::{Birth, Gate},
    },
    cursor::Tally,
    pages::{Pages, Row},
};
use crate::{
    ids::{ChunkId, GroupId, PartitionId, RowId, SessionId, TaskId},
    schema::Column,
};

/// A column with its readers and its account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Field {
    pub(crate) def: Column,
    /// Tasks of this partition that read it.
    pub(crate) readers: u64,
    /// Tasks of this partition that write it.
    pub(crate) writers: u64,
    /// Child partitions read it through a link.
    pub(crate) linked: bool,
    /// Held cells, sealed or open.
    pub(crate) cells: u64,
    /// Bytes of held cells.
    pub(crate) live: u64,
    /// Bytes of dead cells whose chunk still has live ones.
    pub(crate) dead: u64,
    /// Bytes of chunks that are gone.
    pub(crate) freed: u64,
    /// Bytes ever written: live + dead + freed, always.
    pub(crate) written: u64,
    /// Of the live bytes, those that lie in a file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) spilled: u64,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// A unit of memory as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    pub(crate) column: u16,
    /// Runs of cells that still hold it.
    pub(crate) runs: u64,
    /// Bytes of all cells ever written to it.
    pub(crate) bytes: u64,
    /// Highest slot ever written + 1.
    pub(crate) slots: u32,
    /// Number of the file that its live cells lie in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spill: Option<u64>,
}

/// A file of cells that were taken out of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spill {
    pub(crate) file: SpillFile,
    /// Chunks that lie in it and are not freed.
    pub(crate) chunks: BTreeSet<ChunkId>,
}

/// A cell that is still being appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Open {
    pub(crate) chunk: ChunkId,
    #[serde(default)]
    pub(crate) slot: u32,
    pub(crate) bytes: u32,
}

/// Open cells of a row that outlive the lease under which they were written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// Who saved them.
    pub(crate) worker: String,
    /// Weight versions of the tokens in them.
    pub(crate) sampled: Vec<Sampled>,
}

/// Rows born from one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) first: RowId,
    pub(crate) n: u32,
    pub(crate) parent: RowId,
    pub(crate) ordinal: u64,
    /// Weight version at admission.
    pub(crate) version: u64,
    /// Rows that are in the table.
    pub(crate) live: u32,
    /// Rows that some task owes or may owe.
    pub(crate) owed: u32,
    /// Rows that miss a column batches are cut on.
    pub(crate) incomplete: u32,
    /// Its place in the order of completion.
    pub(crate) completed: Option<u64>,
    /// Lowest version that first tokens of its rows were noted to be sampled with.
    pub(crate) sampled: Option<u64>,
    /// Rows with such a note.
    pub(crate) noted: u32,
    /// The batch it was cut into.
    pub(crate) cut: Option<(u64, u64)>,
    /// Its cycle has ended.
    pub(crate) retired: bool,
    /// By tasks that claim groups.
    pub(crate) tallies: Vec<Tally>,
}

impl Group {
    pub(crate) fn rows(&self) -> impl Iterator<Item = RowId> + use<> {
        (self.first.0..self.first.0 + u64::from(self.n)).map(RowId)
    }

    /// The oldest version a first token of the group was sampled with; rows without a note count as `unknown`.
    pub(crate) fn oldest(&self, unknown: u64) -> u64 {
        match self.sampled {
            Some(first) if self.noted >= self.live => first,
            Some(first) => first.min(unknown),
            None => unknown,
        }
    }
}

/// Groups that were cut together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) groups: Vec<GroupId>,
    pub(crate) last: bool,
    /// By tasks that claim batches.
    pub(crate) tallies: Vec<Tally>,
}

/// A round of an expansion with [`Gate::Every`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) version: u64,
    pub(crate) groups: BTreeSet<GroupId>,
    /// Groups that miss a column batches are cut on.
    pub(crate) incomplete: u64,
    /// Groups with rows that some task owes.
    pub(crate) owed: u64,
    pub(crate) cut: bool,
}

/// How rows are born into a partition that expands another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Expansion {
    pub(crate) parent: PartitionId,
    pub(crate) n: u32,
    pub(crate) gate: Gate,
    /// Parent columns read through the group: name and position there.
    pub(crate) links: Vec<(String, u16)>,
    /// Parent rows below this id are expanded (`Gate::Schedule`).
    pub(crate) next: RowId,
    /// Versions whose round is due and not admitted (`Gate::Every`).
    pub(crate) due: VecDeque<u64>,
    /// The last version that was due.
    pub(crate) last_due: Option<u64>,
    /// The round under way.
    pub(crate) round: Option<Round>,
}

/// A partition's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) birth: Birth,
    /// Part of the definition, and so never deleted.
    pub(crate) declared: bool,
    /// The session that added it and has not offered it.
    pub(crate) owner: Option<SessionId>,
    pub(crate) closed: bool,
    /// Its consumers; position = bit in the rows.
    pub(crate) tasks: Vec<TaskId>,
    pub(crate) expansion: Option<Expansion>,
    pub(crate) children: Vec<PartitionId>,
    /// Columns that complete a row for cutting.
    pub(crate) cut_on: u64,
    /// Columns kept until their rows are dropped.
    pub(crate) kept: u64,
    /// Columns that some task writes.
    pub(crate) made: u64,
    /// Number of `Group::tallies` and of `Batch::tallies`.
    pub(crate) group_tallies: usize,
    pub(crate) batch_tallies: usize,

    pub(crate) next_row: RowId,
    pub(crate) next_group: GroupId,
    pub(crate) live: Bits,
    pub(crate) pages: Pages,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) keys: BTreeMap<String, RowId>,
    pub(crate) chunks: BTreeMap<ChunkId, Chunk>,
    /// By number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) spills: BTreeMap<u64, Spill>,
    #[serde(with = "open_cells")]
    pub(crate) open: BTreeMap<(RowId, u16), Open>,
    /// Rows that a task has begun and not finished: their open cells are those of the columns it writes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "saved_rows")]
    pub(crate) saved: BTreeMap<(RowId, TaskId), Saved>,
    /// First row and group admitted under each version, as far as rows of it may live.
    pub(crate) eras: BTreeMap<u64, (RowId, GroupId)>,
    /// Bytes declared for cells that are not sealed yet.
    pub(crate) reserved: u64,
    #[serde(with = "batches")]
    pub(crate) batches: BTreeMap<(u64, u64), Batch>,
}

impl Table {
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.def.name == name)
    }

    /// Rows stay until the partition is deleted, since nobody is declared to consume them.
    pub(crate) fn lasting(&self) -> bool {
        self.tasks.is_empty() && self.children.is_empty()
    }

    /// Bytes a row of this partition may come to hold in columns with a declared maximum.
    pub(crate) fn reservation(&self) -> u64 {
        self.fields.iter().filter_map(|field| field.def.max_bytes).sum()
    }

    /// Bytes that count against the budget: reserved, or held in memory in columns with a declared maximum. A cell that is
    /// still open lies within what is reserved for it.
    pub(crate) fn budgeted(&self) -> u64 {
        let limited = |field: &&Field| field.def.max_bytes.is_some();
        let held: u64 = self.fields.iter().filter(limited).map(|field| field.live - field.spilled).sum();
        let in_memory = |((_, column), open): &(&(RowId, u16), &Open)| {
            self.fields[usize::from(*column)].def.max_bytes.is_some() && !self.is_spilled(open.chunk)
        };
        let open: u64 = self.open.iter().filter(in_memory).map(|(_, open)| u64::from(open.bytes)).sum();
        self.reserved + held - open
    }

    /// The open cells of a row in some columns.
    pub(crate) fn open_in(&self, row: RowId, columns: u64) -> impl Iterator<Item = (u16, Open)> + '_ {
        let cells = self.open.range((row, 0)..=(row, u16::MAX)).map(|((_, column), open)| (*column, *open));
        cells.filter(move |(column, _)| columns & 1 << column != 0)
    }

    /// What tasks have saved of a row.
    pub(crate) fn saved_of(&self, row: RowId) -> impl Iterator<Item = (TaskId, &Saved)> + '_ {
        self.saved.range((row, TaskId(0))..=(row, TaskId(u32::MAX))).map(|((_, task), saved)| (*task, saved))
    }

    /// Whether the live cells of a chunk lie in a file.
    pub(crate) fn is_spilled(&self, chunk: ChunkId) -> bool {
        !self.spills.is_empty() && self.chunks.get(&chunk).is_some_and(|chunk| chunk.spill.is_some())
    }

    /// Live rows that the child with the schedule's gate has not expanded, or all of them without such a child.
    pub(crate) fn unexpanded(&self, next: RowId) -> u64 {
        self.live.len_from(next.0)
    }

    /// Group, ordinal and admission version of a row.
    pub(crate) fn origin(&self, id: RowId, row: &Row) -> (u64, u64) {
        match self.groups.get(&row.group) {
            Some(group) => (group.ordinal, group.version),
            None => (id.0, 0),
        }
    }

    pub(crate) fn head(&self, id: RowId, row: &Row) -> RowHead {
        let (ordinal, version) = self.origin(id, row);
        RowHead { row: id, group: row.group, ordinal, sample: row.sample, version, span: row.span(), tags: row.tags() }
    }

    /// Whether all columns that batches are cut on are there, or will never come.
    pub(crate) fn complete(&self, row: &Row) -> bool {
        self.cut_on & !row.settled() == 0
    }

    /// Names of the columns in a mask.
    pub(crate) fn names(&self, mask: u64) -> String {
        let names: Vec<String> = set_bits(mask).map(|c| format!("`{}`", self.fields[c].def.name)).collect();
        names.join(", ")
    }
}

/// Positions of the bits set, lowest first.
pub(crate) fn set_bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        bit
    })
}

/// Maps with pairs as keys are written as lists, so that JSON can hold them.
macro_rules! listed {
    ($name:ident, $key:ty, $value:ty) => {
        mod $name {
            use serde::{Deserialize, Deserializer, Serializer};

            use super::*;

            pub(super) fn serialize<S: Serializer>(map: &BTreeMap<$key, $value>, to: S) -> Result<S::Ok, S::Error> {
                to.collect_seq(map)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<$key, $value>, D::Error> {
                Vec::<($key, $value)>::deserialize(from).map(BTreeMap::from_iter)
            }
        }
    };
}

listed!(open_cells, (RowId, u16), Open);
listed!(saved_rows, (RowId, TaskId), Saved);
listed!(batches, (u64, u64), Batch);
