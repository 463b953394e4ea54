//! Losses of one ratio per row.

use super::{Loss, PolicyLoss, Term, Tokens};
use crate::aggregate::Aggregation;
use crate::error::Result;
use crate::stats::COUNT_EPS;

/// `gspo`: the ratio of a whole response, its length-th root taken (Zheng et al. 2025).
///
/// `s = exp(mean of log-ratios over the row)`, at most e^10; per token `max(-A·s, -A·clamp(s, 1-low, 1+high))`. The gradient of a token's s is s with
/// respect to its own log-probability, as in the paper's token variant with stopped gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gspo {
    /// How far s may fall below 1.
    pub low: f64,
    /// How far s may rise above 1.
    pub high: f64,
}

impl Gspo {
    /// The ratio of each token's row.
    fn ratios(tokens: &Tokens<'_>) -> Vec<Term> {
        let mut ratios = vec![Term::constant(1.0); tokens.layout.tokens()];
        for i in 0..tokens.layout.rows() {
            let log_ratios = tokens.layout.kept_tokens(i).map(|k| tokens.token(k).log_ratio());
            let mean = log_ratios.sum::<f64>() / tokens.layout.kept_in(i).max(1) as f64;
            let value = mean.min(10.0).exp();
            let slope = if mean <= 10.0 { value } else { 0.0 };
            tokens.layout.kept_tokens(i).for_each(|k| ratios[k] = Term { value, slope });
        }
        ratios
    }
}

impl PolicyLoss for Gspo {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        tokens.check()?;
        let ratios = Gspo::ratios(tokens);
        let surrogates = |k: usize, advantage: f64| {
            (ratios[k].times(-advantage), ratios[k].clamp(1.0 - self.low, 1.0 + self.high).times(-advantage))
        };
        let loss = tokens.sum_up(aggregation, |k, token| {
            let (free, clipped) = surrogates(k, token.advantage);
            free.max(clipped)
        })?;
        let clipped = tokens.share(|k, token| {
            let (free, clipped) = surrogates(k, token.advantage);
            clipped.value > free.value
        })?;
        Ok(loss.with_metrics([
            ("actor/pg_clipfrac", clipped),
            ("actor/ppo_kl", tokens.mean(|_, token| -token.log_ratio())?),
            ("actor/pg_clipfrac_lower", 0.0),
        ]))
    }
}

/// `geo_mean`: the geometric mean of clipped ratios (Zhao et al. 2025, GMPO): `-mean(A)·exp(mean of clipped log-ratios)` per row, averaged over rows.
///
/// A log-ratio is clipped to `-low..=high` on the side that the advantage pushes it. Importance weights enter by their geometric mean. The average is over
/// all rows, those without a kept token included; the aggregation's mode does not matter, and of its totals only `global_batch_size` and `dp_size` do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GeoMean {
    /// Bound of log-ratios below 0, as a positive number.
    pub low: f64,
    /// Bound of log-ratios above 0.
    pub high: f64,
}

impl GeoMean {
    /// The log-ratio, held back where moving further would help.
    fn clipped(&self, log_ratio: f64, advantage: f64) -> Term {
        let free = Term { value: log_ratio, slope: 1.0 };
        let held = free.clamp(-self.low, self.high);
        if advantage > 0.0 {
            free.min(held)
        } else if advantage < 0.0 {
            free.max(held)
        } else {
            Term::constant(0.0)
        }
    }
}

impl PolicyLoss for GeoMean {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        tokens.check()?;
        let layout = tokens.layout;
        let mut loss = Loss::zero(layout.tokens());
        let rows = aggregation.global_batch_size.unwrap_or(layout.rows() as f64);
        let weight = aggregation.dp_size as f64 / rows;
        for i in 0..layout.rows() {
            let length = layout.kept_in(i) as f64 + COUNT_EPS;
            let (mut exponent, mut advantage, mut importance) = (0.0, 0.0, 0.0);
            for k in layout.kept_tokens(i) {
                let token = tokens.token(k);
                exponent += self.clipped(token.log_ratio(), token.advantage).value / length;
                advantage += token.advantage / length;
                importance +=
                    tokens.rollout_is_weights.map_or(0.0, |weights| (f64::from(weights[k]) + 1e-10).ln()) / length;
            }
            let of_row = -advantage * exponent.exp() * importance.exp();
            loss.value += weight * of_row;
            for k in layout.kept_tokens(i) {
                let token = tokens.token(k);
                loss.grad[k] = weight * of_row * self.clipped(token.log_ratio(), token.advantage).slope / length;
            }
        }
        let outside = |log_ratio: f64| log_ratio < -self.low || log_ratio > self.high;
        Ok(loss.with_metrics([
            ("actor/pg_clipfrac", tokens.share(|_, token| outside(token.log_ratio()) && token.advantage > 0.0)?),
            ("actor/ppo_kl", tokens.mean(|_, token| -token.log_ratio())?),
            ("actor/pg_clipfrac_lower", tokens.share(|_, token| outside(token.log_ratio()) && token.advantage < 0.0)?),
        ]))
    }
}
