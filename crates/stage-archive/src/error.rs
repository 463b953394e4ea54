//! Why a file of an archive cannot be written or read.

use std::{
    io,
    path::{Path, PathBuf},
};

/// What is wrong with which file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum ArchiveError {
    /// The file system refused.
    #[error("archive `{}`: cannot {what}: {error}", .path.display())]
    Io { path: PathBuf, what: &'static str, error: io::Error },
    /// Parquet refused to write it.
    #[error("archive `{}`: cannot {what}: {error}", .path.display())]
    Write { path: PathBuf, what: &'static str, error: parquet::errors::ParquetError },
    /// Not what was written, or written by something else.
    #[error(
        "archive `{}`: {found}; expected a whole file as `keep: archive` writes it; restore it from a copy, or record the run again", .path.display()
    )]
    Damaged { path: PathBuf, found: String },
    /// A column that the file lacks.
    #[error("archive `{}`: no column `{column}`; it has {}; record the run with `keep: archive`", .path.display(), .have.join(", "))]
    Column { path: PathBuf, column: String, have: Vec<String> },
}

impl ArchiveError {
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), what, error }
    }

    pub(crate) fn write(path: &Path, what: &'static str) -> impl FnOnce(parquet::errors::ParquetError) -> Self {
        move |error| Self::Write { path: path.to_owned(), what, error }
    }

    pub(crate) fn damaged(path: &Path, found: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), found: found.into() }
    }
}
