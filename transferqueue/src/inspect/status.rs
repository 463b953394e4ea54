//! The run at a glance, and bytes by column.

use serde::{Deserialize, Serialize};

use crate::{
    catalog::{
        views::{ColumnView, ScheduleView},
        weights::WeightsView,
    },
    error::Error,
    ids::ColumnId,
    store::Store,
    unit::ColumnBytes,
};

/// The run at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Process id of the store.
    pub pid: u32,
    /// Store time: milliseconds since it was created or restored.
    pub up_ms: u64,
    /// Tells this catalog from others.
    pub incarnation: u64,
    /// How often the run was restored.
    pub lineage: u64,
    /// Events are at this position.
    pub seq: u64,
    /// Publications so far.
    pub version: u64,
    /// Admission and cutting; absent when nothing is trained.
    pub schedule: Option<ScheduleView>,
    /// Live rows of all partitions.
    pub rows: u64,
    /// Workers.
    pub sessions: u64,
    /// Rows under leases.
    pub leased: u64,
    /// Bytes in memory.
    pub bytes: ColumnBytes,
    /// Weights of every model: what is alive, and why.
    #[serde(default)]
    pub weights: Vec<WeightsView>,
    /// How bytes travel.
    pub transport: String,
    /// Why it is being stopped.
    pub stopped: Option<String>,
}

impl Status {
    pub(super) fn of(store: &Store) -> Result<Self, Error> {
        let bytes = store.units().stats().total();
        let (transport, stopped) = (store.transport().to_owned(), store.stopped());
        store.with_state(|state, now| {
            let sessions = state.sessions(now);
            Self {
                pid: std::process::id(),
                up_ms: now.0,
                incarnation: state.incarnation(),
                lineage: state.lineage(),
                seq: state.seq(),
                version: state.version(),
                schedule: state.schedule(),
                rows: state.partitions().iter().map(|partition| partition.live).sum(),
                leased: sessions.iter().map(|session| session.rows).sum(),
                sessions: sessions.len() as u64,
                bytes,
                weights: state.weights(),
                transport,
                stopped,
            }
        })
    }
}

/// A column: what the catalog counts (payload of cells) beside what the unit holds (buffers).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnBytesView {
    /// The catalog's account.
    #[serde(flatten)]
    pub account: ColumnView,
    /// The unit's account.
    pub unit: ColumnBytes,
}

pub(super) fn columns(store: &Store) -> Result<Vec<ColumnBytesView>, Error> {
    let stats = store.units().stats();
    store.with_state(|state, _| {
        // The catalog lists each partition's columns in the order of their positions.
        let keys = state.partitions().into_iter().flat_map(|partition| {
            let columns = state.describe(partition.id).map_or(0, |description| description.columns.len());
            (0..columns).map(move |position| (partition.id, ColumnId(position as u16)))
        });
        let both = state.columns().into_iter().zip(keys);
        both.map(|(account, (partition, id))| ColumnBytesView { account, unit: stats.column(partition, id) }).collect()
    })
}
