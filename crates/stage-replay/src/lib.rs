//! `recording`, `replay` and `pace`: a recorded run's rows, put back where stages can read them again.
//!
//! `recording` is a source: for every archived group, in the order in which batches were cut, it puts one row with the
//! columns that groups share. `replay` is a stage on the partition that expands those rows: it writes what other stages had
//! written into each sample, with its tags and weight versions. Rows that a group had lost are dropped as `absent`. The n-th
//! group is a pure function of the archive and n, so both go on after a kill where the store is. `pace` ends the cycles
//! when nothing is trained.
//!
//! Versions fit what the store knows: a group is admitted no later than its oldest version, and a row is written no sooner
//! than its newest one is published. For the former, rows of a cycle are held back until all groups are admitted that have a
//! version which that cycle's publication replaces; the schedule has room for them.

mod index;
pub mod pace;
mod recording;
mod replay;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_stage::Output;

pub use pace::Pace;
pub use recording::Recording;
pub use replay::Replay;

/// Settings of `recording` and `replay`; `tq-run replay` fills them in.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder of the archived partition.
    pub archive: PathBuf,
    /// Cycles of it that are replayed.
    pub cycles: u64,
    /// The columns that the stage puts back, as the recorded plan declares them.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub columns: Vec<Output>,
    /// Rows are given the weight versions they were recorded with, of which the oldest was replaced so many cycles before
    /// its row was trained; `None`: they are given none.
    pub lag: Option<u64>,
}

impl Config {
    /// Written when somebody reads them; what a replayed stage writes itself is not among them.
    fn outputs(&self) -> Vec<Output> {
        self.columns.iter().map(|column| column.clone().optional()).collect()
    }
}
