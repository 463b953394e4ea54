//! A baseline of its own for every position, of least variance.

use super::reinforce::rewards_to_go;
use super::{Batch, Column, Estimate, Estimator, Scope};
use crate::error::Result;

/// Which tokens of a group's rows are compared with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alignment {
    /// Those at the same position of the response (`optimal_token_baseline`).
    Position,
    /// The k-th *generated* ones, observations left out (`tir_optimal_token_baseline`, for several turns).
    Generated,
}

/// `optimal_token_baseline`, `tir_optimal_token_baseline`: rewards to go minus, per group and position, their mean weighted by the squared norm of the
/// score function so far.
///
/// With `w = 1 - 2π + Σπ²` (times the squared importance weight if there is one) and `W` its running sum over kept tokens:
/// `b_t = Σ G_t·W_t / (Σ W_t + 1e-8)` over the rows of the group that keep a token there, `A = G - b`. A row alone in its group has no baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBaseline {
    /// Which tokens share a baseline.
    pub alignment: Alignment,
    /// Whether the tail that only the longest row of a group has goes without a baseline (it would be its own).
    pub handle_zero_tail: bool,
}

const NAME: &str = "optimal_token_baseline";

impl Estimator for TokenBaseline {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups, Column::OldLogProbs, Column::SumPiSquared]
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let layout = batch.layout;
        let returns = rewards_to_go(batch)?;
        let weights = running_weights(batch)?;
        let mut advantages = returns.clone();
        for (_, mut rows) in batch.members(NAME)? {
            if self.alignment == Alignment::Generated {
                rows.retain(|row| layout.kept_in(*row) > 0);
            }
            if rows.len() < 2 {
                continue;
            }
            let width = rows.iter().map(|row| layout.len(*row)).max().unwrap_or(0);
            let (mut weighted, mut total) = (vec![0.0; width], vec![1e-8; width]);
            for row in &rows {
                for (at, k) in self.columns(batch, *row) {
                    weighted[at] += returns[k] * weights[k];
                    total[at] += weights[k];
                }
            }
            let bare = self.bare_tail(batch, &rows);
            for row in &rows {
                let end = bare.filter(|(longest, _)| longest == row).map_or(width, |(_, from)| from);
                for (at, k) in self.columns(batch, *row).filter(|(at, _)| *at < end) {
                    advantages[k] -= weighted[at] / total[at];
                }
            }
        }
        Ok(Estimate { advantages, returns })
    }
}

impl TokenBaseline {
    /// The kept tokens of `row` with the column that each is compared in.
    fn columns<'a>(&'a self, batch: &'a Batch<'_>, row: usize) -> impl Iterator<Item = (usize, usize)> + 'a {
        let start = batch.layout.row(row).start;
        batch.layout.kept_tokens(row).enumerate().map(move |(nth, k)| match self.alignment {
            Alignment::Position => (k - start, k),
            Alignment::Generated => (nth, k),
        })
    }

    /// The one row with the most kept tokens, and the column from which on it has no baseline.
    fn bare_tail(&self, batch: &Batch<'_>, rows: &[usize]) -> Option<(usize, usize)> {
        let mut by_length: Vec<(usize, usize)> = rows.iter().map(|row| (batch.layout.kept_in(*row), *row)).collect();
        by_length.sort_unstable_by(|a, b| b.cmp(a));
        let ((longest, row), (second, _)) = (by_length[0], by_length[1]);
        (self.handle_zero_tail && longest > second).then_some((row, second))
    }
}

/// W: the running sum of w over the kept tokens of each row; 0 elsewhere.
fn running_weights(batch: &Batch<'_>) -> Result<Vec<f64>> {
    let layout = batch.layout;
    let old = batch.per_token(NAME, "old_log_probs", batch.old_log_probs)?;
    let squared = batch.per_token(NAME, "sum_pi_squared", batch.sum_pi_squared)?;
    let importance = batch.rollout_is_weights;
    if let Some(importance) = importance {
        layout.check_tokens("rollout_is_weights", importance.len())?;
    }
    let mut running = vec![0.0; layout.tokens()];
    for i in 0..layout.rows() {
        let mut sum = 0.0;
        for k in layout.kept_tokens(i) {
            let w = 1.0 - 2.0 * f64::from(old[k]).exp() + f64::from(squared[k]);
            sum += importance.map_or(w, |importance| w * f64::from(importance[k]).powi(2));
            running[k] = sum;
        }
    }
    Ok(running)
}
