//! A device's primary context, and what the driver answers.
#![expect(unsafe_code, reason = "calls into CUDA's driver")]

use std::{
    ffi::{CStr, c_char},
    ptr,
};

use cudarc::driver::{result, sys};

use crate::Error;

/// An error unless the driver says that it went well.
pub(crate) fn check(what: impl FnOnce() -> String, status: sys::CUresult) -> Result<(), Error> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let error = result::DriverError(status);
    let text =
        |found: Result<&CStr, _>| found.map_or_else(|_| format!("{status:?}"), |text| text.to_string_lossy().into());
    Err(Error::Cuda { what: what(), name: text(error.error_name()), said: text(error.error_string()) })
}

/// The primary context of a device, which libtorch and CUDA's runtime use, too. Held as long as this lives.
pub(crate) struct Context {
    pub(crate) ordinal: usize,
    pub(crate) name: String,
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a context may be used by any thread; the driver has its own locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::Cuda`].
    pub(crate) fn of(ordinal: usize) -> Result<Self, Error> {
        let what = || format!("opening CUDA device {ordinal}");
        // SAFETY: it loads the driver's library, whose initialisers are trusted by whoever asks for a device.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver { ordinal });
        }
        // SAFETY: the library is there; the call may be repeated.
        match unsafe { sys::cuInit(0) } {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => return Err(Error::NoDevice { ordinal, found: 0 }),
            status => check(what, status)?,
        }
        let (mut count, mut device, mut raw) = (0, 0, ptr::null_mut());
        // SAFETY: the result lives for the call.
        check(what, unsafe { sys::cuDeviceGetCount(&mut count) })?;
        let found = usize::try_from(count).unwrap_or_default();
        if ordinal >= found {
            return Err(Error::NoDevice { ordinal, found });
        }
        // SAFETY: as above; there is a device of this number.
        check(what, unsafe { sys::cuDeviceGet(&mut device, ordinal as i32) })?;
        let mut name = [0 as c_char; 128];
        // SAFETY: the text is no longer than the array, with its end.
        check(what, unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device) })?;
        // SAFETY: the driver has ended the text within the array.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        // SAFETY: the result lives for the call; it is released once, when this value goes.
        check(what, unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) })?;
        Ok(Self { ordinal, name, device, raw })
    }

    /// Whether the device has a property.
    pub(crate) fn has(&self, attribute: sys::CUdevice_attribute) -> Result<bool, Error> {
        let mut value = 0;
        // SAFETY: the result lives for the call; the device is there.
        let status = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) };
        check(|| format!("asking CUDA device {} for {attribute:?}", self.ordinal), status)?;
        Ok(value != 0)
    }

    /// Makes it this thread's until the returned value goes; whichever was before is so again then.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, Error> {
        // SAFETY: the context is held.
        check(|| format!("using CUDA device {}", self.ordinal), unsafe { sys::cuCtxPushCurrent_v2(self.raw) })?;
        Ok(Entered { context: self, _thread: std::marker::PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once by this value.
        let status = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        if let Err(error) = check(|| format!("closing CUDA device {}", self.ordinal), status) {
            tracing::debug!(%error, "a primary context stays");
        }
    }
}

/// A context is this thread's as long as this lives.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    _thread: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: the result lives for the call. What was pushed last by this thread is what `enter` pushed: values of this type
        // stay on their thread and go in the opposite order.
        let status = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        if let Err(error) = check(|| format!("leaving CUDA device {}", self.context.ordinal), status) {
            tracing::debug!(%error, "a context stays this thread's");
        }
    }
}
