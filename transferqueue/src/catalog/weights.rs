//! Weights in memory: which versions of a model are alive, why, and how many bytes they hold.
//!
//! Weights lie outside the budget of rows and never wait, so what bounds them is said here: the newest version, the one being
//! published, and those that somebody still needs. A version without a [`Reason`] is retired at once.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

use super::{
    definition::WeightRule,
    refusal::Refusal,
    state::{State, cycle::Progress, models::Versions, table::Table},
    views::VersionView,
};
use crate::ids::{ModelId, PartitionId, SessionId};

/// Why a weight version is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It is the newest.
    Newest,
    /// A stage reads the initial weights throughout.
    Initial,
    /// These sessions hold it.
    Pinned(Vec<String>),
    /// So many groups were admitted under it, are sampled with exactly it, and their cycle has not ended.
    Groups(u64),
    /// A round of validation of it is due or under way.
    Round,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest => write!(f, "newest"),
            Self::Initial => write!(f, "initial weights, which a stage reads"),
            Self::Pinned(sessions) => write!(f, "pinned by {}", sessions.join(", ")),
            Self::Groups(1) => write!(f, "needed by 1 group"),
            Self::Groups(groups) => write!(f, "needed by {groups} groups"),
            Self::Round => write!(f, "needed by a round of validation"),
        }
    }
}

/// Weights that are written, or offered, and not visible yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publishing {
    /// Where they lie.
    pub partition: String,
    /// Bytes of them so far.
    pub bytes: u64,
    /// The session that writes them; `None`: they are offered, and wait for the other models' parts.
    pub by: Option<String>,
}

/// The weights of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsView {
    /// Its name.
    pub model: String,
    /// Bytes of its versions and of those being published; what several versions share counts once.
    pub bytes: u64,
    /// Bytes of its trainer's states.
    pub state_bytes: u64,
    /// Versions alive, oldest first.
    pub versions: Vec<VersionView>,
    /// Weights on their way to become a version.
    pub publishing: Vec<Publishing>,
}

impl fmt::Display for WeightsView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alive = self.versions.iter().map(|version| {
            let reasons: Vec<String> = version.reasons.iter().map(ToString::to_string).collect();
            format!("version {} ({} bytes: {})", version.version, version.bytes, reasons.join("; "))
        });
        let publishing = self.publishing.iter().map(|part| match &part.by {
            Some(by) => format!("`{}` ({} bytes, being published by {by})", part.partition, part.bytes),
            None => format!("`{}` ({} bytes, offered)", part.partition, part.bytes),
        });
        let parts: Vec<String> = alive.chain(publishing).collect();
        write!(f, "`{}`: {}", self.model, if parts.is_empty() { "none".to_owned() } else { parts.join(", ") })
    }
}

/// The model whose weights (`weights`) or trainer states (`state`) lie in a partition of that name.
fn model_of<'a>(family: &str, table: &'a Table) -> Option<&'a str> {
    let rest = table.name.strip_prefix(family)?.strip_prefix('/')?;
    rest.rsplit_once('/').map(|(model, _)| model).filter(|_| !table.declared)
}

fn bytes(table: &Table) -> u64 {
    table.fields.iter().map(|field| field.live).sum()
}

impl State {
    /// Why a version is alive; empty for one that is to be retired.
    pub(crate) fn reasons(&self, id: ModelId, version: u64) -> Vec<Reason> {
        let model = &self.models[usize::from(id.0)];
        let exact = |progress: &&Progress| progress.plan.weights == WeightRule::Exact;
        let groups = self.progress.as_ref().filter(exact).and_then(|progress| progress.needed.get(&version));
        let mut expansions = self.tables.values().filter_map(|table| table.expansion.as_ref());
        let round = expansions.any(|expansion| {
            expansion.due.contains(&version) || expansion.round.as_ref().is_some_and(|round| round.version == version)
        });
        let pinned: Vec<String> =
            model.live.get(&version).into_iter().flat_map(|v| v.pins.keys()).map(|s| self.called(*s)).collect();
        let newest = model.newest().is_some_and(|(newest, _)| newest == version);
        let initial = version == 0 && self.definition.models[usize::from(id.0)].keep_initial;
        let found = [
            newest.then_some(Reason::Newest),
            initial.then_some(Reason::Initial),
            (!pinned.is_empty()).then_some(Reason::Pinned(pinned)),
            groups.map(|groups| Reason::Groups(*groups)),
            round.then_some(Reason::Round),
        ];
        found.into_iter().flatten().collect()
    }

    fn called(&self, session: SessionId) -> String {
        self.sessions.get(&session).map_or_else(|| format!("session {session}"), |found| found.name.clone())
    }

    /// Every live weight version.
    pub fn versions_alive(&self) -> Vec<VersionView> {
        self.weights().into_iter().flat_map(|view| view.versions).collect()
    }

    /// The weights of every model: what is alive, why, and how large.
    pub fn weights(&self) -> Vec<WeightsView> {
        (0..).map(ModelId).zip(&self.models).map(|(id, model)| self.weights_of(id, model)).collect()
    }

    fn weights_of(&self, id: ModelId, model: &Versions) -> WeightsView {
        let name = &self.definition.models[usize::from(id.0)].name;
        let held = |partition: &PartitionId| self.tables.get(partition).map_or(0, bytes);
        let versions = model.live.iter().map(|(&version, found)| VersionView {
            model: name.clone(),
            version,
            lineage: found.lineage,
            partition: self.tables.get(&found.partition).map_or_else(String::new, |table| table.name.clone()),
            pinned_by: found.pins.keys().map(|session| self.called(*session)).collect(),
            bytes: held(&found.partition),
            reasons: self.reasons(id, version),
        });
        let offered = model.part.as_ref().and_then(|part| part.weights);
        let written = |(partition, table): &(&PartitionId, &Table)| {
            Some(**partition) == offered || table.owner.is_some() && model_of("weights", table) == Some(name)
        };
        let publishing = self.tables.iter().filter(written).map(|(_, table)| Publishing {
            partition: table.name.clone(),
            bytes: bytes(table),
            by: table.owner.map(|session| self.called(session)),
        });
        let publishing: Vec<Publishing> = publishing.collect();
        let partitions: BTreeSet<PartitionId> = model.live.values().map(|version| version.partition).collect();
        let under_way: u64 = publishing.iter().map(|part| part.bytes).sum();
        let states = self.tables.values().filter(|table| model_of("state", table) == Some(name));
        WeightsView {
            model: name.clone(),
            bytes: partitions.iter().map(held).sum::<u64>() + under_way,
            state_bytes: states.map(bytes).sum(),
            versions: versions.collect(),
            publishing,
        }
    }

    /// Whether so many more bytes of weights are too many.
    ///
    /// # Errors
    /// [`Refusal::Weights`] with every version alive and its reasons.
    pub(crate) fn weights_fit(&self, table: &Table, more: u64) -> Result<(), Refusal> {
        let Some(ceiling) = self.definition.weights.filter(|_| model_of("weights", table).is_some()) else {
            return Ok(());
        };
        let views = self.weights();
        let held: u64 = views.iter().map(|view| view.bytes).sum();
        if held + more <= ceiling {
            return Ok(());
        }
        let alive = views.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Err(Refusal::Weights { partition: table.name.clone(), more, held, ceiling, alive })
    }
}
