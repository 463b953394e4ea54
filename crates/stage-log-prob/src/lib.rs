//! `log-prob`: log-probabilities of the responses under the weights that the pipeline names.
//!
//! `model: policy@cycle` with `bind: {log_probs: old_log_probs}` recomputes the old policy's at a cycle's start;
//! `model: policy@0` with `bind: {log_probs: ref_log_probs}` is the reference. A row's numbers do not depend on the rows
//! computed with it.

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_model::{Want, weights::Head};
use tq_model_stage::{
    Follower, Sequences,
    pack::{Bounds, by_row},
    placement,
};
use tq_stage::{Batch, Input, Map, MapContext, Output, Outputs, Parameters, Per, Ports, Register, ragged_f32, ragged_i64};

/// Settings of the stage: none; bounds are in `actor_rollout_ref.ref`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The stage.
pub struct LogProb {
    bounds: Bounds,
    temperature: f64,
    model: Option<Follower>,
}

impl Map for LogProb {
    fn ports(&self) -> Ports {
        Ports::new(
            vec![Input::new("prompt", ragged_i64()), Input::new("responses", ragged_i64())],
            vec![Output::new("log_probs", ragged_f32()).carries("distribution", "full")],
        )
        .model("causal-lm")
        .per(Per::Mini)
        .configured_by(&["actor_rollout_ref.ref"])
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        if self.model.is_none() {
            let placement = placement(cx.stage(), "actor_rollout_ref.actor.fsdp_config.model_dtype")?;
            self.model = Some(Follower::new(cx.stage(), Head::Lm, placement)?);
        }
        let model = self.model.as_mut().context("the model was opened above")?.at(cx.cut().map(|cut| cut.cycle))?;
        let mut rows = Vec::with_capacity(batch.len());
        for micro in Sequences::read(batch)?.micros(self.bounds)? {
            rows.extend(by_row(&micro.packed, &model.score(&micro.packed, &Want::log_probs(self.temperature))?.log_probs));
        }
        Ok(Outputs::new().ragged("log_probs", rows))
    }
}

impl Register for LogProb {
    const NAME: &'static str = "log-prob";
    type Config = Config;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let section = "actor_rollout_ref.ref";
        let bounds = Bounds::from_parameters(
            parameters,
            &format!("{section}.log_prob_micro_batch_size_per_gpu"),
            &format!("{section}.log_prob_max_token_len_per_gpu"),
        )?;
        Ok(Self { bounds, temperature: parameters.get("actor_rollout_ref.rollout.temperature")?, model: None })
    }
}
