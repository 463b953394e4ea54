//! Rows that a person drops, after seeing what would leave.

use serde::{Deserialize, Serialize};

use super::peek::parse;
use crate::{
    catalog::{
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
    let id = store.partition(partition)?;
    let command = Command::Drop { partition: id, rows: DropRows { rows: asked.clone(), reason: reason.to_owned() } };
    // The same decision as the one that counts, without its effect.
    let (leaving, losses) = store.with_state(|state, now| {
        let events = decide(state, &command, None, now)?.events;
        let leaving = events.into_iter().find_map(|event| match event {
            Event::RowsDropped { drop, .. } => Some(drop.rows),
            _ => None,
        });
        let leaving = leaving.unwrap_or_default();
        let losses = state.losses(id, &leaving)?;
        Ok::<_, Error>((leaving, losses))
    })??;
    let gone = asked.without(&leaving);
    if confirmed {
        store.call(None, command, None)?;
        tracing::warn!(partition, rows = %leaving, reason, "rows dropped by hand");
    }
    Ok(Ok(Discard {
        partition: partition.to_owned(),
        rows: leaving,
        gone,
        reason: reason.to_owned(),
        losses,
        done: confirmed,
    }))
}
