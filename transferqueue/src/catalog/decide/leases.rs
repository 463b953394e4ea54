//! Sessions begin and end; leases are prolonged, given back, or run out.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        bits::Bits,
        command::{DropRows, Reply},
        definition::Poison,
        event::{Event, Returned},
        limits::SESSION_TIMEOUT_MS,
        refusal::Refusal,
        state::{Lease, State, gang::unseated, table::Group},
    },
    Decision,
};
use crate::ids::{LeaseId, Millis, PartitionId, RowId, Rows, SessionId, TaskId};

pub(super) fn open_session(state: &State, name: &str, here: bool, now: Millis) -> Decision {
    let session = state.next.session;
    let opened = Event::SessionOpened { session, name: name.to_owned(), at: now, here };
    Decision::new(vec![opened], Reply::Session(session))
}

/// A lease of this caller.
pub(super) fn lease(state: &State, id: LeaseId, caller: SessionId) -> Result<&Lease, Refusal> {
    match state.leases.get(&id) {
        Some(lease) if lease.session == caller => Ok(lease),
        Some(lease) => Err(Refusal::NotYours { lease: id, owner: lease.session, caller }),
        // A rank hears that its gang ended, whichever way it asks.
        None if id < state.next.lease => Err(unseated(state, caller).unwrap_or(Refusal::LeaseEnded { lease: id })),
        None => Err(Refusal::Unknown {
            what: "lease".into(),
            name: id.to_string(),
            known: state.leases.keys().map(LeaseId::to_string).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// Splits rows a caller names into those its lease holds and those it lost to a drop; any other row is refused.
pub(super) fn split(id: LeaseId, lease: &Lease, rows: &Rows) -> Result<(Rows, Rows), Refusal> {
    let (mut held, mut lost, mut strange) = (Rows::default(), Rows::default(), Rows::default());
    // Few bytes can name very many rows: those are not looked at one by one.
    if rows.len() > lease.rows.len() + lease.lost.len() {
        return Err(Refusal::NotLeased { lease: id, rows: rows.clone(), held: lease.rows.rows() });
    }
    let rising = rows.runs().windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0);
    let twice = !rising && Bits::from(rows).len() != rows.len();
    if !twice && rows.iter().all(|row| lease.rows.contains(row.0)) {
        return Ok((rows.clone(), lost));
    }
    for row in rows.iter() {
        match () {
            () if lease.rows.contains(row.0) => held.push(row),
            () if lease.lost.contains(row.0) => lost.push(row),
            () => strange.push(row),
        }
    }
    if twice || !strange.is_empty() {
        let rows = if twice { rows.clone() } else { strange };
        return Err(Refusal::NotLeased { lease: id, rows, held: lease.rows.rows() });
    }
    Ok((held, lost))
}

pub(super) fn renew(
    state: &State,
    id: LeaseId,
    progress: u64,
    caller: SessionId,
    now: Millis,
) -> Result<Decision, Refusal> {
    let lease = lease(state, id, caller)?;
    if lease.progress.is_some_and(|before| progress <= before) {
        return Ok(Decision::nothing(Reply::Renewed(lease.until.0.saturating_sub(now.0))));
    }
    let lease_ms = state.cursor(lease.task)?.def.lease_ms;
    let renewed = Event::LeaseRenewed { lease: id, progress, at: now };
    Ok(Decision::new(vec![renewed], Reply::Renewed(lease_ms)))
}

pub(super) fn release(state: &State, id: LeaseId, rows: &Rows, caller: SessionId) -> Result<Decision, Refusal> {
    let lease = lease(state, id, caller)?;
    let (rows, lost) = split(id, lease, rows)?;
    let mut ending = Ending::default();
    ending.give_back(state, id, lease, rows, lost, Returned::Released);
    Ok(Decision::done(ending.events(state)))
}

pub(super) fn fail(
    state: &State,
    id: LeaseId,
    rows: &Rows,
    error: &str,
    caller: SessionId,
) -> Result<Decision, Refusal> {
    let lease = lease(state, id, caller)?;
    let (rows, lost) = split(id, lease, rows)?;
    let mut ending = Ending::default();
    ending.give_back(state, id, lease, rows, lost, Returned::Failed(error.to_owned()));
    Ok(Decision::done(ending.events(state)))
}

/// Ends a session: its leases return. `lost`: it did not say goodbye, so its rows count an attempt.
pub(super) fn end_session(state: &State, session: SessionId, lost: bool) -> Vec<Event> {
    let mut ending = Ending::default();
    ending.session(state, session, lost);
    ending.events(state)
}

/// Leases and sessions whose time is over.
pub(super) fn tick(state: &State, now: Millis) -> Vec<Event> {
    let mut ending = Ending::default();
    for (&id, session) in &state.sessions {
        if now.0.saturating_sub(session.seen.0) > SESSION_TIMEOUT_MS {
            ending.session(state, id, true);
        }
    }
    for (&id, lease) in &state.leases {
        if lease.until <= now && !ending.leases.contains(&id) {
            ending.give_back(state, id, lease, lease.rows.rows(), lease.lost.rows(), Returned::Expired);
        }
    }
    ending.events(state)
}

/// What comes to an end in one command.
#[derive(Default)]
struct Ending {
    leases: Vec<LeaseId>,
    returns: Vec<Event>,
    sessions: Vec<Event>,
    /// Rows that failed too often.
    poison: Vec<(TaskId, RowId, String)>,
    /// Gangs that lost a rank, and how.
    gangs: BTreeMap<TaskId, String>,
}

impl Ending {
    fn give_back(&mut self, state: &State, id: LeaseId, lease: &Lease, rows: Rows, lost: Rows, why: Returned) {
        self.leases.push(id);
        let cursor = &state.cursors[lease.task.0 as usize];
        let error = match &why {
            Returned::Released | Returned::GangEnded => None,
            Returned::Expired => Some("its lease expired"),
            Returned::SessionEnded => Some("the session that held it was lost"),
            Returned::Failed(error) => Some(error.as_str()),
        };
        // Who is no part of the run cannot stop it, nor take rows from those who are.
        if let Some(error) = error.filter(|_| !cursor.def.external) {
            let tried = |row: &RowId| cursor.attempts.get(row).copied().unwrap_or(0) + 1;
            for row in rows.iter().filter(|row| tried(row) >= cursor.def.attempts) {
                self.poison.push((lease.task, row, format!("{error} (attempt {})", tried(&row))));
            }
        }
        if let Some(rank) = cursor.gang.as_ref().and_then(|gang| gang.rank_of(lease.session)) {
            let how = error.unwrap_or("gave rows back").to_owned();
            self.break_up(state, lease.task, rank, lease.session, &how);
        }
        self.returns.push(Event::RowsReturned { lease: id, task: lease.task, rows, lost, why });
    }

    /// A gang ends with the first of its ranks.
    fn break_up(&mut self, state: &State, task: TaskId, rank: u32, session: SessionId, how: &str) {
        let worker = state.sessions.get(&session).map_or("?", |session| session.name.as_str());
        self.gangs.entry(task).or_insert_with(|| format!("rank {rank} ({worker}): {how}"));
    }

    /// What the other ranks hold goes back with it.
    fn disband(&mut self, state: &State) {
        for task in self.gangs.keys().copied().collect::<Vec<_>>() {
            for &id in &state.cursors[task.0 as usize].leases {
                let lease = &state.leases[&id];
                let (mut rows, mut lost) = (lease.rows.rows(), lease.lost.rows());
                for event in &self.returns {
                    if let Event::RowsReturned { lease, rows: gone, lost: forgotten, .. } = event
                        && *lease == id
                    {
                        (rows, lost) = (rows.without(gone), lost.without(forgotten));
                    }
                }
                if !rows.is_empty() || !lost.is_empty() {
                    self.leases.push(id);
                    self.returns.push(Event::RowsReturned { lease: id, task, rows, lost, why: Returned::GangEnded });
                }
            }
        }
    }

    fn session(&mut self, state: &State, id: SessionId, lost: bool) {
        let why = || if lost { Returned::SessionEnded } else { Returned::Released };
        for &lease in &state.sessions[&id].leases {
            let found = &state.leases[&lease];
            self.give_back(state, lease, found, found.rows.rows(), found.lost.rows(), why());
        }
        for (task, cursor) in (0..).map(TaskId).zip(&state.cursors) {
            if let Some(rank) = cursor.gang.as_ref().and_then(|gang| gang.rank_of(id)) {
                self.break_up(state, task, rank, id, if lost { "its session was lost" } else { "it left" });
            }
        }
        for (&partition, _) in state.tables.iter().filter(|(_, table)| table.owner == Some(id)) {
            self.sessions.push(Event::PartitionDeleted { partition });
        }
        self.sessions.push(Event::SessionEnded { session: id, lost });
    }

    fn events(mut self, state: &State) -> Vec<Event> {
        self.disband(state);
        let mut events = self.returns;
        events.extend(self.gangs.into_iter().map(|(task, why)| Event::GangEnded { task, why }));
        let mut stopped = state.poisoned.is_some();
        let mut dropped = BTreeSet::new();
        for (task, row, error) in self.poison {
            let cursor = &state.cursors[task.0 as usize];
            match cursor.def.on_poison {
                Poison::Stop if stopped => {}
                Poison::Stop => {
                    stopped = true;
                    events.push(Event::Poisoned { task, row, error });
                }
                Poison::Drop => {
                    for (partition, rows) in bound(state, cursor.partition, row) {
                        let table = &state.tables[&partition];
                        let live = rows.into_iter().filter(|row| table.live.contains(row.0));
                        let rows: Rows = live.filter(|row| dropped.insert((partition, *row))).collect();
                        if !rows.is_empty() {
                            let drop = DropRows { rows, reason: "failed".into() };
                            events.push(Event::RowsDropped { partition, drop });
                        }
                    }
                }
            }
        }
        events.extend(self.sessions);
        events
    }
}

/// The rows that go with a row: those of its group, or those born from it and itself.
fn bound(state: &State, partition: PartitionId, row: RowId) -> Vec<(PartitionId, Vec<RowId>)> {
    let table = &state.tables[&partition];
    if let Some(group) = table.pages.get(row).and_then(|row| table.groups.get(&row.group)) {
        return vec![(partition, group.rows().collect())];
    }
    let born = |child: &PartitionId| {
        let groups = state.tables[child].groups.values().filter(|group| group.parent == row);
        (*child, groups.flat_map(Group::rows).collect())
    };
    table.children.iter().map(born).chain([(partition, vec![row])]).collect()
}
