//! Rows that a person drops, after seeing what would leave.

use serde::{Deserialize, Serialize};

use super::peek::parse;
use crate::{
    catalog::{
        State,
        command::{Command, DropRows},
        decide,
        event::Event,
        views::TaskLoss,
    },
    error::Error,
    ids::Rows,
    link::Link,
    store::Store,
};

/// Rows named at once.
const MAX_ROWS: u64 = 4_096;

/// Rows that left, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discard {
    /// Name of the partition.
    pub partition: String,
    /// The rows that leave.
    pub rows: Rows,
    /// Rows that are gone already.
    pub gone: Rows,
    /// Why.
    pub reason: String,
    /// Who loses them.
    pub losses: Vec<TaskLoss>,
    /// They have left.
    pub done: bool,
    /// Records of others between the look that listed these rows and the look after the drop. With any, some of the rows may
    /// have left by themselves, and `losses` may be less; the event log tells.
    #[serde(default)]
    pub between: u64,
}

/// `Err` inside: what is wrong with the request, in words for the person who asked.
pub(super) fn discard(
    store: &Store,
    partition: &str,
    rows: &str,
    reason: &str,
    confirmed: bool,
) -> Result<Result<Discard, String>, Error> {
    let asked = match parse(rows, MAX_ROWS) {
        Ok(asked) => asked,
        Err(what) => return Ok(Err(what)),
    };
    let plan = Plan::look(store, partition, &asked, reason)?;
    Ok(Ok(if confirmed { plan.carry_out(store)? } else { plan.shown }))
}

/// What a drop would do, and where the catalog stood then.
pub(super) struct Plan {
    shown: Discard,
    command: Command,
    stood: Standing,
}

/// Tells whether the catalog has moved.
struct Standing {
    seq: u64,
    /// Rows of the partition that tasks have lost for the reason.
    lost: u64,
}

impl Standing {
    fn of(state: &State, partition: &str, reason: &str) -> Self {
        let tasks = state.ledger().into_iter().filter(|entry| entry.partition == partition);
        Self { seq: state.seq(), lost: tasks.filter_map(|entry| entry.dropped.get(reason).copied()).sum() }
    }
}

impl Plan {
    pub(super) fn look(store: &Store, partition: &str, asked: &Rows, reason: &str) -> Result<Self, Error> {
        let id = store.partition(partition)?;
        let command =
            Command::Drop { partition: id, rows: DropRows { rows: asked.clone(), reason: reason.to_owned() } };
        // The same decision as the one that counts, without its effect.
        let (rows, losses, stood) = store.with_state(|state, now| {
            let events = decide(state, &command, None, now)?.events;
            let rows = events.into_iter().find_map(|event| match event {
                Event::RowsDropped { drop, .. } => Some(drop.rows),
                _ => None,
            });
            let rows = rows.unwrap_or_default();
            let losses = state.losses(id, &rows)?;
            Ok::<_, Error>((rows, losses, Standing::of(state, partition, reason)))
        })??;
        let (partition, reason) = (partition.to_owned(), reason.to_owned());
        let gone = asked.without(&rows);
        let shown = Discard { partition, rows, gone, reason, losses, done: false, between: 0 };
        Ok(Self { shown, command, stood })
    }

    /// Drops, and looks again: the catalog cannot be held still from the first look on.
    pub(super) fn carry_out(self, store: &Store) -> Result<Discard, Error> {
        let Self { mut shown, command, stood } = self;
        store.call(None, command, None)?;
        let stands = store.with_state(|state, _| Standing::of(state, &shown.partition, &shown.reason))?;
        // A drop that finds its rows gone writes no record; one that finds some is felt by whoever wanted them.
        let own = !shown.rows.is_empty() && (shown.losses.is_empty() || stands.lost > stood.lost);
        shown.between = (stands.seq - stood.seq).saturating_sub(u64::from(own));
        shown.done = true;
        let Discard { partition, rows, reason, between, .. } = &shown;
        tracing::warn!(partition, %rows, reason, between, "rows dropped by hand");
        Ok(shown)
    }
}
