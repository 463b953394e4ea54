//! A disk for the event log that fails when it is told to.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::log::Disk;

/// What goes wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The next write stops after so many bytes: the disk is full.
    Full(usize),
    /// The next flush fails.
    Flush,
}

#[derive(Default)]
struct Platter {
    bytes: Vec<u8>,
    /// What survives a crash of the machine for certain.
    synced: usize,
    fault: Option<Fault>,
}

/// A handle to it; clones share the disk.
#[derive(Clone, Default)]
pub(super) struct Drive(Arc<Mutex<Platter>>);

impl Drive {
    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    pub(super) fn fail(&self, fault: Fault) {
        self.platter().fault = Some(fault);
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.platter().bytes.clone()
    }

    pub(super) fn from(&self, offset: usize) -> Vec<u8> {
        self.platter().bytes[offset..].to_vec()
    }

    pub(super) fn synced(&self) -> usize {
        self.platter().synced
    }
}

impl Disk for Drive {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        if let Some(Fault::Full(room)) = platter.fault {
            platter.bytes.extend_from_slice(&bytes[..room.min(bytes.len())]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        platter.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut platter = self.platter();
        if platter.fault == Some(Fault::Flush) {
            return Err(io::Error::other("the flush failed"));
        }
        platter.synced = platter.bytes.len();
        Ok(())
    }

    fn second(&self) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(self.clone()))
    }
}
