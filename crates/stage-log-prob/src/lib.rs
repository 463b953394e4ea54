//! `log-prob`: log-probabilities of the responses under the weights that the pipeline names.
//!
//! `model: policy@cycle` with `bind: {log_probs: old_log_probs}` recomputes the old policy's at a cycle's start;
//! `model: policy@0` with `bind: {log_probs: ref_log_probs}` is the reference. A row's numbers do not depend on the rows
//! computed with it.

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_model::{
    Want,
    weights::{DType, Head},
};
use tq_model_stage::{
    Follower, Sequences, dtype, loss,
    pack::{Bounds, by_row},
    placement,
};
use tq_stage::{
    Batch, Input, Map, MapContext, Output, Outputs, Parameters, Per, Ports, Register, Version, ragged_f32, ragged_i64,
};

/// Settings of the stage: none; bounds of the reference are in `actor_rollout_ref.ref`, all others in
/// `actor_rollout_ref.rollout`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The stage.
pub struct LogProb {
    /// With the initial weights.
    reference: Bounds,
    /// With any other.
    old: Bounds,
    temperature: f64,
    dtype: DType,
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
        .configured_by(&["actor_rollout_ref.ref", "actor_rollout_ref.rollout"])
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        if self.model.is_none() {
            let placement = placement(cx.stage(), self.dtype)?;
            self.model = Some(Follower::new(cx.stage(), Head::Lm, placement)?);
        }
        let model = self.model.as_mut().context("the model was opened above")?.at(cx.cut().map(|cut| cut.cycle))?;
        let bounds = if cx.stage().model()?.version == Some(Version::Initial) { self.reference } else { self.old };
        let mut rows = Vec::with_capacity(batch.len());
        for micro in Sequences::read(batch)?.micros(bounds)? {
            rows.extend(by_row(
                &micro.packed,
                &model.score(&micro.packed, &Want::log_probs(self.temperature))?.log_probs,
            ));
        }
        Ok(Outputs::new().ragged("log_probs", rows))
    }
}

impl Register for LogProb {
    const NAME: &'static str = "log-prob";
    type Config = Config;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let bounds = |section: &str| {
            let (rows, tokens) = (
                format!("{section}.log_prob_micro_batch_size_per_gpu"),
                format!("{section}.log_prob_max_token_len_per_gpu"),
            );
            Bounds::from_parameters(parameters, &rows, &tokens)
        };
        let (reference, old) = (bounds("actor_rollout_ref.ref")?, bounds("actor_rollout_ref.rollout")?);
        Ok(Self {
            reference,
            old,
            temperature: loss::temperature(parameters)?,
            dtype: dtype(parameters, "actor_rollout_ref.actor.fsdp_config.model_dtype")?,
            model: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_reference_and_the_old_policy_have_bounds_of_their_own() {
        let section = |rows, tokens| json!({"temperature": 1.0, "log_prob_micro_batch_size_per_gpu": rows, "log_prob_max_token_len_per_gpu": tokens});
        let stage = |reference: Value| {
            let actor = json!({"fsdp_config": {"model_dtype": "fp32"}});
            let tree = json!({"actor_rollout_ref": {"ref": reference, "rollout": section(3, 200), "actor": actor}});
            LogProb::new(Config::default(), &Parameters::new(tree))
        };
        let valid = stage(section(2, 100)).expect("valid parameters");
        assert_eq!(valid.reference, Bounds { rows: 2, tokens: 100 });
        assert_eq!(valid.old, Bounds { rows: 3, tokens: 200 });
        let refused = stage(section(2, 0)).err().expect("no tokens").to_string();
        assert_eq!(
            refused,
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu: found 0; expected a number of at least 1"
        );
    }
}
