//! Losses as value and gradient.
//!
//! A [`PolicyLoss`] is found by verl's name in a [`Registry`] and sees the [`Tokens`] of a mini- or micro-batch. What it returns, a [`Loss`], carries the
//! derivative with respect to each token's log-probability, so that the model's side only has to back-propagate it. [`value_loss`] does the same for a
//! critic's predictions and [`kl_loss`] for the distance to a reference.
//!
//! For an entropy bonus nothing is needed from here but the weights of an [`Aggregation`]: the bonus is `Σ weight·entropy`, its gradient with respect to
//! the entropies the weights themselves.

mod covariance;
mod divergence;
mod ratio;
mod registry;
mod score;
mod sequence;
mod value;

pub use covariance::{ClipCov, KlCov};
pub use divergence::{Divergence, Dppo};
pub use ratio::{Cispo, Sapo, Vanilla};
pub use registry::{Params, Registry};
pub use score::{Dro, Gpg};
pub use sequence::{GeoMean, Gspo};
pub use value::value_loss;

use crate::aggregate::Aggregation;
use crate::error::Result;
use crate::kl::Penalty;
use crate::layout::{Layout, narrow};
use crate::stats;

/// What a policy loss is given, one value per token each.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// Rows and mask.
    pub layout: &'a Layout,
    /// Log-probabilities under the policy being trained; the gradient is with respect to these.
    pub log_probs: &'a [f32],
    /// Log-probabilities under the policy that the update starts from.
    pub old_log_probs: &'a [f32],
    /// Advantages.
    pub advantages: &'a [f32],
    /// Importance weights that each token's loss is multiplied by.
    pub rollout_is_weights: Option<&'a [f32]>,
    /// Decides what a loss that samples picks (`clip_cov`): the same seed picks the same tokens.
    pub seed: u64,
}

impl<'a> Tokens<'a> {
    /// Tokens without importance weights.
    pub fn new(layout: &'a Layout, log_probs: &'a [f32], old_log_probs: &'a [f32], advantages: &'a [f32]) -> Self {
        Tokens { layout, log_probs, old_log_probs, advantages, rollout_is_weights: None, seed: 0 }
    }

    fn check(&self) -> Result<()> {
        self.layout.check_tokens("log_probs", self.log_probs.len())?;
        self.layout.check_tokens("old_log_probs", self.old_log_probs.len())?;
        self.layout.check_tokens("advantages", self.advantages.len())?;
        self.rollout_is_weights.map_or(Ok(()), |weights| self.layout.check_tokens("rollout_is_weights", weights.len()))
    }

    fn token(&self, k: usize) -> Token {
        Token {
            log_prob: self.log_probs[k].into(),
            old: self.old_log_probs[k].into(),
            advantage: self.advantages[k].into(),
        }
    }

    /// The importance weight of token `k`; 1 without weights.
    fn importance(&self, k: usize) -> f64 {
        self.rollout_is_weights.map_or(1.0, |weights| weights[k].into())
    }

    /// Sums up a loss that looks at one token at a time.
    fn sum_up(&self, aggregation: &Aggregation, mut per_token: impl FnMut(usize, Token) -> Term) -> Result<Loss> {
        self.check()?;
        let weights = aggregation.weights(self.layout)?;
        let mut loss = Loss::zero(self.layout.tokens());
        for k in self.layout.all_kept() {
            let term = per_token(k, self.token(k));
            let weight = weights[k] * self.importance(k);
            loss.value += weight * term.value;
            loss.grad[k] = weight * term.slope;
        }
        Ok(loss)
    }

    /// The mean over kept tokens of something that depends on one token.
    fn mean(&self, of: impl Fn(usize, Token) -> f64) -> Result<f64> {
        let mut values = vec![0.0; self.layout.tokens()];
        self.layout.all_kept().for_each(|k| values[k] = of(k, self.token(k)));
        stats::mean(self.layout, &values)
    }

    /// The share of kept tokens for which something holds.
    fn share(&self, holds: impl Fn(usize, Token) -> bool) -> Result<f64> {
        self.mean(|k, token| f64::from(u8::from(holds(k, token))))
    }
}

/// One token.
#[derive(Debug, Clone, Copy)]
struct Token {
    log_prob: f64,
    old: f64,
    advantage: f64,
}

/// Log-ratios are kept within ±20 before they are exponentiated.
const LOG_RATIO_BOUND: f64 = 20.0;

impl Token {
    /// log π/π_old.
    fn log_ratio(self) -> f64 {
        self.log_prob - self.old
    }

    /// log π/π_old within ±20.
    fn bounded_log_ratio(self) -> f64 {
        self.log_ratio().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    }

    /// π/π_old from the bounded log-ratio, and its derivative with respect to the log-probability.
    fn bounded_ratio(self) -> Term {
        let value = self.bounded_log_ratio().exp();
        Term { value, slope: if self.log_ratio().abs() <= LOG_RATIO_BOUND { value } else { 0.0 } }
    }

    /// π/π_old, and its derivative with respect to the log-probability.
    fn ratio(self) -> Term {
        let value = self.log_ratio().exp();
        Term { value, slope: value }
    }
}

/// A number and its derivative with respect to the token's log-probability.
#[derive(Debug, Clone, Copy)]
struct Term {
    value: f64,
    slope: f64,
}

impl Term {
    fn constant(value: f64) -> Term {
        Term { value, slope: 0.0 }
    }

    fn times(self, factor: f64) -> Term {
        Term { value: self.value * factor, slope: self.slope * factor }
    }

    /// Kept within `low..=high`; outside, nothing flows back.
    fn clamp(self, low: f64, high: f64) -> Term {
        if self.value < low {
            Term::constant(low)
        } else if self.value > high {
            Term::constant(high)
        } else {
            self
        }
    }

    /// The larger of two; of equals, half of each slope.
    fn max(self, other: Term) -> Term {
        if self.value > other.value {
            self
        } else if other.value > self.value {
            other
        } else {
            Term { value: self.value, slope: 0.5 * (self.slope + other.slope) }
        }
    }

    /// The smaller of two; of equals, half of each slope.
    fn min(self, other: Term) -> Term {
        self.times(-1.0).max(other.times(-1.0)).times(-1.0)
    }
}

/// A loss, ready to be back-propagated.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Its value: the sum over tokens of weight times loss.
    pub value: f64,
    /// Its derivative with respect to each token's log-probability (or value, for [`value_loss`]); 0 outside the mask.
    pub grad: Vec<f64>,
    /// Numbers to report, by verl's names (`actor/pg_clipfrac`, …): means over the kept tokens at hand.
    pub metrics: Vec<(&'static str, f64)>,
}

impl Loss {
    fn zero(tokens: usize) -> Loss {
        Loss { value: 0.0, grad: vec![0.0; tokens], metrics: Vec::new() }
    }

    fn with_metrics(mut self, metrics: impl IntoIterator<Item = (&'static str, f64)>) -> Loss {
        self.metrics.extend(metrics);
        self
    }

    /// The gradient as `f32`.
    pub fn grad_f32(&self) -> Vec<f32> {
        narrow(&self.grad)
    }

    /// Adds `coefficient · other`, a loss with respect to the same numbers; metrics are appended unscaled.
    ///
    /// # Panics
    /// If the two have different numbers of tokens.
    pub fn add_scaled(&mut self, other: &Loss, coefficient: f64) {
        assert_eq!(self.grad.len(), other.grad.len(), "losses over different tokens do not add");
        self.value += coefficient * other.value;
        self.grad.iter_mut().zip(&other.grad).for_each(|(grad, more)| *grad += coefficient * more);
        self.metrics.extend_from_slice(&other.metrics);
    }
}

/// A policy loss.
pub trait PolicyLoss: std::fmt::Debug + Send + Sync {
    /// Value, gradient and metrics over `tokens`. An aggregation with the totals of a mini-batch makes the parts of its micro-batches add up.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) for a column; what [`Aggregation::weights`] refuses.
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss>;
}

/// The KL to a reference as a loss (verl: `actor.use_kl_loss`), and its derivative with respect to `log_probs`.
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) for a column; what [`Aggregation::weights`] refuses.
pub fn kl_loss(
    layout: &Layout,
    log_probs: &[f32],
    ref_log_probs: &[f32],
    penalty: Penalty,
    aggregation: &Aggregation,
) -> Result<Loss> {
    layout.check_tokens("log_probs", log_probs.len())?;
    layout.check_tokens("ref_log_probs", ref_log_probs.len())?;
    let weights = aggregation.weights(layout)?;
    let mut loss = Loss::zero(layout.tokens());
    for k in layout.all_kept() {
        let (value, slope) = penalty.evaluate(log_probs[k].into(), ref_log_probs[k].into());
        loss.value += weights[k] * value;
        loss.grad[k] = weights[k] * slope;
    }
    Ok(loss)
}
