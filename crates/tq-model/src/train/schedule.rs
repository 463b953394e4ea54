//! Learning rates by update, with the meaning (and the values) of verl's schedules.

use std::f64::consts::PI;

use crate::{Error, Result};

/// The shape of a schedule after its warm-up, as a factor of the base rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LrShape {
    /// 1 throughout.
    Constant,
    /// A cosine from 1 down to `min_lr_ratio`, `num_cycles` periods long (½: one descent), over the updates after the warm-up.
    Cosine {
        /// Updates of the whole run, warm-up included.
        total: u64,
        /// The lowest factor.
        min_lr_ratio: f64,
        /// Periods of the cosine.
        num_cycles: f64,
        /// The factor the warm-up starts from.
        init_lr_ratio: f64,
        /// Whether update 0 has factor index 0; otherwise the schedule runs one update ahead.
        zero_indexed_step: bool,
    },
    /// Warm-up, stable, decay: 1 for `stable_ratio` of the updates after the warm-up, then a cosine down to `min_lr_ratio`.
    Wsd {
        /// Updates of the whole run, warm-up included.
        total: u64,
        /// The lowest factor.
        min_lr_ratio: f64,
        /// Periods of the cosine (½: one descent).
        num_cycles: f64,
        /// Share of the updates after the warm-up that run at the base rate.
        stable_ratio: f64,
    },
}

impl LrShape {
    /// A single cosine descent to `min_lr_ratio`.
    pub fn cosine(total: u64, min_lr_ratio: f64) -> Self {
        Self::Cosine { total, min_lr_ratio, num_cycles: 0.5, init_lr_ratio: 0.0, zero_indexed_step: true }
    }

    /// Stable for nine tenths, then a cosine descent to `min_lr_ratio`.
    pub fn wsd(total: u64, min_lr_ratio: f64) -> Self {
        Self::Wsd { total, min_lr_ratio, num_cycles: 0.5, stable_ratio: 0.9 }
    }
}

/// A base rate, a linear warm-up, and a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrSchedule {
    /// The rate at factor 1.
    pub base: f64,
    /// Updates of the warm-up; update t of it has factor t / warmup.
    pub warmup: u64,
    /// What follows.
    pub shape: LrShape,
}

impl LrSchedule {
    /// The same rate for every update.
    pub fn constant(base: f64) -> Self {
        Self { base, warmup: 0, shape: LrShape::Constant }
    }

    /// The rate in force for update `update`, counted from 0.
    pub fn lr(&self, update: u64) -> f64 {
        self.base * self.factor(update)
    }

    fn factor(&self, update: u64) -> f64 {
        let (init, update) = match self.shape {
            LrShape::Cosine { init_lr_ratio, zero_indexed_step, .. } => {
                (init_lr_ratio, update + u64::from(!zero_indexed_step))
            }
            _ => (0.0, update),
        };
        if update < self.warmup {
            return init + (1.0 - init) * (update as f64 / self.warmup as f64);
        }
        let since = (update - self.warmup) as f64;
        match self.shape {
            LrShape::Constant => 1.0,
            LrShape::Cosine { total, min_lr_ratio, num_cycles, .. } => {
                // With no updates after the warm-up the denominator is 1, not 0.
                let span = total.saturating_sub(self.warmup).max(1) as f64;
                let cosine = (PI * num_cycles * 2.0 * (since / span)).cos();
                (cosine * ((1.0 - min_lr_ratio) * 0.5) + (1.0 + min_lr_ratio) * 0.5).max(min_lr_ratio)
            }
            LrShape::Wsd { total, min_lr_ratio, num_cycles, stable_ratio } => {
                let after = total.saturating_sub(self.warmup);
                let stable = (after as f64 * stable_ratio).floor();
                if since < stable {
                    1.0
                } else if update < total {
                    let progress = (since - stable) / (after as f64 - stable).max(1.0);
                    let cosine = (0.5 * (1.0 + (PI * num_cycles * 2.0 * progress).cos())).max(0.0);
                    (1.0 - min_lr_ratio) * cosine + min_lr_ratio
                } else {
                    min_lr_ratio
                }
            }
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let fits = match self.shape {
            LrShape::Constant => true,
            LrShape::Cosine { min_lr_ratio, init_lr_ratio, .. } => share(min_lr_ratio) && share(init_lr_ratio),
            LrShape::Wsd { min_lr_ratio, stable_ratio, .. } => share(min_lr_ratio) && share(stable_ratio),
        };
        if !(self.base >= 0.0 && self.base.is_finite() && fits) {
            return Err(Error::Training(format!(
                "the base rate is {}; expected a number of at least 0, and ratios from 0 to 1",
                self.base
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_rises_from_zero_and_cosine_ends_at_the_minimum() {
        let schedule = LrSchedule { base: 2.0, warmup: 4, shape: LrShape::cosine(12, 0.25) };
        assert_eq!((0..5).map(|t| schedule.lr(t)).collect::<Vec<_>>(), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(schedule.lr(12), 0.5);
        assert!(schedule.lr(11) > schedule.lr(12));
    }

    #[test]
    fn ratios_outside_the_unit_interval_are_refused() {
        assert!(LrSchedule { base: 1.0, warmup: 0, shape: LrShape::cosine(10, 1.5) }.check().is_err());
        assert!(LrSchedule::constant(-1.0).check().is_err());
        assert!(LrSchedule::constant(0.0).check().is_ok());
    }
}
