//! Memory that UCX writes into: nobody sees it before it is written, and nobody frees it while it may be.
#![expect(unsafe_code, reason = "memory that is not initialised before UCX has written to it")]

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    fmt,
    ops::Deref,
    ptr::NonNull,
    slice,
};

/// Arrow wants its buffers here.
const ALIGN: usize = 64;

/// Room for bytes that are to come; it is not readable.
pub struct Space {
    start: NonNull<u8>,
    /// Bytes that are asked for.
    len: usize,
    /// Bytes that there is room for.
    room: usize,
    memory: Memory,
}

/// Whose memory it is.
enum Memory {
    /// Its own.
    Own(Layout),
    /// Somebody's, who is not touched before the space is dropped.
    Lent(NonNull<dyn Send>),
}

// SAFETY: it is plain memory with one owner, or that of an owner which may be sent.
unsafe impl Send for Space {}
// SAFETY: nothing can be read or written through a shared reference to it.
unsafe impl Sync for Space {}

impl Space {
    /// Room for `len` bytes, on 64 bytes. Its pages are fresh: where speed matters, use the space of earlier bytes again
    /// ([`Filled::into_space`]), or memory of your own ([`Space::over`]).
    ///
    /// # Panics
    /// When `len` is more than an address space holds.
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), ALIGN).expect("a length that an address space holds");
        // SAFETY: the layout is not of size zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len, room: layout.size(), memory: Memory::Own(layout) }
    }

    /// Room in somebody's memory, all of it. The owner is dropped with the space, or with the bytes that have come into it.
    pub fn over<T: AsMut<[u8]> + Send + 'static>(owner: T) -> Self {
        // Behind a raw pointer: a box that is moved says that nobody else points into it.
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        // SAFETY: it was just made and nobody else has it. What is borrowed here stays so until `drop`: nothing touches the owner
        // before that.
        let bytes = unsafe { (*owner.as_ptr()).as_mut() };
        let (start, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        Self { start, len, room: len, memory: Memory::Lent(owner) }
    }

    /// Bytes that can come.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing can come.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes, once they have come.
    ///
    /// # Safety
    /// The first `len` bytes are written, and nobody writes to them any more.
    pub(crate) unsafe fn filled(self, len: usize) -> Filled {
        assert!(len <= self.len, "invariant: UCX does not write past a buffer");
        Filled { space: self, len }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        match self.memory {
            // SAFETY: it was allocated with this layout, and is freed once.
            Memory::Own(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            // SAFETY: it came from a box, and becomes one again once. Nobody points into it any more.
            Memory::Lent(owner) => drop(unsafe { Box::from_raw(owner.as_ptr()) }),
        }
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "room for {} bytes", self.len)
    }
}

/// Bytes that have come.
pub struct Filled {
    space: Space,
    len: usize,
}

impl Filled {
    /// The same memory as room for other bytes; memory of its own where `len` does not fit.
    pub fn into_space(self, len: usize) -> Space {
        if len > self.space.room {
            return Space::new(len);
        }
        let mut space = self.space;
        space.len = len;
        space
    }
}

impl Deref for Filled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: that many bytes were written before it was made, and nobody writes to them any more.
        unsafe { slice::from_raw_parts(self.space.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;

    #[test]
    fn space_is_aligned_and_used_again_where_it_suffices() {
        let space = Space::new(1000);
        let start = space.start();
        assert!((start as usize).is_multiple_of(ALIGN));
        // SAFETY: nobody else knows the space, and it has room for them.
        let filled = unsafe {
            start.write_bytes(3, 10);
            space.filled(10)
        };
        assert_eq!(&filled[..], [3; 10]);
        let again = filled.into_space(1000);
        assert_eq!((again.start(), again.len()), (start, 1000));
        // SAFETY: no byte is claimed to be written.
        let none = unsafe { again.filled(0) };
        assert!(none.is_empty());
        assert_eq!(none.into_space(1001).len(), 1001);
    }

    #[test]
    fn lent_memory_goes_back_with_the_bytes_that_came_into_it() {
        struct Lender(Vec<u8>, Arc<AtomicBool>);
        impl AsMut<[u8]> for Lender {
            fn as_mut(&mut self) -> &mut [u8] {
                &mut self.0
            }
        }
        impl Drop for Lender {
            fn drop(&mut self) {
                assert_eq!(self.0[..4], [5; 4]);
                self.1.store(true, Ordering::Relaxed);
            }
        }
        let back = Arc::new(AtomicBool::new(false));
        let space = Space::over(Lender(vec![0; 4096], back.clone()));
        assert_eq!((space.len(), space.room), (4096, 4096));
        let start = space.start();
        // SAFETY: nobody else knows the space, and it has room for them.
        let filled = unsafe {
            start.write_bytes(5, 4);
            space.filled(4)
        };
        let filled = std::thread::spawn(move || filled).join().unwrap();
        assert_eq!(filled[..], [5; 4]);
        let again = filled.into_space(4000);
        assert_eq!((again.start(), again.len()), (start, 4000));
        assert!(!back.load(Ordering::Relaxed));
        drop(again);
        assert!(back.load(Ordering::Relaxed));
    }
}
