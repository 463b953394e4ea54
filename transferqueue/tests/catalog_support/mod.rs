//! A catalog under test: every call is checked, every record kept, every chunk followed.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use transferqueue::{
    ChunkId, Column, ColumnId, Dtype, Kind, LeaseId, Millis, ModelId, PartitionId, RowId, Rows, SessionId, TaskId,
    catalog::{Catalog, Event, Publication, Record, Refusal, Wake, apply, command::*, definition::*, wait::Wait},
};

/// A saved row: the place of its cells, and the versions of its tokens.
pub type Saved = (BTreeMap<ColumnId, (ChunkId, u32)>, Vec<Sampled>);

/// A catalog with its log, its clock, and a unit that only counts cells.
pub struct World {
    pub catalog: Catalog,
    pub log: Vec<Record>,
    pub now: u64,
    /// Numbers of the last answered calls.
    seqs: BTreeMap<SessionId, u64>,
    next_chunk: u64,
    /// Cells written to each chunk that the unit holds.
    pub unit: BTreeMap<ChunkId, u32>,
    pub freed: BTreeSet<ChunkId>,
    pub wakes: Vec<Wake>,
    pub published: Vec<Publication>,
    /// What is saved of unfinished rows, told from the events: where each column's cell lies, and the versions.
    pub saved: BTreeMap<(PartitionId, RowId, TaskId), Saved>,
    /// Rows that were claimed with something saved of them.
    pub resumed: u64,
    /// Verify the whole state after every call (slow for large ones).
    pub verify: bool,
}

impl World {
    pub fn new(definition: Definition) -> Self {
        let (catalog, first) = Catalog::create(definition, 1, Millis(0)).unwrap();
        let mut world = Self {
            catalog,
            log: Vec::new(),
            now: 0,
            seqs: BTreeMap::new(),
            next_chunk: 0,
            unit: BTreeMap::new(),
            freed: BTreeSet::new(),
            wakes: Vec::new(),
            published: Vec::new(),
            saved: BTreeMap::new(),
            resumed: 0,
            verify: true,
        };
        world.keep(first);
        world
    }

    fn keep(&mut self, record: Record) {
        for event in &record.events {
            self.note_saved(event);
            if let Event::ChunksFreed { chunks, slots, .. } = event {
                for (chunk, slots) in chunks.iter().zip(slots) {
                    if self.unit.get(chunk).is_some_and(|written| written == slots) {
                        self.unit.remove(chunk);
                        self.freed.insert(*chunk);
                    }
                }
            }
        }
        self.log.push(record);
        if self.verify {
            self.catalog.state().verify().unwrap_or_else(|error| {
                panic!("{error}\nafter {:#?}", self.log.last().unwrap().events);
            });
        }
    }

    fn note_saved(&mut self, event: &Event) {
        let partition = |task: &TaskId| {
            let name = &self.catalog.state().definition().tasks[task.0 as usize].partition;
            self.catalog.state().partition(name).unwrap()
        };
        match event {
            Event::RowsSaved { task, cells, rows, .. } => {
                let partition = partition(task);
                for SavedRow { row, sampled } in rows {
                    let places = cells.iter().filter_map(|write| {
                        let at = write.rows.iter().position(|named| named == *row)?;
                        Some((write.column, (write.chunk, write.slot + at as u32)))
                    });
                    self.saved.insert((partition, *row, *task), (places.collect(), sampled.clone()));
                }
            }
            Event::CellsWritten { partition, cells, .. } => {
                for write in cells.iter().filter(|write| write.seal) {
                    let of = |key: &(PartitionId, RowId, TaskId)| key.0 == *partition && write.rows.contains(key.1);
                    let sealed = self.saved.iter_mut().filter(|(key, _)| of(key));
                    sealed.for_each(|(_, (places, _))| _ = places.remove(&write.column));
                }
                self.saved.retain(|_, (places, _)| !places.is_empty());
            }
            Event::RowsDropped { partition, drop } => {
                self.saved.retain(|key, _| key.0 != *partition || !drop.rows.contains(key.1));
            }
            Event::SavedForgotten { partition, rows } => {
                self.saved.retain(|key, _| key.0 != *partition || !rows.contains(key.1));
            }
            _ => {}
        }
    }

    /// A claim hands out exactly what is saved of its rows.
    fn handed_out(&mut self, task: TaskId, batch: &BatchRef) {
        let mut handed: BTreeMap<RowId, Saved> = BTreeMap::new();
        for saved in &batch.saved {
            let cells = saved.columns.iter().map(|column| {
                let places =
                    column.runs.iter().flat_map(|run| (run.slot..run.slot + run.len).map(|slot| (run.chunk, slot)));
                (column.column, places.collect::<Vec<_>>())
            });
            let cells: Vec<_> = cells.collect();
            for (at, (row, sampled)) in saved.rows.iter().zip(&saved.sampled).enumerate() {
                let places = cells.iter().map(|(column, places)| (*column, places[at])).collect();
                assert!(handed.insert(row, (places, sampled.clone())).is_none(), "row {row} is saved twice");
            }
        }
        let of = |key: &(PartitionId, RowId, TaskId)| {
            (key.0, key.2) == (batch.partition, task) && batch.rows.contains(key.1)
        };
        let known = self.saved.iter().filter(|(key, _)| of(key)).map(|(key, saved)| (key.1, saved.clone()));
        let known: BTreeMap<RowId, Saved> = known.collect();
        assert_eq!(handed, known, "what is saved of the rows is not what the claim hands out");
        self.resumed += handed.len() as u64;
    }

    /// Sends one request as it is.
    pub fn send(&mut self, request: &Request) -> Result<Reply, Refusal> {
        let before = self.catalog.state().seq();
        let waiting = self.waiting();
        let outcome = self.catalog.call(request, Millis(self.now))?;
        for (task, waits) in (0..).map(TaskId).zip(self.waiting()) {
            let served = waiting.get(task.0 as usize).is_some_and(|waited| *waited && !waits);
            let woken = outcome.wakes.contains(&Wake::Task(task)) || outcome.wakes.contains(&Wake::Stopped);
            assert!(!served || woken, "claims of task {task} can be served, and nobody is woken: {:?}", outcome.record);
        }
        self.wakes.extend(outcome.wakes);
        self.published.extend(outcome.published);
        let replayed = outcome.record.is_none();
        match outcome.record {
            Some(record) => {
                assert_eq!(record.seq, before);
                self.keep(record);
            }
            None => assert_eq!(self.catalog.state().seq(), before),
        }
        // A claim's reply that is heard again may point to cells that were dropped since; reading them is refused.
        if let (Reply::Claimed(claimed) | Reply::ClaimedAny { claimed, .. }, false) = (&outcome.reply, replayed) {
            let saved = claimed.batch.saved.iter().flat_map(|saved| &saved.columns);
            for run in claimed.batch.columns.iter().chain(saved).flat_map(|column| &column.runs) {
                assert!(!self.freed.contains(&run.chunk), "a pointer into freed {}", run.chunk);
            }
            let task = match (&outcome.reply, &request.command) {
                (Reply::ClaimedAny { task, .. }, _) | (_, Command::Claim { task, .. }) => *task,
                other => panic!("a claim's answer to {other:?}"),
            };
            let batch = claimed.batch.clone();
            self.handed_out(task, &batch);
        }
        Ok(outcome.reply)
    }

    /// By task: whether a claim would wait.
    fn waiting(&self) -> Vec<bool> {
        if !self.verify {
            return Vec::new();
        }
        self.catalog.state().tasks(Millis(self.now)).iter().map(|task| task.wait.is_some()).collect()
    }

    /// The request that a session's next call is.
    pub fn request(&self, session: SessionId, command: Command) -> Request {
        let seq = self.seqs.get(&session).copied().unwrap_or(0) + 1;
        Request { caller: Some((session, seq)), command }
    }

    /// Notes that a request was answered.
    pub fn answered(&mut self, request: &Request, reply: &Reply) {
        if let (Some((session, seq)), false) = (request.caller, matches!(reply, Reply::NotYet(_))) {
            self.seqs.insert(session, seq);
        }
    }

    pub fn call(&mut self, session: SessionId, command: Command) -> Result<Reply, Refusal> {
        let request = self.request(session, command);
        let reply = self.send(&request)?;
        self.answered(&request, &reply);
        Ok(reply)
    }

    /// A call of the store itself.
    pub fn own(&mut self, command: Command) -> Result<Reply, Refusal> {
        self.send(&Request { caller: None, command })
    }

    pub fn session(&mut self, name: &str) -> SessionId {
        match self.own(Command::OpenSession { name: name.into(), here: false }).unwrap() {
            Reply::Session(session) => session,
            other => panic!("{other:?}"),
        }
    }

    /// Time passes, with the ticks of a store.
    pub fn pass(&mut self, ms: u64) {
        let end = self.now + ms;
        while self.now < end {
            self.now = end.min(self.now + 1_000);
            self.own(Command::Tick).unwrap();
        }
    }

    pub fn partition(&self, name: &str) -> PartitionId {
        self.catalog.state().partition(name).unwrap_or_else(|| panic!("no partition {name}"))
    }

    pub fn task(&self, name: &str) -> TaskId {
        self.catalog.state().task(name).unwrap_or_else(|| panic!("no task {name}"))
    }

    pub fn model(&self, name: &str) -> ModelId {
        self.catalog.state().model(name).unwrap()
    }

    pub fn column(&self, partition: &str, name: &str) -> ColumnId {
        let described = self.catalog.state().describe(self.partition(partition)).unwrap();
        ColumnId(described.columns.iter().position(|c| c.name == name).unwrap() as u16)
    }

    /// Cells of `bytes` each in a new chunk.
    pub fn cells(&mut self, column: ColumnId, rows: Rows, bytes: u32) -> CellWrite {
        self.next_chunk += 1;
        self.append(ChunkId(self.next_chunk), column, rows, bytes)
    }

    /// Cells appended to a chunk.
    pub fn append(&mut self, chunk: ChunkId, column: ColumnId, rows: Rows, bytes: u32) -> CellWrite {
        let written = self.unit.entry(chunk).or_insert(0);
        let slot = *written;
        *written += rows.len() as u32;
        CellWrite { column, rows, chunk, slot, sizes: Sizes::Uniform(bytes), seal: true, replaces: None }
    }

    /// Puts `n` rows with 8 bytes in every column that no task writes.
    pub fn put(&mut self, session: SessionId, partition: &str, n: u64) -> Result<Reply, Refusal> {
        let rows = vec![NewRow::default(); n as usize];
        self.put_rows(session, partition, rows)
    }

    pub fn put_rows(&mut self, session: SessionId, partition: &str, rows: Vec<NewRow>) -> Result<Reply, Refusal> {
        let id = self.partition(partition);
        let described = self.catalog.state().describe(id).unwrap();
        let made: BTreeSet<String> = self
            .catalog
            .state()
            .definition()
            .tasks
            .iter()
            .filter(|task| task.partition == partition)
            .flat_map(|task| task.writes.clone())
            .collect();
        let mut cells = Vec::new();
        for (position, column) in described.columns.iter().enumerate() {
            if !made.contains(&column.name) {
                cells.push(self.cells(ColumnId(position as u16), Rows::run(RowId(0), rows.len() as u64), 8));
            }
        }
        self.call(session, Command::Put { partition: id, rows, cells })
    }

    pub fn claim(&mut self, session: SessionId, task: &str, limit: u64) -> Result<Reply, Refusal> {
        let task = self.task(task);
        self.call(session, Command::Claim { task, limit })
    }

    /// A claim that must be served.
    pub fn claimed(&mut self, session: SessionId, task: &str, limit: u64) -> Claimed {
        match self.claim(session, task, limit).unwrap() {
            Reply::Claimed(claimed) => claimed,
            other => panic!("claim of {task}: {other:?}"),
        }
    }

    /// A claim that must wait.
    pub fn waits(&mut self, session: SessionId, task: &str) -> Wait {
        match self.claim(session, task, 100).unwrap() {
            Reply::NotYet(wait) => wait,
            other => panic!("claim of {task}: {other:?}"),
        }
    }

    /// All that a task writes, 4 bytes a cell.
    pub fn outputs(&mut self, task: &str, rows: &Rows) -> Vec<CellWrite> {
        let def = self.catalog.state().definition().tasks[self.task(task).0 as usize].clone();
        def.writes
            .iter()
            .map(|name| {
                let column = self.column(&def.partition, name);
                self.cells(column, rows.clone(), 4)
            })
            .collect()
    }

    pub fn commit(&mut self, session: SessionId, task: &str, lease: LeaseId, rows: &Rows) -> Result<Reply, Refusal> {
        let cells = self.outputs(task, rows);
        let commit = Command::Commit { lease, rows: rows.clone(), cells, notes: vec![], drops: vec![] };
        self.call(session, commit)
    }

    /// Claims and commits once; returns what was claimed.
    pub fn work(&mut self, session: SessionId, task: &str, limit: u64) -> Claimed {
        let claimed = self.claimed(session, task, limit);
        self.commit(session, task, claimed.lease, &claimed.batch.rows).unwrap();
        claimed
    }

    /// A closed partition with one cell, as weights or trainer state are.
    pub fn weights(&mut self, session: SessionId, name: &str) -> PartitionId {
        let columns = vec![Column::new("data", Kind::Binary)];
        let partition = Partition { name: name.into(), columns, birth: Birth::Put { capacity: None } };
        let Reply::Partition(id) = self.call(session, Command::CreatePartition(partition)).unwrap() else { panic!() };
        let cells = vec![self.cells(ColumnId(0), Rows::run(RowId(0), 1), 100)];
        self.call(session, Command::Put { partition: id, rows: vec![NewRow::default()], cells }).unwrap();
        self.call(session, Command::ClosePartition(id)).unwrap();
        id
    }

    /// Offers new weights for a cycle (or the beginning).
    pub fn offer(&mut self, session: SessionId, model: &str, cycle: Option<u64>) -> Result<Reply, Refusal> {
        let name = format!("weights/{model}/{}.{}", self.catalog.state().lineage(), cycle.map_or(0, |c| c + 1));
        let weights = Some(self.weights(session, &name));
        let model = self.model(model);
        self.call(session, Command::Offer { model, cycle, weights, state: None })
    }

    /// The rows of a reply to a put.
    pub fn rows(reply: Reply) -> Rows {
        match reply {
            Reply::Put(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    pub fn live(&self, partition: &str) -> u64 {
        self.catalog.state().rows(self.partition(partition)).unwrap().len()
    }

    pub fn ledger(&self, task: &str) -> transferqueue::catalog::views::LedgerEntry {
        self.catalog.state().ledger().into_iter().find(|entry| entry.task == task).unwrap()
    }

    /// The events of the last record.
    pub fn last(&self) -> &[Event] {
        &self.log.last().unwrap().events
    }

    /// Goes through JSON and back into a new life of the store.
    pub fn restore(&mut self) {
        let text = serde_json::to_string(self.catalog.state()).unwrap();
        let state: transferqueue::catalog::State = serde_json::from_str(&text).unwrap();
        assert_eq!(&state, self.catalog.state(), "a state survives JSON");
        self.now = 5;
        let (catalog, record) = Catalog::restore(state, Millis(self.now));
        self.catalog = catalog;
        self.seqs.clear();
        self.keep(record);
    }

    /// Replays the log from its first record, through JSON, and compares.
    pub fn assert_replays(&self) {
        let mut replayed: Option<Catalog> = None;
        for record in &self.log {
            let record: Record = serde_json::from_str(&serde_json::to_string(record).unwrap()).unwrap();
            match &mut replayed {
                None => replayed = Some(Catalog::open(&record).unwrap()),
                Some(catalog) => drop(catalog.replay(&record).unwrap()),
            }
        }
        assert!(replayed.unwrap().state() == self.catalog.state(), "the replayed state differs");
    }

    /// Applies the log event by event: after each, every column's account and every line of the ledger balances.
    fn assert_balanced_throughout(&self) {
        let Some((first, rest)) = self.log.split_first().filter(|_| self.verify) else { return };
        let mut state = Catalog::open(first).unwrap().state().clone();
        for event in rest.iter().flat_map(|record| &record.events) {
            apply(&mut state, event);
            for column in state.columns() {
                let parts = column.bytes_live + column.bytes_dead_in_chunk + column.bytes_freed_total;
                assert_eq!(column.bytes_written_total, parts, "{column:?} after {event:?}");
            }
            for entry in state.ledger() {
                assert!(entry.balanced(), "{entry:?} after {event:?}");
            }
        }
        assert_eq!(state.columns(), self.catalog.state().columns());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_replays();
            self.assert_balanced_throughout();
        }
    }
}

pub fn row_column(name: &str) -> Column {
    Column::new(name, Kind::Ragged { dtype: Dtype::I64, inner: vec![] })
}

pub fn task(name: &str, partition: &str, per: Grain, reads: &[&str], writes: &[&str]) -> Task {
    Task {
        per,
        reads: reads.iter().map(|s| (*s).to_owned()).collect(),
        writes: writes.iter().map(|s| (*s).to_owned()).collect(),
        ..Task::new(name, partition)
    }
}

pub fn put_partition(name: &str, columns: &[&str]) -> Partition {
    Partition {
        name: name.into(),
        columns: columns.iter().map(|name| row_column(name)).collect(),
        birth: Birth::Put { capacity: None },
    }
}

pub fn schedule(groups: u64, minis: u64, ahead: u64, cycles: u64) -> Schedule {
    Schedule {
        partition: "samples".into(),
        groups_per_cycle: groups,
        minis_per_cycle: minis,
        ahead,
        total_cycles: cycles,
        order: Order::Admission,
        grain: CutGrain::Cycle,
        weights: WeightRule::Exact,
        max_lag: None,
        drop_beyond: false,
        on_publication: OnPublication::Finish,
    }
}

/// The four stages of GRPO: rollout writes responses, reward scores, advantage works on groups, actor trains mini-batches.
pub fn grpo(n: u32, plan: Schedule) -> Definition {
    let samples = Partition {
        name: "samples".into(),
        columns: ["responses", "scores", "advantages"].iter().map(|name| row_column(name)).collect(),
        birth: Birth::Expand { from: "prompts".into(), n, link: vec!["prompt".into()], gate: Gate::Schedule },
    };
    let mut rollout = task("rollout", "samples", Grain::Row, &["prompt"], &["responses"]);
    rollout.samples_with = Some("policy".into());
    let mut actor = task("actor", "samples", Grain::Mini, &["prompt", "responses", "advantages"], &[]);
    actor.trains = Some(Trains { model: "policy".into(), from_cycle: 0 });
    Definition {
        seed: 7,
        partitions: vec![put_partition("prompts", &["prompt"]), samples],
        tasks: vec![
            rollout,
            task("reward", "samples", Grain::Row, &["responses"], &["scores"]),
            task("advantage", "samples", Grain::Group, &["scores"], &["advantages"]),
            actor,
        ],
        models: vec![Model { name: "policy".into(), keep_initial: false }],
        schedule: Some(plan),
        budget: None,
        weights: None,
    }
}
