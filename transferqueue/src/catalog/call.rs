//! The catalog as its owner calls it: sessions with replayed replies, the clock, and one record per call.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::{
    apply::apply,
    command::{Command, Reply, Request, Span},
    decide::{Decision, decide, due},
    definition::Definition,
    event::{Event, Record},
    limits::{CLOCK_JUMP_MS, CLOCK_SLACK_MS, KEPT_REPLIES, SEEN_EVERY_MS, SESSION_TIMEOUT_MS},
    refusal::Refusal,
    state::{Scratch, State, Wake},
};
use crate::ids::{GroupId, Millis, RowId, SessionId, TaskId};

/// What a call did.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The answer.
    pub reply: Reply,
    /// What to write down; `None` when nothing changed.
    pub record: Option<Record>,
    /// Waiting calls to try again.
    pub wakes: Vec<Wake>,
    /// What a publication in this record consumed.
    pub published: Option<Publication>,
}

/// A publication, and the rows that training tasks consumed with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Publication {
    /// The cycle it ended; `None` for the initial weights.
    pub cycle: Option<u64>,
    /// The version it made visible.
    pub version: u64,
    /// In which lineage.
    pub lineage: u64,
    /// One entry per training task and row, in the order of the cut.
    pub rows: Vec<Trained>,
}

/// One row whose gradient a publication carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trained {
    /// By which task.
    pub task: TaskId,
    /// Which row.
    pub row: RowId,
    /// Of which group.
    pub group: GroupId,
    /// Position of its prompt in the stream.
    pub ordinal: u64,
    /// Which sample of its group.
    pub sample: u32,
    /// Index of its batch within the cycle.
    pub index: u64,
    /// Weight version at its admission.
    pub admitted: u64,
    /// Versions its tokens were sampled with, if noted.
    pub span: Option<Span>,
}

/// Replies of one session that may be asked for again.
#[derive(Debug, Default)]
struct Replies {
    /// Number of the last call that was answered.
    last: u64,
    kept: VecDeque<Reply>,
    /// Calls after `last` may have been answered without leaving a record, in a life that ended: they changed nothing,
    /// and asking again is harmless.
    gap: bool,
}

/// The state machine with its clock and its memory of replies. The owner calls it under one lock, reads `now` under that
/// lock, and writes every record down in order.
#[derive(Debug)]
pub struct Catalog {
    state: State,
    replies: BTreeMap<SessionId, Replies>,
    /// Time of the last call.
    clock: Millis,
    /// Whether records carry their answers.
    write_replies: bool,
}

impl Catalog {
    /// A new catalog, and the record that begins its log. `incarnation` tells it from other catalogs.
    ///
    /// # Errors
    /// The first fault found in the definition.
    pub fn create(definition: Definition, incarnation: u64, now: Millis) -> Result<(Self, Record), Refusal> {
        let state = State::new(&definition, incarnation)?;
        let mut catalog = Self::over(state, now);
        let defined = Event::Defined { definition: Box::new(definition), incarnation };
        let (record, _, _) = catalog.commit(None, vec![defined], now);
        Ok((catalog, record.expect("invariant: a definition is an event")))
    }

    /// The catalog that a log's first record begins; the others follow by [`Catalog::replay`].
    ///
    /// # Errors
    /// When the record is not the first one of a log, or its definition is at fault.
    pub fn open(first: &Record) -> Result<Self, Refusal> {
        let log = || Refusal::Log { found: first.seq, expected: 0, form: Record::VERSION };
        let Some(Event::Defined { definition, incarnation }) = first.events.first() else { return Err(log()) };
        let state = State::new(definition, *incarnation)?;
        let mut catalog = Self::over(state, first.at);
        catalog.replay(first)?;
        Ok(catalog)
    }

    /// A catalog that goes on from a snapshot (or a replayed log): leases and sessions end, cells that were being appended
    /// to are absent, training that was not published is undone, a new lineage and a new clock begin.
    pub fn restore(state: State, now: Millis) -> (Self, Record) {
        let restored = Event::Restored { lineage: state.lineage + 1 };
        let mut catalog = Self::over(state, now);
        let (record, _, _) = catalog.commit(None, vec![restored], now);
        (catalog, record.expect("invariant: a restore is an event"))
    }

    fn over(state: State, clock: Millis) -> Self {
        Self { state, replies: BTreeMap::new(), clock, write_replies: false }
    }

    /// From now on records carry the answers to sessions' calls, so that a replayed catalog can give them again.
    pub fn keep_replies(&mut self) {
        self.write_replies = true;
    }

    /// Ends a replay whose sessions live on: each may send its last call again, or the next one.
    pub fn go_on(&mut self) {
        for &session in self.state.sessions.keys() {
            self.replies.entry(session).or_default().gap = true;
        }
    }

    /// What the catalog knows.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state alone, for [`Catalog::restore`].
    pub fn into_state(self) -> State {
        self.state
    }

    /// Answers one request: decides it, applies it and all that follows from it, as one record.
    ///
    /// A call of a session carries the number of its last *answered* call plus 1. The same number again returns the same
    /// reply and changes nothing. [`Reply::NotYet`] and refusals are no answers: the number stays free.
    ///
    /// # Errors
    /// A refusal, after which the catalog is as it was.
    pub fn call(&mut self, request: &Request, now: Millis) -> Result<Outcome, Refusal> {
        if let Some(reply) = self.answered(request)? {
            return Ok(Outcome { reply, record: None, wakes: Vec::new(), published: None });
        }
        let jumped = now.0 + CLOCK_SLACK_MS < self.clock.0 || now.0 > self.clock.0 + CLOCK_JUMP_MS;
        let now = if jumped { now } else { now.max(self.clock) };
        let caller = request.caller.map(|(session, _)| session);
        let mut events = Vec::new();
        if jumped {
            events.push(Event::ClockJumped { to: now });
        } else if let Some(session) = caller
            && let Some(seen) = self.state.sessions.get(&session).map(|session| session.seen)
            && now.0 - seen.0.min(now.0) >= SEEN_EVERY_MS
        {
            events.push(Event::SessionSeen { session, at: now });
        }
        let reply = match request.command {
            // After a jump nothing is due: everyone has the full time again.
            Command::Tick if jumped => Reply::Done,
            ref command => {
                let Decision { events: decided, reply } = decide(&self.state, command, caller, now)?;
                events.extend(decided);
                reply
            }
        };
        let answered = request.caller.filter(|_| !matches!(reply, Reply::NotYet(_)));
        let (mut record, wakes, published) = self.commit(answered, events, now);
        if self.write_replies
            && let (Some(record), Some(_)) = (&mut record, answered)
        {
            record.reply = Some(reply.clone());
        }
        if let Some((session, seq)) = answered
            && self.state.sessions.contains_key(&session)
        {
            let replies = self.replies.entry(session).or_default();
            if seq != replies.last + 1 {
                replies.kept.clear();
            }
            (replies.last, replies.gap) = (seq, false);
            replies.kept.push_back(reply.clone());
            if replies.kept.len() > KEPT_REPLIES {
                replies.kept.pop_front();
            }
        }
        Ok(Outcome { reply, record, wakes, published })
    }

    /// Applies a record of the log: what a publication in it consumed. Records come in order, without gaps.
    ///
    /// # Errors
    /// When it does not follow the last one, or is of another form.
    pub fn replay(&mut self, record: &Record) -> Result<Option<Publication>, Refusal> {
        if record.seq != self.state.seq || record.version != Record::VERSION {
            let (found, expected) = (record.seq, self.state.seq);
            return Err(Refusal::Log { found, expected, form: Record::VERSION });
        }
        let mut published = None;
        for event in &record.events {
            self.note_publication(event, &mut published);
            apply(&mut self.state, event);
        }
        self.state.scratch = Scratch::default();
        self.state.seq += 1;
        self.clock = record.at;
        if let Some((session, seq)) = record.call {
            let kept = record.reply.iter().cloned().collect();
            self.replies.insert(session, Replies { last: seq, kept, gap: false });
        }
        self.forget_sessions(&record.events);
        Ok(published)
    }

    /// Takes down what a publication is about to consume.
    fn note_publication(&self, event: &Event, published: &mut Option<Publication>) {
        if let Event::CyclePublished { cycle, version, lineage, .. } = *event {
            let rows = cycle.map_or_else(Vec::new, |cycle| self.trained(cycle));
            *published = Some(Publication { cycle, version, lineage, rows });
        }
    }

    /// Whether a request is a session's next call rather than one that was answered before (or is refused).
    pub(crate) fn is_new(&self, request: &Request) -> bool {
        matches!(self.answered(request), Ok(None))
    }

    /// The reply to a call that was answered before.
    fn answered(&self, request: &Request) -> Result<Option<Reply>, Refusal> {
        let Some((session, seq)) = request.caller else { return Ok(None) };
        if !self.state.sessions.contains_key(&session) {
            return Err(if session < self.state.next.session {
                Refusal::SessionEnded { session, timeout_ms: SESSION_TIMEOUT_MS }
            } else {
                Refusal::Unknown {
                    what: "session".into(),
                    name: session.to_string(),
                    known: self.state.sessions.keys().map(SessionId::to_string).collect::<Vec<_>>().join(", "),
                }
            });
        }
        let replies = self.replies.get(&session);
        let (last, gap) = replies.map_or((0, false), |replies| (replies.last, replies.gap));
        let kept = replies.map(|replies| &replies.kept);
        if seq == last + 1 || gap && seq > last {
            return Ok(None);
        }
        let back = last.checked_sub(seq).and_then(|back| {
            let kept = kept?;
            kept.get(kept.len().checked_sub(1 + back as usize)?)
        });
        match back {
            Some(reply) => Ok(Some(reply.clone())),
            None => {
                let kept = kept.map_or(0, VecDeque::len) as u64;
                Err(Refusal::Sequence { session, found: seq, expected: last + 1, kept })
            }
        }
    }

    /// Applies events and what follows from them; one record for all of it.
    fn commit(
        &mut self,
        call: Option<(SessionId, u64)>,
        mut events: Vec<Event>,
        now: Millis,
    ) -> (Option<Record>, Vec<Wake>, Option<Publication>) {
        let mut published = None;
        let mut applied = 0;
        while applied < events.len() {
            for event in &events[applied..] {
                self.note_publication(event, &mut published);
                apply(&mut self.state, event);
            }
            debug_assert!(events.len() < 100_000, "invariant: consequences come to an end: {:?}", &events[applied..]);
            applied = events.len();
            events.extend(due(&self.state));
        }
        self.clock = now;
        let wakes = std::mem::take(&mut self.state.scratch).wakes.into_iter().collect();
        self.forget_sessions(&events);
        let record = (!events.is_empty()).then(|| {
            let seq = self.state.seq;
            self.state.seq += 1;
            Record { version: Record::VERSION, seq, at: now, call, reply: None, events }
        });
        (record, wakes, published)
    }

    fn forget_sessions(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::SessionEnded { session, .. } => _ = self.replies.remove(session),
                Event::Restored { .. } => self.replies.clear(),
                _ => {}
            }
        }
    }

    /// The rows that the end of a cycle will consume for training tasks.
    fn trained(&self, cycle: u64) -> Vec<Trained> {
        let state = &self.state;
        let Some(progress) = &state.progress else { return Vec::new() };
        let table = &state.tables[&progress.partition];
        let mut rows = Vec::new();
        for (&(_, index), batch) in table.batches.range((cycle, 0)..(cycle + 1, 0)) {
            let groups = batch.groups.iter().filter_map(|id| Some((*id, table.groups.get(id)?)));
            for (id, group) in groups {
                for (row, found) in group.rows().filter_map(|row| Some((row, table.pages.get(row)?))) {
                    for &task in &table.tasks {
                        let cursor = &state.cursors[task.0 as usize];
                        if cursor.training.is_some() && found.owing & cursor.bit != 0 {
                            let (ordinal, admitted) = (group.ordinal, group.version);
                            let (sample, span) = (found.sample, found.span());
                            rows.push(Trained { task, row, group: id, ordinal, sample, index, admitted, span });
                        }
                    }
                }
            }
        }
        rows
    }
}
