//! The spine: a columnar tensor store with exactly-once consumption.

pub mod arrow_map;
pub mod audit;
pub mod batch;
pub mod catalog;
pub mod element;
pub mod error;
pub mod ids;
pub mod inspect;
pub mod link;
pub mod log;
pub mod outputs;
pub mod schema;
pub mod session;
pub mod snapshot;
pub mod store;
#[cfg(test)]
mod testing;
pub mod transport;
pub mod unit;

pub use batch::{Batch, BatchError};
pub use catalog::command::{BatchRef, CutRef, NewRow, RowHead, Span, Tag, Tags, VersionRef};
pub use catalog::definition::Definition;
pub use element::Element;
pub use error::Error;
pub use ids::{ChunkId, ColumnId, GroupId, LeaseId, Millis, ModelId, PartitionId, RowId, Rows, SessionId, TaskId};
pub use log::Flush;
pub use outputs::{OutputError, Outputs};
pub use schema::{Column, Dtype, Kind};
pub use session::{Claim, Lease, Pinned, Session};
pub use store::{Options, Publication, Store};
