//! What one worker has to do: plain values, so that it can be given to a thread or sent to a process.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tq_schedule::plan::Level;
use tq_stage::{ModelUse, Parameters, ScheduleFacts, Served, Setup, SharedReporter, Stage};
use transferqueue::Session;

use crate::registry::Registry;

/// Everything a worker is told by the runner, but for its connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// The pipeline's name of the stage.
    pub stage: String,
    /// Which worker of the stage, from 0.
    pub index: u64,
    /// The stage has just the workers that the runner starts: a source, or a trainer with its ranks.
    pub single: bool,
    /// It trains a model: what it did since the last publication is in its memory alone.
    pub trains: bool,
    /// Workers of the stage that share each batch; 1: it trains alone, or does not train.
    pub ranks: u64,
    /// The registered stage that does the work.
    pub implementation: String,
    /// Its own settings.
    pub with: Value,
    /// Tasks by priority.
    pub served: Vec<Served>,
    /// The phase's parameters.
    pub parameters: Value,
    /// The stage's model.
    pub model: Option<ModelUse>,
    /// The schedule's facts.
    pub schedule: ScheduleFacts,
    /// The level of a metric that ends the phase earlier.
    pub level: Option<Level>,
    /// Seed of the run.
    pub seed: u64,
    /// `cpu`, `cuda:0`, …
    pub device: String,
    /// Longest wait without any row, in seconds.
    pub patience_s: u64,
}

/// Name of a worker: that of its session, its thread and its messages.
pub(crate) fn name(stage: &str, index: u64) -> String {
    format!("{stage}-{index}")
}

impl Assignment {
    /// The worker's name: that of its session, its thread and its messages.
    pub(crate) fn name(&self) -> String {
        name(&self.stage, self.index)
    }

    /// The stage, made from its settings.
    ///
    /// # Errors
    /// When the program does not know it, or its settings do not suit.
    pub(crate) fn make(&self, registry: &Registry) -> Result<Box<dyn Stage>> {
        registry.make(&self.implementation, &self.with, &Parameters::new(self.parameters.clone()))
    }

    /// With the connections it works over.
    pub(crate) fn setup(self, session: Session, reporter: SharedReporter) -> Setup {
        Setup {
            stage: self.stage,
            worker: self.index,
            ranks: self.ranks,
            session,
            served: self.served,
            parameters: Parameters::new(self.parameters),
            model: self.model,
            schedule: self.schedule,
            level: self.level,
            seed: self.seed,
            device: self.device,
            reporter,
            patience: std::time::Duration::from_secs(self.patience_s),
        }
    }
    #[cfg(test)]
    pub(crate) fn for_test(stage: &str, single: bool) -> Self {
        let schedule =
            ScheduleFacts { total_cycles: 1, minis_per_cycle: 1, exact_weights: true, continue_on_publication: false };
        Self {
            stage: stage.to_owned(),
            index: 0,
            single,
            trains: false,
            ranks: 1,
            implementation: stage.to_owned(),
            with: Value::Null,
            served: Vec::new(),
            parameters: Value::Null,
            model: None,
            schedule,
            level: None,
            seed: 1,
            device: "cpu".to_owned(),
            patience_s: 1,
        }
    }
}
