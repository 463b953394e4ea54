//! Losses that treat tokens apart whose advantage and log-probability rise together: those drain the entropy (Cui et al. 2025).

use super::{Loss, PolicyLoss, Term, Token, Tokens};
use crate::aggregate::Aggregation;
use crate::error::Result;
use crate::stats;

/// `(A - mean A)·(log π - mean log π)` of each kept token; 0 elsewhere.
fn covariances(tokens: &Tokens<'_>) -> Result<Vec<f64>> {
    let advantage = stats::mean(tokens.layout, tokens.advantages)?;
    let log_prob = stats::mean(tokens.layout, tokens.log_probs)?;
    let mut covariances = vec![0.0; tokens.layout.tokens()];
    for k in tokens.layout.all_kept() {
        let token = tokens.token(k);
        covariances[k] = (token.advantage - advantage) * (token.log_prob - log_prob);
    }
    Ok(covariances)
}

/// `clip_cov`: PPO's clipped surrogate (no dual clip), with the loss of a few tokens of high covariance set to 0.
///
/// Candidates have a covariance strictly between `lower` and `upper` and are not clipped already; `max(⌊ratio·tokens⌋, 1)` of them are drawn at random
/// by [`Tokens::seed`], or all if there are fewer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipCov {
    /// How far the ratio may fall below 1.
    pub low: f64,
    /// How far the ratio may rise above 1.
    pub high: f64,
    /// Share of tokens to silence.
    pub ratio: f64,
    /// Covariances above this are candidates.
    pub lower: f64,
    /// Covariances below this are candidates.
    pub upper: f64,
}

impl ClipCov {
    fn surrogates(&self, token: Token) -> (Term, Term) {
        let ratio = token.ratio();
        (ratio.times(-token.advantage), ratio.clamp(1.0 - self.low, 1.0 + self.high).times(-token.advantage))
    }

    fn silenced(&self, tokens: &Tokens<'_>) -> Result<Vec<bool>> {
        let covariances = covariances(tokens)?;
        let mut candidates: Vec<usize> = tokens
            .layout
            .all_kept()
            .filter(|k| {
                let (free, clipped) = self.surrogates(tokens.token(*k));
                clipped.value <= free.value && self.lower < covariances[*k] && covariances[*k] < self.upper
            })
            .collect();
        let wanted = ((self.ratio * tokens.layout.kept() as f64) as usize).max(1).min(candidates.len());
        // The first `wanted` places of a Fisher–Yates shuffle.
        for place in 0..wanted {
            let left = (candidates.len() - place) as u64;
            let other = place + (scatter(tokens.seed, place as u64) % left) as usize;
            candidates.swap(place, other);
        }
        let mut silenced = vec![false; tokens.layout.tokens()];
        candidates[..wanted].iter().for_each(|k| silenced[*k] = true);
        Ok(silenced)
    }
}

/// SplitMix64's mixing function over seed and counter.
fn scatter(seed: u64, counter: u64) -> u64 {
    let z = seed.wrapping_add((counter + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl PolicyLoss for ClipCov {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        tokens.check()?;
        let silenced = self.silenced(tokens)?;
        let loss = tokens.sum_up(aggregation, |k, token| {
            let (free, clipped) = self.surrogates(token);
            if silenced[k] { Term::constant(0.0) } else { free.max(clipped) }
        })?;
        Ok(loss.with_metrics([
            ("actor/pg_clipfrac", tokens.share(|k, _| silenced[k])?),
            ("actor/ppo_kl", tokens.mean(|_, token| -token.log_ratio())?),
        ]))
    }
}

/// `kl_cov`: `-A·r` for all tokens, plus `coefficient·|log r|` for the share `ratio` of tokens (at least one) with the highest covariance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlCov {
    /// Share of tokens to hold back.
    pub ratio: f64,
    /// How strongly.
    pub coefficient: f64,
}

impl PolicyLoss for KlCov {
    fn evaluate(&self, tokens: &Tokens<'_>, aggregation: &Aggregation) -> Result<Loss> {
        tokens.check()?;
        let covariances = covariances(tokens)?;
        let mut highest: Vec<usize> = tokens.layout.all_kept().collect();
        highest.sort_by(|a, b| covariances[*b].total_cmp(&covariances[*a]));
        highest.truncate(((highest.len() as f64 * self.ratio) as usize).max(1));
        let mut held = vec![false; tokens.layout.tokens()];
        highest.iter().for_each(|k| held[*k] = true);
        let loss = tokens.sum_up(aggregation, |k, token| {
            let mut term = token.ratio().times(-token.advantage);
            if held[k] {
                let d = token.log_ratio();
                term.value += self.coefficient * d.abs();
                term.slope += if d == 0.0 { 0.0 } else { self.coefficient * d.signum() };
            }
            term
        })?;
        Ok(loss.with_metrics([("actor/ppo_kl", tokens.mean(|_, token| token.log_ratio().abs())?)]))
    }
}
