//! UCX's statuses, and its structures of optional fields.
#![expect(unsafe_code, reason = "structures that C declares, with zeros where nothing is said")]

use std::mem::MaybeUninit;

use ucx_rs::sys;

use crate::Error;

/// An error unless UCX says that it went well.
pub(crate) fn check(what: &str, status: sys::ucs_status_t) -> Result<(), Error> {
    if status == sys::ucs_status_t_UCS_OK { Ok(()) } else { Err(error(what, status)) }
}

/// What a status other than success means.
pub(crate) fn error(what: &str, status: sys::ucs_status_t) -> Error {
    let (what, said) = (what.to_owned(), ucx_rs::status_string(status));
    match status {
        sys::ucs_status_t_UCS_ERR_CANCELED => Error::Cancelled { what },
        sys::ucs_status_t_UCS_ERR_CONNECTION_RESET
        | sys::ucs_status_t_UCS_ERR_ENDPOINT_TIMEOUT
        | sys::ucs_status_t_UCS_ERR_UNREACHABLE
        | sys::ucs_status_t_UCS_ERR_NOT_CONNECTED
        | sys::ucs_status_t_UCS_ERR_REJECTED
        // Segments go with their process.
        | sys::ucs_status_t_UCS_ERR_SHMEM_SEGMENT => Error::PeerGone { what, status: said },
        _ => Error::Ucx { what, status: said },
    }
}

/// Marks C structures that are valid when all their bytes are zero: numbers, pointers, optional functions.
///
/// # Safety
/// That is so.
pub(crate) unsafe trait Zeroed: Sized {
    fn zeroed() -> Self {
        // SAFETY: all zeros are a value of the type, says its implementation.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

macro_rules! zeroed {
    ($($name:ident),*) => {$(
        // SAFETY: it has numbers, raw pointers and optional functions alone.
        unsafe impl Zeroed for sys::$name {}
    )*};
}

zeroed!(
    ucp_params_t,
    ucp_context_attr_t,
    ucp_worker_params_t,
    ucp_worker_attr_t,
    ucp_ep_params_t,
    ucp_mem_map_params_t,
    ucp_request_param_t,
    ucp_tag_recv_info_t
);
