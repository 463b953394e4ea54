//! What can be wrong with a call.

/// A call that has no answer. Every variant names the argument and what was expected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A column has another number of values than its layout has tokens (or rows).
    #[error("{what}: {found} values, expected {expected} (one per {unit})")]
    Length {
        /// The column.
        what: &'static str,
        /// Values given.
        found: usize,
        /// Values that the layout asks for.
        expected: usize,
        /// `token` or `row`.
        unit: &'static str,
    },
    /// A column that the algorithm cannot do without.
    #[error("{algorithm} needs {what}, which is absent; produce the column or choose another algorithm")]
    MissingInput {
        /// The estimator or loss.
        algorithm: &'static str,
        /// The column.
        what: &'static str,
    },
    /// A statistic over too few tokens.
    #[error("{what} needs at least {least} tokens inside the mask, found {found}")]
    TooFewTokens {
        /// The statistic.
        what: &'static str,
        /// Tokens inside the mask.
        found: usize,
        /// The least number that has an answer.
        least: usize,
    },
    /// A statistic over a group with too few rows.
    #[error(
        "{algorithm} needs at least {least} rows in each group, group {group} has {found}; raise rollout.n or keep groups whole"
    )]
    SmallGroup {
        /// The estimator.
        algorithm: &'static str,
        /// The group's id.
        group: u64,
        /// Rows in the group.
        found: usize,
        /// The least number that has an answer.
        least: usize,
    },
    /// A name that is not registered.
    #[error("unknown {kind} `{found}`; expected one of {}", known.join(", "))]
    Unknown {
        /// What was looked up: an estimator, a loss, an aggregation mode, …
        kind: &'static str,
        /// The name.
        found: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A name that is registered already.
    #[error("{kind} {name:?} is registered already; choose another name")]
    AlreadyRegistered {
        /// An estimator or a loss.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A parameter outside its range.
    #[error("{name} = {found}; expected {expected}")]
    Parameter {
        /// The parameter, by verl's name.
        name: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// Rows that cannot be divided or packed as asked.
    #[error("{0}")]
    Balance(String),
}

impl Error {
    pub(crate) fn unknown(kind: &'static str, found: &str, known: &[&str]) -> Error {
        Error::Unknown { kind, found: found.into(), known: known.iter().map(|name| name.to_string()).collect() }
    }
}

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
