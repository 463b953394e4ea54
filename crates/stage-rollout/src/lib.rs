//! `rollout`: samples responses with continuous batching.
//!
//! A fixed number of slots generate side by side; a claimed row enters as soon as one is free and is committed as soon as
//! it ends. A row's tokens depend on its prompt, its seed and the weights alone, never on the rows beside it.
//!
//! Which weights a row begins with is the schedule's rule: exactly those of its admission (the generator drains before it
//! changes weights), or the newest (running rows finish first, or go on with the new weights and record versions per token).
//!
//! With `on_lost: resume` the tokens of running rows are saved at every renewal. Whoever has a row after its worker was lost goes on from
//! them, and ends in the bits of a run that nobody disturbed; tokens of other weights than the row must have are discarded.

mod flight;
mod sampling;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fail::fail_point;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_model::{
    ModelConfig, Placement,
    generate::{Generator, GeneratorOptions, TorchGenerator},
    weights::DType,
};
use tq_model_stage::{convert::to_engine, dtype, placement};
use tq_stage::{
    Input, Output, Parameters, Ports, Range, Register, Stage, StageContext, TryWork, Weights, ragged_f32, ragged_i64,
};

use flight::{Entering, Flight};
use sampling::SamplingSettings;

/// Settings of the stage: none; everything is in `actor_rollout_ref.rollout`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The part of `actor_rollout_ref.rollout` that the stage honours.
#[derive(Clone, Debug, Deserialize)]
struct Settings {
    max_num_seqs: usize,
    prompt_length: usize,
    response_length: usize,
    /// Generate until `response_length`, whatever is sampled.
    ignore_eos: bool,
    /// Offer the sampled tokens' log-probs as a column.
    calculate_log_probs: bool,
    val_kwargs: SamplingSettings,
}

impl Settings {
    fn stop_tokens(&self, config: &ModelConfig) -> Vec<i64> {
        if self.ignore_eos { Vec::new() } else { config.eos_token_ids.clone() }
    }
}

/// The stage.
pub struct Rollout {
    settings: Settings,
    sampling: SamplingSettings,
    dtype: DType,
}

/// Most rows generated side by side: each holds a cache of keys and values.
const MOST_SLOTS: f64 = 65_536.0;

/// How often running leases are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// What the generator needs to be made once the first weights are known.
struct Engine {
    config: ModelConfig,
    placement: Placement,
    weights: Weights,
    options: GeneratorOptions,
    running: Option<TorchGenerator>,
}

impl Engine {
    /// Loads a published version, waiting for it; `None`: the newest.
    fn load(&mut self, version: Option<u64>) -> Result<()> {
        let pinned = self.weights.pin(version)?;
        let number = pinned.version().version;
        let tensors = to_engine(&self.weights.read(&pinned)?)?;
        match &mut self.running {
            Some(generator) => generator.set_weights(number, &tensors)?,
            None => {
                self.running =
                    Some(TorchGenerator::new(&self.config, self.placement, number, &tensors, self.options.clone())?)
            }
        }
        Ok(())
    }

    fn version(&self) -> Option<u64> {
        self.running.as_ref().map(Generator::version)
    }

    fn is_idle(&self) -> bool {
        self.running.as_ref().is_none_or(Generator::is_idle)
    }

    fn generator(&mut self) -> Result<&mut TorchGenerator> {
        self.running.as_mut().context("weights are loaded before rows enter")
    }
}

impl Rollout {
    fn engine(&self, cx: &StageContext) -> Result<Engine> {
        let model = cx.model()?;
        let config = ModelConfig::from_folder(&model.path).with_context(|| format!("model `{}`", model.name))?;
        let mut options = GeneratorOptions::new(
            self.settings.max_num_seqs,
            self.settings.prompt_length + self.settings.response_length,
        );
        options.stop_tokens = self.settings.stop_tokens(&config);
        let placement = placement(cx, self.dtype)?;
        Ok(Engine { config, placement, weights: cx.weights()?, options, running: None })
    }

    /// Brings the generator to the weights that the next waiting row needs, if it may change now. Returns whether rows
    /// may enter.
    fn align(&self, engine: &mut Engine, flight: &Flight, cx: &StageContext) -> Result<bool> {
        if cx.schedule().exact_weights {
            let Some(wanted) = flight.next_version() else { return Ok(false) };
            if engine.version() == Some(wanted) {
                return Ok(true);
            }
            if !engine.is_idle() {
                return Ok(false);
            }
            engine.load(Some(wanted))?;
            return Ok(true);
        }
        let newest = engine.weights.newest()?.version.map(|v| v.version);
        if engine.version().is_some() && engine.version() == newest {
            return Ok(true);
        }
        if !engine.is_idle() && !cx.schedule().continue_on_publication {
            return Ok(false);
        }
        engine.load(None)?;
        Ok(true)
    }

    /// Lets the waiting rows enter that may.
    fn enter(&self, engine: &mut Engine, flight: &mut Flight, cx: &StageContext) -> Result<()> {
        let facts = cx.schedule();
        let current = engine.version();
        let whole = current.filter(|_| facts.exact_weights || !facts.continue_on_publication);
        let Entering { requests, resumed, discarded } = flight.enter(current.filter(|_| facts.exact_weights), whole);
        if resumed + discarded > 0 {
            let step = engine.weights.newest()?.version.map_or(0, |newest| newest.version);
            cx.report().metric(step, "rollout/resumed_tokens", resumed as f64, 1.0);
            cx.report().metric(step, "rollout/discarded_tokens", discarded as f64, 1.0);
            tracing::info!(
                resumed,
                discarded,
                version = current,
                "goes on with tokens that a lost worker saved; those of other weights are discarded"
            );
        }
        requests.into_iter().try_for_each(|request| Ok(engine.generator()?.submit(request)?))
    }
}

impl Stage for Rollout {
    fn ports(&self) -> Ports {
        let full = self.sampling.is_full();
        let distribution = if full { "full" } else { "truncated" };
        let mut outputs = vec![Output::new("responses", ragged_i64()).resumable()];
        if self.settings.calculate_log_probs {
            outputs.push(
                Output::new("rollout_log_probs", ragged_f32())
                    .optional()
                    .resumable()
                    .carries("distribution", distribution),
            );
        }
        Ports::new(vec![Input::new("prompt", ragged_i64())], outputs)
            .model("causal-lm")
            .configured_by(&["actor_rollout_ref.rollout"])
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        let mut engine = self.engine(cx)?;
        let mut flight = Flight::new(
            cx.seed(),
            self.settings.response_length,
            self.sampling.clone(),
            self.settings.val_kwargs.clone(),
        );
        let mut ended = false;
        let mut renewed = Instant::now();
        loop {
            let free = self.settings.max_num_seqs.saturating_sub(flight.rows());
            if flight.is_empty() && !ended {
                match cx.claim(free as u64)? {
                    Some(work) => flight.take(work)?,
                    None => ended = true,
                }
            } else if free > 0 && !flight.is_waiting() && !ended {
                match cx.try_claim(free as u64)? {
                    TryWork::Ready(work) => flight.take(work)?,
                    TryWork::NotYet => {}
                    TryWork::Ended => ended = true,
                }
            }
            if flight.is_empty() && ended {
                return Ok(());
            }
            let begun = Instant::now();
            if (flight.is_waiting() || !engine.is_idle()) && self.align(&mut engine, &flight, cx)? {
                self.enter(&mut engine, &mut flight, cx)?;
            }
            fail_point!("rollout::step");
            let finished = engine.generator()?.step()?;
            flight.finish(finished)?;
            if renewed.elapsed() > RENEW_EVERY {
                flight.renew()?;
                flight.save(&engine.generator()?.partials())?;
                renewed = Instant::now();
            }
            cx.report().timing("gen", begun.elapsed().as_secs_f64());
        }
    }
}

impl Register for Rollout {
    const NAME: &'static str = "rollout";
    type Config = Config;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let settings: Settings = parameters.get("actor_rollout_ref.rollout")?;
        let slots = settings.max_num_seqs as f64;
        Range::Within(1.0, MOST_SLOTS).check("actor_rollout_ref.rollout.max_num_seqs", slots)?;
        let sampling: SamplingSettings = parameters.get("actor_rollout_ref.rollout")?;
        sampling.check("actor_rollout_ref.rollout")?;
        settings.val_kwargs.check("actor_rollout_ref.rollout.val_kwargs")?;
        Ok(Self { settings, sampling, dtype: dtype(parameters, "actor_rollout_ref.rollout.dtype")? })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rollout(key: &str, value: bool) -> Rollout {
        made(key, json!(value)).expect("valid parameters")
    }

    fn made(key: &str, value: Value) -> Result<Rollout> {
        let mut rollout = json!({
            "dtype": "fp32", "max_num_seqs": 4, "prompt_length": 8, "response_length": 8, "ignore_eos": false, "calculate_log_probs": true,
            "temperature": 1.0, "top_k": -1, "top_p": 1.0, "do_sample": true,
            "val_kwargs": {"temperature": 0.0, "top_k": -1, "top_p": 1.0, "do_sample": false},
        });
        rollout[key] = value;
        Rollout::new(Config::default(), &Parameters::new(json!({"actor_rollout_ref": {"rollout": rollout}})))
    }

    #[test]
    fn wrong_settings_are_refused_when_the_stage_is_made() {
        for (key, value, said) in [
            ("temperature", json!(-0.5), "temperature: found -0.5; expected a number of at least 0"),
            ("temperature", json!("inf"), "temperature: found string `inf`; expected a number"),
            ("top_k", json!(-2), "top_k: found -2; expected -1 (all) or at least 0"),
            ("top_p", json!(0), "top_p: found 0; expected a number above 0 and at most 1"),
            ("max_num_seqs", json!(0), "max_num_seqs: found 0; expected a number from 1 to 65536"),
            ("max_num_seqs", json!(u64::MAX), "max_num_seqs: found 18446744073709552000; expected a number from 1 to"),
            ("dtype", json!("int4"), "dtype: found `int4`; expected fp32, bf16 or fp64"),
            (
                "val_kwargs",
                json!({"temperature": 1.0, "top_k": -1, "top_p": 1.5, "do_sample": true}),
                "val_kwargs.top_p: found 1.5; expected a number above 0 and at most 1",
            ),
        ] {
            let refused = made(key, value).err().expect(key).to_string();
            assert!(refused.contains(&format!("actor_rollout_ref.rollout.{said}")), "{refused}");
        }
    }

    #[test]
    fn log_probs_are_offered_only_when_they_are_calculated() {
        let outputs = |stage: &Rollout| stage.ports().outputs.iter().map(|o| o.name.clone()).collect::<Vec<_>>();
        assert_eq!(outputs(&rollout("calculate_log_probs", true)), ["responses", "rollout_log_probs"]);
        assert_eq!(outputs(&rollout("calculate_log_probs", false)), ["responses"]);
    }

    #[test]
    fn nothing_stops_a_response_that_ignores_the_end_symbol() {
        let folder = tempfile::tempdir().expect("folder");
        let written = tq_data::digits::write(folder.path(), &tq_data::digits::Options { seed: 1, held_out: 160 })
            .expect("digits");
        let config = ModelConfig::from_folder(&written.model).expect("the model's configuration");
        assert_eq!(rollout("ignore_eos", false).settings.stop_tokens(&config), config.eos_token_ids);
        assert!(!config.eos_token_ids.is_empty());
        assert!(rollout("ignore_eos", true).settings.stop_tokens(&config).is_empty());
    }
}
