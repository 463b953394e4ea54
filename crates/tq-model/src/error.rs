//! What can go wrong, by what the caller must do about it.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every failure of this crate.
///
/// All kinds but [`Error::Torch`] and [`Error::Io`] mean that the call or its files must be put right; trying again changes nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model folder describes something that is not implemented or is not a model at all.
    #[error("model config: {0}")]
    Config(String),
    /// Weights do not fit the model: a name is missing, unexpected, or has the wrong shape or type.
    #[error("weights: {0}")]
    Weights(String),
    /// A batch cannot be run: empty rows, ids outside the vocabulary, rows that are too long.
    #[error("batch: {0}")]
    Batch(String),
    /// A generation request or an option of the generator is out of range.
    #[error("generation: {0}")]
    Generation(String),
    /// A training call was made on a model that cannot train, or with an option that is out of range.
    #[error("training: {0}")]
    Training(String),
    /// The caller's loss function failed.
    #[error("loss function failed")]
    Loss(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A file could not be read or written.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried: `read`, `write`, `create`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// libtorch refused an operation; memory is the usual reason.
    #[error("libtorch refused an operation")]
    Torch(#[from] tch::TchError),
}

impl Error {
    /// Wraps an error of a caller's loss function.
    pub fn loss(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Loss(source.into())
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
