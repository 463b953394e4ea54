//! Optimizer, clipping and learning rates, with state that can be saved and restored bit for bit.

mod adamw;
mod flat;
mod schedule;

pub(crate) use adamw::AdamW;
pub use flat::Flat;
pub(crate) use flat::{flatten, unflatten};
pub use schedule::{LrSchedule, LrShape};

use crate::{Error, Result};

/// How parameters are updated: AdamW, clipping by global norm, a schedule of learning rates.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// Learning rates.
    pub schedule: LrSchedule,
    /// Decay rates of the two moments.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, applied to every parameter.
    pub weight_decay: f64,
    /// Gradients are scaled down to this global norm; `None` leaves them.
    pub clip_grad: Option<f64>,
}

impl TrainOptions {
    /// verl's defaults: betas (0.9, 0.999), ε 1e-8, decay 0.01, clipping at 1.
    pub fn new(schedule: LrSchedule) -> Self {
        Self { schedule, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01, clip_grad: Some(1.0) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let fraction = |beta: f64| (0.0..1.0).contains(&beta);
        if !(fraction(self.betas.0) && fraction(self.betas.1) && self.eps >= 0.0 && self.weight_decay >= 0.0) {
            return Err(Error::Training(format!(
                "betas {:?} must lie in [0, 1), eps {} and weight_decay {} must not be negative",
                self.betas, self.eps, self.weight_decay
            )));
        }
        if let Some(norm) = self.clip_grad.filter(|norm| norm.is_nan() || *norm <= 0.0) {
            return Err(Error::Training(format!(
                "clip_grad is {norm}; expected a positive norm, or none to leave gradients as they are"
            )));
        }
        self.schedule.check()
    }
}

/// What one optimizer step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Global L2 norm of the gradients before clipping.
    pub grad_norm: f64,
    /// The learning rate of this step.
    pub lr: f64,
    /// False when the norm was not finite: parameters and moments were left as they were, the schedule moved on.
    pub applied: bool,
}
