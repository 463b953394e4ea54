//! Cells to the device and back.
#![expect(unsafe_code, reason = "calls into CUDA's driver")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use cudarc::driver::sys;
use transferqueue::{
    transport::{Room, View},
    unit::Mapping,
};

use crate::{Device, Error, Memory, Pending, Region, context::Context, pins::Registered};

/// Bytes by the way they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways<T = u64> {
    /// Read or written by the device itself, in registered segments of the store.
    pub pinned: T,
    /// Through the driver's memory: cells on the heap, received over the network, or in a segment that could not be registered.
    pub pageable: T,
}

/// Bytes that were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the device.
    pub uploads: Ways,
    /// From it.
    pub downloads: Ways,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    uploads: Ways<AtomicU64>,
    downloads: Ways<AtomicU64>,
}

impl Ways<AtomicU64> {
    fn count(&self, pinned: bool, bytes: usize) {
        let way = if pinned { &self.pinned } else { &self.pageable };
        way.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn read(&self) -> Ways {
        Ways { pinned: self.pinned.load(Ordering::Relaxed), pageable: self.pageable.load(Ordering::Relaxed) }
    }
}

impl Device {
    /// Copies the values of views ([`View::values`]), one after the other, to memory of the device that is made for them.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn upload(&self, views: &[View]) -> Result<Pending<Memory>, Error> {
        let memory = self.allocate(bytes(views))?;
        self.upload_into(views, memory)
    }

    /// Copies the values of views, one after the other, to memory of the device that is there: a tensor's, say. The views are
    /// held until it is done.
    ///
    /// # Errors
    /// [`Error::Length`] when they do not fill the memory; [`Error::Cuda`].
    pub fn upload_into<M: Region>(&self, views: &[View], target: M) -> Result<Pending<M>, Error> {
        let ((address, expected), found) = (target.range(), bytes(views));
        let what = format!("copying {found} bytes to {self:?}");
        if found != expected {
            return Err(Error::Length { what, found, expected });
        }
        let held: Vec<View> = views.to_vec();
        for view in &held {
            self.inner.counts.uploads.count(self.reaches(view.mapping()), view.values().len());
        }
        let parts: Vec<&[u8]> = held.iter().map(View::values).filter(|part| !part.is_empty()).collect();
        let parts: Vec<(*const u8, usize)> = parts.into_iter().map(|part| (part.as_ptr(), part.len())).collect();
        let mut at = address;
        let copy = move |stream| {
            for (start, len) in parts {
                // SAFETY: the views are held by the copy, their bytes stay where they are and do not change; the parts add up to
                // the memory's bytes.
                match unsafe { sys::cuMemcpyHtoDAsync_v2(at, start.cast(), len, stream) } {
                    sys::CUresult::CUDA_SUCCESS => at += len as u64,
                    failed => return failed,
                }
            }
            sys::CUresult::CUDA_SUCCESS
        };
        // SAFETY: as above; the target's owner has promised that its memory stays, and is nobody else's meanwhile.
        unsafe { self.inner.up.begin(what, Box::new(held), target, copy) }
    }

    /// Copies memory of the device to room of the store, where its cells are to lie; both are held until it is done.
    ///
    /// # Errors
    /// [`Error::Length`] when it does not fill the room; [`Error::Cuda`].
    pub fn download<M: Region>(&self, source: M, mut room: Room) -> Result<Pending<(M, Room)>, Error> {
        let ((address, found), expected) = (source.range(), room.len());
        let what = format!("copying {found} bytes from {self:?}");
        if found != expected {
            return Err(Error::Length { what, found, expected });
        }
        let values = room.values_mut();
        self.inner.counts.downloads.count(self.reaches(Mapping::of(values)), values.len());
        let (start, len) = (values.as_mut_ptr(), values.len());
        let copy = move |stream| match len {
            0 => sys::CUresult::CUDA_SUCCESS,
            // SAFETY: the copy holds the room, whose bytes stay where they are and are nobody else's; there are as many of them as
            // the source has.
            _ => unsafe { sys::cuMemcpyDtoHAsync_v2(start.cast(), address, len, stream) },
        };
        // SAFETY: as above; the source's owner has promised that its memory stays.
        unsafe { self.inner.down.begin(what, Box::new(()), (source, room), copy) }
    }

    /// Copies bytes to the device and waits: at full speed if they are [`Pinned`](crate::Pinned), through the driver's memory
    /// otherwise. Not counted: this is what copies of cells are measured against, and for what does not come from a store.
    ///
    /// # Errors
    /// [`Error::Length`] when they do not fill the memory; [`Error::Cuda`].
    pub fn copy_in(&self, bytes: &[u8], target: &mut Memory) -> Result<(), Error> {
        let (address, expected) = target.range();
        let what = format!("copying {} bytes to {self:?}", bytes.len());
        if bytes.len() != expected {
            return Err(Error::Length { what, found: bytes.len(), expected });
        }
        // SAFETY: both sides are borrowed until the copy is done, and are as long as each other.
        unsafe {
            self.inner
                .up
                .run(what, |stream| sys::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), stream))
        }
    }

    /// Copies memory of the device to bytes and waits, as [`Device::copy_in`] does.
    ///
    /// # Errors
    /// As [`Device::copy_in`].
    pub fn copy_out(&self, source: &Memory, bytes: &mut [u8]) -> Result<(), Error> {
        let (address, found) = source.range();
        let what = format!("copying {found} bytes from {self:?}");
        if bytes.len() != found {
            return Err(Error::Length { what, found, expected: bytes.len() });
        }
        // SAFETY: as above.
        unsafe {
            self.inner
                .down
                .run(what, |stream| sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, bytes.len(), stream))
        }
    }

    /// Bytes of cells that were copied so far, by the way they went.
    pub fn traffic(&self) -> Traffic {
        let Counts { uploads, downloads } = &self.inner.counts;
        Traffic { uploads: uploads.read(), downloads: downloads.read() }
    }

    /// Whether the device reaches a segment by itself.
    fn reaches(&self, mapping: Option<Arc<Mapping>>) -> bool {
        mapping.is_some_and(|mapping| Registered::<Context>::of(&self.inner.context, &mapping).is_pinned())
    }
}

fn bytes(views: &[View]) -> usize {
    views.iter().map(|view| view.values().len()).sum()
}
