//! What a hook sees of a publication.

use crate::{
    catalog::{Publication as Consumed, State, event::Record},
    snapshot::Captured,
    unit::Units,
};

/// A publication, seen by a hook in the moment it happens.
pub struct Publication<'a> {
    /// What was published, and every row that training consumed for it.
    pub consumed: &'a Consumed,
    /// The whole transaction.
    pub record: &'a Record,
    /// The state right after it.
    pub state: &'a State,
    units: &'a Units,
}

impl<'a> Publication<'a> {
    pub(super) fn new(consumed: &'a Consumed, record: &'a Record, state: &'a State, units: &'a Units) -> Self {
        Self { consumed, record, state, units }
    }

    /// Exactly this position, to be written as a snapshot by another thread.
    pub fn capture(&self) -> Captured {
        Captured::take(self.state, self.units)
    }
}
