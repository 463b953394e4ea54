//! `policy-update`: trains the policy on advantages with one of verl's policy losses.

mod columns;

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_math::{
    aggregate::{Aggregation, Mode},
    kl::Penalty,
    loss::{self, PolicyLoss, Tokens},
};
use tq_model::{TokenGradients, TokenStats, Want, weights::Head};
use tq_model_stage::{
    Objective, Sums, Trainer,
    pack::{Bounds, Micro},
};
use tq_stage::{Batch, Input, Parameters, ragged_f32, ragged_i64};

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
    loss_agg_mode: String,
    loss_scale_factor: Option<f64>,
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

impl ActorSettings {
    fn loss(&self) -> Result<Box<dyn PolicyLoss>> {
        let p = &self.policy_loss;
        let params = loss::Params {
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
        Ok(loss::Registry::builtin().get(&p.loss_mode, &params)?)
    }
}

impl Objective for Policy {
    const NAME: &'static str = "policy-update";
    const SECTION: &'static str = "actor_rollout_ref.actor";
    const MINI_BATCH: &'static str = "actor_rollout_ref.actor.ppo_mini_batch_size";
    const METRICS: &'static str = "actor";
    const MODEL: &'static str = "causal-lm";
    const HEAD: Head = Head::Lm;
    type Config = Config;
    type Mini = Columns;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let actor: ActorSettings = parameters.get(Self::SECTION)?;
        Ok(Self {
            loss: actor.loss()?,
            mode: actor.loss_agg_mode.parse()?,
            loss_scale_factor: actor.loss_scale_factor,
            entropy_coeff: actor.entropy_coeff,
            calculate_entropy: actor.calculate_entropy || actor.entropy_coeff != 0.0,
            kl: actor
                .use_kl_loss
                .then(|| Ok::<_, anyhow::Error>((actor.kl_loss_type.parse()?, actor.kl_loss_coef)))
                .transpose()?,
            temperature: parameters.get("actor_rollout_ref.rollout.temperature")?,
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

    fn micros(&self, mini: &Columns, bounds: Bounds) -> Result<Vec<Micro>> {
        mini.sequences.micros(bounds)
    }

    fn gradients(&self, mini: &Columns, micro: &Micro, stats: &TokenStats, sums: &mut Sums) -> Result<TokenGradients> {
        let tokens = mini.sequences.tokens(&micro.rows);
        let layout = mini.sequences.part(&micro.rows);
        let count = layout.kept() as f64;
        let aggregation = Aggregation::over(self.mode, &mini.sequences.layout, self.loss_scale_factor);
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
            let kl = loss::kl_loss(&layout, &stats.log_probs, &reference[tokens], penalty, &aggregation)?;
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
