//! `validation`: what held-out prompts score under each validated weight version, under verl's metric names.

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_metrics::validation::{Sample, metrics};
use tq_stage::{Batch, Input, Kind, Map, MapContext, Outputs, Parameters, Per, Ports, Register, ragged_f32};

/// Settings of the stage: none.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The stage: claims a whole round, reports it.
pub struct Validation;

impl Map for Validation {
    fn ports(&self) -> Ports {
        Ports::new(vec![Input::new("token_level_scores", ragged_f32()), Input::new("data_source", Kind::Utf8)], vec![])
            .per(Per::Cycle)
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        let cut = cx.cut().context("validation claims whole rounds; leave its `per` alone")?;
        let (scores, sources) = (batch.ragged::<f32>("token_level_scores")?, batch.utf8("data_source")?);
        let rewards: Vec<[(&str, f64); 1]> =
            scores.iter().map(|row| [("reward", row.iter().map(|&r| f64::from(r)).sum())]).collect();
        let sample = |(row, value)| Sample {
            data_source: sources.row(row),
            prompt: batch.heads()[row].group.0,
            values: value,
            prediction: None,
        };
        let samples: Vec<Sample<'_>> = rewards.iter().map(|v| v.as_slice()).enumerate().map(sample).collect();
        let found: Vec<(String, f64)> =
            metrics(&samples)?.iter().map(|(name, value)| (name.to_owned(), value)).collect();
        cx.stage().report().validation(cut.cycle, &found);
        Ok(Outputs::new())
    }
}

impl Register for Validation {
    const NAME: &'static str = "validation";
    type Config = Config;

    fn new(_: Config, _: &Parameters) -> Result<Self> {
        Ok(Self)
    }
}
