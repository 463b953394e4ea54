//! Offers, publications and pins of weight versions.

use super::{
    super::{
        command::{Reply, VersionRef},
        event::{Event, Published},
        explain,
        refusal::Refusal,
        state::{State, cursor::Counted, cycle::Progress, gang::seat, models::Part},
    },
    Decision,
};
use crate::ids::{ModelId, PartitionId, SessionId};

pub(super) fn offer(
    state: &State,
    id: ModelId,
    cycle: Option<u64>,
    (weights, trainer): (Option<PartitionId>, Option<PartitionId>),
    caller: Option<SessionId>,
) -> Result<Decision, Refusal> {
    let model = state.versions(id)?;
    let name = &state.definition.models[usize::from(id.0)].name;
    let begun = !state.models.iter().all(|model| model.live.is_empty());
    if cycle.is_some() && !begun && state.progress.is_some() {
        return match state.stopped() {
            Some(refusal) => Err(refusal),
            None => Ok(Decision::nothing(Reply::NotYet(explain::initial_weights(state, format!("offer of `{name}`"))))),
        };
    }
    if model.part.is_some() {
        return refuse(
            format!("model `{name}` has offered its part already"),
            "wait for the publication; a part is offered once".into(),
        );
    }
    let active = match cycle {
        None if begun => {
            return refuse(
                format!("the initial weights are published, and `{name}` offers initial weights again"),
                "offer a cycle".into(),
            );
        }
        None if weights.is_none() => {
            return refuse(
                format!("`{name}` offers no weights at the beginning"),
                "name the closed partition that holds its initial weights".into(),
            );
        }
        None => (0..state.models.len() as u16).map(ModelId).collect(),
        Some(cycle) => trained(state, id, name, cycle, caller)?,
    };
    for (what, partition) in [("weights", weights), ("trainer state", trainer)] {
        if let Some(partition) = partition {
            offerable(state, what, partition)?;
        }
    }
    if weights.is_some() && weights == trainer {
        return refuse(
            format!("`{name}` offers one partition as weights and as trainer state"),
            "put them into two: they live for different times".into(),
        );
    }

    let part = Part { weights, state: trainer };
    let mut events = vec![Event::PartOffered { model: id, cycle, weights, state: trainer }];
    let missing = active.iter().any(|&other| other != id && state.models[usize::from(other.0)].part.is_none());
    if missing {
        return Ok(Decision::new(events, Reply::Offered(None)));
    }
    let version = cycle.map_or(0, |_| state.version + 1);
    publish(state, (id, &part), cycle, version, &mut events);
    Ok(Decision::new(events, Reply::Offered(Some(version))))
}

fn refuse<T>(found: String, hint: String) -> Result<T, Refusal> {
    Err(Refusal::Offer { found, hint })
}

/// Checks that a model may offer a cycle; returns the models whose parts make the publication.
fn trained(
    state: &State,
    id: ModelId,
    name: &str,
    cycle: u64,
    caller: Option<SessionId>,
) -> Result<Vec<ModelId>, Refusal> {
    let Some(progress) = &state.progress else {
        return refuse(format!("`{name}` offers cycle {cycle}"), "this catalog has no schedule, so no cycles".into());
    };
    if cycle != progress.cycle || cycle >= progress.cycles {
        let hint = format!("the current cycle is {} of {}", progress.cycle, progress.cycles);
        return refuse(format!("`{name}` offers cycle {cycle}"), hint);
    }
    let trainer = state.cursors.iter().find(|cursor| cursor.training.is_some_and(|t| t.model == id));
    let Some(trainer) = trainer.filter(|cursor| cursor.trains_in(cycle)) else {
        let hint = "it is published as an alias; only models in training offer".into();
        return refuse(format!("no task trains `{name}` in cycle {cycle}"), hint);
    };
    let task = &trainer.def.name;
    // First of all: whoever belongs to a gang that has ended begins again, whatever the cycle looks like by now.
    if let Some(gang) = &trainer.gang {
        let rank = caller.map(|session| seat(trainer, gang, session)).transpose()?;
        if rank != Some(0) {
            let found = match rank {
                Some(rank) => format!("rank {rank} of task `{task}` offers cycle {cycle}"),
                None => format!("cycle {cycle} of `{name}` is offered without a session"),
            };
            return refuse(found, "rank 0 offers for all ranks, which hold the same weights".into());
        }
    }
    if !progress.whole {
        let (cut, all) = (progress.cut, progress.plan.groups_per_cycle);
        return refuse(
            format!("cycle {cycle} is not completely cut: {cut} of {all} groups"),
            format!("claim on until `{task}` gets a batch with `last`"),
        );
    }
    let left = untrained(state, progress, trainer.counted);
    if left > 0 {
        return refuse(
            format!("{left} rows of cycle {cycle} are not committed by task `{task}`"),
            "commit or drop them first".into(),
        );
    }
    if let Some(by) = trainer.trainers.iter().find(|session| trainer.gang.is_none() && Some(**session) != caller) {
        let worker = state.sessions.get(by).map_or("?", |session| session.name.as_str());
        return refuse(
            format!("cycle {cycle} of `{name}` was trained by session {by} ({worker}), another one offers it"),
            "only the session whose memory holds the training offers it; once that is lost, claim and train again"
                .into(),
        );
    }
    let training = state.cursors.iter().filter(|cursor| cursor.trains_in(cycle));
    Ok(training.filter_map(|cursor| cursor.training.map(|t| t.model)).collect())
}

/// The current cycle becomes the last.
pub(super) fn end_schedule(state: &State, cycle: u64) -> Result<Decision, Refusal> {
    let Some(progress) = &state.progress else {
        return refuse(format!("cycle {cycle} is to be the last"), "this catalog has no schedule, so no cycles".into());
    };
    if cycle != progress.cycle || cycle >= progress.cycles {
        let hint = format!("the current cycle is {} of {}", progress.cycle, progress.cycles);
        return refuse(format!("cycle {cycle} is to be the last"), hint);
    }
    if !progress.whole {
        let (cut, all) = (progress.cut, progress.plan.groups_per_cycle);
        return refuse(
            format!("cycle {cycle} is to be the last and is not completely cut: {cut} of {all} groups"),
            "end the schedule after the batch with `last`".into(),
        );
    }
    Ok(Decision::done(vec![Event::ScheduleShortened { cycles: cycle + 1 }]))
}

/// Rows of the current cycle that a training task still has to commit.
fn untrained(state: &State, progress: &Progress, counted: Counted) -> u64 {
    let Counted::Batches(tally) = counted else { return 0 };
    let table = &state.tables[&progress.partition];
    let batches = table.batches.range((progress.cycle, 0)..(progress.cycle + 1, 0));
    batches.map(|(_, batch)| u64::from(batch.tallies[tally].left)).sum()
}

/// Weights and trainer states lie in partitions of their own, added while running and complete.
fn offerable(state: &State, what: &str, id: PartitionId) -> Result<(), Refusal> {
    let table = state.table(id)?;
    let found = match () {
        () if table.declared => "is declared, and would not go with its version",
        () if !table.closed => "is not closed, so it may not be complete",
        () if state.models.iter().any(|model| model.names(id)) => "already belongs to a version or a trainer state",
        () => return Ok(()),
    };
    refuse(
        format!("the partition offered as {what}, {id} `{}`, {found}", table.name),
        "create a partition, put everything into it, close it, then offer it once".into(),
    )
}

fn publish(state: &State, own: (ModelId, &Part), cycle: Option<u64>, version: u64, events: &mut Vec<Event>) {
    let mut models = Vec::with_capacity(state.models.len());
    let mut superseded = Vec::new();
    for (id, model) in (0..).map(ModelId).zip(&state.models) {
        let part = if id == own.0 { Some(own.1) } else { model.part.as_ref() };
        let before = model.newest().map(|(_, version)| version.partition);
        let weights = part.and_then(|part| part.weights).or(before);
        let weights = weights.expect("invariant: every model has initial weights before a cycle is offered");
        let trainer = part.and_then(|part| part.state);
        if let (Some(_), Some(partition)) = (trainer, model.state) {
            superseded.push(Event::PartitionDeleted { partition });
        }
        models.push(Published { model: id, weights, state: trainer });
    }
    events.push(Event::CyclePublished { cycle, version, lineage: state.lineage, models });
    events.extend(superseded);
}

pub(super) fn pin(state: &State, id: ModelId, wanted: Option<u64>, session: SessionId) -> Result<Decision, Refusal> {
    let model = state.versions(id)?;
    let name = &state.definition.models[usize::from(id.0)].name;
    let version = wanted.or(model.newest().map(|(version, _)| version));
    let found = version.and_then(|version| model.live.get(&version).map(|found| (version, found)));
    if let Some((version, found)) = found {
        let pinned = VersionRef { model: id, lineage: found.lineage, version, partition: found.partition };
        let event = Event::VersionPinned { session, model: id, version };
        return Ok(Decision::new(vec![event], Reply::Pinned(pinned)));
    }
    let never = |found: &str| {
        let version = version.unwrap_or(0);
        Err(Refusal::Version { model: name.clone(), version, found: found.into() })
    };
    let begun = !model.live.is_empty();
    if begun && version <= Some(state.version) {
        return never("it was retired: it was not the newest, not pinned, and no admitted group needed it");
    }
    if begun && state.over() {
        return never("the run is over and no further version will be published");
    }
    match state.stopped() {
        Some(refusal) => Err(refusal),
        None => Ok(Decision::nothing(Reply::NotYet(explain::pin(state, id, version)))),
    }
}

pub(super) fn unpin(state: &State, id: ModelId, version: u64, session: SessionId) -> Result<Decision, Refusal> {
    let model = state.versions(id)?;
    if model.live.get(&version).is_some_and(|found| found.pins.contains_key(&session)) {
        return Ok(Decision::done(vec![Event::VersionUnpinned { session, model: id, version }]));
    }
    let name = state.definition.models[usize::from(id.0)].name.clone();
    Err(Refusal::Version { model: name, version, found: "this session has not pinned it".into() })
}
