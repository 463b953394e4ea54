//! `kl-reward`: takes the KL to the reference off the scores (verl: `algorithm.use_kl_in_reward`).

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_math::{
    Layout,
    kl::{Penalty, in_reward},
    narrow,
};
use tq_stage::{Batch, Input, Map, MapContext, Output, Outputs, Parameters, Per, Ports, Register, ragged_f32};

/// Settings of the stage: none; everything is in `algorithm`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The stage.
pub struct KlReward {
    penalty: Penalty,
    coefficient: f64,
}

#[derive(Deserialize)]
struct KlCtrl {
    #[serde(rename = "type")]
    kind: String,
    kl_coef: f64,
}

impl Map for KlReward {
    fn ports(&self) -> Ports {
        Ports::new(
            vec![
                Input::new("token_level_scores", ragged_f32()),
                Input::new("old_log_probs", ragged_f32())
                    .from_first_of(&["old_log_probs", "rollout_log_probs"])
                    .requires("distribution", "full"),
                Input::new("ref_log_probs", ragged_f32()),
            ],
            vec![Output::new("token_level_rewards", ragged_f32())],
        )
        .per(Per::Cycle)
        .configured_by(&["algorithm"])
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        let scores = batch.ragged::<f32>("token_level_scores")?;
        let layout = Layout::from_lengths(scores.lens());
        let flat =
            |name: &str| -> Result<Vec<f32>> { Ok(batch.ragged::<f32>(name)?.iter().flatten().copied().collect()) };
        let kl = in_reward(
            &layout,
            &flat("token_level_scores")?,
            &flat("old_log_probs")?,
            &flat("ref_log_probs")?,
            self.penalty,
            self.coefficient,
        )?;
        if let Some(cut) = cx.cut() {
            let report = cx.stage().report();
            report.metric(cut.cycle, "actor/reward_kl_penalty", kl.current_kl, layout.rows() as f64);
            report.metric(cut.cycle, "actor/reward_kl_penalty_coeff", self.coefficient, 1.0);
        }
        let rewards = narrow(&kl.rewards);
        Ok(Outputs::new().ragged("token_level_rewards", layout.iter().map(|row| &rewards[row])))
    }
}

impl Register for KlReward {
    const NAME: &'static str = "kl-reward";
    type Config = Config;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let control: KlCtrl = parameters.get("algorithm.kl_ctrl")?;
        if control.kind != "fixed" {
            bail!(
                "algorithm.kl_ctrl.type is `{}`; only `fixed` is built in: an adaptive coefficient is state that a stage without a named state \
                 would lose on restart",
                control.kind
            );
        }
        Ok(Self { penalty: parameters.get::<String>("algorithm.kl_penalty")?.parse()?, coefficient: control.kl_coef })
    }
}
