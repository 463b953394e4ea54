//! Rounds of gangs whose ranks are other processes. A rank that waits is a listener, not a thread.

use std::time::{Duration, Instant};

use prost::Message;
use tonic::Status;

use super::{
    limits,
    service::{Service, invalid},
};
use crate::{
    gang::{Brought, Op},
    ids::{SessionId, TaskId},
    store::gang,
    wire::{Failure, Meet, Met, Outcome, Vector, decode, json},
};

/// Comes to the round and waits; *later* once the time is up, and the client comes again.
pub(super) async fn meet(service: &Service, body: &[u8]) -> Result<Outcome, Status> {
    let Meet { session, task, epoch, number, sum, values, wait_ms } = decode("round", body).map_err(invalid)?;
    let values = values.ok_or_else(|| invalid("a rank comes to a round with nothing"))?;
    let op = if sum { Op::Sum } else { Op::Gather };
    let mut brought = Brought { epoch, number, op, values: Some(values.try_into().map_err(invalid)?) };
    let until = Instant::now() + Duration::from_millis(wait_ms).min(limits::WAIT);
    loop {
        let late = Instant::now() >= until;
        match service.store.come(SessionId(session), TaskId(task), &mut brought) {
            Ok(gang::Met::All(outcome)) => {
                let values = outcome.iter().map(Vector::from).collect();
                return Ok(Outcome::Reply(Met { values }.encode_to_vec().into()));
            }
            Ok(gang::Met::Later(wait, _)) if late => return Ok(Outcome::Later(json(&wait))),
            Ok(gang::Met::Later(_, listener)) => drop(tokio::time::timeout_at(until.into(), listener).await),
            Err(error) => return Ok(Outcome::Failure(Failure::of(&error))),
        }
    }
}
