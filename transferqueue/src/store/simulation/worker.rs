//! Workers as a client library runs them: one numbered call at a time, sent again until it is answered, puts before the
//! command that names them.

use std::{collections::VecDeque, sync::Arc};

use arrow::array::ArrayRef;

use super::{
    network::{Body, Heard, Unwanted},
    random::Random,
};
use crate::{
    Error, Outputs, Store,
    catalog::{
        Refusal,
        command::{CellWrite, Claimed, Command, NewRow, Reply, Request, RowNote, Sampled, SavedRow, Sizes, Span},
        definition::{Birth, OnLost, Partition},
    },
    ids::{ColumnId, ModelId, PartitionId, RowId, Rows, SessionId, TaskId},
    link::Link,
    schema::{Column, Kind},
    transport::{Local, Transport, View},
    wire,
};

const PROMPTS: PartitionId = PartitionId(0);
const SAMPLES: PartitionId = PartitionId(1);
const ROLLOUT: TaskId = TaskId(0);
const ACTOR: TaskId = TaskId(3);
const POLICY: ModelId = ModelId(0);

/// Versions of the tokens of half a response.
fn half(head: &crate::RowHead) -> Vec<Sampled> {
    vec![Sampled { version: head.version, tokens: 1 }]
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Puts so many prompts and closes.
    Source {
        prompts: u64,
    },
    Stage(TaskId),
}

/// Questions that change nothing and bytes that are there are looked up directly.
pub(super) struct Sight<'a> {
    pub(super) store: &'a Store,
}

/// One thing to say.
enum Step {
    Open,
    Say(Command),
    Place {
        partition: PartitionId,
        column: u16,
        array: ArrayRef,
        /// It is saved, unfinished.
        partial: bool,
        /// It comes along with the command that names it.
        along: bool,
    },
    /// Names what was placed.
    Save,
    Commit,
    PutRow(PartitionId),
    /// To the partition that was created.
    Weights(Weights),
    Leave,
}

#[derive(Clone, Copy)]
enum Weights {
    Create,
    Place,
    Put,
    Close,
    Offer(Option<u64>),
    Delete,
}

/// Where cells lie that were put, or what is to come along with a command.
enum Cells {
    Placed(wire::Placed),
    Along(wire::Along),
}

struct Asked {
    call: u64,
    body: Body,
}

pub(super) struct Worker {
    pub(super) name: String,
    role: Role,
    session: Option<SessionId>,
    /// Number of the last answered call.
    last: u64,
    puts: u64,
    attempt: u64,
    steps: VecDeque<Step>,
    asked: Option<Asked>,
    calls: u64,
    claimed: Option<Claimed>,
    placed: Vec<(ColumnId, u64, Cells)>,
    weights: Option<PartitionId>,
    unwanted: Unwanted,
    ended: bool,
    left: bool,
    pub(super) stopped: bool,
    /// Rows that it went on with.
    pub(super) resumed: u64,
    /// The one that counts; others were overtaken.
    pub(super) alarm: u64,
}

impl Worker {
    pub(super) fn new(number: usize, role: Role) -> Self {
        Self {
            name: format!("worker-{number}"),
            role,
            session: None,
            last: 0,
            puts: 0,
            attempt: 0,
            steps: VecDeque::new(),
            asked: None,
            calls: 1_000_000 * number as u64,
            claimed: None,
            placed: Vec::new(),
            weights: None,
            unwanted: Unwanted::default(),
            ended: false,
            left: false,
            stopped: false,
            resumed: 0,
            alarm: 0,
        }
    }

    pub(super) fn finished(&self) -> bool {
        self.left || self.stopped
    }

    pub(super) fn sleep(&mut self) -> u64 {
        self.alarm += 1;
        self.alarm
    }

    /// Everything that was in its memory is gone. What it has sent is still under way.
    pub(super) fn crash(&mut self) {
        if self.finished() {
            return;
        }
        (self.session, self.last, self.puts, self.attempt) = (None, 0, 0, 0);
        (self.asked, self.claimed, self.weights) = (None, None, None);
        self.steps.clear();
        self.placed.clear();
        self.unwanted = Unwanted::default();
        self.calls += 1;
    }

    pub(super) fn told(&self) -> String {
        format!("{} session {:?}, {} steps, asked {}", self.name, self.session, self.steps.len(), self.asked.is_some())
    }

    /// What to send now: the same again while no answer came.
    pub(super) fn next(&mut self, sight: &Sight<'_>) -> Option<(u64, Body, Unwanted)> {
        if self.finished() {
            return None;
        }
        if self.asked.is_none() {
            if self.steps.is_empty() {
                self.plan(sight);
            }
            self.calls += 1;
            self.keep();
            let body = self.say();
            self.asked = Some(Asked { call: self.calls, body });
        }
        let asked = self.asked.as_ref()?;
        Some((asked.call, asked.body.clone(), std::mem::take(&mut self.unwanted)))
    }

    fn plan(&mut self, sight: &Sight<'_>) {
        self.placed.clear();
        if self.session.is_none() {
            self.steps.push_back(Step::Open);
            return;
        }
        match self.role {
            Role::Source { prompts } => match sight.store.born(PROMPTS).unwrap_or(0) {
                born if born < prompts && !self.ended => {
                    let row = Outputs::new()
                        .ragged("prompt", [[born as i32, born as i32 + 1]])
                        .json("truth", [serde_json::json!({ "answer": 2 * born })]);
                    self.place(sight, PROMPTS, &row, 1, false);
                    self.steps.push_back(Step::PutRow(PROMPTS));
                }
                _ => self.steps.extend([Step::Say(Command::ClosePartition(PROMPTS)), Step::Leave]),
            },
            Role::Stage(_) if self.ended => self.steps.push_back(Step::Leave),
            Role::Stage(ACTOR) if sight.store.newest(POLICY).is_ok_and(|n| n.version.is_none() && !n.offered) => {
                self.publish(None);
            }
            Role::Stage(task) => self.steps.push_back(Step::Say(Command::Claim { task, limit: 3 })),
        }
    }

    fn place(&mut self, sight: &Sight<'_>, partition: PartitionId, outputs: &Outputs, rows: u64, partial: bool) {
        let Ok(described) = sight.store.describe(partition) else { return };
        let encoded = outputs.arrays("", &described.columns, &Rows::run(RowId(0), rows)).unwrap();
        let along = self.calls.is_multiple_of(2);
        for (column, array) in encoded {
            self.steps.push_back(Step::Place { partition, column: column.0, array, partial, along });
        }
    }

    /// Takes what comes along with the next command.
    fn keep(&mut self) {
        while let Some(Step::Place { partition, column, array, partial, along: true }) = self.steps.front() {
            let (array, column) = (array.clone(), *column);
            let put = self.number(*partition, column, *partial);
            self.placed.push((ColumnId(column), array.len() as u64, Cells::Along(wire::Along::new(put, &array))));
            self.steps.pop_front();
        }
    }

    fn publish(&mut self, cycle: Option<u64>) {
        use Weights::*;
        self.placed.clear();
        self.steps.extend([Create, Place, Put, Close, Offer(cycle)].map(Step::Weights));
    }

    fn say(&mut self) -> Body {
        let command = match self.steps.front().expect("something was planned") {
            Step::Open => Command::OpenSession { name: self.name.clone(), here: false },
            Step::Say(command) => command.clone(),
            Step::Leave => Command::CloseSession,
            Step::Place { partition, column, array, partial, .. } => {
                return self.put(*partition, *column, array.clone(), *partial);
            }
            Step::Save => self.save(),
            Step::Commit => self.commit(),
            Step::PutRow(partition) => self.put_row(*partition),
            Step::Weights(step) => {
                let made = self.weights.unwrap_or_default();
                match *step {
                    Weights::Create => {
                        let name = format!("weights/{}.{}.{}", self.name, self.session.unwrap_or_default(), self.last);
                        let columns = vec![Column::new("data", Kind::Binary)];
                        Command::CreatePartition(Partition { name, columns, birth: Birth::Put { capacity: None } })
                    }
                    Weights::Place => {
                        let array: ArrayRef = Arc::new(arrow::array::BinaryArray::from_vec(vec![b"weights"]));
                        return self.put(made, 0, array, false);
                    }
                    Weights::Put => self.put_row(made),
                    Weights::Close => Command::ClosePartition(made),
                    Weights::Delete => Command::DeletePartition(made),
                    Weights::Offer(cycle) => Command::Offer { model: POLICY, cycle, weights: Some(made), state: None },
                }
            }
        };
        let caller = self.session.map(|session| (session, self.last + 1));
        self.attempt += 1;
        let named = if command.cells().is_empty() { &[][..] } else { &self.placed[..] };
        let along = named.iter().enumerate().filter_map(|(at, (_, _, cells))| match cells {
            Cells::Along(along) => Some(wire::Along { cell: at as u32, ..along.clone() }),
            Cells::Placed(_) => None,
        });
        Body::Call { request: Request { caller, command }, attempt: self.attempt, along: along.collect() }
    }

    fn put(&mut self, partition: PartitionId, column: u16, array: ArrayRef, partial: bool) -> Body {
        Body::Put { put: self.number(partition, column, partial), array }
    }

    fn number(&mut self, partition: PartitionId, column: u16, partial: bool) -> wire::Put {
        self.puts += 1;
        let session = self.session.unwrap_or_default().0;
        wire::Put { session, partition: partition.0, column: column.into(), number: self.puts, partial }
    }

    fn cells(&self, rows: &Rows) -> Vec<CellWrite> {
        let one = |(column, count, cells): &(ColumnId, u64, Cells)| {
            let (chunk, slot, sizes) = match cells {
                Cells::Placed(placed) => placed.clone().read(*count as usize).unwrap(),
                Cells::Along(along) => (wire::ALONG, along.put.number as u32, Sizes::Uniform(0)),
            };
            CellWrite { column: *column, rows: rows.clone(), chunk, slot, sizes, seal: true, replaces: None }
        };
        self.placed.iter().map(one).collect()
    }

    /// Half of each response.
    fn save(&self) -> Command {
        let claimed = self.claimed.as_ref().expect("a save follows a claim");
        let open = |write| CellWrite { seal: false, ..write };
        let cells = self.cells(&claimed.batch.rows).into_iter().map(open).collect();
        let rows = claimed.heads.iter().map(|head| SavedRow { row: head.row, sampled: half(head) }).collect();
        Command::Save { lease: claimed.lease, cells, rows }
    }

    fn put_row(&self, partition: PartitionId) -> Command {
        let cells = self.cells(&Rows::run(RowId(0), 1));
        Command::Put { partition, rows: vec![NewRow::default()], cells }
    }

    fn commit(&self) -> Command {
        let claimed = self.claimed.as_ref().expect("a commit follows a claim");
        let rows = claimed.batch.rows.clone();
        let sampled = self.role == Role::Stage(ROLLOUT);
        let note = |head: &crate::RowHead| RowNote {
            row: head.row,
            tags: Default::default(),
            span: Some(Span { first: head.version, last: head.version }),
        };
        let notes = if sampled { claimed.heads.iter().map(note).collect() } else { vec![] };
        Command::Commit { lease: claimed.lease, cells: self.cells(&rows), rows, notes, drops: vec![] }
    }

    /// Takes an answer; whether to go on at once.
    pub(super) fn hear(&mut self, call: u64, heard: Heard, sight: &Sight<'_>, random: &mut Random) -> bool {
        if self.finished() || self.asked.as_ref().is_none_or(|asked| asked.call != call) {
            return false;
        }
        let asked = self.asked.take();
        match heard {
            Heard::Placed(placed) => {
                let (column, cells) = match self.steps.pop_front() {
                    Some(Step::Place { column, array, .. }) => (column, array.len()),
                    _ => (0, 1),
                };
                self.placed.push((ColumnId(column), cells as u64, Cells::Placed(placed)));
            }
            Heard::Later => {
                // The number is free again: something else may be said under it.
                if random.chance(20) && !matches!(self.steps.front(), Some(Step::Say(Command::Heartbeat))) {
                    self.steps.push_front(Step::Say(Command::Heartbeat));
                    return true;
                }
                return false;
            }
            Heard::Reply(reply) => {
                if self.session.is_some() {
                    self.last += 1;
                }
                self.answered(reply, sight);
            }
            Heard::Failed(failure) => {
                let error = failure.into_error("the store");
                // Done or not: nobody knows. Some clients ask the next life, some begin anew.
                let broken = matches!(error, Error::Broken { .. });
                if broken && random.chance(50) {
                    self.asked = asked;
                    return false;
                }
                return self.failed(error, random);
            }
        }
        true
    }

    fn answered(&mut self, reply: Reply, sight: &Sight<'_>) {
        let step = self.steps.pop_front();
        match (reply, step) {
            (Reply::Session(session), Some(Step::Open)) => (self.session, self.last) = (Some(session), 0),
            (Reply::Done, Some(Step::Leave)) => self.left = true,
            (Reply::Done, Some(_)) => {}
            (Reply::Partition(id), Some(Step::Weights(Weights::Create))) => self.weights = Some(id),
            (Reply::Put(rows), Some(_)) => {
                assert_eq!(rows.len(), 1);
                self.placed.clear();
            }
            (Reply::Claimed(claimed), Some(Step::Say(Command::Claim { .. }))) => self.work(claimed, sight),
            (Reply::Written { .. }, Some(Step::Save)) => self.placed.clear(),
            (Reply::Committed { .. }, Some(Step::Commit)) => {
                self.placed.clear();
                let cut = self.claimed.take().and_then(|claimed| claimed.cut).filter(|cut| cut.last);
                if let Some(cut) = cut {
                    self.publish(Some(cut.cycle));
                }
            }
            (Reply::Offered(version), Some(_)) => assert!(version.is_some(), "one model publishes alone"),
            (Reply::Ended, Some(_)) => {
                self.ended = true;
                self.steps.clear();
            }
            (reply, _) => panic!("{} hears {reply:?}, which it has not asked for", self.name),
        }
    }

    /// Computes what a stage computes from the bytes that its lease points to.
    fn work(&mut self, claimed: Claimed, sight: &Sight<'_>) {
        let rows = claimed.batch.rows.len();
        if rows == 0 {
            let cut = claimed.cut.expect("a lease without rows ends a cycle");
            return self.publish(Some(cut.cycle));
        }
        let transport = Local::new(sight.store.units().clone());
        let mut columns = Vec::new();
        for pointer in &claimed.batch.columns {
            let Ok(described) = sight.store.describe(pointer.partition) else { return };
            // A lease that ended on the way points to bytes that may be gone: nothing of it is worth doing.
            let Ok(views) = transport.get(pointer) else { return };
            let column =
                Column { name: pointer.name.clone(), ..described.columns[usize::from(pointer.column.0)].clone() };
            let copied: Vec<View> = views;
            columns.push((Arc::new(column), copied));
        }
        let batch = crate::Batch::new(Arc::new(claimed.heads.clone()), columns).unwrap();
        let outputs = match self.role {
            Role::Stage(ROLLOUT) => {
                let prompts = batch.ragged::<i32>("prompt").unwrap();
                if !self.resume(sight, &claimed, &transport, |row| 2 * prompts.row(row)[0]) {
                    return;
                }
                if sight.store.definition().tasks[0].on_lost == OnLost::Resume {
                    let begun = Outputs::new().ragged("response", prompts.iter().map(|p| [2 * p[0]]));
                    self.place(sight, SAMPLES, &begun, rows, true);
                    self.steps.push_back(Step::Save);
                }
                Outputs::new().ragged("response", prompts.iter().map(|p| p.iter().map(|t| 2 * t).collect::<Vec<i32>>()))
            }
            Role::Stage(TaskId(1)) => {
                let (responses, truths) = (batch.ragged::<i32>("response").unwrap(), batch.json("truth").unwrap());
                let right = |i| truths.parse::<serde_json::Value>(i).unwrap()["answer"] == responses.row(i)[0];
                Outputs::new().dense("reward", (0..batch.len()).map(|i| f32::from(right(i))).collect::<Vec<f32>>())
            }
            Role::Stage(TaskId(2)) => {
                let rewards = batch.dense::<f32>("reward").unwrap().to_vec();
                Outputs::new().ragged("advantages", rewards.iter().map(|reward| vec![*reward; 2]))
            }
            // Draws rows again and again, and writes nothing.
            Role::Stage(TaskId(4)) => {
                let responses = batch.ragged::<i32>("response").unwrap();
                assert!(
                    responses.iter().all(|row| row.len() == 2 && row[1] == row[0] + 2),
                    "the bytes are still there"
                );
                Outputs::new()
            }
            _ => {
                let advantages = batch.ragged::<f32>("advantages").unwrap();
                assert!(advantages.iter().all(|row| row == [1.0, 1.0]), "every response is right");
                Outputs::new()
            }
        };
        drop(batch);
        self.place(sight, SAMPLES, &outputs, rows, false);
        self.claimed = Some(claimed);
        self.steps.push_back(Step::Commit);
    }

    /// What a former worker saved is the first token of each response; `false` when the lease has ended on the way.
    fn resume(&mut self, sight: &Sight<'_>, claimed: &Claimed, from: &Local, first: impl Fn(usize) -> i32) -> bool {
        let Ok(described) = sight.store.describe(SAMPLES) else { return false };
        for saved in &claimed.batch.saved {
            let [pointer] = &saved.columns[..] else { panic!("one column is saved: {saved:?}") };
            let Ok(views) = from.get(pointer) else { return false };
            let heads: Vec<_> = claimed.heads.iter().filter(|head| saved.rows.contains(head.row)).cloned().collect();
            assert_eq!(saved.sampled, heads.iter().map(half).collect::<Vec<_>>());
            let column = Arc::new(described.columns[usize::from(pointer.column.0)].clone());
            let batch = crate::Batch::new(Arc::new(heads), vec![(column, views)]).unwrap();
            let tokens = batch.ragged::<i32>("response").unwrap();
            for (tokens, row) in tokens.iter().zip(saved.rows.iter()) {
                let at = claimed.batch.rows.iter().position(|claimed| claimed == row).unwrap();
                assert_eq!(tokens, [first(at)], "row {row} is resumed from other tokens than were saved");
            }
            self.resumed += saved.rows.len();
        }
        true
    }

    fn failed(&mut self, error: Error, random: &mut Random) -> bool {
        match error {
            Error::Refused(Refusal::SessionEnded { .. }) => {
                self.crash();
                true
            }
            Error::Refused(Refusal::LeaseEnded { .. }) => {
                // Some clients say what they do not want any more, some leave it to their session's end.
                if random.chance(50) {
                    for (_, _, cells) in &self.placed {
                        match cells {
                            Cells::Placed(placed) => {
                                let spot = placed.spot.map(|spot| (crate::ChunkId(spot.chunk), spot.slot));
                                self.unwanted.spots.extend(spot);
                            }
                            Cells::Along(along) => self.unwanted.puts.push(along.put.number),
                        }
                    }
                }
                self.steps.clear();
                self.claimed = None;
                true
            }
            Error::Refused(Refusal::Offer { .. }) => {
                self.steps.clear();
                self.steps.push_back(Step::Weights(Weights::Delete));
                true
            }
            // What was made for a session that is gone went with it.
            Error::Refused(Refusal::Unknown { what, .. }) if what == "partition" => {
                self.crash();
                true
            }
            Error::Refused(Refusal::Poisoned { .. }) => {
                self.stopped = true;
                false
            }
            Error::Broken { .. } => {
                self.crash();
                false
            }
            // No room for the bytes: they are put again later.
            Error::Server { why, .. } if why.starts_with("arena ") => false,
            other => panic!("{} is told: {other}", self.name),
        }
    }
}
