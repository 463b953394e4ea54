//! Memory of a device, and memory of the host that the device reaches by itself.
#![expect(unsafe_code, reason = "calls into CUDA's driver")]

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use cudarc::driver::sys;

use crate::{
    Error,
    context::{Context, check},
    pins::Pins,
};

/// Memory of a device that can be copied to and from: [`Memory`], or what a library for tensors has there.
///
/// # Safety
/// The range is memory of a device, in its primary context, for as long as the value lives, wherever it is moved to. While a copy
/// owns the value, nobody else writes to the range, and nobody reads it that would mind what is copied there; work on it that was
/// begun earlier was begun on the legacy default stream, or is done.
pub unsafe trait Region: Send + 'static {
    /// Its address on the device, and its bytes.
    fn range(&self) -> (u64, usize);
}

/// Memory of a device. Freed when it goes.
pub struct Memory {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    len: usize,
}

// SAFETY: it is allocated in the primary context and freed when the value goes; nobody else knows it.
unsafe impl Region for Memory {
    fn range(&self) -> (u64, usize) {
        (self.address, self.len)
    }
}

impl Memory {
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let mut address = 0;
        // SAFETY: the result lives for the call; an empty range has a byte, since there is none without.
        let status = unsafe { sys::cuMemAlloc_v2(&mut address, len.max(1)) };
        check(|| format!("allocating {len} bytes on CUDA device {}", context.ordinal), status)?;
        Ok(Self { context: context.clone(), address, len })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let freed = self.context.enter().and_then(|_entered| {
            // SAFETY: it was allocated by this value, and no copy is under way: one would own it.
            check(|| format!("freeing {} bytes of a device", self.len), unsafe { sys::cuMemFree_v2(self.address) })
        });
        if let Err(error) = freed {
            tracing::debug!(%error, "device memory stays");
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on CUDA device {}", self.len, self.context.ordinal)
    }
}

/// Memory of the host that CUDA has allocated pinned: what copies are measured against, and a place for bytes that come from
/// elsewhere than the store. It begins with zeros.
pub struct Pinned {
    context: Arc<Context>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for Pinned {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let what = || format!("allocating {len} bytes of pinned memory");
        let mut start = ptr::null_mut();
        // SAFETY: the result lives for the call.
        check(what, unsafe { sys::cuMemHostAlloc(&mut start, len.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) })?;
        let start = NonNull::new(start.cast::<u8>()).expect("invariant: the driver has said that it allocated");
        // SAFETY: the driver has allocated that many bytes, which nobody knows yet.
        unsafe { start.write_bytes(0, len) };
        Ok(Self { context: context.clone(), start, len })
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: that many bytes are there and were written when it was made.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let freed = self.context.enter().and_then(|_entered| {
            // SAFETY: it was allocated by this value.
            check(|| "freeing pinned memory".to_owned(), unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) })
        });
        if let Err(error) = freed {
            tracing::debug!(%error, "pinned memory stays");
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pinned bytes", self.len)
    }
}

impl Pins for Context {
    fn pin(&self, range: NonNull<[u8]>, writable: bool) -> Result<(), Error> {
        let _entered = self.enter()?;
        let access = if writable { 0 } else { sys::CU_MEMHOSTREGISTER_READ_ONLY };
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | access;
        // SAFETY: the range is a mapping that stays until `unpin`, before which its owner waits (`Mapping::attached`); what was not
        // mapped to be written is registered to be read alone.
        let status = unsafe { sys::cuMemHostRegister_v2(range.cast::<u8>().as_ptr().cast(), range.len(), flags) };
        check(
            || {
                format!(
                    "registering {} mapped bytes with CUDA{}",
                    range.len(),
                    if writable { "" } else { " to be read" }
                )
            },
            status,
        )
    }

    fn unpin(&self, start: NonNull<u8>) {
        let ended = self.enter().and_then(|_entered| {
            // SAFETY: it was registered, and whoever copies from or to it holds its mapping: no copy is under way.
            let status = unsafe { sys::cuMemHostUnregister(start.as_ptr().cast()) };
            check(|| "ending the registration of a segment with CUDA".to_owned(), status)
        });
        if let Err(error) = ended {
            tracing::warn!(%error, "a segment stays registered");
        }
    }
}
