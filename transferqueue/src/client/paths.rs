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
    runtime::block_on,
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

/// Gets, puts and commands by the way they went.
#[derive(Debug, Default)]
pub(super) struct Counts {
    gets: Ways<AtomicU64>,
    puts: Ways<AtomicU64>,
    pub(super) calls: Ways<AtomicU64>,
}

/// What went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways<T = u64> {
    /// Through shared memory: between the processes no byte was copied. Commands: over the socket beside it.
    pub shm: T,
    /// Over Arrow Flight.
    pub flight: T,
}

/// How many gets, puts and commands went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Cells that were read.
    pub gets: Ways,
    /// Cells that were written.
    pub puts: Ways,
    /// Commands, each as often as it was asked (one that had to wait, again when it was woken).
    pub calls: Ways,
}

impl Counts {
    pub(super) fn traffic(&self) -> Traffic {
        let read = |ways: &Ways<AtomicU64>| Ways {
            shm: ways.shm.load(Ordering::Relaxed),
            flight: ways.flight.load(Ordering::Relaxed),
        };
        Traffic { gets: read(&self.gets), puts: read(&self.puts), calls: read(&self.calls) }
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

    /// Through shared memory; `None`: another way is to be tried. Where no other is allowed, a store that does not answer is
    /// asked again, for as long as it would be over Flight.
    fn near<T>(&self, column: &str, ask: impl Fn(&Shm) -> Result<T, Otherwise>) -> Result<Option<T>, TransportError> {
        let Some(shm) = &self.shm else { return Ok(None) };
        let alone = self.choice == Choice::Shm;
        let mut attempts = self.flight.attempts();
        loop {
            let why = match ask(shm) {
                Ok(done) => return Ok(Some(done)),
                Err(Otherwise::Refused(error)) => return Err(error),
                Err(Otherwise::Lost(_)) if alone && block_on(attempts.again()) => continue,
                Err(Otherwise::Lost(why)) if alone => format!("{why} (asked for {} ms)", attempts.waited_ms()),
                Err(Otherwise::Lost(why) | Otherwise::Elsewhere(why)) => why,
            };
            if alone {
                let why = format!("{why}; shared memory is the only path allowed, use `auto` to take others");
                return Err(TransportError::Travel { column: column.to_owned(), why });
            }
            tracing::debug!(column, why, "over Flight instead");
            return Ok(None);
        }
    }
}

impl Transport for Paths {
    fn name(&self) -> &'static str {
        if self.shm.is_some() { "shm" } else { self.flight.name() }
    }

    fn put(&self, target: Target<'_>, array: ArrayRef) -> Result<Placed, TransportError> {
        let begun = self.flight.begin(target, array)?;
        let near = self.near(&begun.column.name, |shm| shm.put(begun.put, begun.column, &begun.array))?;
        let placed = match near {
            Some(placed) => {
                self.counts.puts.shm.fetch_add(1, Ordering::Relaxed);
                placed
            }
            None => {
                let placed = self.flight.send(&begun)?;
                self.counts.puts.flight.fetch_add(1, Ordering::Relaxed);
                placed
            }
        };
        begun.end(placed)
    }

    fn get(&self, pointer: &ColumnRef) -> Result<Vec<View>, TransportError> {
        if pointer.runs.iter().all(|run| run.len == 0) {
            return Ok(Vec::new());
        }
        if let Some(views) = self.near(&pointer.name, |shm| shm.get(pointer))? {
            self.counts.gets.shm.fetch_add(1, Ordering::Relaxed);
            return Ok(views);
        }
        let views = self.flight.get(pointer)?;
        self.counts.gets.flight.fetch_add(1, Ordering::Relaxed);
        Ok(views)
    }

    fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell {
        self.flight.open(partition, id)
    }
}
