//! What can go wrong with metrics.

use std::path::PathBuf;

/// A failure to compute, write or read metrics.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or stream could not be opened, read or written.
    #[error("cannot read or write {path}")]
    Io {
        /// The file, or a name for the stream.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A line of a metrics file is not what this crate writes.
    #[error("{path}: line {line}: {problem}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// Columns that do not fit each other.
    #[error(transparent)]
    Columns(#[from] tq_math::Error),
    /// Validation samples that cannot be summarised together.
    #[error("validation of {data_source:?}: {problem}")]
    Validation {
        /// The samples' data source.
        data_source: String,
        /// What is wrong with them.
        problem: String,
    },
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }
}

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
