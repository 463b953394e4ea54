//! The distance to a reference policy: penalties per token, and the controllers of their coefficient.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::stats;

/// An estimator of KL(policy ‖ reference) from the two log-probabilities of one sampled token (Schulman, "Approximating KL divergence", 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Estimator {
    /// `kl`, `k1`: `lp - ref`. Unbiased, may be negative.
    K1,
    /// `abs`: `|lp - ref|`.
    Abs,
    /// `mse`, `k2`: `(lp - ref)² / 2`. Its gradient is an unbiased gradient of the KL.
    K2,
    /// `low_var_kl`, `k3`: `e^x - x - 1` with `x = ref - lp` kept within ±20, the result within ±10. Unbiased, never negative.
    K3,
}

/// A penalty: an estimator's value, with its own gradient or with that of [`Estimator::K2`] (a name ending in `+`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Penalty {
    /// Whose value is used.
    pub estimator: Estimator,
    /// Whether the gradient is the one of [`Estimator::K2`].
    pub straight_through: bool,
}

const NAMES: [(&str, Estimator); 7] = [
    ("kl", Estimator::K1),
    ("k1", Estimator::K1),
    ("abs", Estimator::Abs),
    ("mse", Estimator::K2),
    ("k2", Estimator::K2),
    ("low_var_kl", Estimator::K3),
    ("k3", Estimator::K3),
];

impl FromStr for Penalty {
    type Err = Error;

    /// verl's names: `kl`/`k1`, `abs`, `mse`/`k2`, `low_var_kl`/`k3`, each with an optional `+`.
    fn from_str(name: &str) -> Result<Self> {
        let base = name.strip_suffix('+');
        let found = NAMES.iter().find(|(known, _)| *known == base.unwrap_or(name));
        let (_, estimator) = found.ok_or_else(|| Error::unknown("kl penalty", name, &NAMES.map(|(known, _)| known)))?;
        Ok(Penalty { estimator: *estimator, straight_through: base.is_some() })
    }
}

impl Estimator {
    /// Value, and derivative with respect to `log_prob`, for one token.
    pub fn evaluate(self, log_prob: f64, ref_log_prob: f64) -> (f64, f64) {
        let distance = log_prob - ref_log_prob;
        match self {
            Estimator::K1 => (distance, 1.0),
            Estimator::Abs => (distance.abs(), if distance == 0.0 { 0.0 } else { distance.signum() }),
            Estimator::K2 => (0.5 * distance * distance, distance),
            Estimator::K3 => {
                let x = (-distance).clamp(-20.0, 20.0);
                let raw = x.exp() - x - 1.0;
                let inside = distance.abs() <= 20.0 && raw.abs() <= 10.0;
                (raw.clamp(-10.0, 10.0), if inside { 1.0 - x.exp() } else { 0.0 })
            }
        }
    }
}

impl Penalty {
    /// Value, and derivative with respect to `log_prob`, for one token.
    pub fn evaluate(self, log_prob: f64, ref_log_prob: f64) -> (f64, f64) {
        let (value, slope) = self.estimator.evaluate(log_prob, ref_log_prob);
        let slope = if self.straight_through { Estimator::K2.evaluate(log_prob, ref_log_prob).1 } else { slope };
        (value, slope)
    }
}

/// Rewards after the KL penalty.
#[derive(Debug, Clone, PartialEq)]
pub struct InReward {
    /// `token_level_scores - coefficient · kl`: the column `token_level_rewards`.
    pub rewards: Vec<f64>,
    /// The mean over rows of the rows' mean KL: what a controller is updated with (metric `actor/reward_kl_penalty`).
    pub current_kl: f64,
}

/// Subtracts the KL to the reference from the scores of each token (verl: `algorithm.use_kl_in_reward`). Tokens outside the mask keep their score.
///
/// # Errors
/// [`Error::Length`] if a column does not have one value per token.
pub fn in_reward(
    layout: &Layout,
    scores: &[f32],
    log_probs: &[f32],
    ref_log_probs: &[f32],
    penalty: Penalty,
    coefficient: f64,
) -> Result<InReward> {
    layout.check_tokens("token_level_scores", scores.len())?;
    layout.check_tokens("old_log_probs", log_probs.len())?;
    layout.check_tokens("ref_log_probs", ref_log_probs.len())?;
    let mut kl = vec![0.0; layout.tokens()];
    for k in layout.all_kept() {
        kl[k] = penalty.evaluate(log_probs[k].into(), ref_log_probs[k].into()).0;
    }
    let rewards = scores.iter().zip(&kl).map(|(score, kl)| f64::from(*score) - coefficient * kl).collect();
    let per_row = stats::row_means(layout, &kl)?;
    let current_kl = if per_row.is_empty() { 0.0 } else { per_row.iter().sum::<f64>() / per_row.len() as f64 };
    Ok(InReward { rewards, current_kl })
}

/// The coefficient of the KL penalty, fixed or steered (verl: `algorithm.kl_ctrl`). Its only state is its value: save [`value`](Self::value) with
/// the trainer and give it back by [`restore`](Self::restore).
///
/// ```
/// use tq_math::kl::Controller;
/// let mut controller = Controller::new("adaptive", 0.2, 6.0, 10_000.0)?;
/// controller.update(12.0, 1000); // the KL is above its target: the coefficient rises, by at most 20 % per `horizon` samples
/// assert!((controller.value() - 0.204).abs() < 1e-12);
/// # Ok::<(), tq_math::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Controller {
    value: f64,
    adaptive: Option<Adaptive>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Adaptive {
    target: f64,
    horizon: f64,
}

impl Controller {
    /// The controller named `kind`: `fixed`, or `adaptive` (Ziegler et al. 2019, §2.2), which steers the KL towards `target_kl`. `kl_coef` is the
    /// first value; `horizon` the number of samples over which the value may change by a fifth.
    ///
    /// # Errors
    /// [`Error::Unknown`] for another kind; [`Error::Parameter`] if `horizon` or `target_kl` of an adaptive controller is not positive.
    pub fn new(kind: &str, kl_coef: f64, target_kl: f64, horizon: f64) -> Result<Self> {
        let adaptive = match kind {
            "fixed" => None,
            "adaptive" => {
                positive("kl_ctrl.horizon", horizon)?;
                positive("kl_ctrl.target_kl", target_kl)?;
                Some(Adaptive { target: target_kl, horizon })
            }
            _ => return Err(Error::unknown("kl_ctrl.type", kind, &["fixed", "adaptive"])),
        };
        Ok(Controller { value: kl_coef, adaptive })
    }

    /// The coefficient in force.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Takes note of the KL seen over a batch of `samples` rows.
    pub fn update(&mut self, current_kl: f64, samples: usize) {
        if let Some(Adaptive { target, horizon }) = self.adaptive {
            let error = (current_kl / target - 1.0).clamp(-0.2, 0.2);
            self.value *= 1.0 + error * samples as f64 / horizon;
        }
    }

    /// Puts back a value saved earlier.
    pub fn restore(&mut self, value: f64) {
        self.value = value;
    }
}

fn positive(name: &'static str, value: f64) -> Result<()> {
    if value > 0.0 {
        Ok(())
    } else {
        Err(Error::Parameter { name, found: value.to_string(), expected: "a positive number" })
    }
}
