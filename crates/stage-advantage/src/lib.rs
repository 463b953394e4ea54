//! `advantage`: turns rewards into advantages with one of verl's estimators (`algorithm.adv_estimator`).

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_math::{
    Layout,
    advantage::{self, Column, Estimator, Params, Registry, Scope},
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
pub struct Advantage {
    estimator: Box<dyn Estimator>,
}

#[derive(Deserialize)]
struct Algorithm {
    adv_estimator: String,
    gamma: f64,
    lam: f64,
    norm_adv_by_std_in_grpo: bool,
}

impl Advantage {
    fn needs(&self, column: Column) -> bool {
        self.estimator.needs().contains(&column)
    }
}

impl Map for Advantage {
    fn ports(&self) -> Ports {
        let mut inputs = vec![
            Input::new("token_level_rewards", ragged_f32())
                .from_first_of(&["token_level_rewards", "token_level_scores"]),
        ];
        if self.needs(Column::Values) {
            inputs.push(Input::new("values", ragged_f32()));
        }
        if self.needs(Column::OldLogProbs) {
            inputs
                .push(Input::new("old_log_probs", ragged_f32()).from_first_of(&["old_log_probs", "rollout_log_probs"]));
        }
        let per = match self.estimator.scope() {
            Scope::Row | Scope::Group => Per::Group,
            Scope::Batch => Per::Cycle,
        };
        Ports::new(
            inputs,
            vec![Output::new("advantages", ragged_f32()), Output::new("returns", ragged_f32()).optional()],
        )
        .per(per)
        .configured_by(&["algorithm"])
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        if cx.cut().is_none() && self.estimator.scope() == Scope::Batch {
            bail!("this estimator takes a statistic over the whole batch; claim `per: cycle`");
        }
        let layout = Layout::from_lengths(batch.ragged::<f32>("token_level_rewards")?.lens());
        let flat =
            |name: &str| -> Result<Vec<f32>> { Ok(batch.ragged::<f32>(name)?.iter().flatten().copied().collect()) };
        let rewards = flat("token_level_rewards")?;
        let groups: Vec<u64> = batch.heads().iter().map(|head| head.group.0).collect();
        let values = self.needs(Column::Values).then(|| flat("values")).transpose()?;
        let old = self.needs(Column::OldLogProbs).then(|| flat("old_log_probs")).transpose()?;
        let estimate = self.estimator.estimate(&advantage::Batch {
            groups: Some(&groups),
            values: values.as_deref(),
            old_log_probs: old.as_deref(),
            ..advantage::Batch::new(&layout, &rewards)
        })?;
        let (advantages, returns) = (narrow(&estimate.advantages), narrow(&estimate.returns));
        Ok(Outputs::new()
            .ragged("advantages", layout.iter().map(|row| &advantages[row]))
            .ragged("returns", layout.iter().map(|row| &returns[row])))
    }
}

impl Register for Advantage {
    const NAME: &'static str = "advantage";
    type Config = Config;

    fn new(_: Config, parameters: &Parameters) -> Result<Self> {
        let a: Algorithm = parameters.get("algorithm")?;
        Range::Within(0.0, 1.0).check("algorithm.gamma", a.gamma)?;
        Range::Within(0.0, 1.0).check("algorithm.lam", a.lam)?;
        let params = Params {
            gamma: a.gamma,
            lam: a.lam,
            norm_adv_by_std_in_grpo: a.norm_adv_by_std_in_grpo,
            ..Params::default()
        };
        let registry = Registry::builtin();
        let estimator = registry.get(&a.adv_estimator, &params).map_err(|error| match error {
            tq_math::Error::Unknown { found, known, .. } => {
                Refusal::new("algorithm.adv_estimator", format!("`{found}`"), format!("one of {}", known.join(", ")))
            }
            // What is left are parameters of estimators that no key of the tree sets.
            other => Refusal::new("algorithm.adv_estimator", format!("`{}`: {other}", a.adv_estimator), "another one"),
        })?;
        for (column, what) in [
            (Column::SumPiSquared, "the sums of squared probabilities"),
            (Column::RewardBaselines, "the rewards of baselines"),
            (Column::Components, "the reward's components"),
        ] {
            if estimator.needs().contains(&column) {
                let found = format!("`{}`, which reads {what}", a.adv_estimator);
                bail!(Refusal::new(
                    "algorithm.adv_estimator",
                    found,
                    "an estimator of columns that built-in stages write"
                ));
            }
        }
        Ok(Self { estimator })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(key: &str, value: Value) -> String {
        let mut algorithm = json!({"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": true});
        let make =
            |algorithm: &Value| Advantage::new(Config::default(), &Parameters::new(json!({"algorithm": algorithm})));
        assert!(make(&algorithm).is_ok());
        algorithm[key] = value;
        make(&algorithm).err().expect("a wrong value").to_string()
    }

    #[test]
    fn wrong_settings_are_refused_when_the_stage_is_made() {
        assert_eq!(refused("lam", json!(1.5)), "algorithm.lam: found 1.5; expected a number from 0 to 1");
        assert_eq!(refused("gamma", json!(-0.1)), "algorithm.gamma: found -0.1; expected a number from 0 to 1");
        let unknown = refused("adv_estimator", json!("grop"));
        assert!(unknown.starts_with("algorithm.adv_estimator: found `grop`; expected one of "), "{unknown}");
        assert!(refused("adv_estimator", json!("remax")).contains("`remax`, which reads the rewards of baselines"));
    }
}
