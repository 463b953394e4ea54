//! Workers: each serves some tasks through one session, and does one small thing a step.

use std::collections::{BTreeMap, BTreeSet};

use transferqueue::{
    ChunkId, ColumnId, PartitionId, RowId, Rows, SessionId, TaskId,
    catalog::{Refusal, command::*, definition::*},
};

use crate::{catalog_support::World, random::Random};

/// What a worker is in the middle of.
pub enum Doing {
    Nothing,
    /// Holds rows.
    Holding {
        task: TaskId,
        claimed: Claimed,
        left: BTreeSet<RowId>,
        progress: u64,
    },
    /// Publishes a cycle (or initial weights): partition made, filled, closed, then offered.
    Offering {
        cycle: Option<u64>,
        weights: Option<PartitionId>,
        filled: bool,
        closed: bool,
    },
}

pub struct Worker {
    pub name: String,
    pub session: SessionId,
    pub tasks: Vec<TaskId>,
    /// Position of the model whose weights it publishes.
    pub trains: Option<u16>,
    /// Which rank of its task's gang it is.
    pub rank: Option<u32>,
    pub joined: bool,
    pub doing: Doing,
    /// Rows whose gradients are in its memory and not published.
    pub memory: BTreeSet<RowId>,
    /// Tasks that told it their end.
    pub ended: BTreeSet<TaskId>,
    /// The chunk it appends to, by partition and column.
    pub chunks: BTreeMap<(PartitionId, ColumnId), ChunkId>,
    pub dead: bool,
    pub pinned: Option<(u16, u64)>,
}

/// The versions of notes, as a worker says them of rows that it saves.
fn sampled(notes: &[RowNote]) -> Vec<SavedRow> {
    let stretches = |span: &Span| (span.first..=span.last).map(|version| Sampled { version, tokens: 1 + version });
    let saved = |note: &RowNote| {
        let sampled = note.span.iter().flat_map(stretches).collect();
        SavedRow { row: note.row, sampled }
    };
    notes.iter().map(saved).collect()
}

/// What came of a step that matters to the simulation.
pub enum Step {
    Went,
    /// The last part made a publication: of this model, with these rows in memory.
    Published {
        model: u16,
        cycle: Option<u64>,
        memory: BTreeSet<RowId>,
    },
    Stopped,
}

impl Worker {
    pub fn new(name: &str, session: SessionId, tasks: Vec<TaskId>, trains: Option<u16>) -> Self {
        Self {
            name: name.into(),
            session,
            tasks,
            trains,
            rank: None,
            joined: false,
            doing: Doing::Nothing,
            memory: BTreeSet::new(),
            ended: BTreeSet::new(),
            chunks: BTreeMap::new(),
            dead: false,
            pinned: None,
        }
    }

    /// Begins again under a new session: all that was in memory is gone.
    pub fn reborn(&mut self, world: &mut World) {
        self.session = world.session(&self.name);
        self.doing = Doing::Nothing;
        self.memory.clear();
        self.chunks.clear();
        self.ended.clear();
        self.pinned = None;
        self.joined = false;
        self.dead = false;
    }

    /// Whether it is the one that offers for its task.
    fn publishes(&self) -> bool {
        self.rank.is_none_or(|rank| rank == 0)
    }

    pub fn finished(&self) -> bool {
        self.ended.len() == self.tasks.len()
    }

    /// Sends a call; sometimes its reply is lost and it is sent again, which must change nothing.
    fn call(&self, world: &mut World, random: &mut Random, command: Command) -> Result<Reply, Refusal> {
        let request = world.request(self.session, command);
        let reply = world.send(&request)?;
        world.answered(&request, &reply);
        if !matches!(reply, Reply::NotYet(_)) && !matches!(request.command, Command::CloseSession) && random.chance(10)
        {
            let seq = world.catalog.state().seq();
            assert_eq!(world.send(&request).as_ref(), Ok(&reply), "a repeated call hears the same reply");
            assert_eq!(world.catalog.state().seq(), seq, "and changes nothing");
        }
        Ok(reply)
    }

    pub fn step(&mut self, world: &mut World, random: &mut Random, plan: &crate::plan::Plan) -> Step {
        match self.act(world, random, plan) {
            Ok(step) => step,
            Err(Refusal::SessionEnded { .. }) => {
                self.reborn(world);
                Step::Went
            }
            Err(Refusal::LeaseEnded { .. }) => {
                // What it trained in this cycle will be claimed again, so it forgets it.
                self.memory.clear();
                self.doing = Doing::Nothing;
                Step::Went
            }
            Err(Refusal::GangEnded { .. }) => {
                drop(world.call(self.session, Command::CloseSession));
                self.reborn(world);
                Step::Went
            }
            Err(Refusal::Poisoned { .. }) => Step::Stopped,
            Err(other) => panic!("{}: {other}", self.name),
        }
    }

    fn act(&mut self, world: &mut World, random: &mut Random, plan: &crate::plan::Plan) -> Result<Step, Refusal> {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => self.begin(world, random),
            Doing::Holding { task, claimed, left, progress } => {
                self.hold(world, random, plan, task, claimed, left, progress)
            }
            Doing::Offering { cycle, weights, filled, closed } => {
                self.publish(world, random, cycle, weights, filled, closed)
            }
        }
    }

    fn begin(&mut self, world: &mut World, random: &mut Random) -> Result<Step, Refusal> {
        if let Some(model) = self.trains.filter(|_| self.publishes())
            && let newest = world.catalog.state().newest(transferqueue::ModelId(model)).unwrap()
            && newest.version.is_none()
            && !newest.offered
        {
            self.doing = Doing::Offering { cycle: None, weights: None, filled: false, closed: false };
            return Ok(Step::Went);
        }
        let open: Vec<TaskId> = self.tasks.iter().copied().filter(|task| !self.ended.contains(task)).collect();
        if open.is_empty() {
            return Ok(Step::Went);
        }
        let task = *random.pick(&open);
        if let Some(rank) = self.rank.filter(|_| !self.joined) {
            match self.call(world, random, Command::Join { task, rank }) {
                Ok(_) => self.joined = true,
                // Its former life is not lost yet.
                Err(Refusal::Gang { found, .. }) => assert!(found.contains("is held by session"), "{found}"),
                Err(other) => return Err(other),
            }
            return Ok(Step::Went);
        }
        let limit = random.range(1, 5);
        match self.call(world, random, Command::Claim { task, limit })? {
            Reply::Claimed(claimed) if claimed.batch.rows.is_empty() => {
                let cut = claimed.cut.as_ref().unwrap();
                assert!(cut.last || cut.share.is_some(), "an empty lease asks for an offer");
                if !(cut.last && self.publishes()) {
                    return Ok(Step::Went);
                }
                let cycle = claimed.cut.as_ref().map(|cut| cut.cycle);
                self.doing = Doing::Offering { cycle, weights: None, filled: false, closed: false };
            }
            Reply::Claimed(claimed) => {
                let left = claimed.batch.rows.iter().collect();
                self.doing = Doing::Holding { task, claimed, left, progress: 0 };
            }
            Reply::Ended => _ = self.ended.insert(task),
            Reply::NotYet(wait) => assert!(!wait.to_string().is_empty()),
            other => panic!("{other:?}"),
        }
        Ok(Step::Went)
    }

    #[allow(clippy::too_many_arguments, reason = "one state of a worker, unpacked")]
    fn hold(
        &mut self,
        world: &mut World,
        random: &mut Random,
        plan: &crate::plan::Plan,
        task: TaskId,
        claimed: Claimed,
        mut left: BTreeSet<RowId>,
        mut progress: u64,
    ) -> Result<Step, Refusal> {
        let def = world.catalog.state().definition().tasks[task.0 as usize].clone();
        let partition = claimed.batch.partition;
        let lease = claimed.lease;
        let some = |random: &mut Random, left: &BTreeSet<RowId>, all: bool| -> Rows {
            left.iter().copied().filter(|_| all || random.chance(60)).collect()
        };
        match random.below(100) {
            // Wedged for a while: nothing happens.
            0..10 => {}
            10..20 => {
                progress += 1;
                self.call(world, random, Command::Renew { lease, progress })?;
            }
            20..35 if !def.writes.is_empty() => {
                let rows = some(random, &left, false);
                let seal = random.chance(50);
                let notes = if seal { self.notes(world, random, &def, &claimed, &rows) } else { vec![] };
                let cells = self.cells(world, random, &def, partition, &rows, seal);
                let command = match seal || def.on_lost == OnLost::Again {
                    true => Command::Write { lease, cells, notes },
                    false => {
                        let rows = sampled(&self.notes(world, random, &def, &claimed, &rows));
                        Command::Save { lease, cells, rows }
                    }
                };
                let Reply::Written { dropped } = self.call(world, random, command)? else {
                    panic!("a write is answered as one")
                };
                dropped.iter().for_each(|row| _ = left.remove(&row));
            }
            35..40 if random.chance(plan.trouble * 20) => {
                let rows = some(random, &left, false);
                rows.iter().for_each(|row| _ = left.remove(&row));
                self.call(world, random, Command::Release { lease, rows })?;
            }
            40..45 if random.chance(plan.trouble * 20) => {
                let rows = some(random, &left, false);
                rows.iter().for_each(|row| _ = left.remove(&row));
                self.call(world, random, Command::Fail { lease, rows, error: "it broke".into() })?;
            }
            kind => {
                let rows = some(random, &left, kind < 85);
                let drops = self.drops(random, plan, &rows);
                let dropping: BTreeSet<RowId> =
                    drops.iter().flat_map(|drop| drop.rows.iter().collect::<Vec<_>>()).collect();
                let sealed: Rows = rows.iter().filter(|row| !dropping.contains(row)).collect();
                let notes = self.notes(world, random, &def, &claimed, &rows);
                let cells = self.cells(world, random, &def, partition, &sealed, true);
                let commit = Command::Commit { lease, rows: rows.clone(), cells, notes, drops };
                let Reply::Committed { dropped } = self.call(world, random, commit)? else {
                    panic!("a commit is answered as one")
                };
                rows.iter().for_each(|row| _ = left.remove(&row));
                if def.trains.is_some() {
                    let lost: BTreeSet<RowId> = dropped.iter().collect();
                    self.memory.extend(rows.iter().filter(|row| !lost.contains(row) && !dropping.contains(row)));
                }
            }
        }
        self.doing = if !left.is_empty() {
            Doing::Holding { task, claimed, left, progress }
        } else if def.trains.is_some()
            && claimed.cut.as_ref().is_some_and(|cut| cut.last)
            && self.publishes()
            && (self.rank.is_some() || random.chance(80))
        {
            // Otherwise it claims on, and is told by a lease without rows; a gang is told once.
            let cycle = claimed.cut.as_ref().map(|cut| cut.cycle);
            Doing::Offering { cycle, weights: None, filled: false, closed: false }
        } else {
            Doing::Nothing
        };
        Ok(Step::Went)
    }

    /// Cells of every column the task writes that is not sealed yet, in a chunk that is appended to.
    fn cells(
        &mut self,
        world: &mut World,
        random: &mut Random,
        def: &Task,
        partition: PartitionId,
        rows: &Rows,
        seal: bool,
    ) -> Vec<CellWrite> {
        let mut cells = Vec::new();
        for name in &def.writes {
            let column = world.column(&def.partition, name);
            let open: Rows = rows
                .iter()
                .filter(|row| world.catalog.state().is_sealed(partition, column, *row) != Some(true))
                .collect();
            if open.is_empty() {
                continue;
            }
            let fresh = random.chance(20);
            let write = match self.chunks.get(&(partition, column)) {
                Some(&chunk) if !fresh && !world.freed.contains(&chunk) => {
                    world.append(chunk, column, open, random.range(1, 60) as u32)
                }
                _ => world.cells(column, open, random.range(1, 60) as u32),
            };
            self.chunks.insert((partition, column), write.chunk);
            cells.push(CellWrite { seal, ..write });
        }
        cells
    }

    fn drops(&self, random: &mut Random, plan: &crate::plan::Plan, rows: &Rows) -> Vec<DropRows> {
        if !random.chance(plan.drops) {
            return Vec::new();
        }
        let rows: Rows = rows.iter().filter(|_| random.chance(50)).collect();
        vec![DropRows { rows, reason: "unwanted".into() }]
    }

    /// Rollout notes versions, and a tag that filters ask for, with the cells or before.
    fn notes(&self, world: &World, random: &mut Random, def: &Task, claimed: &Claimed, rows: &Rows) -> Vec<RowNote> {
        let Some(_) = &def.samples_with else { return Vec::new() };
        let newest = world.catalog.state().version();
        let exact = def.partition == "val"
            || world.catalog.state().definition().schedule.as_ref().is_some_and(|s| s.weights == WeightRule::Exact);
        let column = world.column(&def.partition, &def.writes[0]);
        let state = world.catalog.state();
        let fresh = |row| state.is_sealed(claimed.batch.partition, column, row) != Some(true);
        let heads = claimed.heads.iter().filter(|head| rows.iter().any(|row| row == head.row) && fresh(head.row));
        heads
            .map(|head| {
                let first = if exact { head.version } else { random.range(head.version, newest) };
                let span = Some(Span { first, last: random.range(first, newest) });
                let tags = [("long".to_owned(), Tag::Bool(random.chance(50)))].into();
                RowNote { row: head.row, tags, span }
            })
            .collect()
    }

    fn publish(
        &mut self,
        world: &mut World,
        random: &mut Random,
        cycle: Option<u64>,
        weights: Option<PartitionId>,
        filled: bool,
        closed: bool,
    ) -> Result<Step, Refusal> {
        let model = self.trains.expect("only trainers publish");
        let state = world.catalog.state();
        let name = &state.definition().models[usize::from(model)].name;
        let name = format!("weights/{name}/{}.{}", state.lineage(), cycle.map_or(0, |c| c + 1));
        self.doing = match weights {
            None if cycle.is_some() && random.chance(10) => {
                // Unchanged weights: the version becomes an alias.
                return self.offer(world, random, model, cycle, None);
            }
            None => {
                let columns = vec![transferqueue::Column::new("data", transferqueue::Kind::Binary)];
                let partition = Partition { name, columns, birth: Birth::Put { capacity: None } };
                let Reply::Partition(id) = self.call(world, random, Command::CreatePartition(partition))? else {
                    panic!()
                };
                Doing::Offering { cycle, weights: Some(id), filled, closed }
            }
            Some(id) if !filled => {
                let cells = vec![world.cells(ColumnId(0), Rows::run(RowId(0), 1), 50)];
                self.call(world, random, Command::Put { partition: id, rows: vec![NewRow::default()], cells })?;
                Doing::Offering { cycle, weights, filled: true, closed }
            }
            Some(id) if !closed => {
                self.call(world, random, Command::ClosePartition(id))?;
                Doing::Offering { cycle, weights, filled, closed: true }
            }
            Some(_) => return self.offer(world, random, model, cycle, weights),
        };
        Ok(Step::Went)
    }

    fn offer(
        &mut self,
        world: &mut World,
        random: &mut Random,
        model: u16,
        cycle: Option<u64>,
        weights: Option<PartitionId>,
    ) -> Result<Step, Refusal> {
        let offer = Command::Offer { model: transferqueue::ModelId(model), cycle, weights, state: None };
        let reply = self.call(world, random, offer);
        // Offered without weights, and again later: with some then, maybe, which are to be made first.
        let made = weights.is_some();
        let again = Doing::Offering { cycle, weights, filled: made, closed: made };
        if let (Err(Refusal::Offer { .. }), Some(_), Some(_)) = (&reply, cycle, self.rank) {
            // Another rank has not committed yet.
            self.doing = again;
            return Ok(Step::Went);
        }
        if let (Err(Refusal::Offer { .. }), Some(_)) = (&reply, cycle) {
            // It gave rows of the cycle back, and has to claim them again first.
            if let Some(weights) = weights {
                self.call(world, random, Command::DeletePartition(weights))?;
            }
            return Ok(Step::Went);
        }
        match reply? {
            Reply::Offered(version) => {
                let memory = std::mem::take(&mut self.memory);
                assert!(version.is_none() || version == Some(cycle.map_or(0, |c| c + 1)));
                Ok(Step::Published { model, cycle, memory })
            }
            Reply::NotYet(_) => {
                self.doing = again;
                Ok(Step::Went)
            }
            other => panic!("{other:?}"),
        }
    }
}
