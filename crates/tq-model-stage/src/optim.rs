//! verl's optimizer section (`…optim.*`) as the engine's options.

use anyhow::Result;
use serde::Deserialize;
use tq_model::train::{LrSchedule, LrShape, TrainOptions};
use tq_stage::{Parameters, Range};

/// Keys of an `optim` section; verl's names and meanings.
#[derive(Clone, Debug, Deserialize)]
pub struct OptimSettings {
    #[serde(rename = "optimizer")]
    _optimizer: Optimizer,
    lr: f64,
    lr_warmup_steps: i64,
    lr_warmup_steps_ratio: f64,
    min_lr_ratio: f64,
    num_cycles: f64,
    lr_scheduler_type: Scheduler,
    zero_indexed_step: bool,
    total_training_steps: i64,
    weight_decay: f64,
    betas: (f64, f64),
    clip_grad: Option<f64>,
}

/// Optimizers that are built in.
#[derive(Clone, Copy, Debug, Deserialize)]
enum Optimizer {
    AdamW,
}

/// Schedules of the learning rate that are built in.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scheduler {
    Constant,
    Cosine,
    Wsd,
}

impl OptimSettings {
    /// Reads the section at `path`.
    ///
    /// # Errors
    /// When it is missing or has another form, for an optimizer or schedule that is not built in, and for a number out
    /// of its range; names the key.
    pub fn read(parameters: &Parameters, path: &str) -> Result<Self> {
        let settings: Self = parameters.get(path)?;
        for (name, value, range) in [
            ("lr", settings.lr, Range::AtLeast(0.0)),
            ("lr_warmup_steps", settings.lr_warmup_steps as f64, Range::MinusOneOr("by lr_warmup_steps_ratio", 0.0)),
            ("lr_warmup_steps_ratio", settings.lr_warmup_steps_ratio, Range::Within(0.0, 1.0)),
            ("min_lr_ratio", settings.min_lr_ratio, Range::Within(0.0, 1.0)),
            ("num_cycles", settings.num_cycles, Range::AtLeast(0.0)),
            (
                "total_training_steps",
                settings.total_training_steps as f64,
                Range::MinusOneOr("the length of the run", 1.0),
            ),
            ("weight_decay", settings.weight_decay, Range::AtLeast(0.0)),
            ("betas", settings.betas.0, Range::Below(0.0, 1.0)),
            ("betas", settings.betas.1, Range::Below(0.0, 1.0)),
            ("clip_grad", settings.clip_grad.unwrap_or(1.0), Range::Above(0.0)),
        ] {
            range.check(format!("{path}.{name}"), value)?;
        }
        Ok(settings)
    }

    /// The engine's options. `updates`: optimizer steps of the whole run, for schedules whose length is not given.
    pub fn options(&self, updates: u64) -> TrainOptions {
        let total = u64::try_from(self.total_training_steps).unwrap_or(updates);
        let warmup = match u64::try_from(self.lr_warmup_steps) {
            Ok(steps) => steps,
            Err(_) => (self.lr_warmup_steps_ratio * total as f64) as u64,
        };
        let shape = match self.lr_scheduler_type {
            Scheduler::Constant => LrShape::Constant,
            Scheduler::Cosine => LrShape::Cosine {
                total,
                min_lr_ratio: self.min_lr_ratio,
                num_cycles: self.num_cycles,
                init_lr_ratio: 0.0,
                zero_indexed_step: self.zero_indexed_step,
            },
            Scheduler::Wsd => LrShape::wsd(total, self.min_lr_ratio),
        };
        let options = TrainOptions::new(LrSchedule { base: self.lr, warmup, shape });
        TrainOptions { betas: self.betas, weight_decay: self.weight_decay, clip_grad: self.clip_grad, ..options }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(key: &str, value: Value) -> Result<OptimSettings> {
        let mut optim = json!({
            "optimizer": "AdamW", "lr": 1e-6, "lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.1, "min_lr_ratio": 0.0,
            "num_cycles": 0.5, "lr_scheduler_type": "constant", "zero_indexed_step": true, "total_training_steps": -1,
            "weight_decay": 0.01, "betas": [0.9, 0.999], "clip_grad": null,
        });
        optim[key] = value;
        OptimSettings::read(&Parameters::new(json!({"critic": {"optim": optim}})), "critic.optim")
    }

    #[test]
    fn the_warm_up_is_a_number_of_steps_or_a_share_of_the_run() {
        let warmup = |steps: i64| read("lr_warmup_steps", json!(steps)).expect("valid").options(50).schedule.warmup;
        assert_eq!((warmup(-1), warmup(0), warmup(7)), (5, 0, 7));
        let given = read("total_training_steps", json!(200)).expect("valid");
        assert_eq!(given.options(50).schedule.warmup, 20, "the length that is given comes before that of the run");
    }

    #[test]
    fn wrong_settings_are_refused_when_they_are_read() {
        for (key, value, said) in [
            ("optimizer", json!("Lion"), "critic.optim.optimizer: found `Lion`; expected `AdamW`"),
            ("lr", json!(-1e-6), "critic.optim.lr: found -0.000001; expected a number of at least 0"),
            ("lr", json!("nan"), "critic.optim.lr: found string `nan`; expected a number"),
            (
                "lr_warmup_steps",
                json!(-2),
                "critic.optim.lr_warmup_steps: found -2; expected -1 (by lr_warmup_steps_ratio) or at least 0",
            ),
            (
                "lr_warmup_steps_ratio",
                json!(1.5),
                "critic.optim.lr_warmup_steps_ratio: found 1.5; expected a number from 0 to 1",
            ),
            ("min_lr_ratio", json!(-0.5), "critic.optim.min_lr_ratio: found -0.5; expected a number from 0 to 1"),
            ("num_cycles", json!(-1), "critic.optim.num_cycles: found -1; expected a number of at least 0"),
            (
                "lr_scheduler_type",
                json!("linear"),
                "critic.optim.lr_scheduler_type: found `linear`; expected one of `constant`, `cosine`, `wsd`",
            ),
            (
                "total_training_steps",
                json!(0),
                "critic.optim.total_training_steps: found 0; expected -1 (the length of the run) or at least 1",
            ),
            ("weight_decay", json!(-0.1), "critic.optim.weight_decay: found -0.1; expected a number of at least 0"),
            ("betas", json!([0.9, 1.0]), "critic.optim.betas: found 1; expected a number of at least 0 and below 1"),
            ("clip_grad", json!(0), "critic.optim.clip_grad: found 0; expected a number above 0"),
        ] {
            let refused = read(key, value).expect_err(key).to_string();
            assert!(refused.starts_with(said), "{refused}");
        }
    }
}
