//! What can go wrong between a file and a prompt.

use std::path::PathBuf;

/// A failure to read, tokenize or write data. Every variant names the file or the value at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder could not be opened, read, created or renamed.
    #[error("cannot read or write {path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The file is not parquet, or uses a feature that is not compiled in.
    #[error("{path}: not readable as parquet")]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The reader's reason.
        source: parquet::errors::ParquetError,
    },
    /// A column is missing.
    #[error("{path}: no column `{column}`; found {found:?}; {hint}")]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The name looked for.
        column: String,
        /// The file's columns.
        found: Vec<String>,
        /// What to do about it.
        hint: &'static str,
    },
    /// A column or a field inside it has a type this reader does not take.
    #[error("{path}: column `{column}` has type {found}; expected {expected}")]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column, or the dotted path of a field inside it.
        column: String,
        /// The Arrow type found.
        found: String,
        /// The types that would do.
        expected: &'static str,
    },
    /// A value that must be there is null or empty.
    #[error("{path}: row {row}: `{column}` {problem}")]
    BadValue {
        /// The file.
        path: PathBuf,
        /// Row number inside the file, from 0.
        row: usize,
        /// The column, or the dotted path of a field inside it.
        column: String,
        /// What is wrong with the value.
        problem: String,
    },
    /// No file was named, or the files hold no row.
    #[error("no prompts: {0}")]
    Empty(String),
    /// A prompt has more tokens than allowed and the options say that this is an error.
    #[error(
        "{path}: row {row}: the prompt has {length} tokens, more than max_prompt_length = {limit}; \
         raise the limit, set data.filter_overlong_prompts = true, or choose data.truncation = left, right or middle"
    )]
    Overlong {
        /// The file.
        path: PathBuf,
        /// Row number inside the file, from 0.
        row: usize,
        /// Tokens of the prompt.
        length: usize,
        /// Tokens allowed.
        limit: usize,
    },
    /// A JSON file of a model folder is malformed, or a field of it has the wrong type.
    #[error("{path}: {problem}")]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The tokenizer refused a text or an id.
    #[error("{path}: {problem}")]
    Tokenize {
        /// The tokenizer's file.
        path: PathBuf,
        /// What was refused, and why.
        problem: String,
    },
    /// A chat template does not compile, or failed on a conversation.
    #[error("chat template: {0}")]
    Template(String),
    /// Options that contradict each other or the task.
    #[error("{0}")]
    Options(String),
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }

    pub(crate) fn parquet(path: impl Into<PathBuf>) -> impl FnOnce(parquet::errors::ParquetError) -> Error {
        let path = path.into();
        move |source| Error::Parquet { path, source }
    }
}

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
