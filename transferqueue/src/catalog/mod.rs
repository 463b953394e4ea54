//! The control plane: one state machine for all partitions of a run. Metadata only, never tensor bytes.
//!
//! A [`Request`](command::Request) is decided against the [`State`] and becomes events; the events are applied and written
//! down as one [`Record`]. There is no I/O here, no wall clock and no random number that does not follow from a seed, so
//! the records replayed give the same state, and two runs of one seed give the same records.
//!
//! ```
//! use transferqueue::catalog::{Catalog, command::*, definition::*};
//! use transferqueue::{Millis, PartitionId, TaskId};
//!
//! let definition = Definition {
//!     partitions: vec![Partition { name: "jobs".into(), columns: vec![], birth: Birth::Put { capacity: None } }],
//!     tasks: vec![Task::new("work", "jobs")],
//!     ..Definition::default()
//! };
//! let (mut catalog, _first) = Catalog::create(definition, 1, Millis(0))?;
//! let open = Request { caller: None, command: Command::OpenSession { name: "worker".into(), here: true } };
//! let Reply::Session(session) = catalog.call(&open, Millis(1))?.reply else { unreachable!() };
//! let mut seq = 0;
//! let mut call = |command| {
//!     seq += 1;
//!     catalog.call(&Request { caller: Some((session, seq)), command }, Millis(2)).map(|outcome| outcome.reply)
//! };
//! call(Command::Put { partition: PartitionId(0), rows: vec![NewRow::default(); 3], cells: vec![] })?;
//! let Reply::Claimed(claimed) = call(Command::Claim { task: TaskId(0), limit: 2 })? else { unreachable!() };
//! assert_eq!(claimed.batch.rows.to_string(), "0-1");
//! # Ok::<(), transferqueue::catalog::Refusal>(())
//! ```

pub mod command;
pub mod definition;
pub mod event;
pub mod limits;
pub mod predicate;
pub mod views;
pub mod wait;
pub mod weights;

mod apply;
mod bits;
mod build;
mod call;
mod check;
mod decide;
mod explain;
mod look;
mod refer;
mod refusal;
mod rng;
mod sampler;
mod state;
mod verify;

pub use self::{
    apply::apply,
    call::{Catalog, Outcome, Publication, Trained},
    decide::{Decision, decide},
    refusal::{Advice, Refusal},
    state::{Newest, State, Wake},
};
pub use event::{Event, Record};
pub(crate) use look::Cold;
