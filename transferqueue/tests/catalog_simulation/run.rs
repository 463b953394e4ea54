//! One run from its seed to its end, and what must be true then.

use std::collections::{BTreeMap, BTreeSet};

use transferqueue::{
    RowId, SessionId, TaskId,
    catalog::{Event, Publication, Record, Refusal, command::*},
};

use crate::{
    catalog_support::World,
    plan::{self, Plan},
    random::Random,
    worker::{Doing, Step, Worker},
};

/// Steps after which a run that has not ended is stuck.
const PATIENCE: u64 = 60_000;

pub struct Simulation {
    seed: u64,
    random: Random,
    plan: Plan,
    world: World,
    workers: Vec<Worker>,
    source: SessionId,
    put: u64,
    put_val: bool,
    closed: bool,
    /// What the parts offered for a cycle were trained on.
    parts: BTreeMap<u16, BTreeSet<RowId>>,
    /// By model: what ranks had trained that died and were not yet missed.
    added: Vec<(u16, SessionId, BTreeSet<RowId>)>,
    trained: BTreeSet<(TaskId, RowId)>,
    seen: usize,
    restores: u64,
    spills: u64,
}

pub struct Ended {
    pub log: Vec<Record>,
    pub stopped: bool,
    pub trained: u64,
    pub restores: u64,
    pub lost_sessions: u64,
    pub spilled_chunks: u64,
    pub resumed_rows: u64,
    /// Uses of rows after their first one.
    pub uses_again: u64,
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = plan::random(&mut random);
        let mut world = World::new(plan.definition.clone());
        let source = world.session("source");
        let mut workers = Vec::new();
        for (position, task) in plan.definition.tasks.iter().enumerate() {
            let id = TaskId(position as u32);
            let trains = task.trains.as_ref().map(|trains| {
                plan.definition.models.iter().position(|model| model.name == trains.model).unwrap() as u16
            });
            let ranks = task.gang.as_ref().map_or(1, |gang| u64::from(gang.ranks));
            let count = if trains.is_some() { ranks } else { random.range(1, 2) };
            for i in 0..count {
                let session = world.session(&format!("{}-{i}", task.name));
                let rank = task.gang.as_ref().map(|_| i as u32);
                workers.push(Worker { rank, ..Worker::new(&format!("{}-{i}", task.name), session, vec![id], trains) });
            }
        }
        let put_val = plan.definition.partitions.iter().all(|p| p.name != "val_prompts");
        Self {
            seed,
            random,
            plan,
            world,
            workers,
            source,
            put: 0,
            put_val,
            closed: false,
            parts: BTreeMap::new(),
            added: Vec::new(),
            trained: BTreeSet::new(),
            seen: 0,
            restores: 0,
            spills: 0,
        }
    }

    pub fn run(mut self) -> Ended {
        let mut stopped = false;
        for step in 0.. {
            if self.workers.iter().all(Worker::finished) {
                break;
            }
            assert!(step < PATIENCE, "seed {} is stuck:\n{}", self.seed, self.stuck());
            self.time();
            if self.random.chance(20) {
                self.feed();
                continue;
            }
            let i = self.random.below(self.workers.len() as u64) as usize;
            self.mischief(i);
            if self.workers[i].dead {
                continue;
            }
            match self.workers[i].step(&mut self.world, &mut self.random, &self.plan) {
                Step::Went => {}
                Step::Published { model, cycle, mut memory } => {
                    if cycle.is_some() {
                        let others = self.workers.iter_mut().filter(|worker| worker.trains == Some(model));
                        others.for_each(|rank| memory.append(&mut rank.memory));
                        let living = self.world.catalog.state().sessions(transferqueue::Millis(self.world.now));
                        for (_, session, mut rank) in self.added.extract_if(.., |added| added.0 == model) {
                            if living.iter().any(|view| view.session == session) {
                                memory.append(&mut rank);
                            }
                        }
                        self.parts.insert(model, memory);
                    }
                }
                Step::Stopped => {
                    stopped = true;
                    break;
                }
            }
            self.publications();
        }
        let uses = self.uses();
        if !stopped {
            self.settled();
            self.used_up(&uses);
        }
        let lost = |record: &Record| {
            record.events.iter().filter(|event| matches!(event, Event::SessionEnded { lost: true, .. })).count() as u64
        };
        let spilled = |record: &Record| {
            let chunks = record.events.iter().map(|event| match event {
                Event::ChunksSpilled { chunks, .. } => chunks.len() as u64,
                _ => 0,
            });
            chunks.sum::<u64>()
        };
        Ended {
            stopped,
            trained: self.trained.len() as u64,
            restores: self.restores,
            lost_sessions: self.world.log.iter().map(lost).sum(),
            resumed_rows: self.world.resumed,
            spilled_chunks: self.world.log.iter().map(spilled).sum(),
            uses_again: uses.values().map(|times| times - 1).sum(),
            log: std::mem::take(&mut self.world.log).into_iter().collect::<Vec<_>>(),
        }
        .replayed(&mut self.world)
    }

    fn time(&mut self) {
        self.world.now += self.random.below(120);
        if self.random.chance(12) {
            self.world.own(Command::Tick).unwrap();
        }
        if self.random.below(1000) < self.plan.trouble {
            self.world.now += 60_000;
        }
        if self.random.below(1000) < self.plan.trouble {
            self.world.now = self.world.now.saturating_sub(40_000);
        }
        if self.random.chance(2) {
            self.spill();
        }
        // In-process sessions are kept alive by the store.
        if self.random.chance(5) {
            let living: Vec<_> = self.workers.iter().filter(|w| !w.dead).map(|w| w.session).collect();
            for session in living.into_iter().chain([self.source]) {
                drop(self.world.call(session, Command::Heartbeat));
            }
        }
    }

    /// Chunks of some column go to a file, whoever wants them.
    fn spill(&mut self) {
        let runs: Vec<_> = self.world.catalog.state().live_cells().collect();
        if runs.is_empty() {
            return;
        }
        let column = |run: &transferqueue::catalog::views::LiveRun| (run.partition, run.column);
        let of = column(self.random.pick(&runs));
        let all = runs.iter().filter(|run| column(run) == of).map(|run| run.chunk);
        let chunks: BTreeSet<_> = all.filter(|_| self.random.chance(50)).collect();
        let file = SpillFile { number: self.spills, bytes: 1, crc32: 0 };
        self.spills += 1;
        self.world.own(Command::Spill { partition: of.0, file, chunks: chunks.into_iter().collect() }).unwrap();
    }

    /// The source puts prompts, then closes.
    fn feed(&mut self) {
        if !self.put_val {
            let rows = self.plan.val;
            if rows > 0 {
                self.world.put(self.source, "val_prompts", rows).unwrap();
            }
            let id = self.world.partition("val_prompts");
            self.world.call(self.source, Command::ClosePartition(id)).unwrap();
            self.put_val = true;
            return;
        }
        if self.closed {
            return;
        }
        let left = self.plan.prompts - self.put;
        if left == 0 {
            let id = self.world.partition("prompts");
            self.world.call(self.source, Command::ClosePartition(id)).unwrap();
            self.closed = true;
            return;
        }
        let n = self.random.range(1, left.min(6));
        match self.world.put(self.source, "prompts", n) {
            Ok(Reply::Put(_)) => self.put += n,
            Ok(Reply::Ended) => self.closed = true,
            Ok(Reply::NotYet(_)) | Err(Refusal::Poisoned { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    /// A worker dies (silently or not), a corpse is replaced, the whole store restarts.
    fn mischief(&mut self, i: usize) {
        let trouble = self.plan.trouble;
        if self.workers[i].dead {
            if self.random.chance(10) {
                let worker = &mut self.workers[i];
                if let (Some(model), Some(_)) = (worker.trains, worker.rank) {
                    // What a rank has added to the sums is with the others, until its death is noticed.
                    self.added.push((model, worker.session, std::mem::take(&mut worker.memory)));
                }
                worker.reborn(&mut self.world);
            }
            return;
        }
        if self.random.below(1000) < trouble {
            self.workers[i].dead = true;
        } else if self.random.below(1000) < trouble {
            let session = self.workers[i].session;
            drop(self.world.call(session, Command::CloseSession));
            self.workers[i].reborn(&mut self.world);
        } else if self.random.below(4000) < trouble {
            self.restores += 1;
            self.world.restore();
            self.parts.clear();
            self.source = self.world.session("source");
            let mut workers = std::mem::take(&mut self.workers);
            workers.iter_mut().for_each(|worker| worker.reborn(&mut self.world));
            self.workers = workers;
        }
    }

    /// What publications consumed is what trainers had in memory, once, within the lag promised.
    fn publications(&mut self) {
        let published: Vec<Publication> = self.world.published[self.seen..].to_vec();
        self.seen = self.world.published.len();
        for publication in published {
            let Some(cycle) = publication.cycle else { continue };
            let mut by_task: BTreeMap<TaskId, BTreeSet<RowId>> = BTreeMap::new();
            for row in &publication.rows {
                assert!(self.trained.insert((row.task, row.row)), "row {} trained twice", row.row);
                assert!(by_task.entry(row.task).or_default().insert(row.row));
                let lag = cycle - row.span.expect("rollout notes versions").first;
                if let Some(promised) = self.plan.lag {
                    assert!(lag <= promised, "lag {lag}, promised {promised}, cycle {cycle}: {row:?}");
                }
            }
            for (task, def) in (0..).map(TaskId).zip(&self.plan.definition.tasks) {
                let Some(trains) = &def.trains else { continue };
                let model = self.plan.definition.models.iter().position(|m| m.name == trains.model).unwrap() as u16;
                let memory = self.parts.remove(&model);
                let consumed = by_task.remove(&task).unwrap_or_default();
                let memory = memory.unwrap_or_default();
                // Rows dropped after they were trained are in memory and not consumed.
                assert!(
                    consumed.is_subset(&memory),
                    "cycle {cycle}: {consumed:?} consumed, {memory:?} trained\n{}",
                    self.last_events()
                );
            }
            assert!(by_task.is_empty());
        }
    }

    /// Commits of each row by each task that does not train, told from the log alone.
    fn uses(&self) -> BTreeMap<(TaskId, RowId), u64> {
        let mut uses = BTreeMap::new();
        for event in self.world.log.iter().flat_map(|record| &record.events) {
            if let Event::RowsCommitted { task, rows, .. } = event
                && self.plan.definition.tasks[task.0 as usize].trains.is_none()
            {
                rows.iter().for_each(|row| *uses.entry((*task, row)).or_insert(0) += 1);
            }
        }
        uses
    }

    /// Every row was used as often as its task declares; at most that often, if it was dropped.
    fn used_up(&self, uses: &BTreeMap<(TaskId, RowId), u64>) {
        for (id, entry) in (0..).map(TaskId).zip(self.world.catalog.state().ledger()) {
            let each = u64::from(self.plan.definition.tasks[id.0 as usize].reuse);
            let of: Vec<u64> = uses.range((id, RowId(0))..(TaskId(id.0 + 1), RowId(0))).map(|(_, n)| *n).collect();
            assert!(
                of.iter().all(|times| *times <= each),
                "seed {}: `{}` used rows {of:?} times",
                self.seed,
                entry.task
            );
            if self.plan.definition.tasks[id.0 as usize].trains.is_none() {
                let all = of.iter().filter(|times| **times == each).count() as u64;
                assert_eq!(entry.consumed, all, "seed {}: `{}`", self.seed, entry.task);
            }
        }
    }

    fn settled(&mut self) {
        let state = self.world.catalog.state();
        for entry in state.ledger() {
            assert!(entry.balanced() && entry.live == 0, "seed {}: {entry:?}", self.seed);
        }
        let schedule = state.schedule().unwrap();
        assert!(schedule.over, "seed {}: {schedule:?}", self.seed);
        assert_eq!(schedule.in_flight, 0, "seed {}", self.seed);
        for column in state.columns() {
            if !column.partition.starts_with("weights/") && column.column != "archive" {
                assert_eq!(column.bytes_live, 0, "seed {}: {column:?}", self.seed);
            }
        }
        self.lose_the_dead();
        let state = self.world.catalog.state();
        let declared = self.plan.definition.partitions.len();
        let live = state.partitions();
        let models = self.plan.definition.models.len();
        assert!(live.len() <= declared + 2 * models, "seed {}: {live:?}", self.seed);
        assert!(live[..declared].iter().all(|partition| partition.name == "prompts" || partition.closed), "{live:?}");
    }

    /// Workers that died and were replaced end with their time; what they had begun goes with them.
    fn lose_the_dead(&mut self) {
        let living: BTreeSet<_> = self
            .workers
            .iter()
            .filter(|worker| !worker.dead)
            .map(|worker| worker.session)
            .chain([self.source])
            .collect();
        for _ in 0..4 {
            living.iter().for_each(|session| drop(self.world.call(*session, Command::Heartbeat)));
            self.world.pass(10_000);
        }
        let left = self.world.catalog.state().sessions(transferqueue::Millis(self.world.now));
        assert!(left.iter().all(|view| living.contains(&view.session)), "seed {}: {left:?}", self.seed);
    }

    fn stuck(&self) -> String {
        let state = self.world.catalog.state();
        let now = transferqueue::Millis(self.world.now);
        let mut text = format!("{:#?}\n{:#?}\n", state.definition().schedule, state.schedule());
        for task in state.tasks(now).into_iter().filter(|task| !task.ended) {
            let wait = task.wait.map_or_else(|| "servable".to_owned(), |wait| wait.to_string());
            text += &format!(
                "{}: {} owed, {} ready, {} leases: {wait}\n",
                task.task,
                task.backlog,
                task.ready,
                task.leases.len()
            );
        }
        for worker in self.workers.iter().filter(|worker| !worker.finished()) {
            let doing = match &worker.doing {
                Doing::Nothing => "nothing".to_owned(),
                Doing::Holding { left, .. } => format!("holding {left:?}"),
                Doing::Offering { cycle, .. } => format!("offering {cycle:?}"),
            };
            text += &format!("{} {}: {doing}\n", worker.name, if worker.dead { "(dead)" } else { "" });
        }
        text + &format!("{:#?}\n{}", state.partitions(), self.last_events())
    }

    /// What happened last, heartbeats left out.
    fn last_events(&self) -> String {
        let news = |record: &&Record| !matches!(record.events[..], [Event::SessionSeen { .. }]);
        let last: Vec<_> = self.world.log.iter().rev().filter(news).take(12).collect();
        last.iter().rev().map(|record| format!("{} by {:?}: {:?}\n", record.seq, record.call, record.events)).collect()
    }
}

impl Ended {
    /// Hands the log back for the replay check of the world's end, and keeps a copy.
    fn replayed(self, world: &mut World) -> Self {
        world.log.clone_from(&self.log);
        self
    }
}
