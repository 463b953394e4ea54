//! What can go wrong between a response and its reward.

/// A sample that cannot be scored. A wrong answer is no error: its reward is low.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No scorer is registered for the sample's task.
    #[error(
        "no scorer for data_source {found:?}; known: {known:?}; register one with `Scorers::register` or correct the column"
    )]
    UnknownSource {
        /// The sample's data source.
        found: String,
        /// The registered data sources.
        known: Vec<String>,
    },
    /// A second scorer for the same task.
    #[error("data_source {0:?} already has a scorer; use `Scorers::replace` to put another in its place")]
    AlreadyRegistered(String),
    /// The sample itself is unusable, for example because its ground truth is malformed.
    #[error("data_source {data_source:?}: {problem}")]
    BadSample {
        /// The sample's data source.
        data_source: String,
        /// What is wrong, and what was expected.
        problem: String,
    },
    /// A scorer broke its contract.
    #[error(
        "the scorer of {data_source:?} gave {found} rewards for a response of {expected} tokens; give one per token"
    )]
    WrongLength {
        /// The sample's data source.
        data_source: String,
        /// Rewards returned.
        found: usize,
        /// Tokens of the response.
        expected: usize,
    },
}

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
