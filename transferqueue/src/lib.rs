//! A columnar tensor store for reinforcement-learning post-training: rows are samples, columns are tensor fields,
//! consumption is exactly-once.
//!
//! A [`Store`] has two halves. The [`catalog`] knows rows, columns, leases, batches and weight versions, and never sees
//! a tensor's bytes; a [unit](mod@unit) holds bytes as Arrow buffers, and never knows what they mean. Workers open a [`Session`],
//! *claim* rows whose input columns are ready, read just those columns as a [`Batch`] of views (no copy), and *commit*
//! [`Outputs`] under the same rows: in one event the outputs become visible and the inputs consumed. A worker that
//! dies gives its rows back. Bytes are freed when every declared reader is done; nothing is evicted.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use transferqueue::{
//!     catalog::definition::{Birth, Partition, Task}, Column, Definition, Dtype, Kind, NewRow, Options, Outputs, Store,
//! };
//!
//! // One table of jobs; `square` reads numbers and writes squares, `sum` reads squares.
//! let column = |name: &str| Column::new(name, Kind::Dense { dtype: Dtype::F32, shape: vec![] });
//! let task = |name: &str, reads: &str| Task { reads: vec![reads.into()], ..Task::new(name, "jobs") };
//! let definition = Definition {
//!     partitions: vec![Partition {
//!         name: "jobs".into(),
//!         columns: vec![column("number"), column("square")],
//!         birth: Birth::Put { capacity: None },
//!     }],
//!     tasks: vec![Task { writes: vec!["square".into()], ..task("square", "number") }, task("sum", "square")],
//!     ..Definition::default()
//! };
//! let store = Store::create(definition, Options::default())?;
//! let deadline = Instant::now() + Duration::from_secs(5);
//!
//! // A client puts three rows and closes the table.
//! let feeder = store.session("feeder")?;
//! let jobs = feeder.partition("jobs")?;
//! feeder.put(jobs, vec![NewRow::default(); 3], Outputs::new().dense::<f32>("number", [1.0, 2.0, 3.0]), deadline)?;
//! feeder.close_partition(jobs)?;
//!
//! // A worker claims, computes, commits, until its stream ends. A wait ends at its deadline with what it waited for.
//! let worker = store.session("worker")?;
//! while let Some(lease) = worker.claim("square", 2, deadline)?.lease() {
//!     let numbers = lease.batch()?.dense::<f32>("number")?.to_vec();
//!     lease.commit(Outputs::new().dense("square", numbers.iter().map(|n| n * n).collect::<Vec<f32>>()))?;
//! }
//! let lease = worker.claim("sum", 3, deadline)?.lease().expect("three rows are owed");
//! assert_eq!(lease.batch()?.dense::<f32>("square")?.to_vec(), [1.0, 4.0, 9.0]);
//! lease.commit(Outputs::new())?;
//!
//! // Every declared reader is done: nothing is held any more, and the ledger balances.
//! assert_eq!(store.units().stats().total().live, 0);
//! assert!(store.with_state(|state, _| state.ledger().iter().all(|entry| entry.balanced()))?);
//! # Ok::<(), transferqueue::Error>(())
//! ```
//!
//! What it is *not*: no database (rows leave when they are used), no message queue (a row has columns that many tasks
//! write and read), no scheduler of processes, and nothing here links a tensor library.

pub mod arrow_map;
pub mod audit;
pub mod batch;
mod bulk;
pub mod catalog;
pub(crate) mod cells_file;
mod checked_line;
pub mod client;
pub(crate) mod disk;
pub mod element;
pub mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod gang;
pub mod ids;
pub mod inspect;
pub(crate) mod ipc;
pub mod link;
pub mod log;
pub mod outputs;
mod random;
pub mod schema;
pub mod server;
pub mod session;
pub mod snapshot;
pub mod store;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "some of it is for tests alone"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod testing;
pub mod transport;
mod ucx;
pub mod unit;
pub mod wire;

pub use batch::{Batch, BatchError};
pub use catalog::command::{BatchRef, CutRef, NewRow, RowHead, Sampled, SavedRow, Span, Tag, Tags, VersionRef};
pub use catalog::{Refusal, definition::Definition};
pub use element::Element;
pub use error::Error;
pub use ids::{ChunkId, ColumnId, GroupId, LeaseId, Millis, ModelId, PartitionId, RowId, Rows, SessionId, TaskId};
pub use log::Flush;
pub use outputs::{OutputError, Outputs};
pub use schema::{Column, Dtype, Kind};
pub use session::{Addend, Claim, Gang, Lease, Pinned, Saved, Session};
pub use snapshot::{Captured, Manifest};
pub use store::{Durability, Options, Publication, Recovered, Store};
