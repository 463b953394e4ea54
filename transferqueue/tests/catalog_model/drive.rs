//! Turns random numbers into calls, makes the same call on the catalog and on the model, and compares the two.

use std::collections::{BTreeMap, BTreeSet};

use transferqueue::{
    ColumnId, LeaseId, Millis, ModelId, PartitionId, RowId, Rows, SessionId, TaskId,
    catalog::{Refusal, command::*, definition::*, predicate::Predicate, views::Uses},
};

use crate::{
    catalog_support::{World, put_partition, row_column, schedule, task},
    model::{self, Cell, For, Model},
};

/// A step; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub enum Op {
    Open,
    Close(u8),
    /// The session's worker is seen to be dead.
    Lose(u8),
    Put(u8),
    ClosePrompts,
    Claim {
        session: u8,
        task: u8,
        limit: u8,
    },
    Write {
        lease: u8,
        rows: u8,
        seal: bool,
    },
    Commit {
        lease: u8,
        rows: u8,
        drops: u8,
        long: u8,
    },
    /// A claim and a commit of all of it.
    Work {
        session: u8,
        task: u8,
        long: u8,
    },
    Release {
        lease: u8,
        rows: u8,
    },
    Fail {
        lease: u8,
        rows: u8,
    },
    Renew {
        lease: u8,
        progress: u8,
    },
    Drop {
        row: u8,
        len: u8,
    },
    Tick(u16),
    Jump(bool),
    Retry(u8),
    Offer(u8),
    EndSchedule(u8),
    Restore,
}

pub struct Driver {
    world: World,
    model: Model,
    /// The last answered call of each session.
    last: BTreeMap<u64, (Request, Reply)>,
    trained: BTreeSet<u64>,
    published: usize,
}

const SAMPLES: PartitionId = PartitionId(1);

fn definition() -> Definition {
    let mut samples = put_partition("samples", &["out", "score", "note"]);
    let mut copy = row_column("copy");
    copy.keep = true;
    samples.columns.push(copy);
    samples.birth = Birth::Expand { from: "prompts".into(), n: 2, link: vec!["prompt".into()], gate: Gate::Schedule };
    let mut roll = task("roll", "samples", Grain::Row, &["prompt"], &["out"]);
    roll.samples_with = Some("policy".into());
    let score = task("score", "samples", Grain::Row, &["out"], &["score", "copy"]);
    let mut long = task("long", "samples", Grain::Row, &["out"], &["note"]);
    long.filter = Some(Predicate::Is("long".into(), Tag::Bool(true)));
    let noted = task("noted", "samples", Grain::Row, &["note"], &[]);
    let whole = task("whole", "samples", Grain::Group, &["score"], &[]);
    let mut train = task("train", "samples", Grain::Mini, &["prompt", "out", "score"], &[]);
    train.trains = Some(Trains { model: "policy".into(), from_cycle: 0 });
    let mut tasks = vec![roll, score, long, noted, whole, train];
    for task in &mut tasks {
        (task.lease_ms, task.attempts, task.on_poison) = (model::LEASE_MS, 1_000, Poison::Drop);
    }
    for (task, reuse) in tasks.iter_mut().zip(model::REUSE) {
        task.reuse = reuse;
    }
    tasks[model::SCORE].attempts = model::SCORE_ATTEMPTS;
    tasks[model::RESUMES].on_lost = OnLost::Resume;
    Definition {
        partitions: vec![put_partition("prompts", &["prompt"]), samples],
        tasks,
        models: vec![transferqueue::catalog::definition::Model { name: "policy".into(), keep_initial: false }],
        schedule: Some(schedule(model::B, model::B, model::AHEAD, model::CYCLES)),
        ..Definition::default()
    }
}

/// The bits of a mask pick among rows, in order.
fn pick(rows: impl IntoIterator<Item = u64>, mask: u8) -> BTreeSet<u64> {
    rows.into_iter().enumerate().filter(|(i, _)| mask & 1 << (i % 8) != 0).map(|(_, row)| row).collect()
}

fn run(rows: &BTreeSet<u64>) -> Rows {
    rows.iter().copied().map(RowId).collect()
}

impl Driver {
    pub fn new() -> Self {
        let mut world = World::new(definition());
        let columns = vec![row_column("data")];
        let weights = Partition { name: "w0".into(), columns, birth: Birth::Put { capacity: None } };
        let Reply::Partition(id) = world.own(Command::CreatePartition(weights)).unwrap() else { panic!() };
        world.own(Command::ClosePartition(id)).unwrap();
        let (model, cycle, weights, state) = (ModelId(0), None, Some(id), None);
        world.own(Command::Offer { model, cycle, weights, state }).unwrap();
        let model = Model::new();
        let mut driver = Self { world, model, last: BTreeMap::new(), trained: BTreeSet::new(), published: 1 };
        for op in [Op::Open, Op::Open, Op::Put(3)] {
            driver.step(op);
        }
        driver
    }

    fn session(&self, pick: u8) -> Option<u64> {
        let sessions: Vec<u64> = self.model.sessions.keys().copied().collect();
        (!sessions.is_empty()).then(|| sessions[usize::from(pick) % sessions.len()])
    }

    fn lease(&self, pick: u8) -> Option<u64> {
        let leases: Vec<u64> = self.model.leases.keys().copied().collect();
        (!leases.is_empty()).then(|| leases[usize::from(pick) % leases.len()])
    }

    /// A call of a session; an answered one is remembered for a retry.
    fn call(&mut self, session: u64, command: Command) -> Result<Reply, Refusal> {
        let request = self.world.request(SessionId(session), command);
        let reply = self.world.send(&request)?;
        self.world.answered(&request, &reply);
        if !matches!(reply, Reply::NotYet(_)) {
            self.last.insert(session, (request, reply.clone()));
        }
        self.model.passed(self.world.now, Some(session));
        Ok(reply)
    }

    fn own(&mut self, command: Command) -> Reply {
        let reply = self.world.own(command).unwrap();
        self.model.passed(self.world.now, None);
        reply
    }

    /// Makes a step and compares.
    pub fn step(&mut self, op: Op) {
        self.act(op);
        self.compare();
    }

    fn act(&mut self, op: Op) {
        match op {
            Op::Open => {
                let Reply::Session(session) = self.own(Command::OpenSession { name: "s".into(), here: false }) else {
                    panic!()
                };
                self.model.sessions.insert(session.0, self.model.now);
            }
            Op::Close(pick) => {
                let Some(session) = self.session(pick) else { return };
                self.call(session, Command::CloseSession).unwrap();
                self.model.close_session(session);
                let after = self.world.request(SessionId(session), Command::Heartbeat);
                assert!(matches!(self.world.send(&after), Err(Refusal::SessionEnded { .. })));
            }
            Op::Lose(pick) => {
                let Some(session) = self.session(pick) else { return };
                self.own(Command::Lose(SessionId(session)));
                self.model.lose_session(session);
                let seq = self.world.catalog.state().seq();
                self.own(Command::Lose(SessionId(session)));
                assert_eq!(self.world.catalog.state().seq(), seq, "a session is lost once");
            }
            Op::Put(n) => self.put(u64::from(n)),
            Op::ClosePrompts => {
                self.own(Command::ClosePartition(PartitionId(0)));
                self.model.closed = true;
                self.model.settle();
            }
            Op::Claim { session, task, limit } => self.claim(session, usize::from(task), usize::from(limit)),
            Op::Write { lease, rows, seal } => self.write(lease, rows, seal),
            Op::Commit { lease, rows, drops, long } => self.commit(lease, rows, drops, long),
            Op::Work { session, task, long } => {
                let next = self.model.next_lease;
                self.claim(session, usize::from(task), 8);
                if let Some(position) = self.model.leases.keys().position(|id| *id == next) {
                    self.compare();
                    self.commit(position as u8, u8::MAX, 0, long);
                }
            }
            Op::Release { lease, rows } => self.give_back(lease, rows, false),
            Op::Fail { lease, rows } => self.give_back(lease, rows, true),
            Op::Renew { lease, progress } => {
                let Some(id) = self.lease(lease) else { return };
                let session = self.model.leases[&id].session;
                let renew = Command::Renew { lease: LeaseId(id), progress: u64::from(progress) };
                let reply = self.call(session, renew).unwrap();
                assert_eq!(reply, Reply::Renewed(self.model.renew(id, u64::from(progress))));
            }
            Op::Drop { row, len } => {
                let born = self.model.rows.len() as u64;
                if born == 0 {
                    return;
                }
                let first = u64::from(row) % born;
                let rows: Vec<u64> = (first..born.min(first + u64::from(len))).collect();
                let drop = DropRows { rows: rows.iter().copied().map(RowId).collect(), reason: "unwanted".into() };
                self.own(Command::Drop { partition: SAMPLES, rows: drop });
                self.model.drop_rows(&rows, "unwanted");
            }
            Op::Tick(ms) => {
                self.world.now += u64::from(ms);
                self.world.own(Command::Tick).unwrap();
                self.model.tick(self.world.now);
            }
            Op::Jump(forward) => {
                let now = self.world.now;
                self.world.now = if forward { now + 60_000 } else { now.saturating_sub(20_000) };
                self.world.own(Command::Tick).unwrap();
                self.model.tick(self.world.now);
            }
            Op::Retry(pick) => {
                let Some(session) = self.session(pick) else { return };
                let Some((request, reply)) = self.last.get(&session).cloned() else { return };
                let seq = self.world.catalog.state().seq();
                assert_eq!(self.world.send(&request), Ok(reply), "the same call hears the same reply");
                assert_eq!(self.world.catalog.state().seq(), seq);
            }
            Op::Offer(pick) => self.offer(pick),
            Op::EndSchedule(pick) => self.end_schedule(pick),
            Op::Restore => {
                self.world.restore();
                self.model.now = self.world.now;
                self.model.restore();
                self.last.clear();
            }
        }
    }

    fn put(&mut self, n: u64) {
        let cells = vec![self.world.cells(ColumnId(0), Rows::run(RowId(0), n), 8)];
        let put = Command::Put { partition: PartitionId(0), rows: vec![NewRow::default(); n as usize], cells };
        let reply = self.world.own(put);
        self.model.passed(self.world.now, None);
        match reply {
            Ok(Reply::Ended) => assert!(self.model.over()),
            Err(Refusal::Closed { .. }) => {
                assert!(self.model.closed && !self.model.over());
            }
            Ok(Reply::Put(rows)) => {
                assert!(!self.model.closed);
                assert_eq!(rows, Rows::run(RowId(self.model.prompts.len() as u64), n));
                self.model.prompts.extend((0..n).map(|_| true));
                self.model.settle();
            }
            other => panic!("{other:?}"),
        }
    }

    fn claim(&mut self, session: u8, task: usize, limit: usize) {
        let Some(session) = self.session(session) else { return };
        let expected = self.model.claim(task, limit, session);
        let claim = Command::Claim { task: TaskId(task as u32), limit: limit as u64 };
        match (self.call(session, claim).unwrap(), expected) {
            (Reply::Claimed(claimed), Some(rows)) => {
                assert_eq!(claimed.batch.rows.iter().map(|row| row.0).collect::<Vec<_>>(), rows);
                if rows.is_empty() {
                    assert_eq!(claimed.lease, LeaseId(0));
                    return;
                }
                assert_eq!(claimed.lease.0, self.model.next_lease);
                for head in &claimed.heads {
                    let group = &self.model.groups[head.group.0 as usize];
                    assert_eq!((head.ordinal, head.version), (group.prompt, group.version));
                    assert_eq!(u64::from(head.sample), head.row.0 % 2);
                }
                self.model.lease(task, session, &rows);
            }
            (Reply::Ended, None) => assert!(self.model.ended(task)),
            (Reply::NotYet(_), None) => assert!(!self.model.ended(task)),
            (reply, expected) => panic!("task {task}: {reply:?}, expected {expected:?}"),
        }
    }

    /// Cells of every column the task writes that a row lacks; what is sealed already stays.
    fn cells(&mut self, id: u64, rows: &BTreeSet<u64>, bytes: u32, seal: bool) -> Vec<CellWrite> {
        let task = self.model.leases[&id].task;
        let mut cells = Vec::new();
        for &column in model::WRITES[task] {
            let lacks =
                |row: &u64| matches!(self.model.rows[*row as usize].cells[column], Cell::Absent | Cell::Open(_));
            let rows: BTreeSet<u64> = rows.iter().copied().filter(lacks).collect();
            if rows.is_empty() {
                continue;
            }
            let write = self.world.cells(ColumnId(column as u16), run(&rows), bytes);
            cells.push(CellWrite { seal, ..write });
        }
        cells
    }

    fn model_cells(&mut self, cells: &[CellWrite], bytes: u32) {
        for write in cells {
            let rows: Vec<u64> = write.rows.iter().map(|row| row.0).collect();
            self.model.write(&rows, usize::from(write.column.0), u64::from(bytes), write.seal);
        }
    }

    fn write(&mut self, lease: u8, rows: u8, seal: bool) {
        let Some(id) = self.lease(lease) else { return };
        let lease = self.model.leases[&id].clone();
        let rows = pick(lease.rows.iter().chain(&lease.lost).copied(), rows);
        let bytes = 3 + (rows.len() as u32);
        let cells = self.cells(id, &rows, bytes, seal);
        let named: BTreeSet<u64> = cells.iter().flat_map(|write| write.rows.iter().map(|row| row.0)).collect();
        let (id, handed) = (LeaseId(id), cells.clone());
        let write = match !seal && lease.task == model::RESUMES {
            true => Command::Save { lease: id, cells: handed, rows: vec![] },
            false => Command::Write { lease: id, cells: handed, notes: vec![] },
        };
        let reply = self.call(lease.session, write).unwrap();
        assert_eq!(reply, Reply::Written { dropped: run(&named.intersection(&lease.lost).copied().collect()) });
        self.model_cells(&cells, bytes);
        self.model.settle();
    }

    fn commit(&mut self, lease: u8, rows: u8, drops: u8, long: u8) {
        let Some(id) = self.lease(lease) else { return };
        let lease = self.model.leases[&id].clone();
        let all = || lease.rows.iter().chain(&lease.lost).copied().collect::<BTreeSet<u64>>();
        let (rows, drops) = (pick(all(), rows), pick(all(), drops));
        let written: BTreeSet<u64> = rows.difference(&drops).copied().collect();
        let cells = self.cells(id, &written, 6, true);
        let fresh = |row: &u64| lease.task == model::ROLL && self.model.rows[*row as usize].cells[0] == Cell::Absent;
        let tagged: BTreeSet<u64> = written.iter().copied().filter(fresh).collect();
        let long = pick(tagged.iter().copied(), long);
        let note = |row: &u64| RowNote {
            row: RowId(*row),
            tags: [("long".to_owned(), Tag::Bool(long.contains(row)))].into(),
            span: None,
        };
        let drop = DropRows { rows: run(&drops), reason: "unwanted".into() };
        let commit = Command::Commit {
            lease: LeaseId(id),
            rows: run(&rows),
            cells: cells.clone(),
            notes: tagged.iter().map(note).collect(),
            drops: vec![drop],
        };
        let reply = self.call(lease.session, commit).unwrap();
        assert_eq!(reply, Reply::Committed { dropped: run(&rows.intersection(&lease.lost).copied().collect()) });
        for row in tagged.difference(&lease.lost) {
            self.model.rows[*row as usize].long = long.contains(row);
        }
        // One event: cells, then drops, then the commit, and only then what follows from them.
        self.model_cells(&cells, 6);
        self.model.commit_with(id, &rows, &drops);
    }

    fn give_back(&mut self, lease: u8, rows: u8, failed: bool) {
        let Some(id) = self.lease(lease) else { return };
        let lease = self.model.leases[&id].clone();
        let rows = pick(lease.rows.iter().chain(&lease.lost).copied(), rows);
        let (lease_id, named) = (LeaseId(id), run(&rows));
        let command = match failed {
            true => Command::Fail { lease: lease_id, rows: named, error: "broke".into() },
            false => Command::Release { lease: lease_id, rows: named },
        };
        self.call(lease.session, command).unwrap();
        self.model.release(id, &rows, failed);
    }

    fn offer(&mut self, pick: u8) {
        let Some(session) = self.session(pick) else { return };
        let cycle = self.model.cycle;
        let in_cycle = |row: usize| self.model.groups[row / 2].cut.is_some_and(|(c, _)| c == cycle);
        let left = (0..self.model.rows.len())
            .filter(|row| in_cycle(*row))
            .any(|row| matches!(self.model.rows[row].tasks[model::TRAIN], For::Ready | For::Waiting | For::Leased(_)));
        let owner = self.model.trainer.is_none_or(|trainer| trainer == session);
        let possible = cycle < self.model.cycles && self.model.cut && !left && owner;
        let offer = Command::Offer { model: ModelId(0), cycle: Some(cycle), weights: None, state: None };
        let reply = self.call(session, offer);
        match reply {
            Ok(reply) => {
                assert!(possible);
                assert_eq!(reply, Reply::Offered(Some(cycle + 1)));
                self.model.publish();
                self.check_publication(cycle);
            }
            Err(refusal) => assert!(!possible, "{refusal}"),
        }
    }

    /// Seldom: most runs take their whole length.
    fn end_schedule(&mut self, pick: u8) {
        let Some(session) = self.session(pick).filter(|_| pick < 30) else { return };
        let cycle = self.model.cycle;
        let possible = cycle < self.model.cycles && self.model.cut;
        match self.call(session, Command::EndSchedule { cycle }) {
            Ok(reply) => {
                assert!(possible);
                assert_eq!(reply, Reply::Done);
                self.model.cycles = cycle + 1;
                self.model.settle();
            }
            Err(refusal) => assert!(!possible, "{refusal}"),
        }
    }

    /// Each row once, in the order of the cut, within the lag that admission order promises.
    fn check_publication(&mut self, cycle: u64) {
        let publication = &self.world.published[self.published];
        self.published += 1;
        let mut indices: Vec<u64> = Vec::new();
        for row in &publication.rows {
            assert!(self.trained.insert(row.row.0), "row {} trained twice", row.row);
            assert_eq!(self.model.rows[row.row.0 as usize].tasks[model::TRAIN], For::Consumed);
            assert!(cycle - row.admitted <= model::AHEAD.div_ceil(model::B));
            indices.push(row.index);
        }
        assert!(indices.is_sorted());
    }

    fn compare(&self) {
        let (state, model) = (self.world.catalog.state(), &self.model);
        for (task, entry) in state.ledger().into_iter().enumerate() {
            let count =
                |test: &dyn Fn(For) -> bool| model.rows.iter().filter(|row| test(row.tasks[task])).count() as u64;
            let owed = count(&|state| !matches!(state, For::Undecided | For::NotOwed));
            let consumed = count(&|state| state == For::Consumed);
            let mut dropped = BTreeMap::new();
            for row in &model.rows {
                if let For::Dropped(reason) = row.tasks[task] {
                    *dropped.entry(reason.to_owned()).or_insert(0) += 1;
                }
            }
            assert_eq!((entry.owed, entry.consumed), (owed, consumed), "{}", entry.task);
            assert_eq!(entry.dropped, dropped, "{}", entry.task);
            assert!(entry.balanced());
            let uses = |test: &dyn Fn(For) -> bool| {
                let of = model.rows.iter().filter(|row| test(row.tasks[task]));
                of.map(|row| u64::from(row.uses[task])).sum::<u64>()
            };
            let expected = (model::REUSE[task] > 1).then(|| Uses {
                each: model::REUSE[task],
                committed: uses(&|_| true),
                live: uses(&|state| matches!(state, For::Ready | For::Leased(_))),
                dropped: uses(&|state| matches!(state, For::Dropped(_))),
            });
            assert_eq!(entry.uses, expected, "{}", entry.task);
        }
        for (task, view) in state.tasks(Millis(self.world.now)).into_iter().enumerate() {
            let ready = model.rows.iter().filter(|row| row.tasks[task] == For::Ready).count() as u64;
            let done = model.rows.iter().filter(|row| row.tasks[task] == For::Done).count() as u64;
            assert_eq!((view.ready, view.done), (ready, done), "{}", view.task);
            let leases: Vec<(u64, u64)> = view.leases.iter().map(|lease| (lease.lease.0, lease.rows)).collect();
            let held = model.leases.iter().filter(|(_, lease)| lease.task == task);
            assert_eq!(
                leases,
                held.map(|(id, lease)| (*id, lease.rows.len() as u64)).collect::<Vec<_>>(),
                "{}",
                view.task
            );
        }
        let live: Rows = (0..).zip(&model.rows).filter(|(_, row)| row.present()).map(|(id, _)| RowId(id)).collect();
        assert_eq!(state.rows(SAMPLES).unwrap(), live, "live rows");
        let prompts: Rows = (0..).zip(&model.prompts).filter(|(_, there)| **there).map(|(id, _)| RowId(id)).collect();
        assert_eq!(state.rows(PartitionId(0)).unwrap(), prompts, "live prompts");
        for (column, view) in state.columns().into_iter().filter(|view| view.partition == "samples").enumerate() {
            let bytes = model.rows.iter().map(|row| match row.cells[column] {
                Cell::Held(bytes) | Cell::Open(bytes) => bytes,
                _ => 0,
            });
            assert_eq!(view.bytes_live, bytes.sum::<u64>(), "{}", view.column);
        }
        let schedule = state.schedule().unwrap();
        assert_eq!(
            (schedule.cycle, schedule.admitted, schedule.dropped, schedule.retired, schedule.over),
            (model.cycle, model.admitted, model.dropped, model.retired, model.over())
        );
        let sessions: Vec<u64> = state.sessions(Millis(0)).iter().map(|view| view.session.0).collect();
        assert_eq!(sessions, model.sessions.keys().copied().collect::<Vec<_>>());
    }

    /// Every ready row can be claimed.
    pub fn finish(mut self) {
        self.act(Op::Open);
        let session = *self.model.sessions.keys().next_back().unwrap();
        for task in 0..model::TASKS {
            while self.model.claim(task, 3, session).is_some_and(|rows| !rows.is_empty()) {
                let last = self.model.sessions.keys().position(|s| *s == session).unwrap() as u8;
                self.step(Op::Claim { session: last, task: task as u8, limit: 3 });
            }
        }
    }
}
