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
    flight::{Flight, Received},
    runtime::block_on,
    shm::Shm,
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
    /// Gets through UCX alone: what cannot be read there is an error. Puts as with `auto`. Refused in a build without the feature
    /// `ucx`.
    Ucx,
}

impl Choice {
    const ALL: [Self; 4] = [Self::Auto, Self::Flight, Self::Shm, Self::Ucx];

    /// Whether this build can do it.
    pub const fn is_built(self) -> bool {
        !matches!(self, Self::Ucx) || crate::ucx::Ucx::BUILT
    }

    /// A way, in words.
    pub(super) fn way(self) -> &'static str {
        match self {
            Self::Auto => "any way",
            Self::Flight => "Flight",
            Self::Shm => "shared memory",
            Self::Ucx => "UCX",
        }
    }
}

/// Why something did not go one way.
pub(super) enum Otherwise {
    /// The store did not answer; it may, when it is asked again.
    Lost(String),
    /// Another way may do it.
    Elsewhere(String),
    /// No way will.
    Refused(TransportError),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Flight => "flight",
            Self::Shm => "shm",
            Self::Ucx => "ucx",
        })
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|choice| choice.to_string() == text);
        known.ok_or_else(|| format!("found the transport `{text}`, expected auto, flight, shm or ucx"))
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
    /// Through UCX.
    pub ucx: T,
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
            ucx: ways.ucx.load(Ordering::Relaxed),
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

    /// One way; `None`: another is to be tried. Where no other is allowed, a store that does not answer is asked again, for as
    /// long as it would be over Flight.
    fn by<T>(
        &self,
        way: Choice,
        column: &str,
        ask: impl Fn() -> Result<T, Otherwise>,
    ) -> Result<Option<T>, TransportError> {
        let alone = self.choice == way;
        let mut attempts = self.flight.attempts();
        loop {
            let why = match ask() {
                Ok(done) => return Ok(Some(done)),
                Err(Otherwise::Refused(error)) => return Err(error),
                Err(Otherwise::Lost(_)) if alone && block_on(attempts.again()) => continue,
                Err(Otherwise::Lost(why)) if alone => format!("{why} (asked for {} ms)", attempts.waited_ms()),
                Err(Otherwise::Lost(why) | Otherwise::Elsewhere(why)) => why,
            };
            let way = way.way();
            if alone {
                let why = format!("{why}; {way} is the only path allowed, use `auto` to take others");
                return Err(TransportError::Travel { column: column.to_owned(), why });
            }
            tracing::debug!(column, why, "not through {way}");
            return Ok(None);
        }
    }

    /// Through shared memory, where there is any.
    fn near<T>(&self, column: &str, ask: impl Fn(&Shm) -> Result<T, Otherwise>) -> Result<Option<T>, TransportError> {
        self.shm.as_ref().map_or(Ok(None), |shm| self.by(Choice::Shm, column, || ask(shm)))
    }
}

impl Transport for Paths {
    fn name(&self) -> &'static str {
        match (self.choice, &self.shm, &self.flight.client.ucx) {
            (Choice::Ucx, ..) | (_, None, Some(_)) => "ucx",
            (_, Some(_), _) => "shm",
            (_, None, None) => self.flight.name(),
        }
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
        if self.choice != Choice::Ucx
            && let Some(views) = self.near(&pointer.name, |shm| shm.get(pointer))?
        {
            self.counts.gets.shm.fetch_add(1, Ordering::Relaxed);
            return Ok(views);
        }
        let client = &self.flight.client;
        if let Some(ucx) = &client.ucx
            && let Some(arrays) = self.by(Choice::Ucx, &pointer.name, || ucx.get(client, pointer))?
        {
            self.counts.gets.ucx.fetch_add(1, Ordering::Relaxed);
            return Ok(Received::views(client, arrays));
        }
        let views = self.flight.get(pointer)?;
        self.counts.gets.flight.fetch_add(1, Ordering::Relaxed);
        Ok(views)
    }

    fn open(&self, partition: PartitionId, id: ColumnId) -> OpenCell {
        self.flight.open(partition, id)
    }
}
