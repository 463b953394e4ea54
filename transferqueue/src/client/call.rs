//! Numbered commands: sent once, heard once, whatever happens to the connection; and heartbeats.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use prost::Message;
use tokio::sync::OwnedMutexGuard;

use super::{
    Inner,
    lane::{Lane, Numbers},
    runtime::runtime,
    shm::Shm,
};
use crate::{
    catalog::{
        Refusal,
        command::{Command, Reply},
        limits::SESSION_TIMEOUT_MS,
        wait::Wait,
    },
    error::Error,
    ids::SessionId,
    wire::{Call, Outcome, action, json},
};

/// A session that says goodbye does not wait longer than this for a server that is gone.
const GOODBYE: Duration = Duration::from_secs(3);

impl Inner {
    /// A command, waiting until the deadline if it has to. `near`: where it is asked first; the thread is blocked meanwhile.
    pub(super) async fn call(
        self: &Arc<Self>,
        session: Option<SessionId>,
        command: &Command,
        deadline: Option<Instant>,
        near: Option<&Shm>,
    ) -> Result<Reply, Error> {
        let lane = session.map(|id| self.lane(id)).transpose()?;
        let options = self.channels.options();
        let body = json(command);
        let mut what = format!("`{}`", name(command));
        // Who says goodbye waits for no store that has no time.
        let near = near.filter(|_| !matches!(command, Command::CloseSession));
        let mut once = near;
        let along = lane.as_ref().map(|lane| lane.along(command)).unwrap_or_default();
        loop {
            let now = Instant::now();
            let until = match deadline {
                Some(deadline) => deadline.max(now + options.travel),
                None if matches!(command, Command::CloseSession) => now + GOODBYE,
                None => now + options.patience,
            };
            let mut turn = self.turn(lane.as_deref(), &what, until).await?;
            let sleep = deadline.filter(|deadline| *deadline > Instant::now());
            if let Some(numbers) = &mut turn {
                numbers.attempts += 1;
            }
            let unwanted = lane.as_ref().map(|lane| lane.take_unwanted()).unwrap_or_default();
            let mut call = Call {
                session: session.map(|id| id.0),
                seq: turn.as_ref().map_or(0, |numbers| numbers.last + 1),
                command: body.clone(),
                wait_ms: None,
                attempt: turn.as_ref().map(|numbers| numbers.attempts),
                released: unwanted.spots,
                along: along.clone(),
                unwanted: unwanted.puts,
            };
            let (first, answers) = match once.take().and_then(|shm| shm.call(&call)) {
                Some(outcome) => {
                    self.counts.calls.shm.fetch_add(1, Ordering::Relaxed);
                    (outcome, None)
                }
                // One that got no answer there may have been heard: its number stays, and so does its attempt.
                None => {
                    call.wait_ms = sleep.map(|deadline| (deadline - now).as_millis().max(1) as u64);
                    let acted = self.channels.act(action::CALL, &what, &call.encode_to_vec().into(), until).await;
                    if let (Err(error @ Error::Unreachable { .. }), Some(numbers)) = (&acted, &mut turn) {
                        numbers.doubt = Some(error.to_string());
                    }
                    let (first, answers) = acted?;
                    self.counts.calls.flight.fetch_add(1, Ordering::Relaxed);
                    (first, Some(answers))
                }
            };
            match first {
                Outcome::Reply(bytes) => {
                    if let Some(numbers) = &mut turn {
                        numbers.last += 1;
                    }
                    drop(turn);
                    self.counts.put(answers.is_none(), along.len());
                    let reply = self.channels.parse("a reply", &bytes)?;
                    self.note(session, command, &reply);
                    return Ok(reply);
                }
                Outcome::Failure(failure) => {
                    let error = failure.into_error(self.channels.url());
                    // Written down or not: the store does not know itself, and its next life may.
                    if let (Error::Broken { what }, Some(numbers)) = (&error, &mut turn) {
                        numbers.doubt = Some(what.clone());
                    }
                    return Err(error);
                }
                Outcome::Later(bytes) => {
                    // The number is free again: others of this session go on meanwhile.
                    drop(turn);
                    let wait: Wait = self.channels.parse("a wait", &bytes)?;
                    let Some(deadline) = sleep else { return Err(Error::Deadline(Box::new(wait))) };
                    what = format!("`{}` ({wait})", name(command));
                    // Asked where nobody is woken: now where one is.
                    let Some(mut answers) = answers else { continue };
                    once = near;
                    // Whatever comes (the wake-up, the end of the time, a lost connection): ask again.
                    let heard = tokio::time::timeout_at((deadline + options.travel).into(), answers.message()).await;
                    tracing::trace!(?heard, "woken");
                }
                Outcome::Woken(_) => return Err(self.channels.nonsense(action::CALL, "a wake-up without a wait")),
            }
        }
    }

    async fn turn(
        &self,
        lane: Option<&Lane>,
        what: &str,
        until: Instant,
    ) -> Result<Option<OwnedMutexGuard<Numbers>>, Error> {
        let Some(lane) = lane else { return Ok(None) };
        let (url, begun) = (self.channels.url().to_owned(), Instant::now());
        let Ok(numbers) = tokio::time::timeout_at(until.into(), lane.turn()).await else {
            let (what, waited_ms) = (what.to_owned(), begun.elapsed().as_millis() as u64);
            return Err(Error::Unreachable { url, what, waited_ms, why: "a call before it has no answer yet".into() });
        };
        match &numbers.doubt {
            Some(doubt) => {
                let why = format!("an answer to this session was lost ({doubt}); open a new session and claim again");
                Err(Error::Server { url, why })
            }
            None => Ok(Some(numbers)),
        }
    }

    pub(super) fn lane(&self, session: SessionId) -> Result<Arc<Lane>, Error> {
        let lanes = self.lanes.lock().expect("invariant: nothing panics under this lock");
        let ended = || Refusal::SessionEnded { session, timeout_ms: SESSION_TIMEOUT_MS };
        Ok(lanes.get(&session).cloned().ok_or_else(ended)?)
    }

    /// Sessions come and go.
    fn note(self: &Arc<Self>, session: Option<SessionId>, command: &Command, reply: &Reply) {
        let mut lanes = self.lanes.lock().expect("invariant: nothing panics under this lock");
        match (reply, session, command) {
            (Reply::Session(id), ..) => {
                lanes.insert(*id, Arc::default());
                runtime().spawn(heartbeats(Arc::downgrade(self), *id, self.channels.options().heartbeat));
            }
            (_, Some(id), Command::CloseSession) => _ = lanes.remove(&id),
            _ => {}
        }
    }
}

/// Shows life until the session or the client is gone. The task sleeps on a weak reference: it keeps nothing alive.
async fn heartbeats(client: Weak<Inner>, session: SessionId, period: Duration) {
    let mut beats = tokio::time::interval(period);
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    beats.tick().await;
    loop {
        beats.tick().await;
        let Some(client) = client.upgrade() else { return };
        if client.lane(session).is_err() {
            return;
        }
        match client.call(Some(session), &Command::Heartbeat, None, None).await {
            Ok(_) => {}
            Err(error @ (Error::Refused(_) | Error::Incarnation { .. } | Error::Server { .. })) => {
                tracing::debug!(%session, %error, "no further heartbeat");
                return;
            }
            Err(error) => tracing::debug!(%session, %error, "heartbeat"),
        }
    }
}

/// A command's name, as the log writes it.
fn name(command: &Command) -> &'static str {
    match command {
        Command::OpenSession { .. } => "open_session",
        Command::Heartbeat => "heartbeat",
        Command::CloseSession => "close_session",
        Command::CreatePartition(_) => "create_partition",
        Command::DeletePartition(_) => "delete_partition",
        Command::Put { .. } => "put",
        Command::ClosePartition(_) => "close_partition",
        Command::Claim { .. } => "claim",
        Command::ClaimAny { .. } => "claim_any",
        Command::Join { .. } => "join",
        Command::Renew { .. } => "renew",
        Command::Write { .. } => "write",
        Command::Save { .. } => "save",
        Command::Commit { .. } => "commit",
        Command::Release { .. } => "release",
        Command::Fail { .. } => "fail",
        Command::Drop { .. } => "drop",
        Command::Offer { .. } => "offer",
        Command::EndSchedule { .. } => "end_schedule",
        Command::Pin { .. } => "pin",
        Command::Unpin { .. } => "unpin",
        Command::Lose(_) => "lose",
        Command::Spill { .. } => "spill",
        Command::Forget { .. } => "forget",
        Command::Tick => "tick",
        Command::Settle => "settle",
    }
}
