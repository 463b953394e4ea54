//! The connection manager: its channel of events, and its identifiers.
#![expect(unsafe_code, reason = "calls into librdmacm")]

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
    time::Instant,
};

use rdma_sys::{
    rdma_ack_cm_event, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_create_event_channel, rdma_create_id,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_event_channel, rdma_get_cm_event, rdma_port_space,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionbio},
};

use crate::{Error, error::check};

/// Where events come.
pub(crate) struct Channel(NonNull<rdma_event_channel>);

// SAFETY: librdmacm's channels are for several threads.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let what = "a channel of the RDMA connection manager";
        // SAFETY: it has no conditions.
        let raw = unsafe { rdma_create_event_channel() };
        let channel = Self(NonNull::new(raw).ok_or_else(|| Error::last(what))?);
        ioctl_fionbio(&channel, true).map_err(|error| Error::system(what, error))?;
        Ok(Arc::new(channel))
    }

    pub(crate) fn raw(&self) -> *mut rdma_event_channel {
        self.0.as_ptr()
    }

    /// What has happened, if something has.
    pub(crate) fn next(&self) -> Result<Option<Event<'_>>, Error> {
        let what = "an event of the RDMA connection manager";
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is there, and the result lives for the call.
        if unsafe { rdma_get_cm_event(self.raw(), &mut raw) } == 0 {
            let raw = NonNull::new(raw).expect("invariant: there is an event, librdmacm says");
            return Ok(Some(Event { raw, channel: self }));
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(Error::system(what, error)) }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it belongs to the channel, which is there as long as this is.
        unsafe { BorrowedFd::borrow_raw(self.0.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold the channel and events borrow it, so none is left; it is destroyed once.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// Something that has happened to an identifier. That can be destroyed when this is dropped, and not before.
pub(crate) struct Event<'a> {
    raw: NonNull<rdma_cm_event>,
    channel: &'a Channel,
}

impl Event<'_> {
    fn raw(&self) -> &rdma_cm_event {
        // SAFETY: it is there until it is acknowledged, by `drop`.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn kind(&self) -> rdma_cm_event_type::Type {
        self.raw().event
    }

    /// The identifier that it happened to; for a request, one that is new and whoever asks destroys.
    pub(crate) fn id(&self) -> *mut rdma_cm_id {
        self.raw().id
    }

    /// What a request says, and how many reads at once its sender is going to make.
    pub(crate) fn request(&self) -> (&[u8], u8) {
        // SAFETY: events of connections have these parameters.
        let conn = unsafe { &self.raw().param.conn };
        if conn.private_data.is_null() {
            return (&[], conn.responder_resources);
        }
        // SAFETY: librdmacm says that many bytes are there, and they are as long as the event is.
        let said = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()) };
        (said, conn.responder_resources)
    }

    /// In words, for what was not hoped for.
    pub(crate) fn words(&self) -> String {
        let words = match self.kind() {
            rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR => "no RDMA device leads to its address",
            rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR => "no route leads to it",
            rdma_cm_event_type::RDMA_CM_EVENT_REJECTED => "it lets this one not in, or nobody listens there",
            rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE => "it does not answer",
            rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED => "it has ended the connection",
            rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL => "the device was removed",
            _ => "the connection manager ended the connection",
        };
        format!("{words}; event {}, status {}", self.kind(), self.raw().status)
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from this channel, which is there, and is acknowledged once.
        let result = unsafe { rdma_ack_cm_event(self.raw.as_ptr()) };
        debug_assert_eq!(result, 0, "invariant: events can be acknowledged: {:?}", self.channel.0);
    }
}

/// An identifier: this side's end of a connection, or of what listens.
pub(crate) struct Id {
    raw: NonNull<rdma_cm_id>,
    /// After it, in the order of drops.
    pub(crate) channel: Arc<Channel>,
}

// SAFETY: it belongs to no thread; who changes it has it alone or under a lock.
unsafe impl Send for Id {}

impl Id {
    pub(crate) fn new(channel: &Arc<Channel>) -> Result<Self, Error> {
        let what = "an identifier of the RDMA connection manager";
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is there, and outlives it; the result lives for the call.
        let made = unsafe { rdma_create_id(channel.raw(), &mut raw, ptr::null_mut(), rdma_port_space::RDMA_PS_TCP) };
        check(what, made)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(what))?;
        Ok(Self { raw, channel: channel.clone() })
    }

    /// That of a request, which nobody else has taken.
    ///
    /// # Safety
    /// The event is a request's, and this is called once for it.
    pub(crate) unsafe fn of(event: &Event<'_>, channel: &Arc<Channel>) -> Option<Self> {
        NonNull::new(event.id()).map(|raw| Self { raw, channel: channel.clone() })
    }

    pub(crate) fn raw(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: its queue pair is gone (`Pair` sees to that), and whoever looks at its events looks it up by its address alone.
        let result = unsafe { rdma_destroy_id(self.raw()) };
        debug_assert_eq!(result, 0, "invariant: identifiers can be destroyed");
    }
}

/// An address as the system takes it.
pub(crate) enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Address {
    pub(crate) fn raw(&mut self) -> *mut libc::sockaddr {
        match self {
            Self::V4(address) => ptr::from_mut(address).cast(),
            Self::V6(address) => ptr::from_mut(address).cast(),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }
}

/// Waits until one of these is readable; `false`: the deadline has come.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<bool, Error> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::system("waiting for an RDMA device", error)),
        }
    }
}
