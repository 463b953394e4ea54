//! Which file holds which group.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use stage_archive::{ArchiveError, Recorded, Rows, list};

/// The batches of an archive and the groups in them, numbered in the order in which they were cut.
pub(crate) struct Index {
    /// Files, each with the number of its first group.
    files: Vec<(PathBuf, u64)>,
    /// Groups before the end of each cycle.
    ends: Vec<u64>,
    groups: u64,
}

/// A file's rows, and where its groups are among them.
pub(crate) struct Loaded {
    /// The cycle it was trained in.
    pub(crate) cycle: u64,
    /// Number of its first group.
    pub(crate) first: u64,
    /// Where each group begins, and the number of rows at the end.
    pub(crate) starts: Vec<usize>,
    pub(crate) rows: Rows,
}

impl Index {
    /// Reads the footers of the first `cycles` cycles.
    ///
    /// # Errors
    /// When a file is not whole.
    pub(crate) fn open(archive: &Path, cycles: u64) -> Result<Self, ArchiveError> {
        let (mut files, mut ends, mut groups) = (Vec::new(), Vec::new(), 0);
        for (name, path) in list(archive)? {
            if name.cycle >= cycles {
                break;
            }
            let recorded = Recorded::open(&path)?;
            files.push((path, groups));
            groups += recorded.facts().groups;
            if recorded.facts().last {
                ends.push(groups);
            }
        }
        Ok(Self { files, ends, groups })
    }

    /// Groups up to and with a cycle; beyond the last one, all.
    pub(crate) fn groups_through(&self, cycle: u64) -> u64 {
        usize::try_from(cycle).ok().and_then(|cycle| self.ends.get(cycle)).copied().unwrap_or(self.groups)
    }

    /// Groups of all files.
    pub(crate) fn groups(&self) -> u64 {
        self.groups
    }

    /// Reads the file that holds a group.
    ///
    /// # Errors
    /// When there is no such group, or its file cannot be read.
    pub(crate) fn load(&self, group: u64, columns: &[&str]) -> Result<Loaded> {
        let after = self.files.partition_point(|(_, first)| *first <= group);
        let file = after.checked_sub(1).filter(|_| group < self.groups).and_then(|at| self.files.get(at));
        let (path, first) = file.with_context(|| {
            format!(
                "group {group} is asked for, and the archive holds {}; do not change it during a replay",
                self.groups
            )
        })?;
        let recorded = Recorded::open(path)?;
        let cycle = recorded.facts().cycle;
        let rows = recorded.read(columns)?;
        Ok(Loaded { cycle, first: *first, starts: rows.groups(), rows })
    }
}

impl Loaded {
    /// Whether the file holds the group.
    pub(crate) fn has(&self, group: u64) -> bool {
        self.position(group).is_some()
    }

    /// Rows of a group, in the order of samples.
    pub(crate) fn group(&self, group: u64) -> std::ops::Range<usize> {
        self.position(group).map_or(0..0, |at| self.starts[at]..self.starts[at + 1])
    }

    /// The row of one sample of a group; `None`: the group had lost it.
    pub(crate) fn sample(&self, group: u64, sample: u32) -> Option<usize> {
        self.group(group).find(|row| self.rows.heads[*row].sample == sample)
    }

    /// Number behind its last group.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.starts.len().saturating_sub(1) as u64
    }

    fn position(&self, group: u64) -> Option<usize> {
        let at = usize::try_from(group.checked_sub(self.first)?).ok()?;
        (at + 1 < self.starts.len()).then_some(at)
    }
}
