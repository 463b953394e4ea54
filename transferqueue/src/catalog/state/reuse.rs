//! A task that draws every row several times: how often it has used each, and in which order claims go through them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::{bits::Bits, views::Uses};
use crate::ids::{RowId, Rows};

/// The uses of a task's rows. A row is consumed by its last use, and has none from then on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reuse {
    /// Uses that consume a row; at least 2.
    pub(crate) each: u32,
    /// Uses of rows it owes and has used.
    pub(crate) of: BTreeMap<RowId, u32>,
    /// What a claim may return (rows; whole groups, where groups are claimed), by the number of uses. A group has as many
    /// as the one of its rows with the fewest.
    pub(crate) passes: BTreeMap<u32, Bits>,
    /// Uses ever committed.
    pub(crate) committed: u64,
    /// Uses of rows that were dropped before their last one.
    pub(crate) dropped: u64,
}

impl Reuse {
    /// `None` for a task that uses a row once.
    pub(crate) fn new(each: u32) -> Option<Box<Self>> {
        let (of, passes) = (BTreeMap::new(), BTreeMap::new());
        (each > 1).then(|| Box::new(Self { each, of, passes, committed: 0, dropped: 0 }))
    }

    /// Uses of a row that is owed.
    pub(crate) fn uses(&self, row: RowId) -> u32 {
        self.of.get(&row).copied().unwrap_or(0)
    }

    /// A use was committed. Returns whether the row is to be used again.
    pub(crate) fn count(&mut self, row: RowId) -> bool {
        self.committed += 1;
        let uses = self.of.entry(row).or_insert(0);
        *uses += 1;
        let again = *uses < self.each;
        if !again {
            self.of.remove(&row);
        }
        again
    }

    /// A row leaves before its last use.
    pub(crate) fn forfeit(&mut self, row: RowId) {
        self.dropped += u64::from(self.of.remove(&row).unwrap_or(0));
    }

    /// A row (or group) may be claimed, in this pass; `None`: it may not.
    pub(crate) fn place(&mut self, id: u64, pass: Option<u32>) {
        self.passes.retain(|_, ids| {
            ids.remove(id);
            !ids.is_empty()
        });
        if let Some(pass) = pass {
            self.passes.entry(pass).or_default().insert(id);
        }
    }

    /// Rows were claimed.
    pub(crate) fn take(&mut self, rows: &Rows) {
        self.passes.retain(|_, ids| {
            ids.remove_rows(rows);
            !ids.is_empty()
        });
    }

    /// Uses to come of so many rows that are owed.
    pub(crate) fn left(&self, owed: u64) -> u64 {
        u64::from(self.each) * owed - self.view().live
    }

    pub(crate) fn view(&self) -> Uses {
        let live = self.of.values().copied().map(u64::from).sum();
        Uses { each: self.each, committed: self.committed, live, dropped: self.dropped }
    }
}
