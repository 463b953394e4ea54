//! UCX with its options: what workers and shared memory belong to.
#![expect(unsafe_code, reason = "calls into UCX")]

use std::{env, ffi::CString, fmt, ptr, sync::Arc};

use ucx_rs::sys;

use crate::{
    Error, Options,
    raw::{Zeroed, check},
};

/// What UCX prints is asked for here.
const LOG_LEVEL: &str = "UCX_LOG_LEVEL";

/// UCX with its options; clones are the same one.
#[derive(Clone)]
pub struct Context {
    pub(crate) handle: Arc<Handle>,
}

/// Goes when the last worker and the last memory of it are gone.
pub(crate) struct Handle {
    raw: sys::ucp_context_h,
    one_sided: bool,
}

// SAFETY: the context is made for several threads (`mt_workers_shared`, checked after it was made).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) fn raw(&self) -> sys::ucp_context_h {
        self.raw
    }

    pub(crate) fn one_sided(&self) -> bool {
        self.one_sided
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: workers and memory hold this, so none is left; it is cleaned up once.
        unsafe { sys::ucp_cleanup(self.raw) }
    }
}

impl Context {
    /// Prepares UCX.
    ///
    /// # Errors
    /// [`Error::Refused`] for options that make no sense; [`Error::Ucx`] when UCX knows none of the transports or devices.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let config = Config::read()?;
        for (name, value) in options.settings()? {
            config.set(name, &value)?;
        }
        if env::var_os(LOG_LEVEL).is_none() {
            // To standard output, where a program's data go; what matters of it is in the errors.
            config.set("LOG_LEVEL", "fatal")?;
        }
        let one_sided = if options.one_sided { sys::ucp_feature_UCP_FEATURE_RMA } else { 0 };
        let features = sys::ucp_feature_UCP_FEATURE_TAG | sys::ucp_feature_UCP_FEATURE_WAKEUP | one_sided;
        let params = sys::ucp_params_t {
            field_mask: u64::from(
                sys::ucp_params_field_UCP_PARAM_FIELD_FEATURES
                    | sys::ucp_params_field_UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            ),
            features: u64::from(features),
            mt_workers_shared: 1,
            ..Zeroed::zeroed()
        };
        let mut raw = ptr::null_mut();
        // SAFETY: all pointers are to values that live for the call.
        let status =
            unsafe { sys::ucp_init_version(sys::UCP_API_MAJOR, sys::UCP_API_MINOR, &params, config.0, &mut raw) };
        check(&format!("a UCX context of {options:?}"), status)?;
        let context = Self { handle: Arc::new(Handle { raw, one_sided: options.one_sided }) };
        context.is_for_threads()?;
        Ok(context)
    }

    fn is_for_threads(&self) -> Result<(), Error> {
        let mut found = sys::ucp_context_attr_t {
            field_mask: u64::from(sys::ucp_context_attr_field_UCP_ATTR_FIELD_THREAD_MODE),
            ..Zeroed::zeroed()
        };
        // SAFETY: the context is there, and the structure lives for the call.
        check("UCX's thread mode", unsafe { sys::ucp_context_query(self.handle.raw, &mut found) })?;
        if found.thread_mode == sys::ucs_thread_mode_t_UCS_THREAD_MODE_MULTI {
            return Ok(());
        }
        Err(Error::refused("the UCX library", "one that is for a single thread", "one that was built with --enable-mt"))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.handle.one_sided { "context with one-sided access" } else { "context with messages alone" })
    }
}

/// The options as UCX reads them.
struct Config(*mut sys::ucp_config_t);

impl Config {
    fn read() -> Result<Self, Error> {
        let mut config = ptr::null_mut();
        // SAFETY: null names mean the defaults; the result is released by `drop`.
        check("UCX's configuration", unsafe { sys::ucp_config_read(ptr::null(), ptr::null(), &mut config) })?;
        Ok(Self(config))
    }

    fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let what = format!("UCX's option {name}={value}");
        let text = |text: &str| CString::new(text).map_err(|_| Error::refused(&what, "a zero byte", "none"));
        let (name, value) = (text(name)?, text(value)?);
        // SAFETY: the configuration is there, and both texts live for the call; UCX copies them.
        check(&what, unsafe { sys::ucp_config_modify(self.0, name.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: it was read, and is released once.
        unsafe { sys::ucp_config_release(self.0) }
    }
}
