//! `length-penalty`: charges each response for its length, as an example of a stage in a crate of one's own.
//!
//! It reads `token_level_scores` and `responses` and writes `token_level_rewards`, which the advantage stage prefers to
//! the scores when it is there. `src/main.rs` is the whole program; `pipeline.yaml` the whole pipeline.

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_stage::{
    Batch, Input, Map, MapContext, Output, Outputs, Parameters, Ports, Range, Register, ragged_f32, ragged_i64,
};

/// Settings, given by `with:` in the pipeline.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Tokens that are free.
    pub free: usize,
    /// Reward taken off, at the last token, for each token beyond `free`.
    pub price: f32,
}

/// The stage.
pub struct LengthPenalty {
    config: Config,
}

impl LengthPenalty {
    /// Rewards of one response: its scores, less the charge at the last token.
    fn charged(&self, scores: &[f32], tokens: usize) -> Vec<f32> {
        let mut rewards = scores.to_vec();
        if let Some(last) = rewards.last_mut() {
            *last -= self.config.price * tokens.saturating_sub(self.config.free) as f32;
        }
        rewards
    }
}

impl Map for LengthPenalty {
    fn ports(&self) -> Ports {
        Ports::new(
            vec![Input::new("token_level_scores", ragged_f32()), Input::new("responses", ragged_i64())],
            vec![Output::new("token_level_rewards", ragged_f32())],
        )
    }

    fn map(&mut self, batch: &Batch, _: &MapContext<'_>) -> Result<Outputs> {
        let (scores, responses) = (batch.ragged::<f32>("token_level_scores")?, batch.ragged::<i64>("responses")?);
        let rewards: Vec<Vec<f32>> =
            (0..batch.len()).map(|row| self.charged(scores.row(row), responses.row(row).len())).collect();
        Ok(Outputs::new().ragged("token_level_rewards", rewards))
    }
}

impl Register for LengthPenalty {
    const NAME: &'static str = "length-penalty";
    type Config = Config;

    fn new(config: Config, _: &Parameters) -> Result<Self> {
        Range::AtLeast(0.0).check("with.price", f64::from(config.price))?;
        Ok(Self { config })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_beyond_the_free_ones_are_charged_and_only_at_the_end() {
        let stage = LengthPenalty { config: Config { free: 2, price: 0.5 } };
        assert_eq!(stage.charged(&[1.0, 1.0, 1.0, 1.0], 4), [1.0, 1.0, 1.0, 0.0]);
        assert_eq!(stage.charged(&[1.0, 1.0], 2), [1.0, 1.0]);
        assert_eq!(stage.charged(&[], 0), [0.0; 0]);
    }
}
