//! Losses of the ratio π/π_old of each token.

use super::{Loss, PolicyLoss, Term, Token, Tokens};
use crate::aggregate::Aggregation;
use crate::error::Result;

/// `vanilla`: PPO's clipped surrogate (Schulman et al. 2017) with the dual clip of Ye et al. 2020.
///
/// With r kept within e^±20: `max(-A·r, -A·clamp(r, 1-low, 1+high))`, and where A < 0 at most `-A·c`. With `c` infinite there is no dual clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vanilla {
    /// How far r may fall below 1.
    pub low: f64,
    /// How far r may rise above 1.
    pub high: f64,
    /// Largest r that counts where A < 0; above 1.
    pub c: f64,
}

impl Vanilla {
    fn surrogates(&self, token: Token) -> (Term, Term) {
        let ratio = token.bounded_ratio();
        (ratio.times(-token.advantage), ratio.clamp(1.0 - self.low, 1.0 + self.high).times(-token.advantage))
    }

    fn ceiling(&self, token: Token) -> f64 {
        if token.advantage < 0.0 { -token.advantage * self.c } else { f64::INFINITY }
    }
}

impl PolicyLoss for Vanilla {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        let loss = tokens.sum_up(aggregation, |_, token| {
            let (free, clipped) = self.surrogates(token);
            free.max(clipped).min(Term::constant(self.ceiling(token)))
        })?;
        let clipped = tokens.share(|_, token| {
            let (free, clipped) = self.surrogates(token);
            clipped.value > free.value
        })?;
        let capped = tokens.share(|_, token| {
            let (free, clipped) = self.surrogates(token);
            free.max(clipped).value > self.ceiling(token)
        })?;
        Ok(loss.with_metrics([
            ("actor/pg_clipfrac", clipped),
            ("actor/ppo_kl", tokens.mean(|_, token| -token.bounded_log_ratio())?),
            ("actor/pg_clipfrac_lower", capped),
        ]))
    }
}

/// `cispo`: the clipped ratio weighs the log-probability and is itself not differentiated (MiniMax-M1, 2025): `-sg(clamp(r, 1-low, 1+high))·A·log π`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cispo {
    /// How far r may fall below 1.
    pub low: f64,
    /// How far r may rise above 1.
    pub high: f64,
}

impl PolicyLoss for Cispo {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        let clipped = |token: Token| token.bounded_ratio().value.clamp(1.0 - self.low, 1.0 + self.high);
        let loss = tokens.sum_up(aggregation, |_, token| {
            let slope = -clipped(token) * token.advantage;
            Term { value: slope * token.log_prob, slope }
        })?;
        Ok(loss.with_metrics([
            ("actor/pg_clipfrac", tokens.share(|_, token| token.bounded_ratio().value != clipped(token))?),
            ("actor/ppo_kl", tokens.mean(|_, token| -token.bounded_log_ratio())?),
            ("actor/pg_clipfrac_lower", 0.0),
        ]))
    }
}

/// `sapo`: a soft gate instead of a clip (Qwen, 2025): `-A·σ(τ(r-1))·4/τ`, with one τ where A > 0 and another elsewhere.
///
/// Always aggregated as `seq-mean-token-mean`, whatever the configured mode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sapo {
    /// τ where A > 0.
    pub tau_pos: f64,
    /// τ elsewhere.
    pub tau_neg: f64,
}

impl PolicyLoss for Sapo {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        let per_row = Aggregation { mode: crate::aggregate::Mode::SeqMeanTokenMean, ..*aggregation };
        let loss = tokens.sum_up(&per_row, |_, token| {
            let tau = if token.advantage > 0.0 { self.tau_pos } else { self.tau_neg };
            let ratio = token.bounded_ratio();
            let gate = 1.0 / (1.0 + (-tau * (ratio.value - 1.0)).exp());
            Term { value: gate * 4.0 / tau, slope: 4.0 * gate * (1.0 - gate) * ratio.slope }.times(-token.advantage)
        })?;
        Ok(loss.with_metrics([
            ("actor/pg_clipfrac", 0.0),
            ("actor/ppo_kl", tokens.mean(|_, token| -token.bounded_log_ratio())?),
            ("actor/pg_clipfrac_lower", 0.0),
        ]))
    }
}
