//! Memory that others may read one-sidedly.
#![expect(unsafe_code, reason = "calls into UCX")]

use std::{
    fmt,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use ucx_rs::sys;

use crate::{
    Context, Error, Key,
    context::Handle,
    raw::{Zeroed, check},
};

/// Memory that can be shared. Whatever has bytes that stay as they are is such; what others write to meanwhile can be made so.
///
/// # Safety
/// The range is there, and readable, for as long as the value lives. It may change only where writing to it is defined while
/// another process reads it: no `&mut` or `&` of this process covers bytes that change.
pub unsafe trait Region: Send + Sync + 'static {
    /// The range. It is asked for once, when the value lies where it stays.
    fn range(&self) -> NonNull<[u8]>;
}

// SAFETY: the slice is borrowed from a value that nobody else can change or move: `Memory` has it behind a pointer, and gives it to nobody.
unsafe impl<T: AsRef<[u8]> + Send + Sync + 'static> Region for T {
    fn range(&self) -> NonNull<[u8]> {
        NonNull::from(self.as_ref())
    }
}

/// Bytes that holders of its key may read, as long as this lives.
///
/// It keeps their owner. When it goes, a reader that is under way may find an error, and no reader after that is served: who
/// needs to be sure that a reader is done (before the bytes change, that is) must hear so from the reader.
pub struct Memory {
    context: Arc<Handle>,
    raw: sys::ucp_mem_h,
    key: Key,
    /// After the registration, in the order of drops.
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: the registration belongs to a context for several threads; what it covers is only ever read.
unsafe impl Send for Memory {}
// SAFETY: as above, and nothing can be changed through a shared reference.
unsafe impl Sync for Memory {}

impl Memory {
    /// Shares the bytes of `owner`, to be read; they stay where they are.
    ///
    /// # Errors
    /// [`Error::Refused`] when the context has no one-sided access or there is no byte; [`Error::Ucx`] when UCX cannot register
    /// the memory.
    pub fn share(context: &Context, owner: impl Region) -> Result<Self, Error> {
        let owner = Arc::new(owner);
        let range = owner.range();
        let (start, len) = (range.cast::<u8>().as_ptr(), range.len());
        let what = format!("sharing {len} bytes");
        if !context.handle.one_sided() {
            return Err(Error::refused(what, "a context with messages alone", "one with `one_sided`"));
        }
        if len == 0 {
            return Err(Error::refused(what, "no byte", "at least one"));
        }
        let field = sys::ucp_mem_map_params_field_UCP_MEM_MAP_PARAM_FIELD_ADDRESS
            | sys::ucp_mem_map_params_field_UCP_MEM_MAP_PARAM_FIELD_LENGTH
            | sys::ucp_mem_map_params_field_UCP_MEM_MAP_PARAM_FIELD_PROT;
        let readable = sys::UCP_MEM_MAP_PROT_LOCAL_READ | sys::UCP_MEM_MAP_PROT_REMOTE_READ;
        let params = sys::ucp_mem_map_params_t {
            field_mask: u64::from(field),
            address: start.cast(),
            length: len,
            prot: readable,
            ..Zeroed::zeroed()
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the context is there. The range stays as long as its owner, which goes after the registration; it is
        // registered to be read alone.
        check(&what, unsafe { sys::ucp_mem_map(context.handle.raw(), &params, &mut raw) })?;
        let key = Key { start: start as u64, len: len as u64, packed: Vec::new() };
        let mut memory = Self { context: context.handle.clone(), raw, key, _owner: owner };
        memory.key.packed = memory.pack(&what)?;
        Ok(memory)
    }

    fn pack(&self, what: &str) -> Result<Vec<u8>, Error> {
        let (mut packed, mut len) = (ptr::null_mut(), 0);
        // SAFETY: context and registration are there; both results live for the call.
        check(what, unsafe { sys::ucp_rkey_pack(self.context.raw(), self.raw, &mut packed, &mut len) })?;
        // SAFETY: UCX says that many bytes are there, and they are until they are released below.
        let bytes = unsafe { slice::from_raw_parts(packed.cast::<u8>(), len) }.to_vec();
        // SAFETY: it came from UCX, and is released once.
        unsafe { sys::ucp_rkey_buffer_release(packed) };
        Ok(bytes)
    }

    /// What opens it, for those who shall read.
    pub fn key(&self) -> Key {
        self.key.clone()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was registered with this context, and is given back once, before its owner goes.
        let status = unsafe { sys::ucp_mem_unmap(self.context.raw(), self.raw) };
        if let Err(error) = check("giving shared memory back", status) {
            tracing::warn!(%error, key = ?self.key, "UCX keeps a registration");
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, shared", self.key.len)
    }
}
