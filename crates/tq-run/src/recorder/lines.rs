//! Metrics lines in the order of steps; a step that is validated is held back until its validation is there.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Map, Value};
use tq_metrics::{
    Metrics,
    sink::{JsonLines, Sink, TensorBoard},
};

use crate::{folder::PhaseFolder, settings::Logger};

/// File beside a named state with the lines that were held back at that moment.
const HELD: &str = "held_metrics.json";

struct Line {
    metrics: Metrics,
    /// Whether validation metrics are still to come.
    waits: bool,
}

/// The lines and where they go.
pub(super) struct Lines {
    sinks: Vec<Box<dyn Sink>>,
    held: BTreeMap<u64, Line>,
}

impl Lines {
    /// Opens the sinks that `trainer.logger` names.
    pub(super) fn open(folder: &PhaseFolder, loggers: &[Logger]) -> Result<Self> {
        let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(JsonLines::open(&folder.file("metrics.jsonl"))?)];
        if loggers.contains(&Logger::Tensorboard) {
            sinks.push(Box::new(TensorBoard::create(&folder.file("tensorboard"))?));
        }
        Ok(Self { sinks, held: BTreeMap::new() })
    }

    /// Adds a step; `waits` when it is going to be validated.
    pub(super) fn add(&mut self, step: u64, metrics: Metrics, waits: bool) -> Result<()> {
        self.held.insert(step, Line { metrics, waits });
        self.flush()
    }

    /// Adds a step's validation. A step that is not held (its line was written before a restart) gets a line of its own.
    pub(super) fn validated(&mut self, step: u64, metrics: Metrics) -> Result<()> {
        let line = self.held.entry(step).or_insert_with(|| Line { metrics: Metrics::new(), waits: true });
        line.metrics.merge(metrics);
        line.waits = false;
        self.flush()
    }

    /// Writes what is held, complete or not.
    pub(super) fn close(&mut self) -> Result<()> {
        self.held.values_mut().for_each(|line| line.waits = false);
        self.flush()
    }

    /// Keeps the held lines beside a named state.
    pub(super) fn save(&self, state: &Path) -> Result<()> {
        let held: Map<String, Value> =
            self.held.iter().map(|(step, line)| (step.to_string(), Value::Object(line.metrics.to_json()))).collect();
        let path = state.join(HELD);
        fs::write(&path, Value::Object(held).to_string()).with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Takes back the lines that were held when `state` was named.
    pub(super) fn restore(&mut self, state: &Path) -> Result<()> {
        let path = state.join(HELD);
        let Ok(text) = fs::read_to_string(&path) else { return Ok(()) };
        let held: BTreeMap<u64, BTreeMap<String, Option<f64>>> =
            serde_json::from_str(&text).with_context(|| format!("`{}`", path.display()))?;
        for (step, values) in held {
            let metrics = values.iter().map(|(name, value)| (name.as_str(), value.unwrap_or(f64::NAN))).collect();
            self.held.insert(step, Line { metrics, waits: true });
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while let Some(entry) = self.held.first_entry()
            && !entry.get().waits
        {
            let (step, line) = entry.remove_entry();
            self.sinks.iter_mut().try_for_each(|sink| sink.write(step, &line.metrics))?;
        }
        Ok(())
    }
}
