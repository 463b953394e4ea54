//! Runs one phase: store, workers, recorder, until every stage has ended.

use std::{
    collections::BTreeMap,
    path::{self, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use stage_replay::pace::NO_WEIGHTS;
use tq_schedule::{Plan, plan};
use tq_stage::{ModelUse, Parameters, Register, ScheduleFacts, Served};
use transferqueue::{Durability, Error, Flush, Options, Store, catalog::State, client::Choice, inspect};

use crate::{
    assignment::Assignment,
    children::Kept,
    definition::definition,
    export,
    folder::PhaseFolder,
    ground::ended,
    interrupt,
    office::Office,
    outsiders,
    recorder::{Gap, Origin, Recorder},
    registry::Registry,
    replay::is_replayed,
    reports::Desk,
    worker::{self, is},
};

/// Longest wait of a stage for its next row before the run fails, naming what is waited for.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// How a phase ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    /// All cycles are done.
    Finished {
        /// Folders of the final models by name.
        finals: BTreeMap<String, PathBuf>,
        /// What readers outside the run are still owed, a line each.
        owed: Vec<String>,
    },
    /// Stopped by the user after a named state; steps it holds.
    Interrupted(u64),
}

/// One phase, ready to run.
pub(crate) struct PhaseRun<'a> {
    /// The whole plan.
    pub plan: &'a Plan,
    /// The phase.
    pub phase: &'a plan::Phase,
    /// Where it keeps its files.
    pub folder: PhaseFolder,
    /// Stages by name.
    pub registry: &'a Registry,
    /// Folder each model is loaded from.
    pub models: &'a BTreeMap<String, PathBuf>,
    /// Whether to go on from the last named state.
    pub resume: bool,
    /// Whether to draw a progress bar.
    pub progress: bool,
    /// Who starts the workers.
    pub crew: Crew,
}

/// Who starts the workers of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crew {
    /// This process.
    Own,
    /// The keeper of this process.
    Kept,
    /// Nobody here: workers join.
    Joining,
}

/// The models of a phase that have weights.
pub(crate) fn weights<'a>(plan: &'a Plan, phase: &'a plan::Phase) -> impl Iterator<Item = &'a String> {
    phase.models.keys().filter(|name| plan.models.get(*name).is_none_or(|model| model.kind != NO_WEIGHTS))
}

/// Between two looks at a phase whose workers are others' business.
const LOOK: Duration = Duration::from_millis(100);

impl PhaseRun<'_> {
    /// Runs it to its end.
    ///
    /// # Errors
    /// The first error of a stage, the store or the recorder; the others are stopped.
    pub(crate) fn run(self) -> Result<Ended> {
        let (store, origin) = self.open()?;
        let recorder = Recorder::start(&store, self.plan, self.phase, &self.folder, &origin, self.progress)?;
        let control = inspect::serve(&store, self.folder.control()).context("control socket")?;
        interrupt::watch(recorder.interrupted());
        let outcome = match self.crew {
            Crew::Own => self.work(&store, &recorder),
            Crew::Kept | Crew::Joining => self.serve(&store, &recorder),
        };
        drop(control);
        let steps = recorder.finish(&store);
        outcome?;
        let steps = steps?;
        if interrupt::requested() {
            return Ok(Ended::Interrupted(steps));
        }
        let mut finals = BTreeMap::new();
        for model in weights(self.plan, self.phase) {
            let to = self.folder.final_model(model);
            let from = self.models.get(model).with_context(|| format!("model `{model}` has no folder"))?;
            export::model(&store, model, from, &to).with_context(|| format!("final weights of model `{model}`"))?;
            finals.insert(model.clone(), to);
        }
        let owed = outsiders::owed(&self.phase.name, &store)?;
        drop(store);
        self.folder.forget_bytes(&self.plan.store)?;
        Ok(Ended::Finished { finals, owed })
    }

    /// Whether processes beside this one read from the store.
    fn is_read_from_outside(&self) -> Result<bool> {
        let processes =
            || Ok::<_, anyhow::Error>(self.workers()?.iter().any(|worker| worker.kind == plan::WorkerKind::Processes));
        let external = self.phase.tasks.values().any(|task| task.external);
        Ok(self.crew != Crew::Own || external || self.plan.store.listen.is_some() || processes()?)
    }

    /// Where workers of other hosts may join, and which way bytes go.
    fn ways_in(&self) -> (Option<&plan::Listen>, Choice) {
        (self.plan.store.listen.as_ref(), self.plan.store.transport)
    }

    /// The store, new or as it was left: exactly there when it lies in files, else at the last named state.
    fn open(&self) -> Result<(Store, Origin)> {
        let asked = &self.plan.store;
        let options = Options {
            dir: Some(self.folder.root().to_owned()),
            flush: Flush::Publication,
            units: asked.units.unwrap_or(1),
            durability: asked.durability,
            arena: Some(self.folder.arena(asked.arena.as_deref())),
            spill: asked.spill.as_ref().map(|spill| self.folder.spill(spill)),
            starved_ms: asked.patience.saturating_mul(1_000),
            shared: asked.transport != Choice::Flight && self.is_read_from_outside()?,
            ..Options::default()
        };
        let create = || Ok::<_, anyhow::Error>(Store::create(definition(self.phase, self.plan)?, options.clone())?);
        if !self.resume {
            return Ok((create()?, Origin::Beginning));
        }
        let states = self.folder.named_states()?;
        if asked.durability > Durability::None && Store::is_left(&options) {
            let mut gap = Gap::after(&self.folder, states.last().map_or(0, |(steps, _)| *steps))?;
            match Store::recover(&options, |published, _, _| gap.hear(published)) {
                Ok((store, recovered)) => {
                    tracing::info!(phase = self.phase.name, ?recovered, "the store goes on where it was");
                    return Ok((store, Origin::There(gap)));
                }
                // A log or an arena that is damaged is told, and left for the named state.
                Err(error) => tracing::warn!("the store cannot go on where it was: {error}"),
            }
        }
        match states.last() {
            Some((steps, state)) => {
                tracing::info!(phase = self.phase.name, steps, "going on from the last named state");
                let store = Store::restore(state, options);
                Ok((store.with_context(|| format!("named state `{}`", state.display()))?, Origin::State(*steps)))
            }
            None => {
                tracing::info!(phase = self.phase.name, "no state was named: the phase begins anew");
                self.folder.forget_events()?;
                Ok((create()?, Origin::State(0)))
            }
        }
    }

    /// Serves the store to workers that others start, until every task has ended.
    fn serve(&self, store: &Store, recorder: &Recorder) -> Result<()> {
        let assignments = self.workers()?.iter().map(|worker| self.assignment(worker)).collect::<Result<Vec<_>>>()?;
        let wanted = assignments.iter().map(Assignment::name).collect::<Vec<_>>().join(", ");
        let joining = self.crew == Crew::Joining;
        let desk = Arc::new(Desk::new(store.clone(), &self.phase.name, assignments, joining, recorder.record()));
        let office = Office::open(store, self.folder.doors(), &desk, self.ways_in())?;
        if joining {
            let (url, token) = office.near();
            tracing::warn!("phase {}: store at {url}, token file {}; wants {wanted}", self.phase.name, token.display());
        }
        let alone = |state: &State, now| state.sessions(now).is_empty();
        while store.stopped().is_none() && !store.with_state(|state, _| ended(state))? {
            thread::park_timeout(LOOK);
            // Nobody is there to end the step in progress.
            if interrupt::requested() && store.with_state(alone)? {
                store.stop("interrupted");
            }
        }
        let stopped = store.stopped();
        if self.phase.tasks.values().any(|task| task.external) {
            outsiders::wait(store, Duration::from_secs(self.plan.store.patience));
        }
        store.stop("the phase has ended");
        office.close();
        match stopped {
            Some(reason) if !interrupt::requested() => Err(anyhow!(reason)),
            _ => Ok(()),
        }
    }

    /// Starts every worker, as a thread or a process, and waits for all of them.
    fn work(&self, store: &Store, recorder: &Recorder) -> Result<()> {
        let first_error: Mutex<Option<anyhow::Error>> = Mutex::default();
        let fail = |worker: &str, error: anyhow::Error| {
            store.stop(format!("worker {worker} failed: {error:#}"));
            let mut first = first_error.lock().unwrap_or_else(|e| e.into_inner());
            // Whoever only heard that the store stops did not cause it, whichever is joined first.
            if first.as_ref().is_none_or(|before| is(before, Error::is_stopped) && !is(&error, Error::is_stopped)) {
                *first = Some(error);
            }
        };
        let workers = self.workers()?;
        let assignments = workers.iter().map(|worker| self.assignment(worker)).collect::<Result<Vec<_>>>()?;
        let desk = Desk::new(store.clone(), &self.phase.name, assignments.clone(), false, recorder.record());
        let desk = Arc::new(desk);
        let apart = workers.iter().any(|worker| worker.kind == plan::WorkerKind::Processes);
        let ways_in = self.ways_in();
        let external = self.phase.tasks.values().any(|task| task.external);
        let office =
            (apart || external || ways_in.0.is_some()).then(|| Office::open(store, self.folder.root(), &desk, ways_in));
        let office = office.transpose()?;
        thread::scope(|scope| {
            let (mut consumers, mut sources) = (Vec::new(), Vec::new());
            for (worker, assignment) in workers.iter().zip(&assignments) {
                let name = assignment.name();
                let (desk, office) = (desk.clone(), office.as_ref());
                let body = move || match (office, worker.kind) {
                    (Some(office), plan::WorkerKind::Processes) => {
                        let (ground, door) = (store, office.near());
                        let (stage, index) = (assignment.stage.as_str(), assignment.index);
                        Kept { ground, door, stage, index, transport: self.plan.store.transport }.keep()
                    }
                    _ => worker::here(self.registry, store, &desk, assignment),
                };
                match thread::Builder::new().name(name.clone()).spawn_scoped(scope, body) {
                    Ok(handle) if worker.source => sources.push((name, handle)),
                    Ok(handle) => consumers.push((name, handle)),
                    Err(error) => {
                        fail(&name, anyhow::Error::from(error).context(format!("a thread for worker {name}")));
                        break;
                    }
                }
            }
            // A failing worker stops the store itself, so joining in any order cannot hang.
            let join = |(name, handle): (String, thread::ScopedJoinHandle<'_, Result<()>>)| {
                if let Err(error) = handle.join().unwrap_or_else(|_| Err(anyhow!("worker {name} panicked"))) {
                    fail(&name, error);
                }
            };
            consumers.into_iter().for_each(join);
            if external {
                outsiders::wait(store, Duration::from_secs(self.plan.store.patience));
            }
            store.stop("the phase has ended");
            sources.into_iter().for_each(join);
        });
        if let Some(office) = office {
            office.close();
        }
        let error = first_error.lock().unwrap_or_else(|e| e.into_inner()).take();
        match error {
            Some(error) if !(interrupt::requested() && is(&error, Error::is_stopped)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Every worker to start: each stage with the number and device its group says; sources once.
    fn workers(&self) -> Result<Vec<Worker>> {
        let mut workers: Vec<Worker> = Vec::new();
        for (name, task) in self.phase.tasks.iter().filter(|(_, task)| !task.external) {
            let source =
                !matches!(self.phase.partitions.get(&task.partition).map(|p| &p.rows), Some(plan::Rows::Expand { .. }));
            if let Some(worker) = workers.iter_mut().find(|w| !source && !w.source && w.stage == task.stage) {
                worker.tasks.push(name.clone());
                continue;
            }
            workers.push(Worker {
                stage: task.stage.clone(),
                implementation: task.implementation.clone(),
                with: self.settings(task, source)?,
                tasks: vec![name.clone()],
                device: "cpu".to_owned(),
                kind: plan::WorkerKind::Threads,
                index: 0,
                source,
                ranks: task.training.as_ref().map_or(0, |training| training.ranks),
            });
        }
        let mut out: Vec<Worker> = Vec::new();
        for worker in workers {
            let group = self.plan.workers.values().find(|g| g.stages.contains(&worker.stage));
            let group = group.map(|g| (g.count, g.device.as_str(), g.kind));
            let (count, device, kind) = group.unwrap_or((1, "cpu", plan::WorkerKind::Threads));
            let worker = Worker { kind, device: device.to_owned(), ..worker };
            let count = if worker.single() { worker.ranks.max(1) } else { count };
            // Sources of several partitions are one stage: numbered on, so that every worker has a name of its own.
            let first = out.iter().filter(|other| other.stage == worker.stage).count() as u64;
            out.extend((first..first + count).map(|index| Worker { index, ..worker.clone() }));
        }
        Ok(out)
    }

    /// `with:` of a task's stage: what the pipeline says, or for those that the planner adds what they need to know.
    fn settings(&self, task: &plan::Task, source: bool) -> Result<serde_json::Value> {
        if source && !is_replayed(self.phase, &task.partition) {
            return self.source_settings(&task.partition);
        }
        if task.implementation == stage_archive::Archive::NAME {
            // Worker processes begin in other folders.
            let folder = path::absolute(self.folder.archive()).context("the folder of the archive")?;
            return Ok(serde_json::to_value(stage_archive::Config { folder })?);
        }
        Ok(task.with.clone())
    }

    /// `with:` of the source that fills `partition`.
    fn source_settings(&self, partition: &str) -> Result<serde_json::Value> {
        let rounds = self
            .phase
            .partitions
            .values()
            .any(|p| matches!(&p.rows, plan::Rows::Expand { source, every: Some(_), .. } if source == partition));
        let Some(plan::Rows::Files { files, .. }) = self.phase.partitions.get(partition).map(|p| &p.rows) else {
            return Err(anyhow!("partition `{partition}` is filled by no files"));
        };
        let parameters = Parameters::new(self.phase.parameters.clone());
        Ok(serde_json::to_value(stage_dataset::Config::new(files.clone(), rounds, &parameters)?)?)
    }

    fn assignment(&self, worker: &Worker) -> Result<Assignment> {
        let tasks: Vec<(&String, &plan::Task)> =
            worker.tasks.iter().map(|name| (name, &self.phase.tasks[name])).collect();
        let (_, first) = tasks.first().context("a worker serves at least one task")?;
        let model = first.model.as_ref().map(|model| {
            let path =
                self.models.get(&model.name).with_context(|| format!("model `{}` has no folder", model.name))?.clone();
            Ok::<_, anyhow::Error>(ModelUse { name: model.name.clone(), path, version: model.version })
        });
        let mut served: Vec<(u64, Served)> =
            tasks.iter().map(|(name, task)| (task.priority, self.served(name, task))).collect();
        served.sort_by_key(|(priority, _)| *priority);
        let arithmetic = &self.phase.arithmetic;
        Ok(Assignment {
            stage: worker.stage.clone(),
            index: worker.index,
            single: worker.single(),
            trains: worker.trains(),
            ranks: worker.ranks.max(1),
            implementation: worker.implementation.clone(),
            with: worker.with.clone(),
            served: served.into_iter().map(|(_, served)| served).collect(),
            parameters: self.phase.parameters.clone(),
            model: model.transpose()?,
            schedule: ScheduleFacts {
                total_cycles: arithmetic.total_cycles.context("the phase's length is known once it runs")?,
                minis_per_cycle: arithmetic.mini_batches_per_cycle,
                exact_weights: self.phase.schedule.weights == tq_schedule::schedule::WeightsRule::Exact,
                continue_on_publication: self.phase.schedule.on_publication
                    == tq_schedule::schedule::OnPublication::Continue,
            },
            level: arithmetic.level.clone(),
            seed: self.plan.seed,
            device: worker.device.clone(),
            patience_s: PATIENCE.as_secs(),
        })
    }

    fn served(&self, name: &str, task: &plan::Task) -> Served {
        let validation = self
            .phase
            .partitions
            .get(&task.partition)
            .is_some_and(|p| matches!(p.rows, plan::Rows::Expand { every: Some(_), .. }));
        Served {
            name: name.to_owned(),
            partition: task.partition.clone(),
            validation,
            resumes: !task.on_lost.is_again(),
            reads: task.reads.iter().map(|(port, column)| (port.clone(), column.clone())).collect(),
            writes: task.writes.iter().map(|(port, column)| (port.clone(), column.clone())).collect(),
        }
    }
}

#[derive(Clone)]
struct Worker {
    stage: String,
    implementation: String,
    with: serde_json::Value,
    tasks: Vec<String>,
    device: String,
    kind: plan::WorkerKind,
    index: u64,
    source: bool,
    /// Ranks that train together; 0 for a stage that does not train.
    ranks: u64,
}

impl Worker {
    fn trains(&self) -> bool {
        self.ranks > 0
    }

    /// Whether its stage has one worker, or one a rank, whatever the group's count says.
    fn single(&self) -> bool {
        self.source || self.trains()
    }
}
