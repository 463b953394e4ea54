//! A guest's end: it comes with a ticket, and reads.
#![expect(unsafe_code, reason = "calls into librdmacm, and reads into borrowed memory")]

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    ptr,
    time::Instant,
};

use rdma_sys::{
    ibv_wc_status, rdma_cm_event_type, rdma_conn_param, rdma_connect, rdma_resolve_addr, rdma_resolve_route,
};

use crate::{
    Error, Key, Ticket,
    error::check,
    events::{Address, Channel, Id, readable},
    memory::Lent,
    queue::{DEPTH, Pair, Part},
};

/// Bytes of one read, as the device sees it: every device has messages of that size, and a read that is cut into them is as fast.
const PART: u64 = 4 << 20;
/// As many reads at once as both devices can do.
const AS_MANY_AS_CAN_BE: u8 = 0xff;
/// How often the device sends something again that is not answered (the most there is).
const RETRIES: u8 = 7;

/// A connection to a listener, over which its memory is read.
pub struct Connection {
    pair: Pair,
}

/// Bytes that are to be read.
#[derive(Debug)]
pub struct Read<'a> {
    /// What opens them.
    pub key: Key,
    /// The first of them, counted from the start of the memory.
    pub at: u64,
    /// Where they go; as many are read as this has.
    pub into: &'a mut [u8],
}

impl Connection {
    /// Connects to a listener. `from`: the address of this side's device, where several lead there.
    ///
    /// # Errors
    /// [`Error::PeerGone`] when nobody is there or the ticket is not good there (any more), [`Error::Late`] at the deadline,
    /// [`Error::System`] when there is no RDMA device here.
    pub fn connect(to: SocketAddr, from: Option<IpAddr>, ticket: &Ticket, until: Instant) -> Result<Self, Error> {
        let what = format!("connecting to {to} over RDMA");
        let begun = Instant::now();
        let channel = Channel::new()?;
        let id = Id::new(&channel)?;
        let wait = |kind| await_event(&channel, kind, &what, begun, until);
        let left = until.saturating_duration_since(begun).as_millis().min(i32::MAX as u128) as i32;
        let mut from = from.map(|from| Address::from(SocketAddr::new(from, 0)));
        let mut to = Address::from(to);
        let source = from.as_mut().map_or(ptr::null_mut(), Address::raw);
        // SAFETY: the identifier is there, and both addresses live for the call.
        check(&what, unsafe { rdma_resolve_addr(id.raw(), source, to.raw(), left) })?;
        wait(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED)?;
        // SAFETY: the identifier is there, and has an address.
        check(&what, unsafe { rdma_resolve_route(id.raw(), left) })?;
        wait(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED)?;
        let pair = Pair::new(id)?;
        let mut params = rdma_conn_param {
            private_data: ticket.as_ptr().cast(),
            private_data_len: ticket.len() as u8,
            // Nobody reads here.
            responder_resources: 0,
            initiator_depth: AS_MANY_AS_CAN_BE,
            flow_control: 0,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: the identifier is there, with a route and a queue pair; what is said lives for the call.
        check(&what, unsafe { rdma_connect(pair.id.raw(), &mut params) })?;
        wait(rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED)?;
        Ok(Self { pair })
    }

    /// Reads all of these, in any order. When it fails, what the buffers hold is anything, and the connection has ended
    /// (but for [`Error::Refused`]).
    ///
    /// # Errors
    /// [`Error::Refused`] when a range is not inside of what its key opens: nothing is read then. [`Error::NotShared`] when a key
    /// opens nothing over this connection, or not any more. [`Error::PeerGone`] when the other side has gone. [`Error::Late`] at the
    /// deadline. [`Error::Ended`] when a read has failed before.
    pub fn read(&mut self, reads: &mut [Read<'_>], until: Instant) -> Result<(), Error> {
        let begun = Instant::now();
        let bytes: u64 = reads.iter().map(|read| read.into.len() as u64).sum();
        let what = format!("reading {bytes} bytes in {} places", reads.len());
        let mut parts = Vec::new();
        let mut lent = Vec::with_capacity(reads.len());
        for Read { key, at, into } in reads.iter_mut().filter(|read| !read.into.is_empty()) {
            let remote = key.range(*at, into.len() as u64)?;
            lent.push((Lent::new(&self.pair.domain, into)?, remote, key.rkey));
        }
        for (buffer, remote, rkey) in &lent {
            for at in (0..buffer.len()).step_by(PART as usize) {
                let len = PART.min(buffer.len() - at) as u32;
                let (local, remote) = (buffer.start() + at, remote.wrapping_add(at));
                parts.push(Part { local, lkey: buffer.key(), remote, rkey: *rkey, len });
            }
        }
        let read = self.parts(&what, &parts, begun, until);
        if read.is_err() {
            // Before the buffers go back: nothing is written to them from here on.
            self.pair.cut();
        }
        read
    }

    /// Reads what [`Connection::read`] was cut into.
    fn parts(&mut self, what: &str, parts: &[Part], begun: Instant, until: Instant) -> Result<(), Error> {
        let mut left = parts.iter();
        let (mut under_way, mut armed) = (0, false);
        loop {
            while under_way < DEPTH {
                let Some(part) = left.next() else { break };
                // SAFETY: the buffers are registered until `read` returns, which cuts the pair first if this fails.
                unsafe { self.pair.read(part) }.map_err(|error| match error {
                    Error::Ended { .. } => Error::Ended { what: what.to_owned() },
                    other => other,
                })?;
                under_way += 1;
            }
            if under_way == 0 {
                return Ok(());
            }
            if let Some(done) = self.pair.done()? {
                outcome(what, done.status)?;
                under_way -= 1;
                continue;
            }
            if !armed {
                // What was completed just before is looked for once more.
                self.pair.arm()?;
                armed = true;
                continue;
            }
            armed = false;
            let channel = &self.pair.id.channel;
            if !readable(&[self.pair.completed(), channel.as_fd()], Some(until))? {
                return Err(Error::Late { what: what.to_owned(), waited: begun.elapsed() });
            }
            if let Some(event) = channel.next()?
                && event.kind() != rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT
            {
                return Err(Error::gone(what, event.words()));
            }
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection over RDMA")
    }
}

/// Waits for one event; another one is the end.
fn await_event(
    channel: &Channel,
    kind: rdma_cm_event_type::Type,
    what: &str,
    begun: Instant,
    until: Instant,
) -> Result<(), Error> {
    loop {
        if let Some(event) = channel.next()? {
            return if event.kind() == kind { Ok(()) } else { Err(Error::gone(what, event.words())) };
        }
        if !readable(&[channel.as_fd()], Some(until))? {
            return Err(Error::Late { what: what.to_owned(), waited: begun.elapsed() });
        }
    }
}

/// Whether a part of a read went well.
fn outcome(what: &str, status: ibv_wc_status::Type) -> Result<(), Error> {
    let why = match status {
        ibv_wc_status::IBV_WC_SUCCESS => return Ok(()),
        // The other side's device has looked the key up.
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => return Err(Error::NotShared { what: what.to_owned() }),
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => "it does not answer".to_owned(),
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => "the connection has ended".to_owned(),
        other => format!("the device says {other}"),
    };
    Err(Error::gone(what, why))
}
