//! Messages between a worker's process and the runner, over the store's own connection.
//!
//! A worker asks for its assignment once; then it reports, one call at a time, and each call is answered before the
//! next: a metric is with the runner before the publication that ends its cycle. Asking begins a *life*: whatever the
//! worker of that name was before is gone, so what its session held goes back, and what it reported of training that is
//! lost with it is taken back. Reports name their life and are numbered, since the connection may be lost and a message
//! sent again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tq_stage::{Reporter, SharedReporter};
use transferqueue::{Store, catalog::State, client::Remote, server::Program};

use crate::{
    assignment::{Assignment, name},
    ground::{Ground, Standing},
    recorder::{PACE, Record},
};

/// How long the runner may be out of reach.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a worker's process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// What is there to do for this worker? Answered with an [`Errand`].
    /// `own`: the runner itself started it.
    Assignment { stage: String, index: u64, own: bool },
    /// Who works in this phase? Answered with a [`Roster`].
    Roster,
    /// How does the run stand, and is this worker there? Answered with a [`Standing`].
    Standing { worker: String },
    /// A call of its reporter. Numbers grow by 1; one that was heard before counts for nothing.
    Report { worker: String, life: u64, number: u64, report: Report },
}

/// The workers of a phase, for whoever starts their processes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Roster {
    pub(crate) phase: String,
    /// Stage and index of each.
    pub(crate) workers: Vec<(String, u64)>,
}

/// An assignment, and which life of its worker begins with it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Errand {
    pub(crate) life: u64,
    pub(crate) assignment: Assignment,
}

/// A call of [`Reporter`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Metric { cycle: u64, name: String, value: Number, weight: Number },
    Timing { name: String, seconds: Number },
    Validation { version: u64, metrics: Vec<(String, Number)> },
    Waiting { text: String },
    Pace,
}

/// A float by its bits: JSON has no infinity and no NaN, and a diverged loss is just what must arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Number(u64);

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value.to_bits())
    }
}

impl Number {
    fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// What the runner knows of a worker.
struct Life {
    life: u64,
    /// Number of the last report.
    heard: u64,
    reporter: SharedReporter,
}

/// The runner's side.
pub(crate) struct Desk<R> {
    store: Store,
    phase: String,
    assignments: Vec<Assignment>,
    /// Nobody starts the phase's own workers: any may come and be one of them.
    open: bool,
    record: R,
    lives: Mutex<BTreeMap<String, Life>>,
}

impl<R: Record> Desk<R> {
    pub(crate) fn new(store: Store, phase: &str, assignments: Vec<Assignment>, open: bool, record: R) -> Self {
        Self { store, phase: phase.to_owned(), assignments, open, record, lives: Mutex::default() }
    }

    /// What answers the messages of workers.
    pub(crate) fn program(self: Arc<Self>) -> Program {
        Arc::new(move |bytes| self.hear(bytes).map_err(|error| format!("{error:#}")))
    }

    fn lives(&self) -> MutexGuard<'_, BTreeMap<String, Life>> {
        self.lives.lock().unwrap_or_else(|error| error.into_inner())
    }

    fn hear(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        match serde_json::from_slice(bytes).context("a message of another program, or of another version of it")? {
            Message::Assignment { stage, index, own } => {
                let taken = self.assignments.iter().any(|known| known.stage == stage && known.index == index);
                ensure!(
                    own || self.open || !taken,
                    "worker {} is the runner's own; found a request to be it, expected an `--index` that is free",
                    name(&stage, index)
                );
                Ok(serde_json::to_vec(&self.begin(&stage, index)?)?)
            }
            Message::Roster => {
                let workers = self.assignments.iter().map(|known| (known.stage.clone(), known.index)).collect();
                Ok(serde_json::to_vec(&Roster { phase: self.phase.clone(), workers })?)
            }
            Message::Standing { worker } => Ok(serde_json::to_vec(&Ground::standing(&self.store, &worker)?)?),
            // It may wait, and does nothing twice.
            Message::Report { worker, report: Report::Pace, .. } => {
                self.record.reporter(&worker).pace();
                Ok(Vec::new())
            }
            Message::Report { worker, life, number, report } => {
                // Delivered under the lock: a life that begins meanwhile takes back all of the one before.
                let mut lives = self.lives();
                // A worker whose life began before this desk's: the store was killed under it, and came back.
                let known = lives.entry(worker).or_insert_with_key(|worker| Life {
                    life,
                    heard: 0,
                    reporter: self.record.reporter(worker),
                });
                let known = Some(known).filter(|known| known.life == life);
                if let Some(known) = known.filter(|known| known.heard < number) {
                    known.heard = number;
                    report.deliver(&*known.reporter);
                }
                Ok(Vec::new())
            }
        }
    }

    /// Where a worker in this process reports to.
    pub(crate) fn reporter(&self, worker: &str) -> SharedReporter {
        self.record.reporter(worker)
    }

    /// A worker comes, for the first time or again.
    ///
    /// # Errors
    /// When the phase has no such worker.
    pub(crate) fn begin(&self, stage: &str, index: u64) -> Result<Errand> {
        let mut assignment = self.find(stage, index)?.clone();
        assignment.index = index;
        let worker = assignment.name();
        let mut lives = self.lives();
        // The log grows with every life: those that a desk before this one gave do not come again.
        let position = self.store.with_state(|state, _| state.seq())?;
        let life = lives.get(&worker).map_or(0, |known| known.life + 1).max(position);
        self.store.lose(&worker)?;
        if assignment.trains
            && let Some(first) = self.unpublished(&assignment)?
        {
            self.record.forget(&worker, first);
        }
        lives.insert(worker.clone(), Life { life, heard: 0, reporter: self.record.reporter(&worker) });
        Ok(Errand { life, assignment })
    }

    /// The first cycle whose training went with the worker's memory; `None` when nothing did.
    fn unpublished(&self, trainer: &Assignment) -> Result<Option<u64>> {
        let model = &trainer.model.as_ref().context("a trainer has a model")?.name;
        let look = |state: &State, _| {
            let cycle = state.schedule().map_or(0, |schedule| schedule.cycle);
            let offered = state.model(model).is_some_and(|id| state.newest(id).is_ok_and(|newest| newest.offered));
            (!offered).then_some(cycle)
        };
        Ok(self.store.with_state(look)?)
    }

    /// The assignment of a worker: its own, or for one that joins a stage of which any number may work, another's.
    fn find(&self, stage: &str, index: u64) -> Result<&Assignment> {
        let mut of_stage = self.assignments.iter().filter(|known| known.stage == stage).peekable();
        let first = of_stage.peek().copied().with_context(|| {
            let known = self.assignments.iter().map(Assignment::name).collect::<Vec<_>>().join(", ");
            format!("no stage `{stage}` in this phase; its workers are: {known}")
        })?;
        if let Some(own) = of_stage.find(|known| known.index == index) {
            return Ok(own);
        }
        let all: Vec<_> = self.assignments.iter().filter(|known| known.stage == stage).map(Assignment::name).collect();
        let workers = if all.len() == 1 { "one worker".to_owned() } else { format!("{} workers", all.len()) };
        ensure!(
            !first.single,
            "stage `{stage}` has {workers}, {}; found a request for {}",
            all.join(", "),
            name(stage, index)
        );
        Ok(first)
    }
}

impl Report {
    fn deliver(&self, to: &dyn Reporter) {
        match self {
            Self::Metric { cycle, name, value, weight } => to.metric(*cycle, name, value.get(), weight.get()),
            Self::Timing { name, seconds } => to.timing(name, seconds.get()),
            Self::Validation { version, metrics } => {
                let metrics: Vec<_> = metrics.iter().map(|(name, value)| (name.clone(), value.get())).collect();
                to.validation(*version, &metrics);
            }
            Self::Waiting { text } => to.waiting(text),
            Self::Pace => to.pace(),
        }
    }
}

/// Asks who works in the phase that is served.
///
/// # Errors
/// When the store cannot be reached.
pub(crate) fn roster(remote: &Remote) -> Result<Roster> {
    Ok(serde_json::from_slice(&remote.program(serde_json::to_vec(&Message::Roster)?, PATIENCE)?)?)
}

/// Asks how the run stands.
///
/// # Errors
/// When the store cannot be reached within `patience`.
pub(crate) fn standing(remote: &Remote, worker: &str, patience: Duration) -> Result<Standing> {
    let message = serde_json::to_vec(&Message::Standing { worker: worker.to_owned() })?;
    Ok(serde_json::from_slice(&remote.program(message, patience)?)?)
}

/// Asks the runner what a worker has to do.
///
/// # Errors
/// When the runner cannot be reached or has no such worker.
pub(crate) fn assignment(remote: &Remote, stage: &str, index: u64, own: bool) -> Result<Errand> {
    let message = serde_json::to_vec(&Message::Assignment { stage: stage.to_owned(), index, own })?;
    Ok(serde_json::from_slice(&remote.program(message, PATIENCE)?)?)
}

/// The worker's side of a reporter.
pub(crate) struct Reports {
    remote: Remote,
    worker: String,
    life: u64,
    /// Held while a report is under way: they arrive in their order.
    last: Mutex<u64>,
}

impl Reports {
    /// For one life of a worker.
    pub(crate) fn new(remote: Remote, worker: String, life: u64) -> Self {
        Self { remote, worker, life, last: Mutex::default() }
    }

    fn send(&self, report: Report) {
        let mut last = self.last.lock().unwrap_or_else(|error| error.into_inner());
        *last += 1;
        let report_waits = report == Report::Pace;
        let message = Message::Report { worker: self.worker.clone(), life: self.life, number: *last, report };
        let patience = if report_waits { PACE + PATIENCE } else { PATIENCE };
        let bytes = serde_json::to_vec(&message).expect("invariant: reports are plain values");
        // A reporter has no way to fail: the stage's next call to the store says that the runner is gone.
        if let Err(error) = self.remote.program(bytes, patience) {
            tracing::error!(worker = self.worker, %error, "a report was lost");
        }
    }
}

impl Reporter for Reports {
    fn metric(&self, cycle: u64, name: &str, value: f64, weight: f64) {
        self.send(Report::Metric { cycle, name: name.to_owned(), value: value.into(), weight: weight.into() });
    }

    fn timing(&self, name: &str, seconds: f64) {
        self.send(Report::Timing { name: name.to_owned(), seconds: seconds.into() });
    }

    fn validation(&self, version: u64, metrics: &[(String, f64)]) {
        let metrics = metrics.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
        self.send(Report::Validation { version, metrics });
    }

    fn waiting(&self, text: &str) {
        self.send(Report::Waiting { text: text.to_owned() });
    }

    fn pace(&self) {
        self.send(Report::Pace);
    }
}

#[cfg(test)]
mod tests {
    use transferqueue::{Definition, Options};

    use super::*;

    /// Values by worker and cycle.
    #[derive(Clone, Default)]
    struct Book(Arc<Mutex<Vec<(String, u64, u64)>>>);

    struct Page(Book, String);

    impl Record for Book {
        fn reporter(&self, worker: &str) -> SharedReporter {
            Arc::new(Page(self.clone(), worker.to_owned()))
        }
        fn forget(&self, worker: &str, first: u64) {
            self.0.lock().unwrap().retain(|(by, cycle, _)| by != worker || *cycle < first);
        }
    }

    impl Reporter for Page {
        fn metric(&self, cycle: u64, _: &str, value: f64, _: f64) {
            self.0.0.lock().unwrap().push((self.1.clone(), cycle, value.to_bits()));
        }
        fn timing(&self, _: &str, _: f64) {}
        fn validation(&self, _: u64, _: &[(String, f64)]) {}
        fn waiting(&self, _: &str) {}
        fn pace(&self) {}
    }

    fn desk(book: &Book) -> Program {
        let store = Store::create(Definition::default(), Options::default()).unwrap();
        let worker = |stage: &str, single| Assignment::for_test(stage, single);
        let assignments = vec![worker("rollout", false), worker("dataset", true)];
        Arc::new(Desk::new(store, "rl", assignments, false, book.clone())).program()
    }

    fn begin(desk: &Program, stage: &str, index: u64, own: bool) -> Result<Errand, String> {
        let message = Message::Assignment { stage: stage.to_owned(), index, own };
        desk(&serde_json::to_vec(&message).unwrap()).map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    fn say(desk: &Program, life: u64, number: u64, value: f64) {
        let report = Report::Metric { cycle: 3, name: "loss".into(), value: value.into(), weight: 1.0.into() };
        let message = Message::Report { worker: "rollout-0".into(), life, number, report };
        assert_eq!(desk(&serde_json::to_vec(&message).unwrap()), Ok(Vec::new()));
    }

    #[test]
    fn a_report_that_is_heard_twice_counts_once_and_keeps_its_bits() {
        let book = Book::default();
        let desk = desk(&book);
        let life = begin(&desk, "rollout", 0, true).unwrap().life;
        assert_eq!(life, 1, "a desk that comes back gives no life twice: the log's position is in it");
        say(&desk, life, 1, f64::NAN);
        say(&desk, life, 1, f64::NAN);
        say(&desk, life, 2, 0.1);
        let heard = |value: f64| ("rollout-0".to_owned(), 3, value.to_bits());
        assert_eq!(*book.0.lock().unwrap(), [heard(f64::NAN), heard(0.1)]);
    }

    #[test]
    fn a_report_of_a_former_life_counts_for_nothing() {
        let book = Book::default();
        let desk = desk(&book);
        let former = begin(&desk, "rollout", 0, true).unwrap().life;
        let life = begin(&desk, "rollout", 0, true).unwrap().life;
        say(&desk, former, 1, 1.0);
        say(&desk, life, 1, 2.0);
        assert_eq!(*book.0.lock().unwrap(), [("rollout-0".to_owned(), 3, 2.0_f64.to_bits())]);
    }

    #[test]
    fn a_desk_that_comes_back_hears_workers_that_outlived_the_one_before() {
        let book = Book::default();
        say(&desk(&book), 77, 5, 0.5);
        assert_eq!(*book.0.lock().unwrap(), [("rollout-0".to_owned(), 3, 0.5_f64.to_bits())]);
    }

    #[test]
    fn a_worker_may_join_a_stage_of_many_and_no_stage_of_one() {
        let desk = desk(&Book::default());
        assert_eq!(begin(&desk, "rollout", 7, false).unwrap().assignment.name(), "rollout-7");
        let one = begin(&desk, "dataset", 1, false).unwrap_err();
        assert_eq!(one, "stage `dataset` has one worker, dataset-0; found a request for dataset-1");
        let none = begin(&desk, "actor", 0, false).unwrap_err();
        assert!(none.contains("no stage `actor`") && none.ends_with("rollout-0, dataset-0"), "{none}");
        let taken = begin(&desk, "rollout", 0, false).unwrap_err();
        assert!(taken.starts_with("worker rollout-0 is the runner's own"), "{taken}");
        let strange = desk(b"{}").unwrap_err();
        assert!(strange.contains("another program"), "{strange}");
    }
}
