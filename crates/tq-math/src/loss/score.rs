//! Losses of the log-probability itself.

use super::{Loss, PolicyLoss, Term, Tokens};
use crate::aggregate::Aggregation;
use crate::error::Result;

/// `gpg`: the plain policy gradient, `-A·log π` (Chu et al. 2025).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpg;

impl PolicyLoss for Gpg {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        tokens.sum_up(aggregation, |_, token| Term { value: token.log_prob, slope: 1.0 }.times(-token.advantage))
    }
}

/// `dro`: the policy gradient with a quadratic pull towards the old policy (Richemond et al. 2024): `-(A·log π - β/2·(log π/π_old)²)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dro {
    /// Strength of the pull; positive.
    pub beta: f64,
}

impl PolicyLoss for Dro {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        let loss = tokens.sum_up(aggregation, |_, token| {
            let d = token.log_ratio();
            Term {
                value: 0.5 * self.beta * d * d - token.advantage * token.log_prob,
                slope: self.beta * d - token.advantage,
            }
        })?;
        Ok(loss.with_metrics([("actor/ppo_kl", tokens.mean(|_, token| -token.log_ratio())?)]))
    }
}
