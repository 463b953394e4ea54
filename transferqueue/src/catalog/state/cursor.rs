//! A task at work: which rows it owes, which of them it could claim, and what it has done so far.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    super::{bits::Bits, definition},
    gang::Gang,
    reuse::Reuse,
};
use crate::ids::{LeaseId, ModelId, PartitionId, RowId, SessionId};

/// Which model a task trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Training {
    pub(crate) model: ModelId,
    pub(crate) from_cycle: u64,
}

/// How a task's rows are counted besides one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Counted {
    /// Rows are claimed one by one.
    Rows,
    /// Per group; the number is its place in `Group::tallies`.
    Groups(usize),
    /// Per cut batch; the number is its place in `Batch::tallies`.
    Batches(usize),
}

/// The state of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    pub(crate) def: definition::Task,
    pub(crate) partition: PartitionId,
    /// This task's bit in the rows of its partition.
    pub(crate) bit: u64,
    /// Own columns that must be sealed.
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) counted: Counted,
    pub(crate) training: Option<Training>,
    /// The ranks that share its batches.
    #[serde(default)]
    pub(crate) gang: Option<Gang>,
    /// A claim returns rows of one admission version only.
    pub(crate) one_version: bool,
    /// Uses of its rows, if each is drawn more than once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reuse: Option<Box<Reuse>>,

    /// Rows owed: ready, leased, done, or waiting for a column.
    pub(crate) owing: Bits,
    /// Rows whose filter is not decided yet.
    pub(crate) undecided: u64,
    /// Rows that may be claimed (for batches: once cut).
    pub(crate) ready: Bits,
    /// Rows a training task has committed and the publication has yet to consume.
    pub(crate) done: Bits,
    /// Groups whose owed rows are all ready (`Counted::Groups`).
    pub(crate) ready_groups: Bits,
    pub(crate) leases: BTreeSet<LeaseId>,
    /// Failures of rows that failed at all.
    pub(crate) attempts: BTreeMap<RowId, u32>,
    /// Sessions whose memory holds the training of `done` rows.
    pub(crate) trainers: BTreeSet<SessionId>,

    /// Rows ever owed.
    pub(crate) owed: u64,
    pub(crate) consumed: u64,
    /// Rows that left unread, by reason.
    pub(crate) dropped: BTreeMap<String, u64>,
}

impl Cursor {
    /// Nothing is owed, and nothing that was born may come to be.
    pub(crate) fn idle(&self) -> bool {
        self.undecided == 0 && self.owing.is_empty()
    }

    pub(crate) fn drop_one(&mut self, reason: &str) {
        match self.dropped.get_mut(reason) {
            Some(n) => *n += 1,
            None => _ = self.dropped.insert(reason.to_owned(), 1),
        }
    }

    /// Whether it trains in `cycle`.
    pub(crate) fn trains_in(&self, cycle: u64) -> bool {
        self.training.is_some_and(|t| t.from_cycle <= cycle)
    }
}

/// Rows of one group or batch, as one task sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Owed (or not yet decided) and neither consumed nor done.
    pub(crate) left: u32,
    /// Of these, ready.
    pub(crate) ready: u32,
    /// Of these, leased.
    pub(crate) leased: u32,
}

/// A change of a [`Tally`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) left: i32,
    pub(crate) ready: i32,
    pub(crate) leased: i32,
}

impl Tally {
    pub(crate) fn shift(&mut self, by: Delta) {
        let add = |n: &mut u32, by: i32| {
            *n = n.checked_add_signed(by).expect("invariant: no row is counted out before it is counted in");
        };
        add(&mut self.left, by.left);
        add(&mut self.ready, by.ready);
        add(&mut self.leased, by.leased);
    }

    /// All that is left is ready, and something is.
    pub(crate) fn whole(&self) -> bool {
        self.left > 0 && self.ready == self.left
    }

    /// What nobody holds is ready, and something is.
    pub(crate) fn servable(&self) -> bool {
        self.ready > 0 && self.ready + self.leased == self.left
    }
}
