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
    flight::{Begun, Flight, Received},
    runtime::block_on,
    shm::Shm,
};
use crate::{
    catalog::command::ColumnRef,
    ids::{ColumnId, PartitionId},
    transport::{
        Lens, Placed, Room, Target, Transport, TransportError, View,
        room::{Place, Wanted, array, misfit},
    },
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
    /// Through shared memory alone: what cannot be read there is an error. (Small cells come along with the command that names
    /// them, which goes over the network when nobody answers on the socket.)
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
    rooms: Ways<AtomicU64>,
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
    /// Room that was asked for: in the store's memory, or in this process's own, to be sent.
    pub rooms: Ways,
}

impl Counts {
    /// So many puts came along with a command; `near`: over the socket of the same host.
    pub(super) fn put(&self, near: bool, puts: usize) {
        let way = if near { &self.puts.shm } else { &self.puts.flight };
        way.fetch_add(puts as u64, Ordering::Relaxed);
    }

    pub(super) fn traffic(&self) -> Traffic {
        let read = |ways: &Ways<AtomicU64>| Ways {
            shm: ways.shm.load(Ordering::Relaxed),
            ucx: ways.ucx.load(Ordering::Relaxed),
            flight: ways.flight.load(Ordering::Relaxed),
        };
        Traffic { gets: read(&self.gets), puts: read(&self.puts), calls: read(&self.calls), rooms: read(&self.rooms) }
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

    /// Puts cells, before any command names them.
    fn put_apart(&self, begun: Begun<'_>) -> Result<Placed, TransportError> {
        let near = self.near(&begun.column.name, |shm| shm.put(begun.numbered.put, begun.column, &begun.array))?;
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

    /// Through shared memory, where there is any.
    fn near<T>(
        &self,
        column: &str,
        ask: impl Fn(&Arc<Shm>) -> Result<T, Otherwise>,
    ) -> Result<Option<T>, TransportError> {
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
        self.put_apart(self.flight.begin(target, array)?)
    }

    fn put_along(&self, target: Target<'_>, array: ArrayRef) -> Result<Placed, TransportError> {
        let mut begun = self.flight.begin(target, array)?;
        match self.flight.client.takes_along.then(|| begun.along()).transpose()?.flatten() {
            Some(placed) => Ok(placed),
            None => self.put_apart(begun),
        }
    }

    fn reserve(&self, target: Target<'_>, lens: Lens<'_>) -> Result<Room, TransportError> {
        let wanted = Wanted::of(target.column, lens).map_err(misfit)?;
        let of = (target.partition.0, u32::from(target.id.0));
        let near = self.near(&target.column.name, |shm| shm.room(of, &target.column.name, wanted.layout))?;
        let Some(mut claim) = near else {
            self.counts.rooms.flight.fetch_add(1, Ordering::Relaxed);
            return Ok(Room::apart(target, wanted, |len| self.flight.memory(len)));
        };
        claim.fill_offsets(&wanted.offsets);
        self.counts.rooms.shm.fetch_add(1, Ordering::Relaxed);
        Ok(Room::new(target, wanted.layout, Place::Near(claim)))
    }

    fn put_room(&self, target: Target<'_>, room: Room) -> Result<Placed, TransportError> {
        let rows = room.rows();
        let claim = match (room.place_for(target)?, &self.shm) {
            (Place::Near(claim), Some(shm)) if claim.is_of(shm) => claim,
            (Place::Apart { offsets, values }, _) => {
                return self.put(target, array(target.column, rows, offsets, values).map_err(misfit)?);
            }
            (Place::Here(..) | Place::Near(_), _) => return Err(TransportError::elsewhere(target.column)),
        };
        let shm = self.shm.as_ref().expect("invariant: the claim is of it");
        let numbered = self.flight.number(target)?;
        // Never another way: when the connection is lost, the store has taken the room back, and what was written there may be gone.
        let placed = shm.fill(claim, numbered.put, &target.column.name).map_err(|otherwise| match otherwise {
            Otherwise::Refused(error) => error,
            Otherwise::Lost(why) | Otherwise::Elsewhere(why) => {
                let why =
                    format!("{why}: the cells went with the room they were in; reserve again, fill and put again");
                TransportError::Travel { column: target.column.name.clone(), why }
            }
        })?;
        self.counts.puts.shm.fetch_add(1, Ordering::Relaxed);
        numbered.end(placed, rows)
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
