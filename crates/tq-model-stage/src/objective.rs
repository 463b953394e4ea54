//! What a training stage minimises; everything around it is [`crate::Trainer`].

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use tq_model::{TokenGradients, TokenStats, Want, weights::Head};
use tq_stage::{Batch, Input, Parameters};

use crate::{
    Sums,
    pack::{Bounds, Micro},
};

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
    /// Inputs whose lengths, added up, are the size of a row in tokens: shares of ranks are balanced by it.
    const LENGTHS: &'static [&'static str] = &["prompt", "responses"];
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

    /// What the loss of this mini-batch, or of this rank's share of it, divides by.
    fn totals(&self, mini: &Self::Mini) -> Totals;

    /// Divides by other totals from now on: those of the whole mini-batch, over all ranks.
    fn set_totals(&self, mini: &mut Self::Mini, totals: Totals);

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

/// What the loss of a mini-batch divides by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Tokens that the loss is over.
    pub tokens: f64,
    /// Rows with at least one such token.
    pub rows: f64,
}
