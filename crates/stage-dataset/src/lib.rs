//! `dataset`: fills a partition with prompts read from files, over and over in seeded order.
//!
//! The n-th row ever put is a pure function of (files, seed, n), so the store's count of rows born is the whole cursor: a
//! resumed run goes on with the next row. Puts wait when enough prompts are queued; a partition that is read in rounds
//! (validation) is filled once, in file order, and closed.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_data::{Dataset, Order, PromptOptions, PromptSet, ReadOptions, Tokenizer, Truncation};
use tq_stage::{Extent, Kind, Output, Outputs, Parameters, Ports, Register, Stage, StageContext, ragged_i64};
use transferqueue::{Error, NewRow};

/// The source's settings; the runner fills them from the partition's `files:`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Parquet files in verl's layout, in order.
    pub files: Vec<String>,
    /// Put every row once, in file order, and close the partition (validation).
    pub once: bool,
    /// Stop after this many rows of the files.
    pub limit: Option<usize>,
}

/// The source.
pub struct Source {
    config: Config,
}

/// Rows put at once.
const BLOCK: u64 = 64;

impl Source {
    fn prompts(&self, parameters: &Parameters) -> Result<PromptSet> {
        let options = ReadOptions {
            prompt_key: parameters.get_or("data.prompt_key", "prompt".to_owned())?,
            limit: self.config.limit,
            ..ReadOptions::default()
        };
        let dataset = Dataset::read(&self.config.files, &options)?;
        let folder = parameters.tokenizer_path()?;
        let tokenizer = Tokenizer::load(&folder).with_context(|| format!("tokenizer of `{}`", folder.display()))?;
        let truncation: Truncation = parameters.get_or("data.truncation", "error".to_owned())?.parse()?;
        let options = PromptOptions {
            max_length: parameters.get("data.max_prompt_length")?,
            filter_overlong: parameters.get_or("data.filter_overlong_prompts", false)?,
            truncation,
        };
        let prompts = PromptSet::prepare(&dataset, &tokenizer, &options)?;
        ensure!(prompts.len() > 0, "no prompt is left of {:?}; {} were longer than {} tokens", self.config.files, prompts.filtered(), options.max_length);
        Ok(prompts)
    }
}

impl Stage for Source {
    fn ports(&self) -> Ports {
        let text = |name| Output::new(name, Kind::Utf8).extent(Extent::Fixed(4096)).optional();
        Ports::new(
            vec![],
            vec![
                Output::new("prompt", ragged_i64()).extent(Extent::Prompt).optional(),
                text("ground_truth"),
                text("data_source"),
                Output::new("extra_info", Kind::Json).extent(Extent::Fixed(4096)).optional(),
            ],
        )
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        let prompts = self.prompts(cx.parameters())?;
        let served = cx.served().first().context("the source serves no partition")?.clone();
        let session = cx.session();
        let partition = session.partition(&served.partition)?;
        let shuffle = !self.config.once && cx.parameters().get_or("data.shuffle", true)?;
        let order = if shuffle { Order::shuffled(prompts.len(), cx.seed()) } else { Order::sequential(prompts.len()) };
        let mut next = session.born(partition)?;
        let end = if self.config.once { prompts.len() as u64 } else { u64::MAX };
        while next < end {
            let block: Vec<_> = (next..end.min(next + BLOCK)).map(|ordinal| &prompts[order.at(ordinal)]).collect();
            let cells = Outputs::new()
                .ragged::<i64>("prompt", block.iter().map(|p| p.ids.as_slice()))
                .utf8("ground_truth", block.iter().map(|p| p.ground_truth.as_str()))
                .utf8("data_source", block.iter().map(|p| p.data_source.as_str()))
                .json("extra_info", block.iter().map(|p| &p.extra_info))
                .rename(|port| served.writes.get(port).cloned());
            let rows = vec![NewRow::default(); block.len()];
            match session.put(partition, rows, cells, Instant::now() + cx.patience()) {
                Ok(_) => next += block.len() as u64,
                Err(error) if error.is_stopped() || matches!(error, Error::Ended { .. }) => return Ok(()),
                Err(error) => return Err(error).with_context(|| format!("rows {next}… into `{}`", served.partition)),
            }
        }
        session.close_partition(partition)?;
        Ok(())
    }
}

impl Register for Source {
    const NAME: &'static str = "dataset";
    type Config = Config;

    fn new(config: Config, _: &Parameters) -> Result<Self> {
        Ok(Self { config })
    }
}
