//! verl's optimizer section (`…optim.*`) as the engine's options.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use tq_model::train::{LrSchedule, LrShape, TrainOptions};
use tq_stage::Parameters;

/// Keys of an `optim` section; verl's names and meanings.
#[derive(Clone, Debug, Deserialize)]
pub struct OptimSettings {
    optimizer: String,
    lr: f64,
    lr_warmup_steps: i64,
    lr_warmup_steps_ratio: f64,
    min_lr_ratio: f64,
    num_cycles: f64,
    lr_scheduler_type: String,
    zero_indexed_step: bool,
    total_training_steps: i64,
    weight_decay: f64,
    betas: (f64, f64),
    clip_grad: Option<f64>,
}

impl OptimSettings {
    /// Reads the section at `path`.
    ///
    /// # Errors
    /// When it is missing or has another form.
    pub fn read(parameters: &Parameters, path: &str) -> Result<Self> {
        parameters.get(path)
    }

    /// The engine's options. `updates`: optimizer steps of the whole run, for schedules whose length is not given.
    ///
    /// # Errors
    /// For an optimizer or schedule that is not built in, and for a rate that is not a positive number or 0.
    pub fn options(&self, updates: u64) -> Result<TrainOptions> {
        ensure!(self.optimizer == "AdamW", "optimizer `{}` is not built in; expected AdamW", self.optimizer);
        ensure!(self.lr.is_finite() && self.lr >= 0.0, "lr is {}; expected a number of at least 0", self.lr);
        let total = u64::try_from(self.total_training_steps).ok().filter(|&n| n > 0).unwrap_or(updates);
        let warmup = match u64::try_from(self.lr_warmup_steps) {
            Ok(steps) => steps,
            Err(_) => (self.lr_warmup_steps_ratio * total as f64) as u64,
        };
        let shape = match self.lr_scheduler_type.as_str() {
            "constant" => LrShape::Constant,
            "cosine" => match LrShape::cosine(total, self.min_lr_ratio) {
                LrShape::Cosine { total, min_lr_ratio, init_lr_ratio, .. } => LrShape::Cosine {
                    total,
                    min_lr_ratio,
                    num_cycles: self.num_cycles,
                    init_lr_ratio,
                    zero_indexed_step: self.zero_indexed_step,
                },
                other => other,
            },
            "wsd" => LrShape::wsd(total, self.min_lr_ratio),
            other => bail!("lr_scheduler_type `{other}` is not built in; expected constant, cosine or wsd"),
        };
        let options = TrainOptions::new(LrSchedule { base: self.lr, warmup, shape });
        Ok(TrainOptions { betas: self.betas, weight_decay: self.weight_decay, clip_grad: self.clip_grad, ..options })
    }
}
