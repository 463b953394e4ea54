//! Claims: rows, whole groups, cut batches.

use super::{
    super::{
        command::{BatchRef, Claimed, CutRef, Reply},
        definition::Grain,
        event::Event,
        explain,
        refusal::Refusal,
        rng::Rng,
        sampler::{self, Pool},
        state::{
            State,
            cursor::{Counted, Cursor},
            table::Table,
        },
    },
    Decision, gang,
};
use crate::ids::{GroupId, LeaseId, Millis, RowId, Rows, SessionId, TaskId};

pub(super) fn claim(
    state: &State,
    id: TaskId,
    limit: u64,
    session: SessionId,
    now: Millis,
) -> Result<Decision, Refusal> {
    let cursor = state.cursor(id)?;
    if let Some(refusal) = state.stopped() {
        return Err(refusal);
    }
    let table = state.table_of(cursor);
    if let Some(gang) = &cursor.gang {
        return match state.has_ended(cursor) {
            true => Ok(Decision::nothing(Reply::Ended)),
            false => gang::claim(state, id, gang, session, now),
        };
    }
    let found = match cursor.counted {
        Counted::Batches(tally) => batches(state, table, cursor, tally, session),
        _ if limit == 0 => {
            return Err(Refusal::Claim {
                task: cursor.def.name.clone(),
                found: "a limit of 0".into(),
                expected: "at least 1 row or group".into(),
            });
        }
        Counted::Rows => rows(state, table, cursor, id, limit).map(|rows| (rows, None)),
        Counted::Groups(_) => groups(state, table, cursor, id, limit).map(|rows| (rows, None)),
    };
    match found {
        Some((rows, cut)) => lease(state, cursor, id, rows, cut, session, now),
        None if state.has_ended(cursor) => Ok(Decision::nothing(Reply::Ended)),
        None => Ok(Decision::nothing(Reply::NotYet(explain::claim(state, id, limit, now)))),
    }
}

/// The first of several tasks that has rows; the wait of the first that has not ended; the end when all have.
pub(super) fn any(
    state: &State,
    tasks: &[TaskId],
    limit: u64,
    session: SessionId,
    now: Millis,
) -> Result<Decision, Refusal> {
    let mut wait = None;
    for &task in tasks {
        let Decision { events, reply } = claim(state, task, limit, session, now)?;
        match reply {
            Reply::Claimed(claimed) => return Ok(Decision::new(events, Reply::ClaimedAny { task, claimed })),
            Reply::NotYet(found) => _ = wait.get_or_insert(found),
            _ => {}
        }
    }
    Ok(Decision::nothing(wait.map_or(Reply::Ended, Reply::NotYet)))
}

/// Whether a claim would be served.
pub(crate) fn servable(state: &State, id: TaskId) -> bool {
    let cursor = &state.cursors[id.0 as usize];
    match cursor.counted {
        Counted::Rows => !cursor.ready.is_empty(),
        Counted::Groups(_) => !cursor.ready_groups.is_empty(),
        Counted::Batches(_) if cursor.gang.is_some() => gang::servable(state, cursor),
        Counted::Batches(tally) => {
            let session = trainer(state, cursor).unwrap_or_default();
            batches(state, state.table_of(cursor), cursor, tally, session).is_some()
        }
    }
}

/// Whether there is anything to claim, be whoever should claim it there or not: a gang that waits for a rank is not idle.
pub(crate) fn could_serve(state: &State, id: TaskId) -> bool {
    let cursor = &state.cursors[id.0 as usize];
    match cursor.counted {
        Counted::Batches(tally) if cursor.gang.is_some() => {
            servable(state, id) || next(state, state.table_of(cursor), cursor, tally).is_some()
        }
        _ => servable(state, id),
    }
}

fn lease(
    state: &State,
    cursor: &Cursor,
    task: TaskId,
    rows: Rows,
    cut: Option<CutRef>,
    session: SessionId,
    now: Millis,
) -> Result<Decision, Refusal> {
    // A lease without rows holds nothing, so it is not kept: it has the number that no lease has.
    let lease = if rows.is_empty() { LeaseId(0) } else { state.next.lease };
    let names: Vec<&str> = cursor.def.reads.iter().map(String::as_str).collect();
    let saved = state.saved(cursor, task, &rows);
    let batch = BatchRef { saved, ..state.refer(cursor.partition, &rows, &names)? };
    let heads = state.heads(cursor.partition, &rows)?;
    let claimed = Claimed { lease, batch, heads, cut, lease_ms: cursor.def.lease_ms };
    let leased = Event::Leased { lease, task, session, rows, at: now };
    let events = if lease == LeaseId(0) { Vec::new() } else { vec![leased] };
    Ok(Decision::new(events, Reply::Claimed(claimed)))
}

fn rng(state: &State, task: TaskId) -> Rng {
    Rng::new(state.definition.seed ^ u64::from(task.0) << 40, state.next.lease.0)
}

/// Where rows (or groups) of the lowest ready one's version end, if a claim must not mix versions.
fn bound(table: &Table, cursor: &Cursor, version: impl Fn() -> Option<u64>, group: bool) -> Option<u64> {
    let version = cursor.one_version.then(version)??;
    let (_, &(row, id)) = table.eras.range(version + 1..).next()?;
    Some(if group { id.0 } else { row.0 })
}

fn rows(state: &State, table: &Table, cursor: &Cursor, id: TaskId, limit: u64) -> Option<Rows> {
    let lowest = RowId(cursor.ready.min()?);
    let version = || table.pages.get(lowest).map(|row| table.origin(lowest, row).1);
    let length = state.length(table, cursor);
    let weight = |row: u64| length(RowId(row));
    let pool = Pool::new(&cursor.ready, cursor.reuse.as_deref(), bound(table, cursor, version, false), &weight);
    let chosen = sampler::of(cursor.def.sampling).choose(&pool, limit, &mut rng(state, id));
    Some(chosen.into_iter().map(RowId).collect())
}

fn groups(state: &State, table: &Table, cursor: &Cursor, id: TaskId, limit: u64) -> Option<Rows> {
    let lowest = GroupId(cursor.ready_groups.min()?);
    let version = || table.groups.get(&lowest).map(|group| group.version);
    let of_group = |group: u64| table.groups.get(&GroupId(group)).into_iter().flat_map(|group| group.rows());
    let ready = |group: u64| of_group(group).filter(|row| cursor.ready.contains(row.0));
    let length = state.length(table, cursor);
    let weight = |group: u64| ready(group).map(&length).sum();
    let pool = Pool::new(&cursor.ready_groups, cursor.reuse.as_deref(), bound(table, cursor, version, true), &weight);
    let chosen = sampler::of(cursor.def.sampling).choose(&pool, limit, &mut rng(state, id));
    Some(chosen.into_iter().flat_map(ready).collect())
}

/// The rows of a batch that the task may have now, in the order of the cut.
fn ready_in(table: &Table, cursor: &Cursor, groups: &[GroupId]) -> Rows {
    let found = groups.iter().filter_map(|group| table.groups.get(group));
    found.flat_map(|group| group.rows()).filter(|row| cursor.ready.contains(row.0)).collect()
}

pub(super) type Cut = (Rows, Option<CutRef>);

/// The session that trains the current cycle, once it has begun.
fn trainer(state: &State, cursor: &Cursor) -> Option<SessionId> {
    let holders = cursor.leases.iter().map(|lease| state.leases[lease].session);
    cursor.trainers.iter().copied().chain(holders).next().filter(|_| cursor.training.is_some())
}

fn batches(state: &State, table: &Table, cursor: &Cursor, tally: usize, session: SessionId) -> Option<Cut> {
    // A cycle is trained in one memory: what another session has begun it ends, unless it is lost first.
    if trainer(state, cursor).is_some_and(|trainer| trainer != session) {
        return None;
    }
    next(state, table, cursor, tally)
}

/// What comes next, whoever asks.
pub(super) fn next(state: &State, table: &Table, cursor: &Cursor, tally: usize) -> Option<Cut> {
    let found = match cursor.def.per {
        Grain::Mini => mini(table, cursor, tally),
        _ => cycle(state, table, cursor, tally),
    };
    found.or_else(|| nothing_left(state, table, cursor, tally))
}

/// The next batch in order that is not with another worker.
fn mini(table: &Table, cursor: &Cursor, tally: usize) -> Option<Cut> {
    for (&(cycle, index), batch) in &table.batches {
        let seen = batch.tallies[tally];
        if seen.servable() {
            let rows = ready_in(table, cursor, &batch.groups);
            let sizes = vec![rows.len()];
            return Some((rows, Some(CutRef { cycle, index, sizes, last: batch.last, share: None })));
        }
        if seen.leased < seen.left {
            return None;
        }
    }
    None
}

/// All batches of the first cycle that is not with another worker.
fn cycle(state: &State, table: &Table, cursor: &Cursor, tally: usize) -> Option<Cut> {
    let mut batches = table.batches.iter().peekable();
    while let Some(&(&(cycle, index), _)) = batches.peek() {
        // Of an ended cycle the last batch may be gone already, when nobody owed its rows any more.
        let progress = state.progress.as_ref().filter(|progress| progress.partition == cursor.partition);
        let ended = progress.is_some_and(|progress| cycle < progress.cycle);
        let (mut rows, mut sizes, mut whole) = (Rows::default(), Vec::new(), ended);
        let (mut blocked, mut busy) = (false, false);
        while let Some((_, batch)) = batches.next_if(|((c, _), _)| *c == cycle) {
            let seen = batch.tallies[tally];
            blocked |= seen.ready + seen.leased < seen.left;
            busy |= seen.left > 0;
            whole |= batch.last;
            let here = ready_in(table, cursor, &batch.groups);
            sizes.push(here.len());
            here.runs().iter().for_each(|&(first, len)| rows.push_run(RowId(first), len));
        }
        if !rows.is_empty() && whole && !blocked {
            return Some((rows, Some(CutRef { cycle, index, sizes, last: true, share: None })));
        }
        if blocked || !whole && busy {
            return None;
        }
    }
    None
}

/// A training task that has finished a completely cut cycle, without having been told that its last batch was the last
/// (its rows were dropped, or not owed to it), gets a lease without rows: what remains is to offer.
fn nothing_left(state: &State, table: &Table, cursor: &Cursor, tally: usize) -> Option<Cut> {
    let progress = state.progress.as_ref().filter(|progress| progress.whole)?;
    let training = cursor.training.filter(|_| cursor.trains_in(progress.cycle))?;
    let offered = state.models[usize::from(training.model.0)].part.is_some();
    let mut batches = table.batches.range((progress.cycle, 0)..(progress.cycle + 1, 0));
    if offered || batches.any(|(_, batch)| batch.tallies[tally].left > 0) {
        return None;
    }
    let cut = CutRef { cycle: progress.cycle, index: progress.batches - 1, sizes: vec![0], last: true, share: None };
    Some((Rows::default(), Some(cut)))
}
