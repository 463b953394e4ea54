//! What UCX calls back with. A callback knows numbers alone and touches nothing but a list of its thread: what they mean is
//! looked up when UCX is not on the stack any more.

use std::{cell::RefCell, ffi::c_void};

use ucx_rs::sys;

/// Something that UCX has said.
pub(super) enum Event {
    /// A request is done. `len`: bytes of a message that was received.
    Done { request: u64, status: sys::ucs_status_t, len: usize },
    /// An endpoint's peer is gone.
    Failed { endpoint: u64, status: sys::ucs_status_t },
}

thread_local! {
    /// A thread has one worker at most.
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// What was said since the last time.
pub(super) fn take() -> Vec<Event> {
    EVENTS.take()
}

fn note(event: Event) {
    EVENTS.with_borrow_mut(|events| events.push(event));
}

/// A number as UCX keeps it for a callback.
pub(super) fn argument(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}

fn number(argument: *mut c_void) -> u64 {
    argument.addr() as u64
}

pub(super) extern "C" fn done(_: *mut c_void, status: sys::ucs_status_t, request: *mut c_void) {
    note(Event::Done { request: number(request), status, len: 0 });
}

#[expect(unsafe_code, reason = "UCX hands a structure over")]
pub(super) extern "C" fn received(
    _: *mut c_void,
    status: sys::ucs_status_t,
    info: *const sys::ucp_tag_recv_info_t,
    request: *mut c_void,
) {
    // SAFETY: UCX passes the information of this message, which lives for the call; it is looked at only when one has come.
    let len = if status == sys::ucs_status_t_UCS_OK { unsafe { (*info).length } } else { 0 };
    note(Event::Done { request: number(request), status, len });
}

pub(super) extern "C" fn failed(endpoint: *mut c_void, _: sys::ucp_ep_h, status: sys::ucs_status_t) {
    note(Event::Failed { endpoint: number(endpoint), status });
}
