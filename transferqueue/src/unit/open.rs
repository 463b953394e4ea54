//! Open cells: a ragged cell that grows step by step and is sealed once.

use std::sync::Arc;

use super::{Inner, Key};
use crate::element::Element;

/// A cell in the making. Its bytes belong to its writer alone: readers see the cell when it is sealed and committed.
/// Dropping it unsealed forgets it.
pub struct OpenCell {
    unit: Arc<Inner>,
    key: Key,
    /// What came with each append; joined by one copy at the seal.
    parts: Vec<Box<[u8]>>,
    bytes: u64,
}

impl OpenCell {
    pub(super) fn new(unit: Arc<Inner>, key: Key) -> Self {
        Self { unit, key, parts: Vec::new(), bytes: 0 }
    }

    /// Adds elements at the end.
    pub fn append<T: Element>(&mut self, elements: &[T]) {
        let part: Box<[u8]> = T::bytes(elements).into();
        self.count(part.len() as i64);
        self.parts.push(part);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The parts in order, for the copy that seals the cell.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(AsRef::as_ref)
    }

    fn count(&mut self, change: i64) {
        self.bytes = self.bytes.wrapping_add_signed(change);
        let mut open = self.unit.open.lock().expect("invariant: nothing panics under this lock");
        let bytes = open.entry(self.key).or_default();
        *bytes = bytes.wrapping_add_signed(change);
        if *bytes == 0 {
            open.remove(&self.key);
        }
    }
}

impl Drop for OpenCell {
    fn drop(&mut self) {
        self.count(-(self.bytes as i64));
    }
}
