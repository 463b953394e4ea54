//! Memory that a file backs, shared with whoever maps the file too.
//!
//! A range belongs to the one it was given to until it is filled, and is not written again while anybody may look at it: who
//! gives ranges out sees to that. The file is never shortened.
#![expect(unsafe_code, reason = "reads and writes memory that a file backs")]

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    fs::File,
    io, mem, ptr,
    ptr::NonNull,
    slice,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
};

use memmap2::{MmapOptions, MmapRaw};

/// Every mapping of this process, by where it begins.
static MAPPINGS: RwLock<BTreeMap<usize, Weak<Mapping>>> = RwLock::new(BTreeMap::new());

/// A segment of a store as this process has mapped it: one of its own, or one of another process of the host. Cells that are read
/// without a copy lie in one, and so does room that is filled in place.
///
/// What a device, a network card or a profiler wants to know of such memory once for all of its cells is attached to it
/// ([`Mapping::attached`]), and goes before the memory does.
pub struct Mapping {
    map: MmapRaw,
    writable: bool,
    attached: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Mapping {
    /// The mapping that some bytes lie in; `None` where they lie elsewhere (on the heap).
    pub fn of(bytes: &[u8]) -> Option<Arc<Self>> {
        let address = bytes.as_ptr() as usize;
        let found = {
            let mappings = MAPPINGS.read().expect("invariant: nothing panics under this lock");
            mappings.range(..=address).next_back().map(|(start, mapping)| (*start, mapping.clone()))
        };
        // Not under the lock: this may become the last reference.
        let (start, mapping) = found?;
        let mapping = mapping.upgrade()?;
        (address - start + bytes.len() <= mapping.len()).then_some(mapping)
    }

    /// Where it begins and how many bytes it has. They are there as long as this value is.
    pub fn range(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start(0, 0), self.len())
    }

    /// Whether this process may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// What is attached to it of this type; it is made when there is none yet. It goes before the memory is unmapped, unless
    /// its holder keeps it.
    ///
    /// # Errors
    /// What `make` says; nothing is attached then.
    pub fn attached<T: Any + Send + Sync, E>(&self, make: impl FnOnce(&Self) -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = attached.iter().find_map(|there| there.clone().downcast().ok()) {
            return Ok(there);
        }
        let made = Arc::new(make(self)?);
        attached.push(made.clone());
        Ok(made)
    }

    /// The whole of a file. `filled`: its pages are there when this returns, rather than when each is touched.
    pub(super) fn over(file: &File, filled: bool) -> io::Result<Arc<Self>> {
        let mut options = MmapOptions::new();
        if filled {
            options.populate();
        }
        Ok(Self::known(options.map_raw(file)?, true))
    }

    /// The whole of a file, to be read alone.
    pub(super) fn read_only(file: &File) -> io::Result<Arc<Self>> {
        Ok(Self::known(MmapOptions::new().map_raw_read_only(file)?, false))
    }

    fn known(map: MmapRaw, writable: bool) -> Arc<Self> {
        let mapping = Arc::new(Self { map, writable, attached: Mutex::default() });
        let mut mappings = MAPPINGS.write().expect("invariant: nothing panics under this lock");
        mappings.insert(mapping.start(0, 0).as_ptr() as usize, Arc::downgrade(&mapping));
        mapping
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Writes into a range that its caller was given and nobody reads yet.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let start = self.start(at, bytes.len());
        // SAFETY: the range lies inside the mapping (`start` has checked it), was given to this caller alone, and no slice of
        // it exists before it is complete.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) }
    }

    /// A range that is complete. It does not change as long as its extent is held.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: `start` checked the range; it was written before its extent was shared, and is not written again.
        unsafe { slice::from_raw_parts(self.start(at, len).as_ptr(), len) }
    }

    /// A range, to be written in place.
    ///
    /// # Safety
    /// It was given to the caller alone, who has borrowed it mutably for as long as the slice lives.
    #[expect(clippy::mut_from_ref, reason = "a mapping is many ranges, each with an owner of its own")]
    pub(super) unsafe fn bytes_mut(&self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: `start` checked the range, which is mapped to be written; nobody else has it, says the caller.
        unsafe { slice::from_raw_parts_mut(self.start(at, len).as_ptr(), len) }
    }

    /// Where a range begins in memory.
    pub(super) fn start(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= self.len() && len <= self.len() - at, "invariant: inside the mapping");
        // SAFETY: the offset is inside the mapping (checked above).
        let start = unsafe { self.map.as_mut_ptr().add(at) };
        NonNull::new(start).expect("invariant: a mapping does not begin at null")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // What is attached may know the memory by its address: it goes while that is still this mapping's.
        let attached = self.attached.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(mem::take(attached));
        let start = self.start(0, 0).as_ptr() as usize;
        MAPPINGS.write().expect("invariant: nothing panics under this lock").remove(&start);
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mapped bytes at {:?}", self.len(), self.start(0, 0))
    }
}
