//! One end of a connection: its protection domain, its queue of completions, its queue pair.
#![expect(unsafe_code, reason = "calls into libibverbs and librdmacm")]

use std::{
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::Arc,
};

use rdma_sys::{
    ibv_ack_cq_events, ibv_alloc_pd, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_dealloc_pd,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_get_cq_event, ibv_pd, ibv_poll_cq, ibv_post_send, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_type, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_status,
    ibv_wr_opcode, rdma_create_qp, rdma_destroy_qp,
};
use rustix::io::ioctl_fionbio;

use crate::{Error, error::check, events::Id};

/// Reads that are under way at once on one connection.
pub(crate) const DEPTH: u32 = 64;

/// What a guest's keys belong to, and no other's.
pub(crate) struct Domain(NonNull<ibv_pd>);

// SAFETY: libibverbs is for several threads.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.0.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: registrations and the queue pair hold it, so none is left; it is given back once.
        let result = unsafe { ibv_dealloc_pd(self.raw()) };
        if result != 0 {
            tracing::error!(error = %std::io::Error::from_raw_os_error(result), "a device keeps a protection domain");
        }
    }
}

/// Completions, and a descriptor that says that there are some.
struct Completions {
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue pair is gone, and so is every event (they are acknowledged at once); each is destroyed once.
        unsafe {
            ibv_destroy_cq(self.queue.as_ptr());
            ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

/// One end of a connection. Fields go in this order: the queue pair goes first, in `drop`.
pub(crate) struct Pair {
    there: bool,
    completions: Completions,
    pub(crate) domain: Arc<Domain>,
    pub(crate) id: Id,
}

// SAFETY: libibverbs is for several threads, and whoever has this has it alone or under a lock.
unsafe impl Send for Pair {}

/// One read as the device sees it.
pub(crate) struct Part {
    /// Where it goes, and what this side's device knows that by.
    pub(crate) local: u64,
    pub(crate) lkey: u32,
    /// Where it lies, and what opens that.
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    /// Bytes.
    pub(crate) len: u32,
}

/// A read that is done.
pub(crate) struct Done {
    pub(crate) status: ibv_wc_status::Type,
}

impl Pair {
    /// For an identifier that has a device.
    pub(crate) fn new(id: Id) -> Result<Self, Error> {
        // SAFETY: the identifier is there.
        let device = unsafe { (*id.raw()).verbs };
        if device.is_null() {
            return Err(Error::refused(
                "a connection",
                "no RDMA device at its address",
                "one (`rdma link` lists them)",
            ));
        }
        let domain = pointer("a protection domain", || {
            // SAFETY: the device is there; librdmacm keeps it open for as long as the process is there.
            unsafe { ibv_alloc_pd(device) }
        });
        let domain = Arc::new(Domain(domain?));
        // SAFETY: as above.
        let channel = pointer("a channel of completions", || unsafe { ibv_create_comp_channel(device) })?;
        // SAFETY: device and channel are there; the queue has no context.
        let queue = pointer("a queue of completions", || unsafe {
            ibv_create_cq(device, DEPTH as i32, ptr::null_mut(), channel.as_ptr(), 0)
        });
        let queue = queue.inspect_err(|_| {
            // SAFETY: nobody else has it.
            unsafe { ibv_destroy_comp_channel(channel.as_ptr()) };
        })?;
        let completions = Completions { queue, channel };
        let mut pair = Self { there: false, completions, domain, id };
        let what = "a queue pair";
        ioctl_fionbio(pair.completed(), true).map_err(|error| Error::system(what, error))?;
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            srq: ptr::null_mut(),
            // Nothing is ever received.
            cap: ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: identifier, domain and queue are there, and of one device.
        check(what, unsafe { rdma_create_qp(pair.id.raw(), pair.domain.raw(), &mut attributes) })?;
        pair.there = true;
        Ok(pair)
    }

    /// Ends the queue pair: the device touches no memory through it when this returns, and never after.
    pub(crate) fn cut(&mut self) {
        if std::mem::take(&mut self.there) {
            // SAFETY: it is there, and goes once.
            unsafe { rdma_destroy_qp(self.id.raw()) };
        }
    }

    /// Readable when something has been completed since [`Pair::arm`].
    pub(crate) fn completed(&self) -> BorrowedFd<'_> {
        // SAFETY: it belongs to the channel, which is there as long as this is.
        unsafe { BorrowedFd::borrow_raw(self.completions.channel.as_ref().fd) }
    }

    /// Reads into a local buffer what lies at an address there.
    ///
    /// # Safety
    /// The local buffer is registered with this domain, for writing, until the read is done or the pair is cut.
    pub(crate) unsafe fn read(&mut self, &Part { local, lkey, remote, rkey, len }: &Part) -> Result<(), Error> {
        let what = "asking for a read";
        if !self.there {
            return Err(Error::Ended { what: what.to_owned() });
        }
        let mut part = ibv_sge { addr: local, length: len, lkey };
        // SAFETY: numbers and null pointers, for which zeros are valid.
        let mut work: ibv_send_wr = unsafe { std::mem::zeroed() };
        work.sg_list = &mut part;
        work.num_sge = 1;
        work.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
        work.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        work.wr.rdma.remote_addr = remote;
        work.wr.rdma.rkey = rkey;
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair is there; what is posted is copied before this returns; of the buffer says the caller.
        let result = unsafe { ibv_post_send((*self.id.raw()).qp, &mut work, &mut refused) };
        if result == 0 { Ok(()) } else { Err(Error::system(what, std::io::Error::from_raw_os_error(result))) }
    }

    /// What was completed next, if something was.
    pub(crate) fn done(&mut self) -> Result<Option<Done>, Error> {
        // SAFETY: numbers, for which zeros are valid.
        let mut completion: ibv_wc = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is there, and the result lives for the call.
        match unsafe { ibv_poll_cq(self.completions.queue.as_ptr(), 1, &mut completion) } {
            0 => Ok(None),
            1 => Ok(Some(Done { status: completion.status })),
            other => Err(Error::system("a queue of completions", format!("the device says {other}"))),
        }
    }

    /// The descriptor becomes readable with the next completion. (What was completed before is to be looked for once more.)
    pub(crate) fn arm(&mut self) -> Result<(), Error> {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: channel and queue are there; the results live for the call, and an event is acknowledged once.
        unsafe {
            while ibv_get_cq_event(self.completions.channel.as_ptr(), &mut queue, &mut context) == 0 {
                ibv_ack_cq_events(queue, 1);
            }
            check("waiting for completions", ibv_req_notify_cq(self.completions.queue.as_ptr(), 0))
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.cut();
    }
}

fn pointer<T>(what: &str, make: impl FnOnce() -> *mut T) -> Result<NonNull<T>, Error> {
    NonNull::new(make()).ok_or_else(|| Error::last(what))
}
