//! Estimators that compare the answers to one prompt with each other.

use super::{Batch, Column, Estimate, Estimator, Scope};
use crate::error::{Error, Result};
use crate::stats::mean_and_std;

/// Added to a group's standard deviation before dividing by it.
const STD_EPS: f64 = 1e-6;

/// `(s - mean) / (std + 1e-6)` within each group, or `s - mean`. A row alone in its group has mean 0 and deviation 1.
pub(super) fn standardise(scores: &[f64], members: &[(u64, Vec<usize>)], by_std: bool) -> Vec<f64> {
    let mut standard = vec![0.0; scores.len()];
    for (_, rows) in members {
        let of_group: Vec<f64> = rows.iter().map(|row| scores[*row]).collect();
        let (mean, std) = match mean_and_std(&of_group) {
            (_, None) => (0.0, 1.0),
            (mean, Some(std)) => (mean, std),
        };
        for row in rows {
            let centred = scores[*row] - mean;
            standard[*row] = if by_std { centred / (std + STD_EPS) } else { centred };
        }
    }
    standard
}

/// The mean score of each row's group; 0 for a row alone.
pub(super) fn group_means(scores: &[f64], members: &[(u64, Vec<usize>)]) -> Vec<f64> {
    let mut means = vec![0.0; scores.len()];
    for (_, rows) in members.iter().filter(|(_, rows)| rows.len() > 1) {
        let mean = rows.iter().map(|row| scores[*row]).sum::<f64>() / rows.len() as f64;
        rows.iter().for_each(|row| means[*row] = mean);
    }
    means
}

/// `grpo`, `grpo_vectorized`: the score, centred and scaled within its group (Shao et al. 2024); without the scaling, Dr. GRPO (Liu et al. 2025).
///
/// `A = (s - mean) / (std + 1e-6)` with the unbiased deviation. A row alone in its group keeps its score: `A = s / (1 + 1e-6)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grpo {
    /// Whether to divide by the deviation.
    pub by_std: bool,
}

impl Estimator for Grpo {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups]
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let members = batch.members("grpo")?;
        Ok(Estimate::of_rows(batch.layout, &standardise(&batch.scores()?, &members, self.by_std)))
    }
}

/// `grpo_passk`: only the best row of a group gets an advantage, its lead over the second best (Chen et al. 2025, pass@k training).
///
/// The lead is divided by `std + 1e-6` if asked. Ties give 0. Groups need two rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpoPassk {
    /// Whether to divide by the deviation.
    pub by_std: bool,
}

impl Estimator for GrpoPassk {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups]
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let scores = batch.scores()?;
        let mut advantages = vec![0.0; scores.len()];
        for (group, mut rows) in batch.members("grpo_passk")? {
            let of_group: Vec<f64> = rows.iter().map(|row| scores[*row]).collect();
            let (_, Some(std)) = mean_and_std(&of_group) else {
                return Err(Error::SmallGroup { algorithm: "grpo_passk", group, found: rows.len(), least: 2 });
            };
            rows.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let lead = scores[rows[0]] - scores[rows[1]];
            advantages[rows[0]] = if self.by_std { lead / (std + STD_EPS) } else { lead };
        }
        Ok(Estimate::of_rows(batch.layout, &advantages))
    }
}

/// What [`Rloo`] gives a row that is alone in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RlooSingleton {
    /// Its score (verl's `rloo`).
    Score,
    /// Nothing (verl's `rloo_vectorized`).
    Zero,
}

/// `rloo`, `rloo_vectorized`: the score against the mean of the *other* rows (Ahmadian et al. 2024): `(s - mean) · n / (n - 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rloo {
    /// The case of a group of one, in which verl's two versions differ.
    pub singleton: RlooSingleton,
}

impl Estimator for Rloo {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups]
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let mut scores = batch.scores()?;
        for (_, rows) in batch.members("rloo")? {
            let n = rows.len() as f64;
            if let [alone] = rows[..] {
                if self.singleton == RlooSingleton::Zero {
                    scores[alone] = 0.0;
                }
                continue;
            }
            let mean = rows.iter().map(|row| scores[*row]).sum::<f64>() / n;
            rows.iter().for_each(|row| scores[*row] = (scores[*row] - mean) * n / (n - 1.0));
        }
        Ok(Estimate::of_rows(batch.layout, &scores))
    }
}

/// `opo`: the score against the mean of its group weighted by response length (Hao et al. 2025). A row alone keeps its score; so does a group in which
/// no token is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opo;

impl Estimator for Opo {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups]
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let mut scores = batch.scores()?;
        for (_, rows) in batch.members("opo")?.into_iter().filter(|(_, rows)| rows.len() > 1) {
            let length = |row: &usize| batch.layout.kept_in(*row) as f64;
            let tokens: f64 = rows.iter().map(length).sum();
            if tokens == 0.0 {
                continue;
            }
            let baseline = rows.iter().map(|row| length(row) * scores[*row]).sum::<f64>() / tokens;
            rows.iter().for_each(|row| scores[*row] -= baseline);
        }
        Ok(Estimate::of_rows(batch.layout, &scores))
    }
}

/// `gpg`: the score centred within its group and scaled by the share of rows that scored at all (Chu et al. 2025):
/// `rows / max(rows with a score ≠ 0, 1) · (s - mean) / f_norm`. The share is taken over the whole batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpg {
    /// The constant divisor.
    pub f_norm: f64,
}

impl Estimator for Gpg {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups]
    }

    fn scope(&self) -> Scope {
        Scope::Batch
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let scores = batch.scores()?;
        let scored = scores.iter().filter(|score| **score != 0.0).count().max(1);
        let alpha = scores.len() as f64 / scored as f64;
        let means = group_means(&scores, &batch.members("gpg")?);
        let advantages: Vec<f64> =
            scores.iter().zip(means).map(|(score, mean)| alpha * (score - mean) / self.f_norm).collect();
        Ok(Estimate::of_rows(batch.layout, &advantages))
    }
}
