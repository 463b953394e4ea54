//! A device and its two streams.
#![expect(unsafe_code, reason = "calls into CUDA's driver")]

use std::{any::Any, fmt, ptr, sync::Arc};

use cudarc::driver::sys;

use crate::{
    Error, Memory, Pending, Pinned,
    context::{Context, check},
    copies::Counts,
    pending::End,
};

/// A CUDA device; clones share its streams.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// Copies to the device.
    pub(crate) up: Stream,
    /// Copies from it.
    pub(crate) down: Stream,
    pub(crate) counts: Counts,
    pub(crate) context: Arc<Context>,
}

impl Device {
    /// The device of this number, as CUDA counts those that `CUDA_VISIBLE_DEVICES` leaves.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::NoDevice`], [`Error::Cuda`].
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        let context = Arc::new(Context::of(ordinal)?);
        let [up, down] = [Stream::new(&context)?, Stream::new(&context)?];
        Ok(Self { inner: Arc::new(Inner { up, down, counts: Counts::default(), context }) })
    }

    /// What the device is called.
    pub fn name(&self) -> &str {
        &self.inner.context.name
    }

    /// Whether the driver can register what this process may not write to: segments of a store in another process, to be read. Where
    /// it cannot, they are copied through the driver's memory.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn registers_read_only(&self) -> Result<bool, Error> {
        self.inner.context.has(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
    }

    /// Bytes of the device that are free, and all of them.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn free_and_total(&self) -> Result<(usize, usize), Error> {
        let _entered = self.inner.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the results live for the call.
        let status = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check(|| format!("asking CUDA device {} for its memory", self.inner.context.ordinal), status)?;
        Ok((free, total))
    }

    /// Memory of the device; what it holds is undefined.
    ///
    /// # Errors
    /// [`Error::Cuda`] when there is not so much.
    pub fn allocate(&self, bytes: usize) -> Result<Memory, Error> {
        Memory::new(&self.inner.context, bytes)
    }

    /// Memory of the host that the device reaches by itself.
    ///
    /// # Errors
    /// [`Error::Cuda`] when there is not so much.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, Error> {
        Pinned::new(&self.inner.context, bytes)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA device {} ({})", self.inner.context.ordinal, self.name())
    }
}

/// A point of a stream.
struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: events may be used by any thread; the driver has its own locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// To be called with the context entered.
    fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the result lives for the call; it is destroyed once, when this value goes.
        let made = unsafe { sys::cuEventCreate(&mut raw, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) };
        check(|| format!("making an event of CUDA device {}", context.ordinal), made)?;
        Ok(Self { raw, context: context.clone() })
    }
}

impl End for Event {
    fn look(&self, what: &str) -> Option<Result<(), Error>> {
        // SAFETY: the event is there.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => None,
            status => Some(check(|| what.to_owned(), status)),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: it was made by this value.
        unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// A stream that copies in one direction.
pub(crate) struct Stream {
    raw: sys::CUstream,
    /// What the legacy default stream was given before a copy.
    before: Event,
    context: Arc<Context>,
}

// SAFETY: streams may be used by any thread; the driver has its own locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let what = || format!("making a stream of CUDA device {}", context.ordinal);
        let (mut raw, before) = (ptr::null_mut(), Event::new(context)?);
        // SAFETY: the result lives for the call; it is destroyed once, when this value goes.
        check(what, unsafe { sys::cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) })?;
        Ok(Self { raw, before, context: context.clone() })
    }

    /// Begins copies, after what the legacy default stream was given so far. They own `reads` and `value` until they are done.
    ///
    /// # Safety
    /// What `enqueue` gives to the stream it is called with reads and writes only what stays, and is nobody else's to write or
    /// read, as long as `reads` and `value` are held.
    pub(crate) unsafe fn begin<T>(
        &self,
        what: String,
        reads: Box<dyn Any + Send>,
        value: T,
        enqueue: impl FnOnce(sys::CUstream) -> sys::CUresult,
    ) -> Result<Pending<T>, Error> {
        let said = || what.clone();
        let _entered = self.context.enter()?;
        // SAFETY: event and stream are there; the null stream is the context's legacy default stream.
        check(said, unsafe { sys::cuEventRecord(self.before.raw, ptr::null_mut()) })?;
        // SAFETY: as above.
        check(said, unsafe { sys::cuStreamWaitEvent(self.raw, self.before.raw, 0) })?;
        let begun = check(said, enqueue(self.raw)).and_then(|()| {
            let end = Event::new(&self.context)?;
            // SAFETY: event and stream are there.
            check(said, unsafe { sys::cuEventRecord(end.raw, self.raw) })?;
            Ok(end)
        });
        match begun {
            Ok(end) => Ok(Pending::new(what, reads, value, Box::new(end))),
            Err(error) => {
                // Some of it may be under way.
                self.finish(what)?;
                Err(error)
            }
        }
    }

    /// Gives something to the stream and waits until it is done, as long as the driver does.
    ///
    /// # Safety
    /// What `enqueue` reads and writes stays, and is nobody else's to write or read, until this returns.
    pub(crate) unsafe fn run(
        &self,
        what: String,
        enqueue: impl FnOnce(sys::CUstream) -> sys::CUresult,
    ) -> Result<(), Error> {
        let _entered = self.context.enter()?;
        let begun = check(|| what.clone(), enqueue(self.raw));
        self.finish(what)?;
        begun
    }

    fn finish(&self, what: String) -> Result<(), Error> {
        // SAFETY: the stream is there.
        check(|| what, unsafe { sys::cuStreamSynchronize(self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: it was made by this value; copies that are under way end all the same.
        unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}
