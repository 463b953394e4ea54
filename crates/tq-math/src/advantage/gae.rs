//! Generalised advantage estimation.

use super::{Batch, Column, Estimate, Estimator, Scope};
use crate::error::Result;
use crate::stats;

/// `gae`: exponentially weighted temporal differences (Schulman et al. 2016), whitened over the batch.
///
/// From the last kept token of a row to its first: `δ = r + γ·V' - V`, `A = δ + γλ·A'`, where primes mean the next *kept* token (0 after the last):
/// observation tokens are stepped over, and neither their value nor their reward is read. Returns are `A + V` before whitening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gae {
    /// Discount per token.
    pub gamma: f64,
    /// Decay of later differences.
    pub lam: f64,
}

impl Estimator for Gae {
    fn needs(&self) -> &'static [Column] {
        &[Column::Values]
    }

    fn scope(&self) -> Scope {
        Scope::Batch
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let rewards = batch.per_token("gae", "token_level_rewards", Some(batch.token_level_rewards))?;
        let values = batch.per_token("gae", "values", batch.values)?;
        let layout = batch.layout;
        let mut raw = vec![0.0; layout.tokens()];
        let mut returns = vec![0.0; layout.tokens()];
        for i in 0..layout.rows() {
            let (mut next_value, mut next) = (0.0, 0.0);
            for k in layout.kept_tokens(i).rev() {
                let value = f64::from(values[k]);
                let delta = f64::from(rewards[k]) + self.gamma * next_value - value;
                next = delta + self.gamma * self.lam * next;
                next_value = value;
                raw[k] = next;
                returns[k] = next + value;
            }
        }
        Ok(Estimate { advantages: stats::whiten(layout, &raw, true)?, returns })
    }
}
