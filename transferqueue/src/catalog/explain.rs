//! Why a call is not served now, followed back to whoever holds it up.

use super::{
    definition::Gate,
    limits::MAX_CAUSES,
    state::{
        State,
        cursor::{Counted, Cursor},
        table::{Table, set_bits},
    },
    wait::{Cause, Wait},
};
use crate::ids::{Millis, ModelId, RowId, TaskId};

/// Rows looked at to find out which columns are missing.
const SAMPLE: usize = 64;
/// Rows passed over in search of these.
const SCANNED: usize = 4_096;

fn cause(task: impl Into<String>, rows: u64, note: impl Into<String>) -> Cause {
    Cause { task: task.into(), rows, lease: None, holder: None, for_ms: 0, note: note.into() }
}

/// A claim that finds nothing.
pub(crate) fn claim(state: &State, id: TaskId, limit: u64, now: Millis) -> Wait {
    let cursor = &state.cursors[id.0 as usize];
    let table = state.table_of(cursor);
    let columns: Vec<String> = cursor.def.reads.iter().map(|name| format!("`{name}`")).collect();
    let of = if columns.is_empty() { String::new() } else { format!(" of {}", columns.join(", ")) };
    let (wants, have) = match cursor.counted {
        Counted::Rows => {
            (format!("up to {limit} rows{of}"), format!("{} ready of {}", cursor.ready.len(), owed(cursor)))
        }
        Counted::Groups(_) => {
            let have = format!(
                "{} whole ones ready; {} rows ready of {}",
                cursor.ready_groups.len(),
                cursor.ready.len(),
                owed(cursor)
            );
            (format!("up to {limit} groups{of}"), have)
        }
        Counted::Batches(tally) => batch(state, table, cursor, tally, &of),
    };
    let mut causes = Vec::new();
    let mut seen = 0_u64;
    if let Some(gang) = &cursor.gang {
        let missing = gang.missing().map(|rank| cause(&cursor.def.name, 0, format!("rank {rank} has not joined")));
        causes.extend(missing.take(MAX_CAUSES));
        let behind =
            gang.behind().map(|rank| cause(&cursor.def.name, 0, format!("rank {rank} has not taken its share")));
        causes.extend(behind.take(MAX_CAUSES));
        if !causes.is_empty() {
            return Wait { who: format!("task `{}`", cursor.def.name), wants, have, causes };
        }
    }
    blockers(state, table, cursor, now, &mut seen, &mut causes);
    if causes.is_empty() {
        causes.extend(upstream(state, table, cursor));
    }
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.rows));
    causes.truncate(MAX_CAUSES);
    Wait { who: format!("task `{}`", cursor.def.name), wants, have, causes }
}

/// Rows a task owes or may come to owe, in words.
fn owed(cursor: &Cursor) -> String {
    let owed = cursor.owing.len() + cursor.undecided;
    match cursor.reuse.as_ref().map(|reuse| reuse.view()) {
        Some(uses) => format!("{owed} owed, used {} of {} times", uses.live, u64::from(uses.each) * owed),
        None => format!("{owed} owed"),
    }
}

/// What a claim of batches wants, and how far it is.
fn batch(state: &State, table: &Table, cursor: &Cursor, tally: usize, of: &str) -> (String, String) {
    let next = table.batches.iter().find(|(_, batch)| batch.tallies[tally].left > batch.tallies[tally].leased);
    if let Some((&(cycle, index), batch)) = next {
        let seen = batch.tallies[tally];
        let wants = format!("{} rows{of} (cycle {cycle}, batch {index})", seen.left);
        return (wants, format!("{} ready", seen.ready));
    }
    let Some(progress) = state.progress.as_ref().filter(|progress| progress.partition == cursor.partition) else {
        let have = table.expansion.as_ref().and_then(|expansion| expansion.round.as_ref()).map_or_else(
            || "no round is under way".to_owned(),
            |round| format!("round {}: {} groups are not complete", round.version, round.incomplete),
        );
        return (format!("a round{of}"), have);
    };
    let wants = format!("a batch{of} of cycle {}", progress.cycle);
    let have = format!(
        "{} of {} groups cut, {} complete, {} in flight",
        progress.cut,
        progress.plan.groups_per_cycle,
        progress.complete.len(),
        progress.in_flight(),
    );
    (wants, have)
}

/// Who holds rows that `cursor` waits for: the writers of columns it misses, or, where these wait themselves, theirs.
/// `seen`: bits of tasks already asked.
fn blockers(state: &State, table: &Table, cursor: &Cursor, now: Millis, seen: &mut u64, causes: &mut Vec<Cause>) {
    *seen |= cursor.bit;
    // Its own leases may return.
    if cursor.ready.is_empty() && !cursor.leases.is_empty() && causes.is_empty() {
        holders(state, cursor, now, causes);
    }
    let mut writers = 0_u64;
    let waiting = cursor.owing.iter().take(SCANNED).filter(|&row| !cursor.ready.contains(row));
    for row in waiting.take(SAMPLE) {
        let Some(row) = table.pages.get(RowId(row)) else { continue };
        let missing = cursor.reads & !row.sealed;
        writers |= set_bits(missing).fold(0, |mask, column| mask | table.fields[column].writers & row.wanted());
    }
    // A batch that is not cut waits for the columns that groups are cut on.
    if matches!(cursor.counted, Counted::Batches(_)) && causes.is_empty() && writers == 0 {
        writers = set_bits(table.cut_on).fold(0, |mask, column| mask | table.fields[column].writers);
    }
    for position in set_bits(writers & !*seen) {
        let writer = &state.cursors[table.tasks[position].0 as usize];
        let before = causes.len();
        if !writer.leases.is_empty() {
            *seen |= writer.bit;
            holders(state, writer, now, causes);
        }
        if !writer.ready.is_empty() {
            *seen |= writer.bit;
            let batches = if matches!(writer.counted, Counted::Batches(_)) { " or is not cut yet" } else { "" };
            causes.push(cause(
                &writer.def.name,
                writer.ready.len(),
                format!("ready: no worker has claimed it yet{batches}"),
            ));
        }
        if causes.len() == before {
            blockers(state, table, writer, now, seen, causes);
        }
    }
}

/// The leases of a task, largest first.
fn holders(state: &State, cursor: &Cursor, now: Millis, causes: &mut Vec<Cause>) {
    let mut leases: Vec<_> = cursor.leases.iter().filter_map(|id| Some((*id, state.leases.get(id)?))).collect();
    leases.sort_by_key(|(id, lease)| (std::cmp::Reverse(lease.rows.len()), *id));
    let rest = leases.len().saturating_sub(MAX_CAUSES / 2);
    for (id, lease) in leases.iter().take(MAX_CAUSES / 2) {
        causes.push(Cause {
            task: cursor.def.name.clone(),
            rows: lease.rows.len(),
            lease: Some(*id),
            holder: state.sessions.get(&lease.session).map(|session| format!("worker {}", session.name)),
            for_ms: now.0.saturating_sub(lease.since.0),
            note: String::new(),
        });
    }
    if rest > 0 {
        causes.push(cause(&cursor.def.name, 0, format!("has {rest} more leases")));
    }
}

/// Nothing is in flight: what keeps rows from being born.
fn upstream(state: &State, table: &Table, cursor: &Cursor) -> Option<Cause> {
    let offered = cursor.training.is_some_and(|t| state.models[usize::from(t.model.0)].part.is_some());
    if let Some(session) = cursor.trainers.first().filter(|_| !offered) {
        let worker = state.sessions.get(session).map_or("?", |session| session.name.as_str());
        let note = format!("trained by worker {worker}, which has not offered version {}", state.version + 1);
        return Some(cause(&cursor.def.name, cursor.done.len(), note));
    }
    if !cursor.done.is_empty() {
        let version = state.version + 1;
        return Some(cause(
            &cursor.def.name,
            0,
            format!("is done with {} rows; version {version} is not published", cursor.done.len()),
        ));
    }
    let Some(expansion) = &table.expansion else {
        let open = format!("no row of `{}` is left, and it is not closed", table.name);
        return Some(cause(&table.name, 0, open));
    };
    let parent = &state.tables[&expansion.parent];
    let note = match (expansion.gate, &state.progress) {
        (Gate::Schedule, Some(progress)) if progress.in_flight() >= progress.allowed() => format!(
            "admits no group: {} admitted − {} dropped − {} retired = {} in flight, {} allowed; cycle {} has not ended",
            progress.admitted,
            progress.dropped,
            progress.retired,
            progress.in_flight(),
            progress.allowed(),
            progress.cycle,
        ),
        (Gate::Schedule, Some(progress)) if progress.remaining() == 0 => {
            format!("has admitted all groups of {} cycles", progress.cycles)
        }
        (Gate::Schedule, _) if parent.live.iter_from(expansion.next.0).next().is_none() => {
            format!("has no row of `{}` left to expand, and it is not closed", parent.name)
        }
        (Gate::Schedule, _) => {
            let row = parent.live.iter_from(expansion.next.0).next().and_then(|row| parent.pages.get(RowId(row)));
            let missing = expansion.links.iter().fold(0, |mask, (_, column)| mask | 1 << column)
                & !row.map_or(u64::MAX, |row| row.sealed);
            match state.definition.budget {
                _ if missing != 0 => {
                    let writers = set_bits(missing).fold(0, |mask, column| mask | parent.fields[column].writers);
                    let writers = set_bits(writers).map(|bit| &state.cursors[parent.tasks[bit].0 as usize]);
                    let writers: Vec<String> = writers.map(|writer| format!("`{}`", writer.def.name)).collect();
                    let columns = parent.names(missing);
                    format!("waits for {columns} of `{}`, which {} writes", parent.name, writers.join(" or "))
                }
                Some(budget) => {
                    let external =
                        state.cursors.iter().filter(|cursor| cursor.def.external && !cursor.owing.is_empty());
                    let owed = external.map(|c| format!("; `{}` has {} rows to read", c.def.name, c.owing.len()));
                    format!(
                        "waits for bytes: {} of {budget} are reserved or held{}",
                        state.budgeted(),
                        owed.collect::<String>()
                    )
                }
                None => "admits groups as it can".into(),
            }
        }
        (Gate::Every { .. }, _) if !parent.closed => format!("expands `{}` once that is closed", parent.name),
        (Gate::Every { .. }, _) => "has no round due".into(),
    };
    Some(cause(&table.name, 0, note))
}

/// A put that exceeds the capacity.
pub(crate) fn put(state: &State, table: &Table, capacity: u64) -> Wait {
    let children = table.children.iter().filter_map(|child| state.tables.get(child));
    let causes = children.filter_map(|child| {
        let reader = child.tasks.first().map(|task| &state.cursors[task.0 as usize])?;
        upstream(state, child, reader)
    });
    Wait {
        who: format!("put into `{}`", table.name),
        wants: format!("fewer than {capacity} rows that wait to be expanded"),
        have: format!("{} wait", state.waiting_rows(table)),
        causes: causes.take(MAX_CAUSES).collect(),
    }
}

/// A pin of a version that is not there yet.
pub(crate) fn pin(state: &State, id: ModelId, version: Option<u64>) -> Wait {
    let name = &state.definition.models[usize::from(id.0)].name;
    let model = &state.models[usize::from(id.0)];
    if model.live.is_empty() {
        return initial_weights(state, format!("pin of `{name}`"));
    }
    let trainers = state.cursors.iter().filter(|cursor| {
        let cycle = state.progress.as_ref().map_or(0, |progress| progress.cycle);
        cursor.training.is_some_and(|t| cursor.trains_in(cycle) && state.models[usize::from(t.model.0)].part.is_none())
    });
    let causes = trainers.map(|cursor| {
        let note = format!("has not offered its part of version {}", state.version + 1);
        cause(&cursor.def.name, cursor.leases.iter().map(|id| state.leases[id].rows.len()).sum(), note)
    });
    Wait {
        who: format!("pin of `{name}`"),
        wants: version.map_or_else(|| "its newest version".into(), |version| format!("version {version}")),
        have: format!("version {} is the newest", state.version),
        causes: causes.take(MAX_CAUSES).collect(),
    }
}

/// Something that waits until every model's initial weights are there.
pub(crate) fn initial_weights(state: &State, who: String) -> Wait {
    let missing = state.definition.models.iter().zip(&state.models).filter(|(_, model)| model.part.is_none());
    let causes: Vec<Cause> =
        missing.map(|(model, _)| cause(&model.name, 0, "has not been offered by whoever loads it")).collect();
    Wait {
        who,
        wants: "the initial weights of every model".into(),
        have: format!("{} of {} are offered", state.models.len() - causes.len(), state.models.len()),
        causes,
    }
}
