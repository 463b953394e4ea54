//! What is due by itself. The catalog asks after every command until nothing is.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        event::Event,
        state::{Scratch, State},
    },
    admission, cut,
};
use crate::ids::{ChunkId, ModelId, PartitionId};

/// The next consequences, to be applied before asking again; empty when nothing is due. Only what the last events can
/// have touched is looked at.
pub(crate) fn due(state: &State) -> Vec<Event> {
    let Scratch { schedule, versions, .. } = state.scratch;
    type Rule = fn(&State) -> Vec<Event>;
    let scheduled: [Rule; 7] = [
        cut::stale,
        cut::surplus,
        admission::scheduled,
        admission::rounds,
        cut::batches,
        cut::round_batches,
        admission::closings,
    ];
    let rules = scheduled.into_iter().filter(|_| schedule);
    let rules = rules.chain([retired as Rule].into_iter().filter(|_| versions)).chain([freed as Rule]);
    rules.map(|rule| rule(state)).find(|events| !events.is_empty()).unwrap_or_default()
}

/// Weight versions that nobody needs, and the partitions that go with them.
fn retired(state: &State) -> Vec<Event> {
    let mut gone: BTreeSet<(ModelId, u64)> = BTreeSet::new();
    for (id, model) in (0..).map(ModelId).zip(&state.models) {
        let needless = model.live.keys().filter(|version| state.reasons(id, **version).is_empty());
        gone.extend(needless.map(|version| (id, *version)));
    }
    let mut named: BTreeMap<PartitionId, bool> = BTreeMap::new();
    for (id, model) in (0..).map(ModelId).zip(&state.models) {
        for (&version, found) in &model.live {
            *named.entry(found.partition).or_insert(false) |= !gone.contains(&(id, version));
        }
    }
    let deleted = named.iter().filter(|(id, needed)| !**needed && state.tables.contains_key(id));
    let deleted = deleted.map(|(&partition, _)| Event::PartitionDeleted { partition });
    gone.iter().map(|&(model, version)| Event::VersionRetired { model, version }).chain(deleted).collect()
}

/// Chunks without a live cell, and those of deleted partitions.
fn freed(state: &State) -> Vec<Event> {
    let mut by_partition: BTreeMap<PartitionId, BTreeMap<ChunkId, u32>> = BTreeMap::new();
    for &(partition, id, slots) in &state.scratch.gone {
        by_partition.entry(partition).or_default().insert(id, slots);
    }
    for &(partition, id) in &state.scratch.chunks {
        let chunk = state.tables.get(&partition).and_then(|table| table.chunks.get(&id));
        if let Some(chunk) = chunk.filter(|chunk| chunk.runs == 0) {
            by_partition.entry(partition).or_default().insert(id, chunk.slots);
        }
    }
    let event = |(partition, freed): (PartitionId, BTreeMap<ChunkId, u32>)| {
        let (chunks, slots) = freed.into_iter().unzip();
        Event::ChunksFreed { partition, chunks, slots }
    };
    by_partition.into_iter().map(event).collect()
}
