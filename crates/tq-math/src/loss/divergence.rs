//! Trust regions in terms of probabilities instead of ratios.

use super::{Loss, PolicyLoss, Term, Token, Tokens};
use crate::aggregate::Aggregation;
use crate::error::Result;

/// How the distance of a token's two probabilities is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Divergence {
    /// `π - π_old`: total variation of the event "this token" (`dppo_tv`).
    TotalVariation,
    /// KL of the event "this token or another" (`dppo_kl`).
    BinaryKl,
}

/// `dppo_tv`, `dppo_kl`: `-A·sg(min(r, c))·log π` for tokens whose probability has not yet moved too far the way that the advantage pushes it; 0 for others.
///
/// With A > 0 a token is dropped once its divergence exceeds `high` upwards, otherwise once it exceeds `low` downwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dppo {
    /// The measure.
    pub divergence: Divergence,
    /// Bound where A ≤ 0.
    pub low: f64,
    /// Bound where A > 0.
    pub high: f64,
    /// Largest ratio that counts.
    pub c: f64,
}

impl Dppo {
    fn trusted(&self, token: Token) -> bool {
        let (p, old) = (token.log_prob.exp(), token.old.exp());
        let up = token.advantage > 0.0;
        match self.divergence {
            Divergence::TotalVariation if up => p - old <= self.high,
            Divergence::TotalVariation => p - old >= -self.low,
            Divergence::BinaryKl => {
                let other = ((1.0 - old + 1e-8) / (1.0 - p + 1e-8)).ln();
                let kl = old * (token.old - token.log_prob) + (1.0 - old) * other;
                if up { kl <= self.high || p <= old } else { kl <= self.low || p >= old }
            }
        }
    }
}

impl PolicyLoss for Dppo {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        let loss = tokens.sum_up(aggregation, |_, token| {
            if !self.trusted(token) {
                return Term::constant(0.0);
            }
            let slope = -token.advantage * token.bounded_ratio().value.min(self.c);
            Term { value: slope * token.log_prob, slope }
        })?;
        Ok(loss.with_metrics([
            ("actor/pg_clipfrac", tokens.share(|_, token| !self.trusted(token))?),
            ("actor/ppo_kl", tokens.mean(|_, token| -token.bounded_log_ratio())?),
            (
                "actor/pg_clipfrac_lower",
                tokens.share(|_, token| token.bounded_ratio().value > self.c && self.trusted(token))?,
            ),
        ]))
    }
}
