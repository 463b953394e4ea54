//! `kl-reward`: takes the KL to the reference off the scores (verl: `algorithm.use_kl_in_reward`).

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_math::{
    Layout,
    kl::{Penalty, in_reward},
    narrow,
};
use tq_stage::{
    Batch, Input, Map, MapContext, Output, Outputs, Parameters, Per, Ports, Range, Refusal, Register, ragged_f32,
};

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
            let expected =
                "`fixed`: an adaptive coefficient is state that a stage without a named state would lose on restart";
            bail!(Refusal::new("algorithm.kl_ctrl.type", format!("`{}`", control.kind), expected));
        }
        Range::AtLeast(0.0).check("algorithm.kl_ctrl.kl_coef", control.kl_coef)?;
        let name: String = parameters.get("algorithm.kl_penalty")?;
        let penalty = name.parse().map_err(|error| match error {
            tq_math::Error::Unknown { found, known, .. } => {
                Refusal::new("algorithm.kl_penalty", format!("`{found}`"), format!("one of {}", known.join(", ")))
            }
            other => Refusal::new("algorithm.kl_penalty", format!("`{name}`: {other}"), "another one"),
        })?;
        Ok(Self { penalty, coefficient: control.kl_coef })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(key: &str, value: Value) -> String {
        let mut algorithm = json!({"kl_penalty": "kl", "kl_ctrl": {"type": "fixed", "kl_coef": 0.001}});
        let make =
            |algorithm: &Value| KlReward::new(Config::default(), &Parameters::new(json!({"algorithm": algorithm})));
        assert!(make(&algorithm).is_ok());
        algorithm[key] = value;
        make(&algorithm).err().expect("a wrong value").to_string()
    }

    #[test]
    fn wrong_settings_are_refused_when_the_stage_is_made() {
        let control = |kind: &str, coefficient: f64| refused("kl_ctrl", json!({"type": kind, "kl_coef": coefficient}));
        assert!(control("adaptive", 0.1).starts_with("algorithm.kl_ctrl.type: found `adaptive`; expected `fixed`"));
        assert_eq!(control("fixed", -0.1), "algorithm.kl_ctrl.kl_coef: found -0.1; expected a number of at least 0");
        let penalty = refused("kl_penalty", json!("kll"));
        assert!(penalty.starts_with("algorithm.kl_penalty: found `kll`; expected one of kl, "), "{penalty}");
    }
}
