//! Weight versions of one model, and who needs them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::State;
use crate::{
    catalog::{command::VersionRef, refusal::Refusal},
    ids::{ModelId, PartitionId, SessionId},
};

/// One visible version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) lineage: u64,
    /// Where the weights lie; an alias names the partition of the version before.
    pub(crate) partition: PartitionId,
    /// Pins by session, with their number.
    pub(crate) pins: BTreeMap<SessionId, u32>,
}

/// A training part that was offered and is not published yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) weights: Option<PartitionId>,
    pub(crate) state: Option<PartitionId>,
}

/// The versions of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) live: BTreeMap<u64, Version>,
    /// The newest trainer state.
    pub(crate) state: Option<PartitionId>,
    /// Offered for the current cycle (or the beginning).
    pub(crate) part: Option<Part>,
}

impl Versions {
    pub(crate) fn newest(&self) -> Option<(u64, &Version)> {
        self.live.last_key_value().map(|(&v, version)| (v, version))
    }

    /// Whether a partition is named by a version, the trainer's state or an offered part.
    pub(crate) fn names(&self, id: PartitionId) -> bool {
        self.state == Some(id)
            || self.live.values().any(|v| v.partition == id)
            || self.part.as_ref().is_some_and(|part| part.weights == Some(id) || part.state == Some(id))
    }
}

/// Where a model stands, for a trainer that goes on or a rollout that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newest {
    /// The catalog's lineage: what is published next belongs to it.
    pub lineage: u64,
    /// The newest version, if one is published.
    pub version: Option<VersionRef>,
    /// Where the trainer's state of that version lies.
    pub state: Option<PartitionId>,
    /// Its part of what is published next is offered, and waits for the other models' parts.
    pub offered: bool,
}

impl State {
    /// The newest version of a model, without waiting for one or holding it.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] for another model.
    pub fn newest(&self, model: ModelId) -> Result<Newest, Refusal> {
        let versions = self.versions(model)?;
        let version = versions.newest().map(|(version, found)| VersionRef {
            model,
            lineage: found.lineage,
            version,
            partition: found.partition,
        });
        Ok(Newest { lineage: self.lineage, version, state: versions.state, offered: versions.part.is_some() })
    }
}
