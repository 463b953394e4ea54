//! `dataset`: fills a partition with prompts read from files, over and over in seeded order.
//!
//! The n-th row ever put is a pure function of (files, seed, n), so the store's count of rows born is the whole cursor: a
//! resumed run goes on with the next row. Puts wait when enough prompts are queued; a partition that is read in rounds
//! (validation) is filled once, in file order unless `data.validation_shuffle`, and closed.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_data::{Dataset, Order, PromptOptions, PromptSet, ReadOptions, Tokenizer, Truncation};
use tq_stage::{
    Extent, Kind, Output, Outputs, Parameters, Ports, Range, Refusal, Register, Stage, StageContext, ragged_i64,
};
use transferqueue::{Error, NewRow};

/// The source's settings; the runner fills them from the partition's `files:`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Parquet files in verl's layout, in order.
    pub files: Vec<String>,
    /// Put every row once and close the partition (validation).
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

impl Config {
    /// For `files`, with the limit that the parameters set: `data.val_max_samples` with `once`, else
    /// `data.train_max_samples` (-1: none).
    ///
    /// # Errors
    /// When the limit is 0 or less than -1.
    pub fn new(files: Vec<String>, once: bool, parameters: &Parameters) -> Result<Self> {
        let key = if once { "data.val_max_samples" } else { "data.train_max_samples" };
        Ok(Self { files, once, limit: limit(parameters, key)? })
    }

    /// Prompts that these files come to: what the plan's length in epochs is counted in.
    ///
    /// # Errors
    /// When files or parameters do not suit.
    pub fn count(self, parameters: &Parameters) -> Result<u64> {
        let source = Source { config: self };
        let filtered = parameters.get_or("data.filter_overlong_prompts", false)?;
        Ok(if filtered { source.prompts(parameters)?.len() } else { source.dataset(parameters)?.len() } as u64)
    }
}

/// Most rows of a use's files, `None` for all.
fn limit(parameters: &Parameters, key: &str) -> Result<Option<usize>> {
    let limit: i64 = parameters.get_or(key, -1)?;
    Range::MinusOneOr("all", 1.0).check(key, limit as f64)?;
    Ok(usize::try_from(limit).ok())
}

fn truncation(parameters: &Parameters) -> Result<Truncation> {
    let key = "data.truncation";
    let name = parameters.get_or(key, "error".to_owned())?;
    let unknown = |_| Refusal::new(key, format!("`{name}`"), "error, left, right or middle");
    Ok(name.parse().map_err(unknown)?)
}

impl Source {
    fn dataset(&self, parameters: &Parameters) -> Result<Dataset> {
        let options = ReadOptions {
            prompt_key: parameters.get_or("data.prompt_key", "prompt".to_owned())?,
            data_source_key: parameters.get_or("data.reward_fn_key", "data_source".to_owned())?,
            limit: self.config.limit,
            ..ReadOptions::default()
        };
        Ok(Dataset::read(&self.config.files, &options)?)
    }

    /// In which order the prompts are put: seeded by `data.seed`, or else by the run's seed.
    fn order(&self, prompts: usize, run_seed: u64, parameters: &Parameters) -> Result<Order> {
        let shuffle = if self.config.once {
            parameters.get_or("data.validation_shuffle", false)?
        } else {
            parameters.get_or("data.shuffle", true)?
        };
        Ok(if shuffle {
            Order::shuffled(prompts, parameters.get_or("data.seed", run_seed)?)
        } else {
            Order::sequential(prompts)
        })
    }

    fn prompts(&self, parameters: &Parameters) -> Result<PromptSet> {
        let dataset = self.dataset(parameters)?;
        let folder = parameters.tokenizer_path()?;
        let tokenizer = Tokenizer::load(&folder).with_context(|| format!("tokenizer of `{}`", folder.display()))?;
        let options = PromptOptions {
            max_length: parameters.get("data.max_prompt_length")?,
            filter_overlong: parameters.get_or("data.filter_overlong_prompts", false)?,
            truncation: truncation(parameters)?,
        };
        let prompts = PromptSet::prepare(&dataset, &tokenizer, &options)?;
        ensure!(
            prompts.len() > 0,
            "no prompt is left of {}; {} were longer than {} tokens",
            self.config.files.join(", "),
            prompts.filtered(),
            options.max_length
        );
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
        let order = self.order(prompts.len(), cx.seed(), cx.parameters())?;
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

    fn new(config: Config, parameters: &Parameters) -> Result<Self> {
        // Whichever files it is going to fill a partition from: the plan is refused, not the run stopped.
        limit(parameters, "data.train_max_samples")?;
        limit(parameters, "data.val_max_samples")?;
        truncation(parameters)?;
        Ok(Self { config })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parameters(data: Value) -> Parameters {
        Parameters::new(json!({ "data": data }))
    }

    fn order(once: bool, data: Value) -> Vec<usize> {
        let source = Source { config: Config { once, ..Config::default() } };
        let order = source.order(50, 1, &parameters(data)).expect("valid parameters");
        (0..50).map(|ordinal| order.at(ordinal)).collect()
    }

    #[test]
    fn the_order_follows_the_parameters_and_else_the_runs_seed() {
        let in_files: Vec<usize> = (0..50).collect();
        assert_eq!(order(false, json!({"shuffle": false})), in_files);
        assert_eq!(order(true, json!({"shuffle": true})), in_files, "validation is shuffled on its own word");
        assert_ne!(order(true, json!({"validation_shuffle": true})), in_files);
        let seeded = order(false, json!({"shuffle": true, "seed": null}));
        assert_ne!(seeded, in_files);
        assert_eq!(order(false, json!({"shuffle": true, "seed": 1})), seeded);
        assert_ne!(order(false, json!({"shuffle": true, "seed": 2})), seeded);
    }

    #[test]
    fn the_limit_is_that_of_the_files_use() {
        let limits = parameters(json!({"train_max_samples": -1, "val_max_samples": 16}));
        assert_eq!(Config::new(vec![], false, &limits).expect("valid").limit, None);
        assert_eq!(Config::new(vec![], true, &limits).expect("valid").limit, Some(16));
        let refused = Config::new(vec![], false, &parameters(json!({"train_max_samples": 0}))).expect_err("no rows");
        assert!(refused.to_string().contains("data.train_max_samples"), "{refused}");
    }

    #[test]
    fn wrong_settings_are_refused_when_the_stage_is_made() {
        for (data, said) in [
            (json!({"val_max_samples": -2}), "data.val_max_samples: found -2; expected -1 (all) or at least 1"),
            (json!({"train_max_samples": 0}), "data.train_max_samples: found 0; expected -1 (all) or at least 1"),
            (json!({"truncation": "top"}), "data.truncation: found `top`; expected error, left, right or middle"),
        ] {
            let refused = Source::new(Config::default(), &parameters(data)).err().expect(said);
            assert_eq!(refused.to_string(), said);
        }
        assert!(Source::new(Config::default(), &parameters(json!({"val_max_samples": -1}))).is_ok());
    }

    #[test]
    fn what_is_counted_is_what_the_parameters_leave() {
        let written = tempfile::tempdir().expect("folder");
        let digits = tq_data::digits::write(written.path(), &tq_data::digits::Options { seed: 1, held_out: 160 })
            .expect("digits");
        let count = |data: Value| {
            let tree = json!({"data": data, "actor_rollout_ref": {"model": {"path": digits.model}}});
            let parameters = Parameters::new(tree);
            Config::new(vec![digits.train.display().to_string()], false, &parameters).and_then(|c| c.count(&parameters))
        };
        assert_eq!(count(json!({})).expect("all"), 650);
        assert_eq!(count(json!({"train_max_samples": 100})).expect("the first"), 100);
        let filtered = |longest: u64| count(json!({"filter_overlong_prompts": true, "max_prompt_length": longest}));
        assert_eq!(filtered(16).expect("none is longer"), 650);
        assert!(filtered(4).is_err(), "all are longer");
        let missing = count(json!({"reward_fn_key": "nobody"})).expect_err("no such column");
        assert!(missing.to_string().contains("nobody"), "{missing}");
    }
}
