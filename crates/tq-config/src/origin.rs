//! Where a value came from.

use std::fmt;
use std::sync::Arc;

/// The place a key or a value was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A position in a file.
    File {
        /// Path as it was given.
        file: Arc<str>,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// An argument of the command line, as typed.
    Override(Arc<str>),
    /// A default that code provides; the text says whose.
    Code(Arc<str>),
}

impl Origin {
    /// A default that `whose` provides.
    #[must_use]
    pub fn code(whose: &str) -> Self {
        Self::Code(whose.into())
    }

    /// The line in a file, if it is one.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::File { line, .. } => Some(*line),
            Self::Override(_) | Self::Code(_) => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Override(text) => write!(f, "argument `{text}`"),
            Self::Code(whose) => f.write_str(whose),
        }
    }
}
