//! Metrics lines in the order of steps; a step that is validated is held back until its validation is there.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value};
use tq_metrics::{
    Metrics,
    sink::{JsonLines, Sink, TensorBoard},
};

use super::Origin;
use crate::{folder::PhaseFolder, settings::Logger};

/// File beside a named state with the lines that were held back at that moment.
const HELD: &str = "held_metrics.json";
const HELD_DRAFT: &str = "held_metrics.json.writing";

struct Line {
    metrics: Metrics,
    /// Whether validation metrics are still to come.
    waits: bool,
}

/// The lines and where they go.
pub(super) struct Lines {
    sinks: Vec<Box<dyn Sink>>,
    held: BTreeMap<u64, Line>,
    /// The last step that has been added or written.
    last: u64,
    /// Folder where held lines are kept whenever they change, for a run that goes on exactly where it was killed.
    kept: Option<PathBuf>,
}

impl Lines {
    /// Opens the sinks that `trainer.logger` names. Lines beyond the origin go, those held back there are held again.
    /// `keeps`: the run can go on exactly where it is killed.
    pub(super) fn open(folder: &PhaseFolder, loggers: &[Logger], origin: &Origin, keeps: bool) -> Result<Self> {
        let file = folder.file("metrics.jsonl");
        let shorten = |kept: &dyn Fn(u64) -> bool| {
            cut(&file, kept).with_context(|| format!("cannot shorten `{}`", file.display()))
        };
        let (held, last) = match origin {
            Origin::Beginning => (BTreeMap::new(), 0),
            Origin::State(steps) => {
                let state = folder.checkpoint(*steps);
                let held = restore(&state)?;
                shorten(&|step| state.exists() && step <= *steps && !held.contains_key(&step))?;
                (held, *steps)
            }
            Origin::There(gap) => {
                let held = restore(folder.root())?;
                let written = shorten(&|step| step <= gap.steps && !held.contains_key(&step))?;
                let last = written.max(held.keys().next_back().copied());
                (held, last.unwrap_or(0))
            }
        };
        let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(JsonLines::open(&file)?)];
        if loggers.contains(&Logger::Tensorboard) {
            sinks.push(Box::new(TensorBoard::create(&folder.file("tensorboard"))?));
        }
        let kept = keeps.then(|| folder.root().to_owned());
        Ok(Self { sinks, held, last, kept })
    }

    /// Adds a step; `waits` when it is going to be validated.
    pub(super) fn add(&mut self, step: u64, metrics: Metrics, waits: bool) -> Result<()> {
        self.held.insert(step, Line { metrics, waits });
        self.last = self.last.max(step);
        self.flush()
    }

    /// A step whose line went with a killed process, if it did: the step itself is done, its validation (`waits`) may not be.
    pub(super) fn recover(&mut self, step: u64, waits: bool) -> Result<()> {
        if step <= self.last {
            return Ok(());
        }
        let mut metrics = Metrics::new();
        metrics.set("training/global_step", step as f64);
        self.add(step, metrics, waits)
    }

    /// Adds a step's validation. A step that is not held (its line was written before a restart) gets a line of its own.
    pub(super) fn validated(&mut self, step: u64, metrics: Metrics) -> Result<()> {
        let line = self.held.entry(step).or_insert_with(|| Line { metrics: Metrics::new(), waits: true });
        line.metrics.merge(metrics);
        line.waits = false;
        self.flush()
    }

    /// Writes what is held, complete or not; unless the phase has not ended (`ended`) and goes on exactly from here.
    pub(super) fn close(&mut self, ended: bool) -> Result<()> {
        if self.kept.is_some() && !ended {
            return Ok(());
        }
        self.held.values_mut().for_each(|line| line.waits = false);
        self.flush()?;
        match self.kept.take() {
            Some(folder) => fs::remove_file(folder.join(HELD)).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error).with_context(|| format!("cannot delete `{}`", folder.join(HELD).display())),
            }),
            None => Ok(()),
        }
    }

    /// Keeps the held lines beside a named state.
    pub(super) fn save(&self, state: &Path) -> Result<()> {
        let held: Map<String, Value> =
            self.held.iter().map(|(step, line)| (step.to_string(), Value::Object(line.metrics.to_json()))).collect();
        let (path, draft) = (state.join(HELD), state.join(HELD_DRAFT));
        let written = fs::write(&draft, Value::Object(held).to_string()).and_then(|()| fs::rename(&draft, &path));
        written.with_context(|| format!("cannot write `{}`", path.display()))
    }

    fn flush(&mut self) -> Result<()> {
        while let Some(entry) = self.held.first_entry()
            && !entry.get().waits
        {
            let (step, line) = entry.remove_entry();
            self.sinks.iter_mut().try_for_each(|sink| sink.write(step, &line.metrics))?;
        }
        match &self.kept {
            Some(folder) => self.save(folder),
            None => Ok(()),
        }
    }
}

/// The lines that were held when `state` was named.
fn restore(state: &Path) -> Result<BTreeMap<u64, Line>> {
    let path = state.join(HELD);
    let Ok(text) = fs::read_to_string(&path) else { return Ok(BTreeMap::new()) };
    let held: BTreeMap<u64, BTreeMap<String, Option<f64>>> =
        serde_json::from_str(&text).with_context(|| format!("`{}`", path.display()))?;
    let line = |values: BTreeMap<String, Option<f64>>| {
        let metrics = values.iter().map(|(name, value)| (name.as_str(), value.unwrap_or(f64::NAN))).collect();
        Line { metrics, waits: true }
    };
    Ok(held.into_iter().map(|(step, values)| (step, line(values))).collect())
}

/// Leaves the lines of the steps that are kept, and says the last of them; a line without a step was cut off in the
/// middle.
fn cut(file: &Path, kept: impl Fn(u64) -> bool) -> io::Result<Option<u64>> {
    let text = match fs::read_to_string(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let step = |line: &str| serde_json::from_str::<Value>(line).ok()?.get("step")?.as_u64();
    let left: String =
        text.lines().filter(|line| step(line).is_some_and(&kept)).flat_map(|line| [line, "\n"]).collect();
    let draft = file.with_extension("jsonl.writing");
    fs::write(&draft, &left)?;
    fs::rename(&draft, file)?;
    Ok(left.lines().filter_map(step).max())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(folder: &PhaseFolder) -> Vec<u64> {
        let text = fs::read_to_string(folder.file("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap()).collect()
    }

    fn metrics(name: &str) -> Metrics {
        [(name, 1.0)].into_iter().collect()
    }

    #[test]
    fn what_a_failed_run_holds_back_is_one_line_after_it_goes_on() {
        let place = tempfile::tempdir().unwrap();
        let folder = PhaseFolder::at(place.path());
        let mut lines = Lines::open(&folder, &[], &Origin::Beginning, true).unwrap();
        lines.add(1, metrics("loss"), true).unwrap();
        lines.close(false).unwrap();
        assert_eq!(steps(&folder), [0_u64; 0]);
        let gap = super::super::Gap { steps: 1, named: 0, audited: 1, publications: Vec::new() };
        let mut lines = Lines::open(&folder, &[], &Origin::There(gap), true).unwrap();
        lines.validated(1, metrics("val-core/acc")).unwrap();
        lines.add(2, metrics("loss"), true).unwrap();
        lines.close(true).unwrap();
        assert_eq!(steps(&folder), [1, 2], "a run that has ended waits for nothing");
        let text = fs::read_to_string(folder.file("metrics.jsonl")).unwrap();
        let first = text.lines().next().unwrap();
        assert!(first.contains("loss") && first.contains("val-core/acc"), "{first}");
        assert!(!folder.file(HELD).exists());
    }
}
