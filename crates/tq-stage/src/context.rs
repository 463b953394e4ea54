//! What a running stage holds: its tasks, its parameters, its weights, and the way to the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tq_schedule::plan::Level;
use transferqueue::{
    Batch, Claim, Gang, Lease, Outputs, Rows, Saved, SavedRow, Session,
    catalog::command::{CutRef, RowHead, Share},
};

use crate::{Parameters, SharedReporter, Version, seed::sample_seed, weights::Weights};

/// One task that a stage serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// The task's name.
    pub name: String,
    /// The partition it consumes.
    pub partition: String,
    /// Whether its rows are evaluated, not trained on.
    pub validation: bool,
    /// Unfinished work on its rows may be saved: `on_lost: resume`.
    #[serde(default)]
    pub resumes: bool,
    /// Input port → column.
    pub reads: BTreeMap<String, String>,
    /// Output port → column; ports that nobody reads are absent.
    pub writes: BTreeMap<String, String>,
}

/// The schedule's facts that a stage may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleFacts {
    /// Length of the run in cycles.
    pub total_cycles: u64,
    /// Mini-batches per cycle.
    pub minis_per_cycle: u64,
    /// A row's first token must be sampled with exactly the weights of its admission.
    pub exact_weights: bool,
    /// Running generations go on with new weights at a publication.
    pub continue_on_publication: bool,
}

/// What the runner gives a stage at its start.
#[derive(Clone)]
pub struct Setup {
    /// The pipeline's name of the stage.
    pub stage: String,
    /// Which worker of the stage, from 0.
    pub worker: u64,
    /// How many workers of the stage share each batch as ranks of one gang; 1: it trains alone, or does not train.
    pub ranks: u64,
    /// Connection to the store.
    pub session: Session,
    /// Tasks by priority.
    pub served: Vec<Served>,
    /// The phase's parameters.
    pub parameters: Parameters,
    /// The stage's model in `models:`, the folder it is loaded from, and which weights it uses.
    pub model: Option<ModelUse>,
    /// Schedule.
    pub schedule: ScheduleFacts,
    /// The level of a metric that ends the run earlier.
    pub level: Option<Level>,
    /// Seed of the run.
    pub seed: u64,
    /// `cpu`, `cuda:0`, …
    pub device: String,
    /// Where numbers go.
    pub reporter: SharedReporter,
    /// Longest wait without any row before the stage gives up, naming what it waits for.
    pub patience: Duration,
}

/// A stage's model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelUse {
    /// Name in `models:`.
    pub name: String,
    /// Folder with `config.json` and the like.
    pub path: PathBuf,
    /// Which weights; `None` for the task that trains it.
    pub version: Option<Version>,
}

/// The context of a running stage.
pub struct StageContext {
    setup: Setup,
}

impl StageContext {
    /// From what the runner gives.
    pub fn new(setup: Setup) -> Self {
        Self { setup }
    }

    /// The pipeline's name of the stage.
    pub fn stage(&self) -> &str {
        &self.setup.stage
    }

    /// The tasks served, highest priority first.
    pub fn served(&self) -> &[Served] {
        &self.setup.served
    }

    /// The phase's parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.setup.parameters
    }

    /// The schedule's facts.
    pub fn schedule(&self) -> ScheduleFacts {
        self.setup.schedule
    }

    /// The level of a metric that ends the run earlier, if the pipeline names one.
    pub fn level(&self) -> Option<&Level> {
        self.setup.level.as_ref()
    }

    /// The worker's device: `cpu`, `cuda:0`, …
    pub fn device(&self) -> &str {
        &self.setup.device
    }

    /// How many workers share each batch; 1: this one has all of it.
    pub fn ranks(&self) -> u64 {
        self.setup.ranks
    }

    /// Which of them this worker is, from 0. Rank 0 reports and publishes for all.
    pub fn rank(&self) -> u64 {
        if self.setup.ranks > 1 { self.setup.worker } else { 0 }
    }

    /// Joins the gang of the stage's training task: claims then return this rank's shares. `None`: it trains alone.
    ///
    /// # Errors
    /// When another worker holds the rank.
    pub fn join(&self) -> Result<Option<Gang>> {
        if self.setup.ranks < 2 {
            return Ok(None);
        }
        let served = self.setup.served.first().context("a training stage serves its task")?;
        let rank = u32::try_from(self.setup.worker)?;
        let gang = self.setup.session.join(&served.name, rank);
        gang.map(Some).with_context(|| format!("stage `{}`, rank {rank}", self.setup.stage))
    }

    /// Longest wait without any row before the stage gives up.
    pub fn patience(&self) -> Duration {
        self.setup.patience
    }

    /// The run's seed.
    pub fn seed(&self) -> u64 {
        self.setup.seed
    }

    /// The stage's model.
    ///
    /// # Errors
    /// When the pipeline gives the stage none.
    pub fn model(&self) -> Result<&ModelUse> {
        self.setup.model.as_ref().with_context(|| {
            format!("stage `{}` needs a model; give it `model: NAME@live` in the pipeline", self.setup.stage)
        })
    }

    /// Where numbers go.
    pub fn report(&self) -> &SharedReporter {
        &self.setup.reporter
    }

    /// The connection to the store, for what the context does not cover.
    pub fn session(&self) -> &Session {
        &self.setup.session
    }

    /// Weights of the stage's model.
    ///
    /// # Errors
    /// When the pipeline gives the stage no model.
    pub fn weights(&self) -> Result<Weights> {
        Ok(Weights::new(self.setup.session.clone(), &self.model()?.name, self.setup.patience))
    }

    /// Rows (or groups) a streaming [`crate::Map`] asks for at once: `with: {claim: N}`-free default.
    pub fn rows_per_claim(&self) -> u64 {
        256
    }

    /// Waits for rows of any served task, highest priority first. `None`: every task has ended.
    ///
    /// # Errors
    /// When nothing came within the run's patience (the message says what is waited for and who holds it up), or the
    /// store stopped.
    pub fn claim(&self, limit: u64) -> Result<Option<Work>> {
        let begun = Instant::now();
        let give_up = begun + self.setup.patience;
        let mut notice = begun + Duration::from_secs(10);
        let tasks: Vec<&str> = self.setup.served.iter().map(|s| s.name.as_str()).collect();
        loop {
            match self.setup.session.claim_any(&tasks, limit, notice.min(give_up)) {
                Ok(Claim::Lease(lease)) => return Ok(Some(self.work(lease))),
                Ok(Claim::Ended) => return Ok(None),
                Err(error) if error.is_deadline() && notice < give_up => {
                    self.setup.reporter.waiting(&error.to_string());
                    notice += Duration::from_secs(30);
                }
                Err(error) => return Err(error).with_context(|| format!("stage `{}`", self.setup.stage)),
            }
        }
    }

    /// Waits for rows as [`StageContext::claim`] does, until `deadline`. `None`: every task has ended.
    ///
    /// # Errors
    /// At the deadline what is waited for; when the store stopped.
    pub fn claim_until(&self, limit: u64, deadline: Instant) -> Result<Option<Work>, transferqueue::Error> {
        let tasks: Vec<&str> = self.setup.served.iter().map(|s| s.name.as_str()).collect();
        Ok(self.setup.session.claim_any(&tasks, limit, deadline)?.lease().map(|lease| self.work(lease)))
    }

    /// Rows of any served task if some are ready now.
    ///
    /// # Errors
    /// When the store stopped.
    pub fn try_claim(&self, limit: u64) -> Result<TryWork> {
        let mut ended = true;
        for served in &self.setup.served {
            match self.setup.session.claim(&served.name, limit, Instant::now()) {
                Ok(Claim::Lease(lease)) => return Ok(TryWork::Ready(self.work(lease))),
                Ok(Claim::Ended) => {}
                Err(error) if error.is_deadline() => ended = false,
                Err(error) => return Err(error).with_context(|| format!("stage `{}`", self.setup.stage)),
            }
        }
        Ok(if ended { TryWork::Ended } else { TryWork::NotYet })
    }

    fn work(&self, lease: Lease) -> Work {
        let served = self
            .setup
            .served
            .iter()
            .find(|s| s.name == lease.task())
            .expect("the store answers for a task that was asked for")
            .clone();
        Work { lease, served: Arc::new(served) }
    }
}

/// What [`StageContext::try_claim`] found.
pub enum TryWork {
    /// Rows.
    Ready(Work),
    /// Nothing now.
    NotYet,
    /// Nothing ever again.
    Ended,
}

/// Leased rows of one served task, with columns under the ports' names.
pub struct Work {
    lease: Lease,
    served: Arc<Served>,
}

impl Work {
    /// The task the rows belong to.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// The lease itself.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What this rank holds is a share of a batch: which, and what all ranks got together. `None`: it is all of it.
    pub fn share(&self) -> Option<&Share> {
        self.lease.cut().and_then(|cut| cut.share.as_ref())
    }

    /// All input columns, under the ports' names.
    ///
    /// # Errors
    /// When bytes cannot be read.
    pub fn batch(&self) -> Result<Batch> {
        let columns: BTreeSet<&str> = self.served.reads.values().map(String::as_str).collect();
        let columns: Vec<&str> = columns.into_iter().collect();
        let names = self.served.reads.iter().map(|(port, column)| (column.as_str(), port.as_str()));
        Ok(self.lease.batch_of(&columns)?.renamed(names)?)
    }

    /// What is known of each row without reading a byte, as claimed.
    pub fn heads(&self) -> &[RowHead] {
        self.lease.heads()
    }

    /// The cut batch that a `mini` or `cycle` claim holds.
    ///
    /// # Errors
    /// When the claim was per row or group, naming the task.
    pub fn cut(&self) -> Result<&CutRef> {
        self.lease.cut().with_context(|| {
            format!("task `{}` claims rows or groups; it needs `per: mini` or `per: cycle`", self.served.name)
        })
    }

    /// What workers that were lost had saved of these rows, under the ports' names: one entry for each set of columns. Rows that
    /// are in none of them begin anew.
    ///
    /// # Errors
    /// When bytes cannot be read.
    pub fn saved(&self) -> Result<Vec<Saved>, transferqueue::Error> {
        let under_ports = |saved: Saved| {
            let there = |column: &str| saved.batch.columns().any(|there| there == column);
            let names = self.served.writes.iter().map(|(port, column)| (column.as_str(), port.as_str()));
            Ok(Saved { batch: saved.batch.renamed(names.filter(|(column, _)| there(column)))?, ..saved })
        };
        self.lease.saved()?.into_iter().map(under_ports).collect()
    }

    /// Saves unfinished work on rows for whoever has them next, should this worker be lost: the beginning of their cells, and the
    /// weight versions of their tokens. It takes the place of what was saved of these rows before; outputs that nobody reads
    /// are left out. For a task that [resumes](Served::resumes).
    ///
    /// # Errors
    /// When the lease has ended, or the pipeline does not say `on_lost: resume` for the stage.
    pub fn save(&mut self, outputs: Outputs, sampled: Vec<SavedRow>) -> Result<(), transferqueue::Error> {
        self.lease.save(bound(&self.served, outputs), sampled)
    }

    /// Makes the outputs visible and all rows consumed.
    ///
    /// # Errors
    /// When the lease has ended, an output is missing or has another form than declared.
    pub fn commit(self, outputs: Outputs) -> Result<()> {
        let outputs = bound(&self.served, outputs);
        Ok(self.lease.commit(outputs)?)
    }

    /// Makes outputs of `rows` visible and those rows consumed; the others stay leased.
    ///
    /// # Errors
    /// As [`Work::commit`].
    pub fn commit_rows(&mut self, rows: &Rows, outputs: Outputs) -> Result<()> {
        Ok(self.lease.commit_rows(rows, bound(&self.served, outputs))?)
    }

    /// Tells the store that the work goes on; `progress` must grow.
    ///
    /// # Errors
    /// When the lease has ended.
    pub fn renew(&mut self, progress: u64) -> Result<(), transferqueue::Error> {
        self.lease.renew(progress)?;
        Ok(())
    }

    /// Gives all rows back as failed.
    ///
    /// # Errors
    /// When the lease has ended.
    pub fn fail(self, error: &str) -> Result<()> {
        Ok(self.lease.fail(error)?)
    }
}

/// Port names become column names; outputs that nobody reads are left out.
fn bound(served: &Served, outputs: Outputs) -> Outputs {
    outputs.rename(|port| served.writes.get(port).cloned())
}

/// What a [`crate::Map`] may ask while it computes one batch.
pub struct MapContext<'a> {
    cx: &'a StageContext,
    served: &'a Served,
    cut: Option<&'a CutRef>,
}

impl<'a> MapContext<'a> {
    pub(crate) fn new(cx: &'a StageContext, work: &'a Work) -> Self {
        Self { cx, served: &work.served, cut: work.lease.cut() }
    }

    /// The whole context: parameters, weights, schedule.
    pub fn stage(&self) -> &StageContext {
        self.cx
    }

    /// The task the rows belong to.
    pub fn served(&self) -> &Served {
        self.served
    }

    /// The cut batch, for tasks that claim `per: mini` or `per: cycle`.
    pub fn cut(&self) -> Option<&CutRef> {
        self.cut
    }

    /// The seed of one row: a function of the run's seed, the prompt's ordinal and the sample's index.
    pub fn seed(&self, row: &RowHead) -> u64 {
        sample_seed(self.cx.seed(), row.ordinal, row.sample)
    }
}
