//! Several rewards, normalised apart.

use super::group::standardise;
use super::{Batch, Column, Estimate, Estimator, Scope};
use crate::error::{Error, Result};

/// `gdpo`: each part of the reward is centred and scaled within its group on its own, so that a part with a wide range does not drown the others; their
/// weighted sum is whitened over the batch.
///
/// Without parts the whole reward is the only part.
#[derive(Debug, Clone, PartialEq)]
pub struct Gdpo {
    /// Name and weight of each part.
    pub parts: Vec<(String, f64)>,
    /// Whether each part is divided by its deviation within the group.
    pub by_std: bool,
}

impl Estimator for Gdpo {
    fn needs(&self) -> &'static [Column] {
        &[Column::Groups, Column::Components]
    }

    fn scope(&self) -> Scope {
        Scope::Batch
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let members = batch.members("gdpo")?;
        let mut total = vec![0.0; batch.layout.rows()];
        if self.parts.is_empty() {
            total = standardise(&batch.scores()?, &members, self.by_std);
        }
        for (name, weight) in &self.parts {
            let found = batch.components.iter().find(|(known, _)| known == name);
            let (_, part) = found.ok_or_else(|| Error::Unknown {
                kind: "reward component",
                found: name.clone(),
                known: batch.components.iter().map(|(known, _)| known.to_string()).collect(),
            })?;
            batch.layout.check_rows("reward component", part.len())?;
            let scores: Vec<f64> = part.iter().map(|score| f64::from(*score)).collect();
            let standard = standardise(&scores, &members, self.by_std);
            total.iter_mut().zip(standard).for_each(|(total, part)| *total += weight * part);
        }
        let per_token = Estimate::of_rows(batch.layout, &total).advantages;
        Estimate::whitened(batch.layout, &per_token)
    }
}
