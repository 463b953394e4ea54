//! Which way the bytes of a session come: through memory of the same host where they can, over the network where not.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arrow::array::ArrayRef;
use serde::{Deserialize, Serialize};

use super::{
    flight::Flight,
    shm::{Otherwise, Shm},
};
use crate::{
    catalog::command::ColumnRef,
    ids::{ColumnId, PartitionId},
    transport::{Placed, Target, Transport, TransportError, View},
    unit::OpenCell,
};

/// Which way bytes may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The best there is for each get.
    #[default]
    Auto,
    /// Over Arrow Flight alone.
    Flight,
    /// Through shared memory alone: what cannot be read there is an error.
    Shm,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Flight => "flight",
            Self::Shm => "shm",
        })
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Auto, Self::Flight, Self::Shm].into_iter().find(|choice| choice.to_string() == text);
        known.ok_or_else(|| format!("found the transport `{text}`, expected auto, flight or shm"))
    }
}

/// Gets by the way they came.
#[derive(Debug, Default)]
pub(super) struct Counts {
    shm: AtomicU64,
    flight: AtomicU64,
}

/// How many gets came which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Through shared memory: no byte was copied.
    pub shm: u64,
    /// Over Arrow Flight.
    pub flight: u64,
}

impl Counts {
    pub(super) fn traffic(&self) -> Traffic {
        Traffic { shm: self.shm.load(Ordering::Relaxed), flight: self.flight.load(Ordering::Relaxed) }
    }
}

/// The transport of a session.
pub(super) struct Paths {
    pub(super) flight: Flight,
    pub(super) shm: Option<Arc<Shm>>,
    pub(super) choice: Choice,
    pub(super) counts: Arc<Counts>,
}

impl Paths {
    /// Lets the store know of what was dropped here.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        self.flight.settle().unwrap();
        self.shm.iter().for_each(|shm| shm.settle().unwrap());
    }

    /// Through shared memory; `None`: another way is to be tried.
    fn near(&self, pointer: &ColumnRef) -> Result<Option<Vec<View>>, TransportError> {
        let Some(shm) = &self.shm else { return Ok(None) };
        match shm.get(pointer) {
            Ok(views) => Ok(Some(views)),
            Err(Otherwise::Refused(error)) => Err(error),
            Err(Otherwise::Elsewhere(why)) if self.choice == Choice::Shm => {
                let why = format!("{why}; shared memory is the only path allowed, use `auto` to take others");
                Err(TransportError::Travel { column: pointer.name.clone(), why })
            }
            Err(Otherwise::Elsewhere(why)) => {
                tracing::debug!(column = pointer.name, why, "over Flight instead");
                Ok(None)
            }
        }
    }
}

impl Transport for Paths {
    fn name(&self) -> &'static str {
        if self.shm.is_some() { "shm" } else { self.flight.name() }
    }

    fn put(&self, target: Target<'_>, array: ArrayRef) -> Result<Placed, TransportError> {
        self.flight.put(target, array)
    }

    fn get(&self, pointer: &ColumnRef) -> Result<Vec<View>, TransportError> {
        if pointer.runs.iter().all(|run| run.len == 0) {
            return Ok(Vec::new());
        }
        if let Some(views) = self.near(pointer)? {
            self.counts.shm.fetch_add(1, Ordering::Relaxed);
            return Ok(views);
        }
        let views = self.flight.get(pointer)?;
        self.counts.flight.fetch_add(1, Ordering::Relaxed);
        Ok(views)
    }

    fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell {
        self.flight.open(partition, id)
    }
}
