//! Sets of rows: a roaring bitmap in memory, runs `[first, length]` when written down.

use std::fmt;

use roaring::RoaringTreemap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{RowId, Rows};

/// A set of row (or group) ids.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Bits(RoaringTreemap);

impl Bits {
    pub(crate) fn insert(&mut self, id: u64) -> bool {
        self.0.insert(id)
    }

    pub(crate) fn remove(&mut self, id: u64) -> bool {
        self.0.remove(id)
    }

    pub(crate) fn insert_run(&mut self, first: u64, len: u64) {
        if len > 0 {
            self.0.insert_range(first..first + len);
        }
    }

    pub(crate) fn remove_rows(&mut self, rows: &Rows) {
        for &(first, len) in rows.runs() {
            match len {
                1 => _ = self.0.remove(first),
                _ => _ = self.0.remove_range(first..first + len),
            }
        }
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.0.contains(id)
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn min(&self) -> Option<u64> {
        self.0.min()
    }

    /// The `n`-th smallest id, from 0.
    pub(crate) fn select(&self, n: u64) -> Option<u64> {
        self.0.select(n)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter()
    }

    /// Ids of at least `first`, in order.
    pub(crate) fn iter_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let mut iter = self.0.iter();
        iter.advance_to(first);
        iter
    }

    /// Number of ids of at least `first`.
    pub(crate) fn len_from(&self, first: u64) -> u64 {
        match first {
            0 => self.0.len(),
            _ => self.0.len() - self.0.rank(first - 1),
        }
    }

    pub(crate) fn subtract(&mut self, other: &Bits) {
        self.0 -= &other.0;
    }

    pub(crate) fn union(&mut self, other: &Bits) {
        self.0 |= &other.0;
    }

    pub(crate) fn intersection(&self, other: &Bits) -> Bits {
        Bits(&self.0 & &other.0)
    }

    pub(crate) fn is_subset(&self, other: &Bits) -> bool {
        self.0.is_subset(&other.0)
    }

    pub(crate) fn rows(&self) -> Rows {
        self.iter().map(RowId).collect()
    }
}

impl From<&Rows> for Bits {
    fn from(rows: &Rows) -> Self {
        let mut bits = Self::default();
        for &(first, len) in rows.runs() {
            match len {
                1 => _ = bits.insert(first),
                _ => bits.insert_run(first, len),
            }
        }
        bits
    }
}

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.rows())
    }
}

impl Serialize for Bits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Rows::deserialize(deserializer).map(|rows| Self::from(&rows))
    }
}
