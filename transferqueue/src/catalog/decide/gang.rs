//! A gang's batches: all ranks are given their shares in one event, and each takes its own when it asks.
//!
//! Shares follow from the batch alone (its rows, their order, their lengths), whatever the order in which ranks ask. They
//! have as equal numbers of rows as the batch allows and nearly equal tokens.

use super::{
    super::{
        command::{Claimed, CutRef, Reply, Totals},
        event::{Event, ShareCut},
        explain,
        refusal::Refusal,
        sampler,
        state::{
            State,
            cursor::{Counted, Cursor},
            gang::{Cut, Gang, seat},
        },
    },
    Decision, claim,
};
use crate::ids::{LeaseId, Millis, RowId, Rows, SessionId, TaskId};

pub(super) fn join(state: &State, id: TaskId, rank: u32, session: SessionId) -> Result<Decision, Refusal> {
    let cursor = state.cursor(id)?;
    let refuse =
        |found: String, hint: &str| Err(Refusal::Gang { task: cursor.def.name.clone(), found, hint: hint.to_owned() });
    let Some(gang) = &cursor.gang else {
        return refuse(
            format!("rank {rank} joins a task that declares no gang"),
            "give the task `gang`, or claim alone",
        );
    };
    let Some(seat) = gang.seats.get(rank as usize) else {
        let found = format!("rank {rank} of {}", gang.ranks());
        return refuse(found, "ranks count from 0");
    };
    match (gang.rank_of(session), seat) {
        (Some(own), _) if own == rank => Ok(Decision::nothing(Reply::Joined { epoch: gang.epoch })),
        (Some(own), _) => refuse(format!("session {session} is rank {own} and asks to be rank {rank}"), "open another"),
        (None, Some(other)) => {
            let worker = state.sessions.get(other).map_or("?", |session| session.name.as_str());
            let found = format!("rank {rank} is held by session {other} ({worker})");
            refuse(found, "a worker that begins again is lost first; each rank is one worker")
        }
        (None, None) => {
            let joined = Event::GangJoined { task: id, rank, session };
            Ok(Decision::new(vec![joined], Reply::Joined { epoch: gang.epoch }))
        }
    }
}

pub(super) fn claim(
    state: &State,
    id: TaskId,
    gang: &Gang,
    session: SessionId,
    now: Millis,
) -> Result<Decision, Refusal> {
    let cursor = state.cursor(id)?;
    let rank = seat(cursor, gang, session)?;
    let waits = || Ok(Decision::nothing(Reply::NotYet(explain::claim(state, id, 1, now))));
    let taken = |cut: &Cut, mut events: Vec<Event>| {
        let reply = take(state, cursor, gang, cut, rank)?;
        events.push(Event::ShareTaken { task: id, rank });
        Ok(Decision::new(events, Reply::Claimed(reply)))
    };
    match &gang.cut {
        Some(cut) if cut.taken[rank as usize] => return waits(),
        Some(cut) => return taken(cut, Vec::new()),
        None => {}
    }
    let Some((rows, batch)) = next(state, cursor, gang) else { return waits() };
    let cut = cut(state, cursor, gang, &rows, &batch);
    let event = Event::SharesCut {
        task: id,
        cycle: cut.cycle,
        index: cut.index,
        last: cut.last,
        shares: cut.shares.clone(),
        totals: cut.totals.clone(),
        at: now,
    };
    taken(&cut, vec![event])
}

/// Whether some rank's claim would be served.
pub(super) fn servable(state: &State, cursor: &Cursor) -> bool {
    cursor.gang.as_ref().is_some_and(|gang| gang.cut.is_some() || next(state, cursor, gang).is_some())
}

/// The batches that are cut into shares next; `None` while a rank is missing or nothing is there.
fn next(state: &State, cursor: &Cursor, gang: &Gang) -> Option<(Rows, CutRef)> {
    let Counted::Batches(tally) = cursor.counted else { return None };
    if gang.missing().next().is_some() {
        return None;
    }
    let (rows, batch) = claim::next(state, state.table_of(cursor), cursor, tally)?;
    let batch = batch?;
    // Nothing is left of a cycle whose end the ranks have been told: the offer is under way.
    let told = rows.is_empty() && gang.closing == Some(batch.cycle);
    (!told).then_some((rows, batch))
}

/// Cuts every mini-batch into one share a rank.
fn cut(state: &State, cursor: &Cursor, gang: &Gang, rows: &Rows, batch: &CutRef) -> Cut {
    let ranks = gang.ranks() as usize;
    let size = state.size(cursor);
    let mut shares: Vec<ShareCut> = gang
        .seats
        .iter()
        .map(|seat| ShareCut { session: seat.unwrap_or_default(), lease: LeaseId(0), minis: Vec::new() })
        .collect();
    let mut totals = Vec::with_capacity(batch.sizes.len());
    let mut left = rows.iter();
    for &n in &batch.sizes {
        let mini: Vec<RowId> = left.by_ref().take(n as usize).collect();
        let sizes: Vec<u64> = mini.iter().map(|row| size(*row)).collect();
        totals.push(Totals { rows: n, tokens: sizes.iter().sum() });
        for (share, part) in shares.iter_mut().zip(parts(&sizes, ranks)) {
            share.minis.push(part.into_iter().map(|position| mini[position]).collect());
        }
    }
    let mut lease = state.next.lease;
    for share in shares.iter_mut().filter(|share| share.minis.iter().any(|mini| !mini.is_empty())) {
        share.lease = lease;
        lease = LeaseId(lease.0 + 1);
    }
    Cut { cycle: batch.cycle, index: batch.index, last: batch.last, shares, totals, taken: vec![false; ranks] }
}

/// Divides items into `ranks` sets of nearly equal number and sum, each in the order of the items; the sets in the order of
/// their first items.
fn parts(sizes: &[u64], ranks: usize) -> Vec<Vec<usize>> {
    // The method wants full sets: items of no size fill them, one a set at most, since they are the smallest.
    let mut filled = sizes.to_vec();
    filled.resize(sizes.len().next_multiple_of(ranks), 0);
    let mut parts: Vec<Vec<usize>> = sampler::partition(&filled, ranks)
        .into_iter()
        .map(|set| {
            let mut set: Vec<usize> = set.into_iter().map(|item| item as usize).filter(|&i| i < sizes.len()).collect();
            set.sort_unstable();
            set
        })
        .collect();
    parts.resize(ranks, Vec::new());
    parts.sort_unstable_by_key(|part| part.first().copied().unwrap_or(usize::MAX));
    parts
}

/// A rank's share as its claim returns it, without rows that were dropped since it was cut.
fn take(state: &State, cursor: &Cursor, gang: &Gang, cut: &Cut, rank: u32) -> Result<Claimed, Refusal> {
    let share = &cut.shares[rank as usize];
    // A share that is being cut has no lease yet: nothing of it can be gone.
    let held = state.leases.get(&share.lease).map(|lease| &lease.rows);
    let fresh = share.lease >= state.next.lease;
    let there = |row: &RowId| fresh || held.is_some_and(|rows| rows.contains(row.0));
    let (mut rows, mut sizes) = (Rows::default(), Vec::with_capacity(share.minis.len()));
    for mini in &share.minis {
        let before = rows.len();
        mini.iter().filter(there).for_each(|row| rows.push(row));
        sizes.push(rows.len() - before);
    }
    let names: Vec<&str> = cursor.def.reads.iter().map(String::as_str).collect();
    let lease = if rows.is_empty() { LeaseId(0) } else { share.lease };
    Ok(Claimed {
        lease,
        batch: state.refer(cursor.partition, &rows, &names)?,
        heads: state.heads(cursor.partition, &rows)?,
        cut: Some(CutRef {
            cycle: cut.cycle,
            index: cut.index,
            sizes,
            last: cut.last,
            share: Some(cut.share(gang, rank)),
        }),
        lease_ms: cursor.def.lease_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_every_item_once_in_equal_numbers_and_nearly_equal_sums() {
        for (n, ranks) in [(0, 2), (1, 2), (2, 2), (7, 2), (8, 2), (9, 4), (64, 3), (3, 8)] {
            let sizes: Vec<u64> = (0..n).map(|i| 5 + i * i % 13).collect();
            let parts = parts(&sizes, ranks);
            assert_eq!(parts.len(), ranks);
            let mut all: Vec<usize> = parts.concat();
            all.sort_unstable();
            assert_eq!(all, (0..n as usize).collect::<Vec<_>>(), "{n} items, {ranks} ranks");
            let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
            let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
            assert!(spread <= 1, "{n} items, {ranks} ranks: {counts:?}");
            assert!(parts.iter().all(|part| part.is_sorted()));
        }
        let sizes: Vec<u64> = (0..64).map(|i| 5 + i * i % 101).collect();
        let sums: Vec<u64> = parts(&sizes, 2).iter().map(|part| part.iter().map(|&i| sizes[i]).sum()).collect();
        assert!(sums[0].abs_diff(sums[1]) <= 2, "{sums:?}");
    }
}
