//! What a batch looked like: scores, advantages, lengths.

use tq_math::{Layout, stats};

use crate::error::Result;
use crate::metrics::Metrics;

/// The columns of the rows that a step trained on. A row with an empty response counts as aborted.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Rows of responses, and the response mask.
    pub layout: &'a Layout,
    /// Tokens of each row's prompt.
    pub prompt_lengths: &'a [usize],
    /// The longest prompt allowed, `data.max_prompt_length`.
    pub max_prompt_length: usize,
    /// The longest response allowed, `data.max_response_length`.
    pub max_response_length: usize,
    /// Score per token, before any penalty.
    pub token_level_scores: &'a [f32],
    /// Reward per token; `None` if it is the score.
    pub token_level_rewards: Option<&'a [f32]>,
    /// Advantage per token.
    pub advantages: Option<&'a [f32]>,
    /// Return per token.
    pub returns: Option<&'a [f32]>,
    /// The critic's value per token.
    pub values: Option<&'a [f32]>,
}

/// `critic/*`, `response_length/*`, `response_length_non_aborted/*`, `response/aborted_ratio`, `prompt_length/*`.
///
/// Scores and rewards are sums over the rows' tokens, of rows that were not aborted; advantages, returns and values are over kept tokens.
/// `critic/vf_explained_var` is `1 - var(R - V) / (var(R) + 1e-5)` with unbiased variances. A `clip_ratio` is the share of rows that are as long as
/// allowed. Statistics over nothing are NaN.
///
/// # Errors
/// [`Error::Columns`](crate::Error::Columns) if a column does not fit the layout.
pub fn metrics(batch: &Batch<'_>) -> Result<Metrics> {
    let layout = batch.layout;
    let lengths: Vec<usize> = (0..layout.rows()).map(|i| layout.len(i)).collect();
    let finished =
        |values: Vec<f64>| values.into_iter().zip(&lengths).filter(|(_, length)| **length > 0).map(|(value, _)| value);
    let mut metrics = Metrics::new();
    let scores = stats::row_sums(layout, batch.token_level_scores)?;
    metrics.set_summary("critic/score", finished(scores.clone()));
    let rewards = batch.token_level_rewards.map_or(Ok(scores), |rewards| stats::row_sums(layout, rewards))?;
    metrics.set_summary("critic/rewards", finished(rewards));
    for (name, column) in [("advantages", batch.advantages), ("returns", batch.returns), ("values", batch.values)] {
        if let Some(column) = column {
            stats::sum(layout, column)?; // refuses a column of another length
            metrics.set_summary(&format!("critic/{name}"), layout.all_kept().map(|k| column[k].into()));
        }
    }
    if let (Some(returns), Some(values)) = (batch.returns, batch.values) {
        metrics.set("critic/vf_explained_var", explained_variance(layout, returns, values));
    }
    lengths_of(&mut metrics, "response_length", &lengths, batch.max_response_length);
    let responses: Vec<usize> = lengths.iter().copied().filter(|length| *length > 0).collect();
    lengths_of(&mut metrics, "response_length_non_aborted", &responses, batch.max_response_length);
    metrics.set("response/aborted_ratio", (lengths.len() - responses.len()) as f64 / lengths.len() as f64);
    lengths_of(&mut metrics, "prompt_length", batch.prompt_lengths, batch.max_prompt_length);
    Ok(metrics)
}

fn explained_variance(layout: &Layout, returns: &[f32], values: &[f32]) -> f64 {
    let misses: Vec<f64> = returns.iter().zip(values).map(|(r, v)| f64::from(*r) - f64::from(*v)).collect();
    match (stats::variance(layout, &misses), stats::variance(layout, returns)) {
        (Ok(left), Ok(all)) => 1.0 - left / (all + 1e-5),
        _ => f64::NAN,
    }
}

fn lengths_of(metrics: &mut Metrics, prefix: &str, lengths: &[usize], allowed: usize) {
    metrics.set_summary(prefix, lengths.iter().map(|length| *length as f64));
    let full = lengths.iter().filter(|length| **length >= allowed).count();
    metrics.set(format!("{prefix}/clip_ratio"), full as f64 / lengths.len() as f64);
}
