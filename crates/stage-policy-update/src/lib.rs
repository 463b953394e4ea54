//! `policy-update`: trains the policy on advantages with one of verl's policy losses.

mod columns;

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_math::{
    aggregate::Mode,
    kl::Penalty,
    loss::{Params, PolicyLoss, Registry, Tokens, kl_loss},
};
use tq_model::{TokenGradients, TokenStats, Want, weights::Head};
use tq_model_stage::{
    Objective, Sums, Totals, Trainer, loss,
    pack::{Bounds, Micro},
};
use tq_stage::{Batch, Input, Parameters, Range, ragged_f32, ragged_i64};

use columns::{Columns, Longest};

/// The stage.
pub type PolicyUpdate = Trainer<Policy>;

/// Settings of the stage: none; everything is in `actor_rollout_ref.actor`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// `final loss = policy loss − entropy_coeff · entropy + kl_loss_coef · KL(policy, reference)`, aggregated by
/// `loss_agg_mode` over the whole mini-batch.
pub struct Policy {
    loss: Box<dyn PolicyLoss>,
    mode: Mode,
    loss_scale_factor: Option<f64>,
    entropy_coeff: f64,
    calculate_entropy: bool,
    kl: Option<(Penalty, f64)>,
    temperature: f64,
    longest: Longest,
}

/// The part of `actor_rollout_ref.actor` that is this objective's.
#[derive(Deserialize)]
struct ActorSettings {
    clip_ratio: f64,
    clip_ratio_low: Option<f64>,
    clip_ratio_high: Option<f64>,
    clip_ratio_c: f64,
    tau_pos: f64,
    tau_neg: f64,
    entropy_coeff: f64,
    calculate_entropy: bool,
    use_kl_loss: bool,
    kl_loss_coef: f64,
    kl_loss_type: String,
    policy_loss: PolicyLossSettings,
}

#[derive(Deserialize)]
struct PolicyLossSettings {
    loss_mode: String,
    clip_cov_ratio: f64,
    clip_cov_lb: f64,
    clip_cov_ub: f64,
    kl_cov_ratio: f64,
    ppo_kl_coef: f64,
    dro_beta: Option<f64>,
}

const SECTION: &str = "actor_rollout_ref.actor";

impl ActorSettings {
    /// Numbers that no loss and no penalty makes sense of, whichever is chosen.
    fn check(&self) -> Result<()> {
        for (name, value, range) in [
            ("clip_ratio", self.clip_ratio, Range::AtLeast(0.0)),
            ("clip_ratio_low", self.clip_ratio_low.unwrap_or(self.clip_ratio), Range::AtLeast(0.0)),
            ("clip_ratio_high", self.clip_ratio_high.unwrap_or(self.clip_ratio), Range::AtLeast(0.0)),
            ("clip_ratio_c", self.clip_ratio_c, Range::Above(1.0)),
            ("kl_loss_coef", self.kl_loss_coef, Range::AtLeast(0.0)),
        ] {
            range.check(format!("{SECTION}.{name}"), value)?;
        }
        Ok(())
    }

    fn loss(&self) -> Result<Box<dyn PolicyLoss>> {
        let p = &self.policy_loss;
        let params = Params {
            clip_ratio: self.clip_ratio,
            clip_ratio_low: self.clip_ratio_low,
            clip_ratio_high: self.clip_ratio_high,
            clip_ratio_c: self.clip_ratio_c,
            tau_pos: self.tau_pos,
            tau_neg: self.tau_neg,
            clip_cov_ratio: p.clip_cov_ratio,
            clip_cov_lb: p.clip_cov_lb,
            clip_cov_ub: p.clip_cov_ub,
            kl_cov_ratio: p.kl_cov_ratio,
            ppo_kl_coef: p.ppo_kl_coef,
            dro_beta: p.dro_beta,
        };
        Registry::builtin().get(&p.loss_mode, &params).map_err(|error| {
            // Parameters of losses are named from the section, names of losses are in `policy_loss`.
            let unknown = matches!(error, tq_math::Error::Unknown { .. });
            let key = if unknown { "policy_loss.loss_mode" } else { "policy_loss" };
            loss::refusal(&format!("{SECTION}.{key}"), error)
        })
    }

    /// The penalty in the loss and its coefficient, when there is one.
    fn kl(&self) -> Result<Option<(Penalty, f64)>> {
        let penalty =
            || self.kl_loss_type.parse().map_err(|error| loss::refusal(&format!("{SECTION}.kl_loss_type"), error));
        self.use_kl_loss.then(|| Ok((penalty()?, self.kl_loss_coef))).transpose()
    }
}

impl Objective for Policy {
    const NAME: &'static str = "policy-update";
    const SECTION: &'static str = SECTION;
    const MINI_BATCH: &'static str = "actor_rollout_ref.actor.ppo_mini_batch_size";
    const METRICS: &'static str = "actor";
    const MODEL: &'static str = "causal-lm";
    const HEAD: Head = Head::Lm;
    type Config = Config;
    type Mini = Columns;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let actor: ActorSettings = parameters.get(Self::SECTION)?;
        actor.check()?;
        let (mode, loss_scale_factor) = loss::aggregation(parameters, Self::SECTION)?;
        Ok(Self {
            loss: actor.loss()?,
            mode,
            loss_scale_factor,
            entropy_coeff: actor.entropy_coeff,
            calculate_entropy: actor.calculate_entropy || actor.entropy_coeff != 0.0,
            kl: actor.kl()?,
            temperature: loss::temperature(parameters)?,
            longest: Longest {
                prompt: parameters.get("data.max_prompt_length")?,
                response: parameters.get("data.max_response_length")?,
            },
        })
    }

    fn inputs(&self) -> Vec<Input> {
        let mut inputs = vec![
            Input::new("prompt", ragged_i64()),
            Input::new("responses", ragged_i64()),
            Input::new("old_log_probs", ragged_f32())
                .from_first_of(&["old_log_probs", "rollout_log_probs"])
                .requires("distribution", "full"),
            Input::new("advantages", ragged_f32()),
            Input::new("rollout_log_probs", ragged_f32()).optional(),
            Input::new("token_level_scores", ragged_f32()).optional(),
            Input::new("token_level_rewards", ragged_f32()).optional(),
        ];
        if self.kl.is_some() {
            inputs.push(Input::new("ref_log_probs", ragged_f32()));
        }
        inputs
    }

    fn want(&self) -> Want {
        if self.calculate_entropy {
            Want::log_probs_and_entropy(self.temperature)
        } else {
            Want::log_probs(self.temperature)
        }
    }

    fn mini(&mut self, batch: &Batch) -> Result<Columns> {
        Columns::read(batch, self.kl.is_some())
    }

    fn totals(&self, mini: &Columns) -> Totals {
        mini.sequences.totals
    }

    fn set_totals(&self, mini: &mut Columns, totals: Totals) {
        mini.sequences.totals = totals;
    }

    fn micros(&self, mini: &Columns, bounds: Bounds) -> Result<Vec<Micro>> {
        mini.sequences.micros(bounds)
    }

    fn gradients(&self, mini: &Columns, micro: &Micro, stats: &TokenStats, sums: &mut Sums) -> Result<TokenGradients> {
        let tokens = mini.sequences.tokens(&micro.rows);
        let layout = mini.sequences.part(&micro.rows);
        let count = layout.kept() as f64;
        let aggregation = mini.sequences.aggregation(self.mode, self.loss_scale_factor);
        let input = Tokens::new(
            &layout,
            &stats.log_probs,
            &mini.old_log_probs[tokens.clone()],
            &mini.advantages[tokens.clone()],
        );
        let mut loss = self.loss.evaluate(&input, &aggregation)?;
        sums.part("actor/pg_loss", loss.value);
        for (name, value) in &loss.metrics {
            sums.mean(name, *value, count);
        }
        if let Some((penalty, coefficient)) = self.kl {
            let reference = mini.ref_log_probs.as_ref().context("use_kl_loss reads `ref_log_probs`")?;
            let kl = kl_loss(&layout, &stats.log_probs, &reference[tokens], penalty, &aggregation)?;
            sums.part("actor/kl_loss", kl.value);
            sums.mean("actor/kl_coef", coefficient, 1.0);
            loss.add_scaled(&kl, coefficient);
        }
        let mut total = loss.value;
        let mut gradients = TokenGradients { log_probs: loss.grad_f32(), ..TokenGradients::default() };
        if self.calculate_entropy {
            let weights = aggregation.weights(&layout)?;
            let entropy: f64 = weights.iter().zip(&stats.entropy).map(|(w, &e)| w * f64::from(e)).sum();
            sums.part("actor/entropy_loss", entropy);
            if self.entropy_coeff != 0.0 {
                total -= self.entropy_coeff * entropy;
                gradients.entropy = weights.iter().map(|w| (-self.entropy_coeff * w) as f32).collect();
            }
        }
        sums.part("actor/loss", total);
        Ok(gradients)
    }

    fn describe(&self, mini: &Columns, batch: &Batch, version: u64, sums: &mut Sums) -> Result<()> {
        columns::describe(mini, batch, version, self.longest, sums)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn made(key: &str, value: Value) -> Result<Policy> {
        let mut actor = json!({
            "clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "tau_pos": 1.0,
            "tau_neg": 1.05, "loss_agg_mode": "token-mean", "loss_scale_factor": null, "entropy_coeff": 0.0,
            "calculate_entropy": false, "use_kl_loss": true, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl",
            "policy_loss": {
                "loss_mode": "vanilla", "clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0,
                "kl_cov_ratio": 0.0002, "ppo_kl_coef": 0.1, "dro_beta": null,
            },
        });
        actor[key] = value;
        Policy::new(
            Config::default(),
            &Parameters::new(json!({
                "actor_rollout_ref": {"actor": actor, "rollout": {"temperature": 1.0}},
                "data": {"max_prompt_length": 16, "max_response_length": 16},
            })),
        )
    }

    #[test]
    fn wrong_settings_are_refused_when_the_stage_is_made() {
        assert!(made("clip_ratio_low", json!(0)).is_ok());
        for (key, value, said) in [
            ("clip_ratio", json!(-0.2), "clip_ratio: found -0.2; expected a number of at least 0"),
            ("clip_ratio_low", json!(-0.1), "clip_ratio_low: found -0.1; expected a number of at least 0"),
            ("clip_ratio_high", json!(-0.1), "clip_ratio_high: found -0.1; expected a number of at least 0"),
            ("clip_ratio_c", json!(1.0), "clip_ratio_c: found 1; expected a number above 1"),
            ("kl_loss_coef", json!(-1), "kl_loss_coef: found -1; expected a number of at least 0"),
            ("kl_loss_type", json!("kll"), "kl_loss_type: found `kll`; expected one of "),
            ("loss_agg_mode", json!("mean"), "loss_agg_mode: found `mean`; expected one of "),
            ("loss_scale_factor", json!(0), "loss_scale_factor: found 0; expected a number above 0"),
        ] {
            let refused = made(key, value).err().expect(key).to_string();
            assert!(refused.starts_with(&format!("actor_rollout_ref.actor.{said}")), "{refused}");
        }
    }

    #[test]
    fn a_loss_is_refused_by_the_key_that_does_not_suit_it() {
        let refused = |mode: &str| {
            let settings = json!({
                "loss_mode": mode, "clip_cov_ratio": 0.0, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0,
                "kl_cov_ratio": 0.0002, "ppo_kl_coef": 0.1, "dro_beta": null,
            });
            made("policy_loss", settings).err().expect(mode).to_string()
        };
        let section = "actor_rollout_ref.actor.policy_loss";
        assert!(refused("vanila").starts_with(&format!("{section}.loss_mode: found `vanila`; expected one of ")));
        assert!(refused("clip_cov").starts_with(&format!("{section}.clip_cov_ratio: found 0; expected ")));
        assert!(refused("dro").starts_with(&format!("{section}.dro_beta: found none; expected ")));
    }
}
