//! The list of what a snapshot consists of.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use super::SnapshotError;
use crate::{ids::PartitionId, schema::Column};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const STATE: &str = "state.json";
pub(super) const CELLS: &str = "cells";

/// What a snapshot consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`Manifest::FORMAT`].
    pub format: String,
    /// The catalog it was taken of.
    pub incarnation: u64,
    /// Its lineage.
    pub lineage: u64,
    /// Records applied: its position in the event log.
    pub seq: u64,
    /// Publications so far.
    pub version: u64,
    /// Schema of every live partition.
    pub partitions: Vec<PartitionEntry>,
    /// Every other file.
    pub files: Vec<FileEntry>,
}

/// A partition's schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionEntry {
    /// Its id.
    pub id: PartitionId,
    /// Its name.
    pub name: String,
    /// Its own columns, in order.
    pub columns: Vec<Column>,
}

/// A file with its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path within the snapshot.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 of its bytes.
    pub crc32: u32,
}

impl Manifest {
    /// The form written by this version.
    pub const FORMAT: &'static str = "transferqueue-snapshot-1";

    /// Reads the manifest of the snapshot in `dir`; the other files are not looked at.
    ///
    /// # Errors
    /// [`SnapshotError::Io`], [`SnapshotError::Damaged`], [`SnapshotError::Foreign`].
    pub fn load(dir: &Path) -> Result<Self, SnapshotError> {
        let path = dir.join(MANIFEST);
        let text = fs::read(&path).map_err(SnapshotError::io(&path, "read"))?;
        let wrong = |error: serde_json::Error| SnapshotError::Damaged { path: path.clone(), found: error.to_string() };
        let any: serde_json::Value = serde_json::from_slice(&text).map_err(wrong)?;
        let format = any.get("format").and_then(|format| format.as_str()).unwrap_or("no format").to_owned();
        if format != Self::FORMAT {
            return Err(SnapshotError::Foreign { path, found: format, expected: Self::FORMAT.to_owned() });
        }
        serde_json::from_value(any).map_err(wrong)
    }
}
