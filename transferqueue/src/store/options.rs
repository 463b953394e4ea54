//! How a store is set up.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use crate::log::{Flush, Policy};

/// How a store is set up. Every field has a default: in memory alone, no event log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Folder of the run: the event log goes to `events/` in it. `None`: no log.
    pub dir: Option<PathBuf>,
    /// When events reach the disk.
    pub flush: Flush,
    /// Bytes after which the event log begins a new file.
    pub segment_bytes: u64,
    /// Bytes after which a chunk takes no more cells.
    pub chunk_bytes: usize,
    /// Tells pointers of this catalog from those of others. `None`: random.
    pub incarnation: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { dir: None, flush: Flush::None, segment_bytes: 64 << 20, chunk_bytes: 256 << 10, incarnation: None }
    }
}

impl Options {
    /// With an event log under this folder.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), ..Self::default() }
    }

    pub(super) fn events(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join("events"))
    }

    pub(super) fn policy(&self) -> Policy {
        Policy { segment_bytes: self.segment_bytes, flush: self.flush }
    }
}

/// A number that differs from one store to the next: the seed of the standard library's hash maps.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
