//! Rounds of a gang, from afar. Vectors travel on the connections for bytes, so that heartbeats do not wait behind them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message;

use super::Inner;
use crate::{
    catalog::wait::Wait,
    error::Error,
    gang::{Brought, Op, Values},
    ids::{SessionId, TaskId},
    wire::{Meet, Met, Outcome, Vector, action},
};

/// Longest wait of one message, after which the round is come to again.
const SLICE: Duration = Duration::from_secs(20);

impl Inner {
    pub(super) async fn meet(
        &self,
        session: SessionId,
        task: TaskId,
        brought: &Brought,
        deadline: Instant,
    ) -> Result<Arc<Vec<Values>>, Error> {
        let (epoch, number, sum) = (brought.epoch, brought.number, brought.op == Op::Sum);
        let values = brought.values.as_ref().map(Vector::from);
        let mut meet = Meet { session: session.0, task: task.0, epoch, number, sum, values, wait_ms: 0 };
        let channels = &self.channels;
        loop {
            let now = Instant::now();
            let wait = deadline.saturating_duration_since(now).min(SLICE);
            meet.wait_ms = wait.as_millis() as u64;
            let until = now + wait + channels.options().patience;
            let (what, body) = (format!("round {number} of a gang"), Bytes::from(meet.encode_to_vec()));
            match channels.act_in_bulk(action::MEET, &what, &body, until).await? {
                Outcome::Reply(bytes) => {
                    let met: Met = channels.message(action::MEET, &bytes)?;
                    let read =
                        |vector: Vector| vector.try_into().map_err(|why: String| channels.nonsense(action::MEET, &why));
                    return met.values.into_iter().map(read).collect::<Result<Vec<_>, _>>().map(Arc::new);
                }
                Outcome::Later(bytes) => {
                    let wait: Wait = channels.parse("a wait", &bytes)?;
                    if Instant::now() >= deadline {
                        return Err(Error::Deadline(Box::new(wait)));
                    }
                }
                Outcome::Failure(failure) => return Err(failure.into_error(channels.url())),
                Outcome::Woken(_) => return Err(channels.nonsense(action::MEET, "a wake-up without a wait")),
            }
        }
    }
}
