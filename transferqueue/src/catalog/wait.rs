//! What a caller waits for, said so that a person can act on it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::LeaseId;

/// Why a claim, put or pin is not served now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Who waits: a task, or `put into prompts`.
    pub who: String,
    /// What for: "256 rows of `advantages`".
    pub wants: String,
    /// How far it is: "240 ready".
    pub have: String,
    /// Who holds it up, most first.
    pub causes: Vec<Cause>,
}

/// One thing that holds a wait up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// Task or schedule rule.
    pub task: String,
    /// Rows it holds or owes.
    pub rows: u64,
    /// Under which lease, if one.
    pub lease: Option<LeaseId>,
    /// Session that holds the lease.
    pub holder: Option<String>,
    /// For how long, in milliseconds of store time.
    pub for_ms: u64,
    /// Anything more: "no worker has claimed it yet", "the trainer has not published version 3".
    pub note: String,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} wants {}; {}", self.who, self.wants, self.have)?;
        for cause in &self.causes {
            write!(f, "; `{}`", cause.task)?;
            if cause.rows > 0 {
                write!(f, " holds {}", cause.rows)?;
            }
            if let Some(lease) = cause.lease {
                write!(f, " under lease {lease}")?;
            }
            if let Some(holder) = &cause.holder {
                write!(f, " ({holder})")?;
            }
            if cause.for_ms > 0 {
                write!(f, " for {:.1} s", cause.for_ms as f64 / 1000.0)?;
            }
            if !cause.note.is_empty() {
                write!(f, " {}", cause.note)?;
            }
        }
        Ok(())
    }
}
