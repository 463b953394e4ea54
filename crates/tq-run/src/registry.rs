//! The stages a program knows: what the planner asks about, and what the runner starts.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use schemars::schema_for;
use serde_json::Value;
use tq_schedule::{
    StageCatalog,
    port::{DescribeError, Ports, Query},
};
use tq_stage::{Parameters, Register, Stage};

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
            let config = serde_json::from_value(with.clone())
                .with_context(|| format!("`with:` of stage `{}` is {with}", S::NAME))?;
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
            .with_context(|| format!("no stage `{name}`; there are {:?}", self.entries.keys().collect::<Vec<_>>()))?;
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
        let stage = (entry.make)(query.with, &Parameters::new(query.parameters.clone())).map_err(|error| {
            DescribeError::Parameter {
                key: format!("stages.{}", query.stage),
                found: format!("{error:#}"),
                expected: format!(
                    "settings and parameters that suit the stage (`{} stages` prints their schema)",
                    crate::process::name()
                ),
            }
        })?;
        Ok(stage.ports())
    }

    fn stages(&self) -> Vec<String> {
        self.entries.keys().map(|name| (*name).to_owned()).collect()
    }

    fn model_kinds(&self) -> Vec<String> {
        vec!["causal-lm".to_owned(), "value-lm".to_owned()]
    }
}
