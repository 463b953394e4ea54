//! The stages a program knows: what the planner asks about, and what the runner starts.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use schemars::schema_for;
use serde_json::Value;
use tq_schedule::{
    StageCatalog,
    port::{DescribeError, Ports, Query},
};
use tq_stage::{Parameters, Refusal, Register, Stage};

type Make = Box<dyn Fn(&Value, &Parameters) -> Result<Box<dyn Stage>> + Send + Sync>;

struct Entry {
    make: Make,
    schema: Value,
}

/// Stages by name.
#[derive(Default)]
pub(crate) struct Registry {
    entries: BTreeMap<&'static str, Entry>,
}

impl Registry {
    /// Adds a stage type under its name.
    ///
    /// # Panics
    /// When another stage of that name is registered: a mistake in the program, not in its input.
    pub(crate) fn add<S: Register>(&mut self) {
        let make: Make = Box::new(|with, parameters| {
            let config = tq_stage::read(with, "with")?;
            Ok(Box::new(S::new(config, parameters)?))
        });
        let schema = schema_for!(S::Config).to_value();
        let before = self.entries.insert(S::NAME, Entry { make, schema });
        assert!(before.is_none(), "two stages are registered as `{}`", S::NAME);
    }

    /// Makes a stage.
    ///
    /// # Errors
    /// When no such stage is registered or its settings do not suit.
    pub(crate) fn make(&self, name: &str, with: &Value, parameters: &Parameters) -> Result<Box<dyn Stage>> {
        let entry = self
            .entries
            .get(name)
            .with_context(|| format!("found the stage `{name}`; expected one of {}", self.stages().join(", ")))?;
        (entry.make)(with, parameters)
    }

    /// The JSON schema of a stage's `with:`, by name.
    pub(crate) fn schemas(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.entries.iter().map(|(name, entry)| (*name, &entry.schema))
    }
}

impl StageCatalog for Registry {
    fn describe(&self, query: &Query<'_>) -> Result<Ports, DescribeError> {
        let entry = self.entries.get(query.stage).ok_or(DescribeError::Unknown)?;
        let stage = (entry.make)(query.with, &Parameters::new(query.parameters.clone()));
        Ok(stage.map_err(|error| unsuitable(query.stage, &error))?.ports())
    }

    fn stages(&self) -> Vec<String> {
        self.entries.keys().map(|name| (*name).to_owned()).collect()
    }

    fn check_device(&self, name: &str) -> Result<(), String> {
        tq_model_stage::device(name).map(|_| ()).ok_or_else(|| tq_model_stage::DEVICES.to_owned())
    }

    fn model_kinds(&self) -> Vec<String> {
        vec!["causal-lm".to_owned(), "value-lm".to_owned()]
    }
}

/// Why a stage cannot be made: the key that does not suit, where the stage names one.
fn unsuitable(stage: &str, error: &anyhow::Error) -> DescribeError {
    let Some(refusal) = error.chain().find_map(|cause| cause.downcast_ref::<Refusal>()) else {
        return DescribeError::Parameter {
            key: format!("stages.{stage}"),
            found: format!("{error:#}"),
            expected: format!(
                "settings and parameters that suit the stage (`{} stages` prints their schema)",
                crate::process::name()
            ),
        };
    };
    let Refusal { key, found, expected, action, .. } = refusal.clone();
    let expected = if action.is_empty() { expected } else { format!("{expected}; {action}") };
    DescribeError::Parameter { key, found, expected }
}

#[cfg(test)]
mod tests {
    use crate::App;

    fn refused(argument: &str) -> String {
        let pipeline = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pipelines/quickstart.yaml");
        let error = App::new().plan(&[pipeline.to_owned(), argument.to_owned()]).expect_err("does not suit");
        format!("{error:#}")
    }

    #[test]
    fn what_a_stage_refuses_is_said_with_its_key_and_place() {
        assert_eq!(
            refused("actor_rollout_ref.rollout.top_p=2"),
            "argument `actor_rollout_ref.rollout.top_p=2`: actor_rollout_ref.rollout.top_p: found 2; expected a number \
             above 0 and at most 1; stage `rollout` reads it"
        );
        let deleted = refused("~actor_rollout_ref.rollout.top_p");
        assert!(deleted.contains("actor_rollout_ref.rollout.top_p: found nothing; expected "), "{deleted}");
    }

    #[test]
    fn a_setting_of_a_stage_is_said_by_its_place_in_the_pipeline() {
        let unknown = refused("stages.rollout.with={slots: 4}");
        assert!(unknown.contains("stages.rollout.with.slots: found a key that is not known here"), "{unknown}");
        assert!(!unknown.contains("settings and parameters that suit"), "{unknown}");
    }
}
