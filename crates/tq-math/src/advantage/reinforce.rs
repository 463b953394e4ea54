//! Estimators from the discounted or plain sum of what follows.

use super::group::group_means;
use super::{Batch, Column, Estimate, Estimator, Scope};
use crate::error::Result;
use crate::stats;

/// `reinforce_plus_plus`: the discounted sum of later rewards, whitened over the batch (Hu 2025).
///
/// Returns are the sums before whitening. Observation tokens are stepped over: what is earned after them reaches the tokens before them undiminished.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReinforcePlusPlus {
    /// Discount per token.
    pub gamma: f64,
}

impl Estimator for ReinforcePlusPlus {
    fn needs(&self) -> &'static [Column] {
        &[]
    }

    fn scope(&self) -> Scope {
        Scope::Batch
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let rewards = batch.per_token("reinforce_plus_plus", "token_level_rewards", Some(batch.token_level_rewards))?;
        let layout = batch.layout;
        let mut returns = vec![0.0; layout.tokens()];
        for i in 0..layout.rows() {
            let mut later = 0.0;
            for k in layout.kept_tokens(i).rev() {
                later = f64::from(rewards[k]) + self.gamma * later;
                returns[k] = later;
            }
        }
        Ok(Estimate { advantages: stats::whiten(layout, &returns, true)?, returns })
    }
}

/// `reinforce_plus_plus_baseline`: the score minus its group's mean, whitened over the tokens of the batch (Hu 2025).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReinforcePlusPlusBaseline;

impl Estimator for ReinforcePlusPlusBaseline {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups]
    }

    fn scope(&self) -> Scope {
        Scope::Batch
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let scores = batch.scores()?;
        let means = group_means(&scores, &batch.members("reinforce_plus_plus_baseline")?);
        let centred: Vec<f64> = scores.iter().zip(means).map(|(score, mean)| score - mean).collect();
        Estimate::whitened(batch.layout, &Estimate::of_rows(batch.layout, &centred).advantages)
    }
}

/// `remax`: the plain sum of later rewards minus the reward of a greedy answer to the same prompt (Li et al. 2024). Only rewards on kept tokens count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remax;

impl Estimator for Remax {
    fn needs(&self) -> &'static [Column] {
        &[Column::RewardBaselines]
    }

    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let baselines = batch.per_row("remax", "reward_baselines", batch.reward_baselines)?;
        let returns = rewards_to_go(batch)?;
        let mut advantages = vec![0.0; returns.len()];
        for (i, baseline) in baselines.iter().enumerate() {
            batch.layout.kept_tokens(i).for_each(|k| advantages[k] = returns[k] - f64::from(*baseline));
        }
        Ok(Estimate { advantages, returns })
    }
}

/// At each kept token, the sum of the rewards on it and on the kept tokens after it; 0 elsewhere.
pub(super) fn rewards_to_go(batch: &Batch<'_>) -> Result<Vec<f64>> {
    let layout = batch.layout;
    layout.check_tokens("token_level_rewards", batch.token_level_rewards.len())?;
    let mut to_go = vec![0.0; layout.tokens()];
    for i in 0..layout.rows() {
        let mut later = 0.0;
        for k in layout.kept_tokens(i).rev() {
            later += f64::from(batch.token_level_rewards[k]);
            to_go[k] = later;
        }
    }
    Ok(to_go)
}
