//! UCX's handles, on the one thread that uses them.
#![expect(unsafe_code, reason = "calls into UCX")]

use std::{
    collections::HashMap,
    ffi::c_void,
    os::fd::{AsFd, BorrowedFd},
    ptr,
    rc::Rc,
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use ucx_rs::sys;

use super::{
    events::{self, Event},
    line::{Request, Work},
};
use crate::{
    Address, Error, Key,
    context::Handle,
    raw::{Zeroed, check, error},
};

/// How long the end of a worker waits for what is under way, twice: for what closes by itself, then for what is cut off.
const PATIENCE: Duration = Duration::from_secs(1);

/// A worker. Not to be sent to another thread (it holds raw pointers): events are of a thread.
pub(super) struct Core {
    worker: sys::ucp_worker_h,
    fd: i32,
    endpoints: HashMap<u64, Open>,
    keys: HashMap<u64, Rc<Unpacked>>,
    flights: HashMap<u64, Flight>,
    /// After the worker.
    _context: Arc<Handle>,
}

/// An endpoint that somebody has.
struct Open {
    /// `None` once it is given back to UCX.
    raw: Option<sys::ucp_ep_h>,
    /// Why its peer is gone.
    failed: Option<sys::ucs_status_t>,
}

/// A key of remote memory.
struct Unpacked {
    raw: sys::ucp_rkey_h,
    endpoint: u64,
}

/// A request that UCX has, with what it may write to or read from.
struct Flight {
    raw: *mut c_void,
    endpoint: u64,
    work: Work,
    _key: Option<Rc<Unpacked>>,
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // SAFETY: no request uses it any more (flights hold it), and the worker is there (`end` drops keys before it).
        unsafe { sys::ucp_rkey_destroy(self.raw) }
    }
}

impl AsFd for Core {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it belongs to the worker, which is there as long as this is.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Core {
    /// A worker of this thread, and its address.
    pub(super) fn new(context: Arc<Handle>) -> Result<(Self, Address), Error> {
        let what = "a UCX worker";
        let params = sys::ucp_worker_params_t {
            field_mask: u64::from(sys::ucp_worker_params_field_UCP_WORKER_PARAM_FIELD_THREAD_MODE),
            thread_mode: sys::ucs_thread_mode_t_UCS_THREAD_MODE_SINGLE,
            ..Zeroed::zeroed()
        };
        let mut worker = ptr::null_mut();
        // SAFETY: the context is there; both structures live for the call.
        check(what, unsafe { sys::ucp_worker_create(context.raw(), &params, &mut worker) })?;
        let (endpoints, keys, flights) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut core = Self { worker, fd: -1, endpoints, keys, flights, _context: context };
        // SAFETY: the worker is there, and the result lives for the call.
        check("a UCX worker's events", unsafe { sys::ucp_worker_get_efd(core.worker, &mut core.fd) })?;
        let address = core.address()?;
        Ok((core, address))
    }

    fn address(&self) -> Result<Address, Error> {
        let (mut packed, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the worker is there, and both results live for the call.
        check("a UCX worker's address", unsafe { sys::ucp_worker_get_address(self.worker, &mut packed, &mut len) })?;
        // SAFETY: UCX says that many bytes are there, until they are released below.
        let bytes = unsafe { slice::from_raw_parts(packed.cast::<u8>(), len) }.to_vec();
        // SAFETY: it came from this worker, and is released once.
        unsafe { sys::ucp_worker_release_address(self.worker, packed) };
        Ok(Address { packed: bytes })
    }

    /// Moves what can be moved and answers what is done; whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        // SAFETY: the worker is there, and this is its thread.
        let moved = unsafe { sys::ucp_worker_progress(self.worker) } > 0;
        self.settle() || moved
    }

    /// Whether UCX's descriptor becomes readable when there is something to do again. If not, there is something now.
    pub(super) fn arm(&self) -> Result<bool, Error> {
        // SAFETY: the worker is there, and this is its thread.
        match unsafe { sys::ucp_worker_arm(self.worker) } {
            sys::ucs_status_t_UCS_ERR_BUSY => Ok(false),
            status => check("arming a UCX worker", status).map(|()| true),
        }
    }

    /// Begins a request.
    pub(super) fn start(&mut self, Request { number, endpoint, work }: Request) {
        if let Work::Connect { address, .. } = &work {
            match self.create(endpoint, address) {
                Ok(raw) => drop(self.endpoints.insert(endpoint, Open { raw: Some(raw), failed: None })),
                Err(error) => return work.fail(error),
            }
        }
        let ep = match self.endpoints.get(&endpoint) {
            Some(Open { raw: Some(raw), failed: None }) => *raw,
            Some(Open { failed: Some(status), .. }) => {
                let error = gone(&work, *status);
                return work.fail(error);
            }
            _ => {
                let error = Error::Cancelled { what: work.what().to_owned() };
                return work.fail(error);
            }
        };
        match work {
            Work::Open { remote, key, promise } => {
                let opened = unpack(ep, &key, promise.what());
                let kept =
                    opened.map(|raw| drop(self.keys.insert(remote.number(), Rc::new(Unpacked { raw, endpoint }))));
                promise.keep(kept.map(|()| remote));
            }
            work => self.issue(number, endpoint, ep, work),
        }
    }

    fn issue(&mut self, number: u64, endpoint: u64, ep: sys::ucp_ep_h, work: Work) {
        let mut info = sys::ucp_tag_recv_info_t::zeroed();
        let mut param = answered_as(number);
        let mut used = None;
        // SAFETY: endpoint and worker are there, and this is their thread. Each buffer has the length that is given, and stays
        // where it is until UCX is done with it: `work` owns it, and `flights` owns `work`. The key is held alike.
        let issued = unsafe {
            match &work {
                Work::Connect { .. } | Work::Close => sys::ucp_ep_flush_nbx(ep, &param),
                Work::Get { key, from, space, .. } => {
                    let Some(key) = self.keys.get(key) else {
                        let error = Error::Cancelled { what: work.what().to_owned() };
                        return work.fail(error);
                    };
                    used = Some(key.clone());
                    sys::ucp_get_nbx(ep, space.start().cast(), space.len(), *from, key.raw, &param)
                }
                Work::Send { tag, bytes, .. } => {
                    let bytes = (**bytes).as_ref();
                    sys::ucp_tag_send_nbx(ep, bytes.as_ptr().cast(), bytes.len(), *tag, &param)
                }
                Work::Receive { tag, space, .. } => {
                    param.op_attr_mask |= sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_RECV_INFO;
                    param.cb.recv = Some(events::received);
                    param.recv_info.tag_info = &mut info;
                    sys::ucp_tag_recv_nbx(self.worker, space.start().cast(), space.len(), *tag, u64::MAX, &param)
                }
                Work::Open { .. } | Work::Cut => unreachable!("invariant: they are not issued"),
            }
        };
        match ucx_rs::decode_status_ptr(issued) {
            Ok(Some(raw)) => drop(self.flights.insert(number, Flight { raw, endpoint, work, _key: used })),
            Ok(None) => self.answer(endpoint, work, sys::ucs_status_t_UCS_OK, info.length),
            Err(status) => self.answer(endpoint, work, status, 0),
        }
    }

    fn create(&self, endpoint: u64, address: &Address) -> Result<sys::ucp_ep_h, Error> {
        let fields = sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
            | sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLER;
        let packed = address.padded();
        let params = sys::ucp_ep_params_t {
            field_mask: u64::from(fields),
            address: packed.as_ptr().cast(),
            err_mode: sys::ucp_err_handling_mode_t_UCP_ERR_HANDLING_MODE_PEER,
            err_handler: sys::ucp_err_handler_t { cb: Some(events::failed), arg: events::argument(endpoint) },
            ..Zeroed::zeroed()
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the worker is there, and this is its thread. The address is what a worker packed (its envelope says), and all of
        // it lives for the call.
        check("connecting to a peer", unsafe { sys::ucp_ep_create(self.worker, &params, &mut raw) })?;
        Ok(raw)
    }

    /// Nobody waits for it any more: a message or a peer that has not come is not waited for; what is under way goes on to its
    /// end.
    pub(super) fn cancel(&mut self, number: u64) {
        match self.flights.get(&number) {
            Some(Flight { raw, work: Work::Receive { .. }, .. }) => {
                // SAFETY: the request is UCX's until `done` frees it, and this is its thread.
                unsafe { sys::ucp_request_cancel(self.worker, *raw) }
            }
            Some(Flight { endpoint, work: Work::Connect { .. }, .. }) => {
                self.failed(*endpoint, sys::ucs_status_t_UCS_ERR_CANCELED);
            }
            _ => {}
        }
    }

    /// Nobody has the key any more; requests that use it keep it.
    pub(super) fn forget(&mut self, key: u64) {
        self.keys.remove(&key);
    }

    /// Closes an endpoint when what was asked of it is done. `number`: of the request that waits for that.
    pub(super) fn close(&mut self, number: u64, endpoint: u64) {
        self.give_up(endpoint);
        match self.endpoints.get(&endpoint) {
            Some(Open { raw: Some(ep), .. }) => self.issue(number, endpoint, *ep, Work::Close),
            _ => drop(self.endpoints.remove(&endpoint)),
        }
    }

    /// Nothing is received from an endpoint any more, and its keys are not used any more.
    fn give_up(&mut self, endpoint: u64) {
        self.keys.retain(|_, key| key.endpoint != endpoint);
        for flight in self.flights.values().filter(|flight| flight.endpoint == endpoint) {
            if matches!(flight.work, Work::Receive { .. }) {
                // SAFETY: the request is UCX's until `done` frees it, and this is its thread.
                unsafe { sys::ucp_request_cancel(self.worker, flight.raw) }
            }
        }
    }

    /// Gives an endpoint back to UCX: what is under way on it fails. By force, since UCX keeps what was closed otherwise, and its
    /// connection, for as long as the peer is there.
    fn cut(&mut self, endpoint: u64) {
        let Some(ep) = self.endpoints.get_mut(&endpoint).and_then(|open| open.raw.take()) else { return };
        let mut param = answered_as(endpoint);
        param.op_attr_mask |= sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = sys::ucp_ep_close_flags_t_UCP_EP_CLOSE_FLAG_FORCE;
        // SAFETY: the endpoint is there, this is its thread, and it is given back once: its entry has it no more.
        let cutting = unsafe { sys::ucp_ep_close_nbx(ep, &param) };
        match ucx_rs::decode_status_ptr(cutting) {
            // Numbers of endpoints and of requests differ.
            Ok(Some(raw)) => drop(self.flights.insert(endpoint, Flight { raw, endpoint, work: Work::Cut, _key: None })),
            Ok(None) => {}
            Err(status) => tracing::debug!(error = %error("closing an endpoint", status), "UCX"),
        }
    }

    /// Answers what UCX has called back for; whether there was anything.
    fn settle(&mut self) -> bool {
        let events = events::take();
        let any = !events.is_empty();
        // Failures first: they say why requests were cut off.
        for event in &events {
            if let Event::Failed { endpoint, status } = event {
                self.failed(*endpoint, *status);
            }
        }
        for event in events {
            if let Event::Done { request, status, len } = event {
                self.done(request, status, len);
            }
        }
        any
    }

    fn failed(&mut self, endpoint: u64, status: sys::ucs_status_t) {
        let Some(open) = self.endpoints.get_mut(&endpoint) else { return };
        open.failed = Some(status);
        self.give_up(endpoint);
        self.cut(endpoint);
    }

    fn done(&mut self, request: u64, status: sys::ucs_status_t, len: usize) {
        let Some(Flight { raw, endpoint, work, _key }) = self.flights.remove(&request) else { return };
        // SAFETY: UCX has called back for it, and it is freed once: its flight is gone.
        unsafe { sys::ucp_request_free(raw) };
        self.answer(endpoint, work, status, len);
    }

    /// Answers a request that UCX is done with. `len`: bytes of a message.
    fn answer(&mut self, endpoint: u64, work: Work, status: sys::ucs_status_t, len: usize) {
        if matches!(work, Work::Close) {
            self.cut(endpoint);
            self.endpoints.remove(&endpoint);
        } else if status == sys::ucs_status_t_UCS_OK {
            finish(work, len);
        } else {
            let error = self.why(&work, endpoint, status);
            work.fail(error);
        }
    }

    /// Why a request failed: its peer is gone, if it is.
    fn why(&self, work: &Work, endpoint: u64, status: sys::ucs_status_t) -> Error {
        let failed = self.endpoints.get(&endpoint).and_then(|open| open.failed);
        match (failed, work) {
            (Some(status), _) => gone(work, status),
            (None, Work::Receive { space, .. }) if status == sys::ucs_status_t_UCS_ERR_MESSAGE_TRUNCATED => {
                Error::refused(work.what(), "a longer message", format!("at most {} bytes", space.len()))
            }
            (None, _) => error(work.what(), status),
        }
    }

    /// Ends the worker: what closes is waited for, the rest is cut off.
    pub(super) fn end(mut self) {
        self.wait(|core| core.flights.values().all(|flight| !matches!(flight.work, Work::Close)));
        let left: Vec<u64> = self.endpoints.keys().copied().collect();
        for endpoint in left {
            self.give_up(endpoint);
            self.cut(endpoint);
        }
        self.wait(|core| core.flights.is_empty());
        if !self.flights.is_empty() {
            tracing::warn!(requests = self.flights.len(), "a UCX worker ends with requests under way");
        }
    }

    fn wait(&mut self, until: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !until(self) && Instant::now() < end {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Keys before the worker; buffers after it: nobody writes to them then.
        self.keys.clear();
        let works: Vec<Work> = self.flights.drain().map(|(_, flight)| flight.work).collect();
        // SAFETY: this is its thread, and nothing of the worker is used after this.
        unsafe { sys::ucp_worker_destroy(self.worker) };
        drop(works);
        events::take();
    }
}

/// A request whose callback is told this number.
fn answered_as(number: u64) -> sys::ucp_request_param_t {
    let mut param = sys::ucp_request_param_t {
        op_attr_mask: sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_CALLBACK | sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_USER_DATA,
        user_data: events::argument(number),
        ..Zeroed::zeroed()
    };
    param.cb.send = Some(events::done);
    param
}

fn unpack(ep: sys::ucp_ep_h, key: &Key, what: &str) -> Result<sys::ucp_rkey_h, Error> {
    let packed = key.padded();
    let mut raw = ptr::null_mut();
    // SAFETY: the endpoint is there, and this is its thread. The key is what a context packed (its envelope says), with room for
    // whatever lengths it names.
    check(what, unsafe { sys::ucp_ep_rkey_unpack(ep, packed.as_ptr().cast(), &mut raw) })?;
    Ok(raw)
}

/// Answers that it went well. `len`: bytes of a message.
fn finish(work: Work, len: usize) {
    match work {
        Work::Connect { endpoint, promise, .. } => promise.keep(Ok(endpoint)),
        Work::Get { space, promise, .. } => {
            let all = space.len();
            // SAFETY: the read is done, and it fills the space.
            promise.keep(Ok(unsafe { space.filled(all) }));
        }
        // SAFETY: UCX has written that many bytes, and is done with the space.
        Work::Receive { space, promise, .. } => promise.keep(Ok(unsafe { space.filled(len) })),
        Work::Send { promise, .. } => promise.keep(Ok(())),
        Work::Open { .. } | Work::Close | Work::Cut => {}
    }
}

fn gone(work: &Work, status: sys::ucs_status_t) -> Error {
    Error::PeerGone { what: work.what().to_owned(), status: ucx_rs::status_string(status) }
}
