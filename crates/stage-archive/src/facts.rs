//! What a file says of itself, in Parquet's key-value metadata.

use serde::{Deserialize, Serialize};

/// Which batch a file holds. A function of the batch alone: written again after a kill, the file is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Form of the file: [`Facts::FORMAT`].
    pub format: u32,
    /// The partition whose rows they are.
    pub partition: String,
    /// The cycle (of a partition with `every`: the version that the round belongs to).
    pub cycle: u64,
    /// Index of the batch within the cycle.
    pub index: u64,
    /// The batch ends its cycle.
    pub last: bool,
    /// Rows in the file.
    pub rows: u64,
    /// Groups that they belong to.
    pub groups: u64,
}

impl Facts {
    /// The form that this crate writes.
    pub const FORMAT: u32 = 1;
    /// Where the facts stand in the file's metadata, as JSON.
    pub const KEY: &'static str = "tq.archive";
}

/// Checksum over the first bytes of a file, which are all of its pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksum {
    pub(crate) bytes: u64,
    pub(crate) crc32: u32,
}

impl Checksum {
    pub(crate) const KEY: &'static str = "tq.checksum";
}
