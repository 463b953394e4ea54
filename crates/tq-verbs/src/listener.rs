//! A listener lets guests in, and shares memory with each of them for as long as it stays.
#![expect(unsafe_code, reason = "calls into librdmacm")]

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, JoinHandle},
};

use rdma_sys::{
    rdma_accept, rdma_bind_addr, rdma_cm_event_type, rdma_conn_param, rdma_get_src_port, rdma_listen, rdma_reject,
};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::write,
};

use crate::{
    Error, Key, Region, Ticket,
    error::check,
    events::{Address, Channel, Event, Id, readable},
    memory::Shared,
    queue::Pair,
};

/// Guests that have come and are not looked after yet.
const BACKLOG: i32 = 128;

/// Lets guests in, on a thread of its own. Its guests may outlive it; they hear nothing any more then, and nobody new comes in.
pub struct Listener {
    door: Arc<Door>,
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Who may come in, and who is there.
#[derive(Default)]
struct Door {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    invited: HashMap<Ticket, Weak<Seat>>,
    /// By the address of their identifier.
    there: HashMap<usize, Weak<Seat>>,
}

/// Somebody who may read what was shared with it, once it has come. Its keys are revoked when this is dropped.
pub struct Guest {
    ticket: Ticket,
    seat: Arc<Seat>,
    door: Weak<Door>,
}

struct Seat(Mutex<Stay>);

enum Stay {
    Invited,
    Here(Here),
    Gone(String),
}

/// Memory goes first, in the order of drops: its domain goes with the pair.
struct Here {
    memory: HashMap<u32, Shared>,
    pair: Pair,
}

/// What nothing panics under is not poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    /// Listens on an address of an RDMA device; with port 0, on one that is free.
    ///
    /// # Errors
    /// [`Error::System`] when there is no RDMA device at the address, the port is taken, or there is no room for a thread.
    pub fn start(address: SocketAddr) -> Result<Self, Error> {
        let what = format!("listening on {address} over RDMA");
        let channel = Channel::new()?;
        let id = Id::new(&channel)?;
        let mut raw = Address::from(address);
        // SAFETY: the identifier is there, and the address lives for the call.
        check(&what, unsafe { rdma_bind_addr(id.raw(), raw.raw()) })?;
        // SAFETY: the identifier is there, and has an address.
        check(&what, unsafe { rdma_listen(id.raw(), BACKLOG) })?;
        // SAFETY: as above.
        let port = u16::from_be(unsafe { rdma_get_src_port(id.raw()) });
        let door = Arc::new(Door::default());
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| Error::system(&what, error))?;
        let stop = Arc::new(stop);
        let (looks_after, stops) = (door.clone(), stop.clone());
        let serve = move || {
            if let Err(error) = looks_after.serve(&id, &stops) {
                tracing::error!(%error, "nobody is let in over RDMA any more");
            }
        };
        let thread = thread::Builder::new().name("verbs".into()).spawn(serve);
        let thread = Some(thread.map_err(|error| Error::system(&what, error))?);
        Ok(Self { door, address: SocketAddr::new(address.ip(), port), stop, thread })
    }

    /// Where guests connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Somebody who may come in, once, with this ticket.
    ///
    /// # Errors
    /// [`Error::Refused`] when the ticket is another guest's.
    pub fn invite(&self, ticket: Ticket) -> Result<Guest, Error> {
        let seat = Arc::new(Seat(Mutex::new(Stay::Invited)));
        let mut book = lock(&self.door.book);
        if book.invited.contains_key(&ticket) {
            return Err(Error::refused(
                "inviting a guest",
                "a ticket that somebody has",
                "one that was drawn at random",
            ));
        }
        book.invited.insert(ticket, Arc::downgrade(&seat));
        Ok(Guest { ticket, seat, door: Arc::downgrade(&self.door) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A counter that is full wakes as well.
        let _ = write(&*self.stop, &1u64.to_ne_bytes());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of an RDMA listener has panicked");
        }
    }
}

impl Door {
    fn serve(&self, listening: &Id, stop: &OwnedFd) -> Result<(), Error> {
        loop {
            readable(&[listening.channel.as_fd(), stop.as_fd()], None)?;
            if readable(&[stop.as_fd()], Some(std::time::Instant::now()))? {
                return Ok(());
            }
            while let Some(event) = listening.channel.next()? {
                let heard = self.heard(&event, &listening.channel);
                // Identifiers can be destroyed once their events were acknowledged, and not before.
                drop(event);
                match heard {
                    Some(Heard::Request { id, ticket, reads }) => self.let_in(id, ticket, reads),
                    // Not under a lock: it takes a while.
                    Some(Heard::Gone { seat, why }) => drop(seat.leave(why)),
                    None => {}
                }
            }
        }
    }

    /// What there is to do about an event.
    fn heard(&self, event: &Event<'_>, channel: &Arc<Channel>) -> Option<Heard> {
        match event.kind() {
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST => {
                // SAFETY: it is a request, and this is called once for it.
                let id = unsafe { Id::of(event, channel) }?;
                let (said, reads) = event.request();
                // The connection manager makes what was said longer.
                Some(Heard::Request { id, ticket: said.first_chunk().copied(), reads })
            }
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED | rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT => None,
            _ => {
                // It is looked up while its identifier cannot be destroyed: another may lie there after that.
                let seat = lock(&self.book).there.remove(&event.id().addr())?.upgrade()?;
                Some(Heard::Gone { seat, why: event.words() })
            }
        }
    }

    fn let_in(&self, id: Id, ticket: Option<Ticket>, reads: u8) {
        let mut book = lock(&self.book);
        let seat = ticket.and_then(|ticket| book.invited.remove(&ticket)).and_then(|seat| seat.upgrade());
        let Some(seat) = seat else {
            tracing::warn!("somebody without a ticket is not let in over RDMA");
            // SAFETY: the identifier is there, and is that of a request.
            unsafe { rdma_reject(id.raw(), ptr::null(), 0) };
            return;
        };
        let mut stay = lock(&seat.0);
        book.there.insert(id.raw().addr(), Arc::downgrade(&seat));
        drop(book);
        *stay = match accept(id, reads) {
            Ok(pair) => Stay::Here(Here { memory: HashMap::new(), pair }),
            Err(error) => Stay::Gone(error.to_string()),
        };
    }
}

enum Heard {
    /// Somebody wants to come in.
    Request { id: Id, ticket: Option<Ticket>, reads: u8 },
    /// Somebody has gone.
    Gone { seat: Arc<Seat>, why: String },
}

/// The end of a guest's connection.
fn accept(id: Id, reads: u8) -> Result<Pair, Error> {
    let pair = Pair::new(id)?;
    let mut params = rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: reads,
        // This side reads nothing.
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: 0,
        qp_num: 0,
    };
    // SAFETY: the identifier is there, is that of a request, and has a queue pair.
    check("letting a guest in", unsafe { rdma_accept(pair.id.raw(), &mut params) })?;
    Ok(pair)
}

impl Seat {
    /// What it had.
    fn leave(&self, why: String) -> Option<Here> {
        match std::mem::replace(&mut *lock(&self.0), Stay::Gone(why)) {
            Stay::Here(here) => Some(here),
            Stay::Invited | Stay::Gone(_) => None,
        }
    }
}

impl Guest {
    /// Shares memory with this guest, to be read.
    ///
    /// # Errors
    /// [`Error::Refused`] when it has not come yet, or there is no byte; [`Error::PeerGone`] when it has gone;
    /// [`Error::System`] when the device cannot register the memory.
    pub fn share(&self, owner: Arc<dyn Region>) -> Result<Key, Error> {
        let what = "sharing memory over RDMA";
        match &mut *lock(&self.seat.0) {
            Stay::Here(here) => {
                let shared = Shared::new(&here.pair.domain, owner)?;
                let key = shared.key();
                here.memory.insert(key.rkey, shared);
                Ok(key)
            }
            Stay::Invited => Err(Error::refused(what, "a guest that has not come yet", "one that has connected")),
            Stay::Gone(why) => Err(Error::gone(what, why.clone())),
        }
    }

    /// Takes a key back: nobody reads by it when this returns, and never after. Whether there was one.
    pub fn revoke(&self, key: &Key) -> bool {
        match &mut *lock(&self.seat.0) {
            Stay::Here(here) => here.memory.remove(&key.rkey).is_some(),
            Stay::Invited | Stay::Gone(_) => false,
        }
    }

    /// Whether it has come, and not gone.
    pub fn is_here(&self) -> bool {
        matches!(&*lock(&self.seat.0), Stay::Here(_))
    }

    /// Keys that it has.
    pub fn keys(&self) -> usize {
        match &*lock(&self.seat.0) {
            Stay::Here(here) => here.memory.len(),
            Stay::Invited | Stay::Gone(_) => 0,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let here = self.seat.leave("it was sent away".to_owned());
        if let Some(door) = self.door.upgrade() {
            let mut book = lock(&door.book);
            book.invited.remove(&self.ticket);
            if let Some(here) = &here {
                book.there.remove(&here.pair.id.raw().addr());
            }
        }
        // Not under a lock: it takes a while.
        drop(here);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listening on {} over RDMA", self.address)
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*lock(&self.seat.0) {
            Stay::Invited => f.write_str("guest that has not come yet"),
            Stay::Here(here) => write!(f, "guest with {} keys", here.memory.len()),
            Stay::Gone(why) => write!(f, "guest that has gone ({why})"),
        }
    }
}
