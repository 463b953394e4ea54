//! `value-update`: trains the critic on returns with PPO's clipped squared error.

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_math::{aggregate::Mode, loss::value_loss};
use tq_model::{TokenGradients, TokenStats, Want, weights::Head};
use tq_model_stage::{
    Objective, Sequences, Sums, Totals, Trainer, loss,
    pack::{Bounds, Micro},
};
use tq_stage::{Batch, Input, Parameters, Range, ragged_f32, ragged_i64};

/// The stage.
pub type ValueUpdate = Trainer<Value>;

/// Settings of the stage: none; everything is in `critic`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// `½ · max((v − R)², (clamp(v, v_old ± cliprange_value) − R)²)`, aggregated by `critic.loss_agg_mode`.
pub struct Value {
    mode: Mode,
    loss_scale_factor: Option<f64>,
    clip: f64,
}

#[derive(Deserialize)]
struct CriticSettings {
    cliprange_value: f64,
}

/// Columns of a mini-batch; per-token ones are flat, in row order.
pub struct Columns {
    sequences: Sequences,
    values: Vec<f32>,
    returns: Vec<f32>,
}

impl Objective for Value {
    const NAME: &'static str = "value-update";
    const SECTION: &'static str = "critic";
    const MINI_BATCH: &'static str = "critic.ppo_mini_batch_size";
    const METRICS: &'static str = "critic";
    const MODEL: &'static str = "value-lm";
    const HEAD: Head = Head::Value;
    type Config = Config;
    type Mini = Columns;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let critic: CriticSettings = parameters.get(Self::SECTION)?;
        Range::AtLeast(0.0).check("critic.cliprange_value", critic.cliprange_value)?;
        let (mode, loss_scale_factor) = loss::aggregation(parameters, Self::SECTION)?;
        Ok(Self { mode, loss_scale_factor, clip: critic.cliprange_value })
    }

    fn inputs(&self) -> Vec<Input> {
        vec![
            Input::new("prompt", ragged_i64()),
            Input::new("responses", ragged_i64()),
            Input::new("values", ragged_f32()),
            Input::new("returns", ragged_f32()),
        ]
    }

    fn want(&self) -> Want {
        Want::values()
    }

    fn mini(&mut self, batch: &Batch) -> Result<Columns> {
        let sequences = Sequences::read(batch)?;
        Ok(Columns {
            values: sequences.column(batch, "values")?,
            returns: sequences.column(batch, "returns")?,
            sequences,
        })
    }

    fn totals(&self, mini: &Columns) -> Totals {
        mini.sequences.totals
    }

    fn set_totals(&self, mini: &mut Columns, totals: Totals) {
        mini.sequences.totals = totals;
    }

    fn micros(&self, mini: &Columns, bounds: Bounds) -> Result<Vec<Micro>> {
        mini.sequences.micros(bounds)
    }

    fn gradients(&self, mini: &Columns, micro: &Micro, stats: &TokenStats, sums: &mut Sums) -> Result<TokenGradients> {
        let tokens = mini.sequences.tokens(&micro.rows);
        let layout = mini.sequences.part(&micro.rows);
        let count = layout.kept() as f64;
        let aggregation = mini.sequences.aggregation(self.mode, self.loss_scale_factor);
        let loss = value_loss(
            &layout,
            &stats.values,
            &mini.returns[tokens.clone()],
            &mini.values[tokens],
            self.clip,
            &aggregation,
        )?;
        sums.part("critic/vf_loss", loss.value);
        for (name, value) in &loss.metrics {
            sums.mean(name, *value, count);
        }
        sums.mean("critic/vpred_mean", stats.values.iter().map(|&v| f64::from(v)).sum::<f64>() / count.max(1.0), count);
        Ok(TokenGradients { values: loss.grad_f32(), ..TokenGradients::default() })
    }

    fn describe(&self, mini: &Columns, _: &Batch, _: u64, sums: &mut Sums) -> Result<()> {
        let count = mini.returns.len() as f64;
        if count > 1.0 {
            let mean = |column: &[f32]| column.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            sums.mean("critic/returns/mean", mean(&mini.returns), count);
            sums.mean("critic/values/mean", mean(&mini.values), count);
            let gaps: Vec<f32> = mini.returns.iter().zip(&mini.values).map(|(r, v)| r - v).collect();
            let variance = |column: &[f32]| {
                let mean = mean(column);
                column.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / (count - 1.0)
            };
            sums.mean("critic/vf_explained_var", 1.0 - variance(&gaps) / (variance(&mini.returns) + 1e-5), count);
        }
        Ok(())
    }
}
