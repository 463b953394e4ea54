//! The columns of a mini-batch as flat slices, and what is reported about them under verl's names.

use anyhow::Result;
use tq_model_stage::{Sequences, Sums};
use tq_stage::Batch;

/// Columns of one mini-batch; per-token columns are flat, in row order.
pub struct Columns {
    pub(crate) sequences: Sequences,
    pub(crate) old_log_probs: Vec<f32>,
    pub(crate) advantages: Vec<f32>,
    pub(crate) ref_log_probs: Option<Vec<f32>>,
    rollout_log_probs: Option<Vec<f32>>,
    scores: Option<Vec<f32>>,
    rewards: Option<Vec<f32>>,
}

impl Columns {
    pub(crate) fn read(batch: &Batch, reference: bool) -> Result<Self> {
        let sequences = Sequences::read(batch)?;
        Ok(Self {
            old_log_probs: sequences.column(batch, "old_log_probs")?,
            advantages: sequences.column(batch, "advantages")?,
            ref_log_probs: if reference { Some(sequences.column(batch, "ref_log_probs")?) } else { None },
            rollout_log_probs: sequences.optional(batch, "rollout_log_probs")?,
            scores: sequences.optional(batch, "token_level_scores")?,
            rewards: sequences.optional(batch, "token_level_rewards")?,
            sequences,
        })
    }
}

/// Reports scores, rewards, advantages, lengths and lag of a mini-batch trained at weight version `version`.
///
/// # Errors
/// When a column does not fit the responses.
pub(crate) fn describe(mini: &Columns, batch: &Batch, version: u64, longest: Longest, sums: &mut Sums) -> Result<()> {
    let rows = batch.len() as f64;
    if let Some(scores) = mini.scores.as_ref().or(mini.rewards.as_ref()) {
        let prompts: Vec<usize> = mini.sequences.prompts.iter().map(Vec::len).collect();
        let found = tq_metrics::batch::metrics(&tq_metrics::batch::Batch {
            layout: &mini.sequences.layout,
            prompt_lengths: &prompts,
            max_prompt_length: longest.prompt,
            max_response_length: longest.response,
            token_level_scores: scores,
            token_level_rewards: mini.rewards.as_deref(),
            advantages: Some(&mini.advantages),
            returns: None,
            values: None,
        })?;
        found.iter().for_each(|(name, value)| sums.mean(name, value, rows));
    }
    let lags: Vec<f64> = batch
        .heads()
        .iter()
        .map(|head| version.saturating_sub(head.span.map_or(head.version, |s| s.first)) as f64)
        .collect();
    sums.mean("lag/mean", lags.iter().sum::<f64>() / rows, rows);
    sums.mean("lag/max", lags.iter().copied().fold(0.0, f64::max), rows);
    sums.part("perf/total_num_tokens", mini.sequences.total_tokens() as f64);
    if let Some(rollout) = &mini.rollout_log_probs {
        let gaps: Vec<f64> = mini
            .old_log_probs
            .iter()
            .zip(rollout)
            .map(|(&old, &ro)| (f64::from(old).exp() - f64::from(ro).exp()).abs())
            .collect();
        let tokens = gaps.len() as f64;
        sums.mean("training/rollout_probs_diff_mean", gaps.iter().sum::<f64>() / tokens.max(1.0), tokens);
        sums.mean("training/rollout_probs_diff_max", gaps.iter().copied().fold(0.0, f64::max), tokens);
    }
    Ok(())
}

/// Longest prompt and response allowed, in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest {
    pub(crate) prompt: usize,
    pub(crate) response: usize,
}
