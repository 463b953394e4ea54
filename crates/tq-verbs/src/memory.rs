//! Memory that a device may touch, for as long as it is registered.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::{marker::PhantomData, ptr::NonNull, sync::Arc};

use rdma_sys::{ibv_access_flags, ibv_dereg_mr, ibv_mr, ibv_reg_mr};

use crate::{Error, Key, queue::Domain};

/// Memory that can be shared. Whatever has bytes that stay as they are is such; what others write to meanwhile can be made so.
///
/// # Safety
/// The range is there, and readable, for as long as the value lives. It may change only where writing to it is defined while
/// another process reads it: no `&mut` or `&` of this process covers bytes that change.
pub unsafe trait Region: Send + Sync + 'static {
    /// The range. It is asked for once, when the value lies where it stays.
    fn range(&self) -> NonNull<[u8]>;
}

// SAFETY: the slice is borrowed from a value that nobody can change or move: it lies behind an `Arc`, of which a registration holds one.
unsafe impl<T: AsRef<[u8]> + Send + Sync + 'static> Region for T {
    fn range(&self) -> NonNull<[u8]> {
        NonNull::from(self.as_ref())
    }
}

/// A registration.
struct Registered {
    raw: NonNull<ibv_mr>,
    /// After it, in the order of drops.
    _domain: Arc<Domain>,
}

// SAFETY: it is used by one thread at a time, and libibverbs does not care by which.
unsafe impl Send for Registered {}

impl Registered {
    /// # Safety
    /// The range stays where it is until this is dropped. Devices may read it all that time, and write to it where `access` allows that.
    unsafe fn new(domain: &Arc<Domain>, range: NonNull<[u8]>, access: ibv_access_flags) -> Result<Self, Error> {
        let what = || format!("registering {} bytes", range.len());
        // SAFETY: the domain is there; of the range says the caller.
        let raw = unsafe { ibv_reg_mr(domain.raw(), range.as_ptr().cast(), range.len(), access.0 as i32) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(&what()))?;
        Ok(Self { raw, _domain: domain.clone() })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it was registered, and is given back once.
        let result = unsafe { ibv_dereg_mr(self.raw.as_ptr()) };
        if result != 0 {
            let error = std::io::Error::from_raw_os_error(result);
            tracing::error!(%error, "a device keeps a registration");
        }
    }
}

/// Memory that a guest may read.
pub(crate) struct Shared {
    registered: Registered,
    range: NonNull<[u8]>,
    /// After the registration, in the order of drops.
    _owner: Arc<dyn Region>,
}

// SAFETY: what it covers is only ever read here, through the device.
unsafe impl Send for Shared {}

impl Shared {
    pub(crate) fn new(domain: &Arc<Domain>, owner: Arc<dyn Region>) -> Result<Self, Error> {
        let range = owner.range();
        if range.is_empty() {
            return Err(Error::refused("sharing memory", "no byte", "at least one"));
        }
        // SAFETY: the range stays as long as its owner, which is kept until the registration is gone. It is there to be read alone.
        let registered = unsafe { Registered::new(domain, range, ibv_access_flags::IBV_ACCESS_REMOTE_READ) }?;
        Ok(Self { registered, range, _owner: owner })
    }

    pub(crate) fn key(&self) -> Key {
        let start = self.range.cast::<u8>().as_ptr().addr() as u64;
        // SAFETY: the registration is there.
        let rkey = unsafe { self.registered.raw.as_ref() }.rkey;
        Key { rkey, start, len: self.range.len() as u64 }
    }
}

/// Somebody's buffer that a device may write to.
pub(crate) struct Lent<'a> {
    registered: Registered,
    start: u64,
    len: u64,
    _bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> Lent<'a> {
    pub(crate) fn new(domain: &Arc<Domain>, bytes: &'a mut [u8]) -> Result<Self, Error> {
        let range = NonNull::from(bytes);
        // SAFETY: the range is borrowed, for this alone, until this is dropped.
        let registered = unsafe { Registered::new(domain, range, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE) }?;
        let (start, len) = (range.cast::<u8>().as_ptr().addr() as u64, range.len() as u64);
        Ok(Self { registered, start, len, _bytes: PhantomData })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// What this side's device knows it by.
    pub(crate) fn key(&self) -> u32 {
        // SAFETY: the registration is there.
        unsafe { self.registered.raw.as_ref() }.lkey
    }
}
