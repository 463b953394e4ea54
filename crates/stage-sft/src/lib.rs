//! `sft`: supervised training on ground truths, a warm-up for reinforcement learning.
//!
//! The target of a prompt is its `ground_truth` as tokens, followed by the end symbol. The loss is the mean negative
//! log-probability over the target tokens of the mini-batch.

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_data::Tokenizer;
use tq_model::{TokenGradients, TokenStats, Want, weights::Head};
use tq_model_stage::{
    Objective, Sums, Totals, Trainer,
    pack::{Bounds, Micro, pack},
};
use tq_stage::{Batch, Input, Kind, Parameters, ragged_i64};

/// The stage.
pub type SupervisedUpdate = Trainer<Supervised>;

/// Settings of the stage: none; everything is in `actor_rollout_ref.actor`, the batch size in `data.train_batch_size`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// Mean negative log-probability of the targets.
pub struct Supervised {
    parameters: Parameters,
    tokenizer: Option<Tokenizer>,
}

/// Prompts and targets of a mini-batch.
pub struct Pairs {
    prompts: Vec<Vec<i64>>,
    targets: Vec<Vec<i64>>,
    tokens: usize,
    /// Target tokens that the loss divides by, over all ranks.
    totals: Totals,
}

impl Objective for Supervised {
    const NAME: &'static str = "sft";
    const SECTION: &'static str = "actor_rollout_ref.actor";
    const MINI_BATCH: &'static str = "data.train_batch_size";
    const METRICS: &'static str = "train";
    const MODEL: &'static str = "causal-lm";
    const HEAD: Head = Head::Lm;
    const LENGTHS: &'static [&'static str] = &["prompt", "ground_truth"];
    type Config = Config;
    type Mini = Pairs;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        Ok(Self { parameters: parameters.clone(), tokenizer: None })
    }

    fn inputs(&self) -> Vec<Input> {
        vec![Input::new("prompt", ragged_i64()), Input::new("ground_truth", Kind::Utf8)]
    }

    fn want(&self) -> Want {
        Want::log_probs(1.0)
    }

    fn mini(&mut self, batch: &Batch) -> Result<Pairs> {
        if self.tokenizer.is_none() {
            let folder = self.parameters.tokenizer_path()?;
            self.tokenizer =
                Some(Tokenizer::load(&folder).with_context(|| format!("tokenizer of `{}`", folder.display()))?);
        }
        let tokenizer = self.tokenizer.as_ref().context("the tokenizer was loaded above")?;
        let end = tokenizer.eos_id().context("the tokenizer has no end symbol; supervised targets need one")?;
        let truths = batch.utf8("ground_truth")?;
        let target = |row: usize| -> Result<Vec<i64>> {
            let mut ids = tokenizer.encode(truths.row(row))?;
            ids.push(end);
            Ok(ids)
        };
        let targets = (0..batch.len()).map(target).collect::<Result<Vec<_>>>()?;
        let tokens = targets.iter().map(Vec::len).sum();
        Ok(Pairs {
            prompts: batch.ragged::<i64>("prompt")?.iter().map(<[i64]>::to_vec).collect(),
            totals: Totals { tokens: tokens as f64, rows: targets.len() as f64 },
            tokens,
            targets,
        })
    }

    fn totals(&self, mini: &Pairs) -> Totals {
        mini.totals
    }

    fn set_totals(&self, mini: &mut Pairs, totals: Totals) {
        mini.totals = totals;
    }

    fn micros(&self, mini: &Pairs, bounds: Bounds) -> Result<Vec<Micro>> {
        pack(mini.prompts.len(), bounds, |row| (mini.prompts[row].as_slice(), mini.targets[row].as_slice()))
    }

    fn gradients(&self, mini: &Pairs, _: &Micro, stats: &TokenStats, sums: &mut Sums) -> Result<TokenGradients> {
        let weight = 1.0 / mini.totals.tokens;
        sums.part("train/loss", -weight * stats.log_probs.iter().map(|&lp| f64::from(lp)).sum::<f64>());
        Ok(TokenGradients { log_probs: vec![-weight as f32; stats.log_probs.len()], ..TokenGradients::default() })
    }

    fn describe(&self, mini: &Pairs, _: &Batch, _: u64, sums: &mut Sums) -> Result<()> {
        sums.part("perf/total_num_tokens", (mini.tokens + mini.prompts.iter().map(Vec::len).sum::<usize>()) as f64);
        Ok(())
    }
}
