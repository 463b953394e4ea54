//! Writers of this host: they are given room in segments of their own, write the cells there, and say so.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    error::Error,
    server::{limits, service::Service, writing::Destination},
    transport::TransportError,
    unit::{
        Unit, Units,
        arena::{Backed, Filler, Reserved},
    },
    wire::{
        self,
        shm::{Fill, Reserve},
    },
};

/// What one connection has reserved and not filled. With this, its segments are nobody's: what was put in them stays, and they
/// are not written to again.
pub(super) struct Rooms {
    units: Units,
    filler: Filler,
    rooms: HashMap<u64, Room>,
    /// Of all of them.
    bytes: usize,
}

struct Room {
    to: Destination,
    unit: Unit,
    reserved: Reserved,
}

impl Rooms {
    pub(super) fn new(units: Units) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let filler = Filler::Process(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { units, filler, rooms: HashMap::new(), bytes: 0 }
    }

    /// Room for the cells of a put, and where it lies; `None` where no other process can write.
    pub(super) fn reserve(&mut self, service: &Service, ask: Reserve) -> Result<Option<Backed>, Error> {
        let to = Destination::of(service, ask.partition, ask.column)?;
        let bytes = ask.offsets.saturating_add(ask.values);
        let (open, sum) = (self.rooms.len(), bytes.saturating_add(self.bytes as u64));
        let refused = |why| TransportError::Travel { column: to.column().name.clone(), why };
        let layout = to.layout(ask.rows, ask.offsets, ask.values)?;
        if open >= limits::ROOMS || sum > limits::HELD_BYTES {
            let (most, most_bytes) = (limits::ROOMS, limits::HELD_BYTES);
            let why = format!(
                "this process would have reserved {sum} bytes for {} puts and not filled them, expected at most {most_bytes} \
                 for {most}; fill what is reserved first",
                open + 1
            );
            return Err(refused(why).into());
        }
        if self.rooms.contains_key(&ask.room) {
            return Err(refused(format!("room {} is reserved and not filled; number each room anew", ask.room)).into());
        }
        let column = to.column();
        let reserved = service.aside_for(layout.bytes(), || self.units.reserve(self.filler, column, layout));
        let Some((unit, reserved)) = reserved.map_err(TransportError::Unit)? else { return Ok(None) };
        let backed = reserved.backed();
        self.bytes += layout.bytes();
        self.rooms.insert(ask.room, Room { to, unit, reserved });
        Ok(Some(backed))
    }

    /// Room that will not be filled.
    pub(super) fn release(&mut self, room: u64) {
        if let Some(room) = self.rooms.remove(&room) {
            self.bytes -= room.reserved.layout().bytes();
        }
    }

    /// Cells lie where room was reserved for them: they are looked at, and held for the session that has put them.
    pub(super) fn fill(&mut self, service: &Service, Fill { room, put }: Fill) -> Result<wire::Placed, Error> {
        let found = self.rooms.remove(&room);
        let refused = |why| TransportError::Travel { column: format!("at position {}", put.column), why };
        let Some(Room { to, unit, reserved }) = found else {
            return Err(refused(format!("room {room} is not reserved by this process; reserve before filling")).into());
        };
        self.bytes -= reserved.layout().bytes();
        if !to.is_of(&put) {
            return Err(refused(format!("room {room} was reserved for column `{}`", to.column().name)).into());
        }
        to.filled(service, put, &unit, reserved)
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        self.rooms.clear();
        self.units.leave(self.filler);
    }
}
