//! What a training stage minimises; everything around it is [`crate::Trainer`].

use std::collections::BTreeMap;

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use tq_model::{TokenGradients, TokenStats, Want, weights::Head};
use tq_stage::{Batch, Input, Parameters};

use crate::pack::{Bounds, Micro};

/// A loss over a mini-batch, in terms of what the model says about each token.
pub trait Objective: Send + Sized + 'static {
    /// The stage's name after `use:`.
    const NAME: &'static str;
    /// Parameter section with `optim`, bounds and epochs.
    const SECTION: &'static str;
    /// Parameter that holds the groups per update.
    const MINI_BATCH: &'static str;
    /// verl's prefix of the stage's metrics: `actor`, `critic`, `train`.
    const METRICS: &'static str;
    /// Kind of model, as `models:` names it.
    const MODEL: &'static str;
    /// Which head it trains.
    const HEAD: Head;
    /// The stage's own settings.
    type Config: DeserializeOwned + Serialize + JsonSchema;
    /// Columns of one mini-batch, as the loss wants them.
    type Mini;

    /// Reads settings and parameters.
    ///
    /// # Errors
    /// When one does not suit, naming it.
    fn new(config: Self::Config, parameters: &Parameters) -> Result<Self>;

    /// Columns it reads.
    fn inputs(&self) -> Vec<Input>;

    /// What it wants to know of each scored token.
    fn want(&self) -> Want;

    /// Takes a mini-batch's columns and totals.
    ///
    /// # Errors
    /// When a column is missing or has another form.
    fn mini(&mut self, batch: &Batch) -> Result<Self::Mini>;

    /// Its tokens, in forward passes within the bounds.
    ///
    /// # Errors
    /// When a prompt is empty.
    fn micros(&self, mini: &Self::Mini, bounds: Bounds) -> Result<Vec<Micro>>;

    /// The gradient for one forward pass, scaled so that those of the mini-batch add up; metrics go into `sums`.
    ///
    /// # Errors
    /// When columns and tokens do not fit together.
    fn gradients(
        &self,
        mini: &Self::Mini,
        micro: &Micro,
        stats: &TokenStats,
        sums: &mut Sums,
    ) -> Result<TokenGradients>;

    /// Metrics of the data itself, once per mini-batch.
    ///
    /// # Errors
    /// When a column is missing.
    fn describe(&self, _mini: &Self::Mini, _batch: &Batch, _version: u64, _sums: &mut Sums) -> Result<()> {
        Ok(())
    }
}

/// Weighted sums of metrics over the passes of an update.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    sums: BTreeMap<String, (f64, f64)>,
}

impl Sums {
    /// Adds a mean over `weight` items.
    pub fn mean(&mut self, name: &str, value: f64, weight: f64) {
        let (sum, total) = self.sums.entry(name.to_owned()).or_default();
        *sum += value * weight;
        *total += weight;
    }

    /// Adds a part of a total.
    pub fn part(&mut self, name: &str, value: f64) {
        let (sum, total) = self.sums.entry(name.to_owned()).or_default();
        *sum += value;
        *total = 1.0;
    }

    /// Adds what another mini-batch came to.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(name, value, weight)| self.mean(name, value, weight));
    }

    /// The means and totals: name, value, weight.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64, f64)> {
        self.sums
            .iter()
            .filter(|(_, (_, total))| *total > 0.0)
            .map(|(name, &(sum, total))| (name.as_str(), sum / total, total))
    }
}
