//! `value`: the critic's estimate before each response token.

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_model::{
    Want,
    weights::{DType, Head},
};
use tq_model_stage::{
    Follower, Sequences, dtype,
    pack::{Bounds, by_row},
    placement,
};
use tq_stage::{
    Batch, Input, Map, MapContext, Output, Outputs, Parameters, Per, Ports, Register, ragged_f32, ragged_i64,
};

/// Settings of the stage: none; bounds are in `critic`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The stage.
pub struct Values {
    bounds: Bounds,
    dtype: DType,
    model: Option<Follower>,
}

impl Map for Values {
    fn ports(&self) -> Ports {
        Ports::new(
            vec![Input::new("prompt", ragged_i64()), Input::new("responses", ragged_i64())],
            vec![Output::new("values", ragged_f32())],
        )
        .model("value-lm")
        .per(Per::Mini)
        .configured_by(&["critic"])
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        if self.model.is_none() {
            self.model = Some(Follower::new(cx.stage(), Head::Value, placement(cx.stage(), self.dtype)?)?);
        }
        let model = self.model.as_mut().context("the model was opened above")?.at(cx.cut().map(|cut| cut.cycle))?;
        let mut rows = Vec::with_capacity(batch.len());
        for micro in Sequences::read(batch)?.micros(self.bounds)? {
            rows.extend(by_row(&micro.packed, &model.score(&micro.packed, &Want::values())?.values));
        }
        Ok(Outputs::new().ragged("values", rows))
    }
}

impl Register for Values {
    const NAME: &'static str = "value";
    type Config = Config;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let bounds = Bounds::from_parameters(
            parameters,
            "critic.ppo_micro_batch_size_per_gpu",
            "critic.forward_max_token_len_per_gpu",
        )?;
        Ok(Self { bounds, dtype: dtype(parameters, "critic.fsdp.model_dtype")?, model: None })
    }
}
