//! Advantage estimators: how much better a token was than expected.
//!
//! An [`Estimator`] is found by verl's name in a [`Registry`] and sees a [`Batch`]. Which columns it reads beyond the rewards is its
//! [`needs`](Estimator::needs); how many rows must be seen at once is its [`scope`](Estimator::scope).
//!
//! Estimators of *outcomes* use one number per row, the sum of its rewards over all of its tokens, and give every kept token of a row the same advantage;
//! rows of one prompt form a group. Advantages outside the mask are 0.

mod gae;
mod gdpo;
mod group;
mod registry;
mod reinforce;
mod token_baseline;

pub use gae::Gae;
pub use gdpo::Gdpo;
pub use group::{Gpg, Grpo, GrpoPassk, Opo, Rloo, RlooSingleton};
pub use registry::{Params, Registry};
pub use reinforce::{ReinforcePlusPlus, ReinforcePlusPlusBaseline, Remax};
pub use token_baseline::{Alignment, TokenBaseline};

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::stats;

/// What an estimator is given: the layout, the rewards, and whichever other columns there are.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Rows and mask.
    pub layout: &'a Layout,
    /// Reward per token.
    pub token_level_rewards: &'a [f32],
    /// The group of each row; rows of one prompt share it.
    pub groups: Option<&'a [u64]>,
    /// The critic's estimate before each token.
    pub values: Option<&'a [f32]>,
    /// Log-probability of each token under the policy at the cycle's start.
    pub old_log_probs: Option<&'a [f32]>,
    /// Σ π² over the vocabulary, per token.
    pub sum_pi_squared: Option<&'a [f32]>,
    /// Importance weight of each token.
    pub rollout_is_weights: Option<&'a [f32]>,
    /// The reward of a greedy answer to the same prompt, per row.
    pub reward_baselines: Option<&'a [f32]>,
    /// Named parts of the reward, each one value per row.
    pub components: &'a [(&'a str, &'a [f32])],
}

impl<'a> Batch<'a> {
    /// A batch that has rewards only.
    pub fn new(layout: &'a Layout, token_level_rewards: &'a [f32]) -> Self {
        Batch {
            layout,
            token_level_rewards,
            groups: None,
            values: None,
            old_log_probs: None,
            sum_pi_squared: None,
            rollout_is_weights: None,
            reward_baselines: None,
            components: &[],
        }
    }

    /// The score of each row: the sum of its rewards over all tokens, kept or not.
    pub(crate) fn scores(&self) -> Result<Vec<f64>> {
        self.layout.check_tokens("token_level_rewards", self.token_level_rewards.len())?;
        stats::row_sums(self.layout, self.token_level_rewards)
    }

    pub(crate) fn per_token(
        &self,
        algorithm: &'static str,
        what: &'static str,
        column: Option<&'a [f32]>,
    ) -> Result<&'a [f32]> {
        let column = column.ok_or(Error::MissingInput { algorithm, what })?;
        self.layout.check_tokens(what, column.len())?;
        Ok(column)
    }

    pub(crate) fn per_row(
        &self,
        algorithm: &'static str,
        what: &'static str,
        column: Option<&'a [f32]>,
    ) -> Result<&'a [f32]> {
        let column = column.ok_or(Error::MissingInput { algorithm, what })?;
        self.layout.check_rows(what, column.len())?;
        Ok(column)
    }

    /// The rows of each group, groups in order of first appearance.
    pub(crate) fn members(&self, algorithm: &'static str) -> Result<Vec<(u64, Vec<usize>)>> {
        let groups = self.groups.ok_or(Error::MissingInput { algorithm, what: "groups" })?;
        self.layout.check_rows("groups", groups.len())?;
        let mut place = HashMap::new();
        let mut members: Vec<(u64, Vec<usize>)> = Vec::new();
        for (row, group) in groups.iter().enumerate() {
            let at = *place.entry(*group).or_insert_with(|| {
                members.push((*group, Vec::new()));
                members.len() - 1
            });
            members[at].1.push(row);
        }
        Ok(members)
    }
}

/// What an estimator returns, one value per token each.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// How much better than expected; 0 outside the mask.
    pub advantages: Vec<f64>,
    /// What a critic should have predicted. Equal to the advantages for estimators of outcomes.
    pub returns: Vec<f64>,
}

impl Estimate {
    /// The same advantage for every kept token of a row, as advantages and returns.
    pub(crate) fn of_rows(layout: &Layout, per_row: &[f64]) -> Estimate {
        let mut advantages = vec![0.0; layout.tokens()];
        for (i, value) in per_row.iter().enumerate() {
            layout.kept_tokens(i).for_each(|k| advantages[k] = *value);
        }
        Estimate { returns: advantages.clone(), advantages }
    }

    /// These values whitened over the whole batch, as advantages and returns.
    pub(crate) fn whitened(layout: &Layout, values: &[f64]) -> Result<Estimate> {
        let advantages = stats::whiten(layout, values, true)?;
        Ok(Estimate { returns: advantages.clone(), advantages })
    }
}

/// A column that an estimator reads besides the rewards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Column {
    /// [`Batch::values`]: there must be a critic.
    Values,
    /// [`Batch::groups`].
    Groups,
    /// [`Batch::old_log_probs`].
    OldLogProbs,
    /// [`Batch::sum_pi_squared`].
    SumPiSquared,
    /// [`Batch::reward_baselines`]: a greedy answer per prompt.
    RewardBaselines,
    /// [`Batch::components`].
    Components,
}

/// How many rows must be in a batch for the result to mean what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A row alone.
    Row,
    /// A whole group.
    Group,
    /// The whole batch that is trained on, because of a statistic over all of it.
    Batch,
}

/// Turns rewards into advantages.
pub trait Estimator: std::fmt::Debug + Send + Sync {
    /// The columns read besides the rewards.
    fn needs(&self) -> &'static [Column];

    /// How many rows must be seen at once.
    fn scope(&self) -> Scope;

    /// Advantages and returns of `batch`.
    ///
    /// # Errors
    /// [`Error::MissingInput`] or [`Error::Length`] for a column; [`Error::SmallGroup`] or [`Error::TooFewTokens`] where a statistic has no answer.
    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate>;
}
