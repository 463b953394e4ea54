//! A run's metrics, read back from `metrics.jsonl`.

use std::path::Path;

use serde_json::Value;

use crate::curve::Series;
use crate::error::{Error, Result};

/// The steps of a run, ascending. Where a resumed run went back to an earlier step, the later ones that it left behind are gone: what is here is the
/// line of steps that survived.
#[derive(Debug, Clone, Default)]
pub struct History {
    steps: Vec<(u64, Vec<(String, f64)>)>,
}

/// Reads a file written by [`JsonLines`](crate::sink::JsonLines). Values that are no numbers are left out; so is a last line that a killed run did not
/// finish.
///
/// # Errors
/// [`Error::Io`]; [`Error::Malformed`] with the line that is no JSON object or has no whole number `step`.
pub fn read(path: &Path) -> Result<History> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut history = History::default();
    for (number, line) in complete.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let malformed = |problem: String| Error::Malformed { path: path.into(), line: number + 1, problem };
        let object: Value = serde_json::from_str(line).map_err(|e| malformed(format!("not JSON: {e}")))?;
        let step = object["step"].as_u64().ok_or_else(|| malformed("no whole number `step`".into()))?;
        let values = object.as_object().into_iter().flatten().filter(|(name, _)| *name != "step");
        let values = values.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
        while history.last_step().is_some_and(|last| last >= step) {
            history.steps.pop();
        }
        history.steps.push((step, values));
    }
    Ok(history)
}

impl History {
    /// The last step, if there is one.
    pub fn last_step(&self) -> Option<u64> {
        self.steps.last().map(|(step, _)| *step)
    }

    /// The number called `name` at every step that has it, as a curve of that name.
    pub fn series(&self, name: &str) -> Series {
        let at = |(step, values): &(u64, Vec<(String, f64)>)| {
            let (_, value) = values.iter().find(|(known, _)| known == name)?;
            Some((*step as f64, *value))
        };
        Series { name: name.into(), points: self.steps.iter().filter_map(at).collect() }
    }

    /// All names, in order of first appearance.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.steps.iter().flat_map(|(_, values)| values).map(|(name, _)| name.as_str()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}
