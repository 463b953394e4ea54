//! `reward`: scores each response by the rule of its data source, one reward per token.

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_data::Tokenizer;
use tq_reward::{Piece, Sample, Scorers};
use tq_stage::{
    Batch, Input, Kind, Map, MapContext, Output, Outputs, Parameters, Ports, Register, ragged_f32, ragged_i64,
};

/// Settings of the stage: none yet; scorers are chosen by `data_source`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The stage.
pub struct Reward {
    scorers: Scorers,
    tokenizer: Option<Tokenizer>,
}

impl Reward {
    fn tokenizer(&mut self, parameters: &Parameters) -> Result<&Tokenizer> {
        if self.tokenizer.is_none() {
            let folder = parameters.tokenizer_path()?;
            self.tokenizer =
                Some(Tokenizer::load(&folder).with_context(|| format!("tokenizer of `{}`", folder.display()))?);
        }
        self.tokenizer.as_ref().context("the tokenizer was loaded above")
    }
}

impl Map for Reward {
    fn ports(&self) -> Ports {
        Ports::new(
            vec![
                Input::new("responses", ragged_i64()),
                Input::new("ground_truth", Kind::Utf8),
                Input::new("data_source", Kind::Utf8),
            ],
            vec![Output::new("token_level_scores", ragged_f32())],
        )
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        let (responses, truths, sources) =
            (batch.ragged::<i64>("responses")?, batch.utf8("ground_truth")?, batch.utf8("data_source")?);
        self.tokenizer(cx.stage().parameters())?;
        let tokenizer = self.tokenizer.as_ref().context("the tokenizer was loaded above")?;
        let mut scores = Vec::with_capacity(batch.len());
        for row in 0..batch.len() {
            let pieces: Vec<Piece> =
                tokenizer.pieces(responses.row(row))?.into_iter().map(|p| Piece { text: p.text, end: p.end }).collect();
            scores.push(self.scorers.score(&Sample::new(sources.row(row), truths.row(row), &pieces))?.rewards);
        }
        Ok(Outputs::new().ragged("token_level_scores", scores))
    }
}

impl Register for Reward {
    const NAME: &'static str = "reward";
    type Config = Config;

    fn new(_: Config, _: &Parameters) -> Result<Self> {
        Ok(Self { scorers: Scorers::builtin(), tokenizer: None })
    }
}
