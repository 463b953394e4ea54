//! The picture of a run: its training score and its validation score over steps.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tq_metrics::{
    curve::{Chart, Series, svg, terminal},
    history,
};

/// Draws runs for the terminal; with `to`, also as SVG.
///
/// # Errors
/// When a run has no metrics or the picture cannot be written.
pub(crate) fn draw(runs: &[PathBuf], to: Option<&Path>) -> Result<String> {
    let mut series: Vec<Series> = Vec::new();
    for run in runs {
        let history = history::read(&run.join("metrics.jsonl")).with_context(|| format!("run `{}`", run.display()))?;
        let label =
            run.file_name().map_or_else(|| run.display().to_string(), |name| name.to_string_lossy().into_owned());
        let names = history.names().into_iter().filter(|name| name.starts_with("val-core/") && name.contains("/mean@"));
        for name in names.chain(["critic/score/mean"]) {
            let one = history.series(name);
            if !one.points.is_empty() {
                series.push(Series { name: format!("{label}: {name}"), points: one.points });
            }
        }
    }
    ensure!(!series.is_empty(), "no run of {runs:?} has a reward to draw yet");
    let last: Vec<String> = series
        .iter()
        .filter_map(|s| Some(format!("{}: {:.3} at step {}", s.name, s.points.last()?.1, s.points.last()?.0)))
        .collect();
    let chart = Chart { title: "mean reward".to_owned(), x_label: "step".to_owned(), series };
    if let Some(path) = to {
        std::fs::write(path, svg(&chart)).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(format!("{}\n{}", terminal(&chart, 100, 20), last.join("\n")))
}
