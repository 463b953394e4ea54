//! Benchmarks against limits and peers: one binary each under `src/bin`, one [`Report`] each.
//!
//! A report is written to `target/bench/<name>.json`, rows of `{case, unit, ours, theirs, against, ratio, budget}` (and
//! `better`: whether more or less is better, that is on which side of the budget the figure must lie), and printed. A
//! missed budget fails the run unless `docs/known-gaps.md` names it as `` `<name>: <case>` ``.

pub mod pair;
pub mod served;
pub mod shapes;
pub mod small;

use std::{
    fs,
    hint::black_box,
    io,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

/// Bytes of a GiB.
pub const GIB: f64 = (1_u64 << 30) as f64;

/// A look at every byte.
pub fn sum(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
}

/// How long so many passes take.
pub fn timed(times: usize, mut each: impl FnMut() -> u64) -> Duration {
    let begun = Instant::now();
    for _ in 0..times {
        black_box(each());
    }
    begun.elapsed()
}

/// The middle one, in seconds.
pub fn median(mut all: Vec<Duration>) -> f64 {
    all.sort();
    all[all.len() / 2].as_secs_f64()
}

/// On which side of its budget a figure must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// At least the budget.
    More,
    /// At most the budget.
    Less,
}

/// One measured figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub case: String,
    /// Unit of `ours`, `theirs` and `budget`.
    pub unit: String,
    /// Our figure.
    pub ours: f64,
    /// The figure of what it is compared with, measured in the same run.
    pub theirs: Option<f64>,
    /// What it is compared with.
    pub against: Option<String>,
    /// `ours / theirs`.
    pub ratio: Option<f64>,
    /// The limit.
    pub budget: Option<f64>,
    /// On which side of the limit `ours` (or `ratio`, where something is compared) must lie.
    pub better: Better,
}

impl Row {
    /// A figure that stands alone.
    pub fn alone(case: impl Into<String>, unit: &str, ours: f64, budget: Option<f64>, better: Better) -> Self {
        let (theirs, against, ratio) = (None, None, None);
        Self { case: case.into(), unit: unit.into(), ours, theirs, against, ratio, budget, better }
    }

    /// A speed beside another one, in GiB/s; the budget is one of their ratio.
    pub fn speeds(case: impl Into<String>, ours: f64, (against, theirs): (&str, f64), budget: Option<f64>) -> Self {
        Self {
            theirs: Some(theirs),
            against: Some(against.into()),
            ratio: Some(ours / theirs),
            ..Self::alone(case, "GiB/s", ours, budget, Better::More)
        }
    }

    /// Whether the budget is kept.
    pub fn kept(&self) -> bool {
        let figure = self.ratio.unwrap_or(self.ours);
        self.budget.is_none_or(|budget| match self.better {
            Better::More => figure >= budget,
            Better::Less => figure <= budget,
        })
    }
}

/// The figures of one benchmark.
#[derive(Debug)]
pub struct Report {
    name: String,
    rows: Vec<Row>,
}

impl Report {
    /// An empty report; `name` is the file's.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), rows: Vec::new() }
    }

    /// Adds a figure.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Writes the file. Returns the budgets that were missed and are not known gaps.
    ///
    /// # Errors
    /// When the file cannot be written.
    fn finish(self) -> io::Result<Vec<String>> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = root.join("target/bench");
        fs::create_dir_all(&folder)?;
        let text = serde_json::to_string_pretty(&self.rows).map_err(io::Error::other)?;
        fs::write(folder.join(format!("{}.json", self.name)), text + "\n")?;
        let gaps = fs::read_to_string(root.join("docs/known-gaps.md")).unwrap_or_default();
        let missed = self.rows.iter().filter(|row| !row.kept()).map(|row| format!("{}: {}", self.name, row.case));
        Ok(missed.filter(|gap| !gaps.contains(&format!("`{gap}`"))).collect())
    }

    /// Prints the figures and writes the file. The exit code says whether every budget is kept or known as a gap.
    pub fn conclude(self) -> ExitCode {
        let name = self.name.clone();
        #[allow(clippy::print_stdout, reason = "the table is what the command is for")]
        {
            println!("{}", self.table());
        }
        match self.finish() {
            Ok(missed) if missed.is_empty() => ExitCode::SUCCESS,
            Ok(missed) => failed(&format!("budgets missed: {}", missed.join("; "))),
            Err(error) => failed(&format!("target/bench/{name}.json: {error}")),
        }
    }

    /// The figures as a table for people.
    fn table(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let budget = row.budget.map_or(String::new(), |budget| {
                let side = if row.better == Better::More { '≥' } else { '≤' };
                let verdict = if row.kept() { "" } else { "  MISSED" };
                format!("  {side} {budget}{verdict}")
            });
            let theirs = match (&row.against, row.theirs, row.ratio) {
                (Some(against), Some(theirs), Some(ratio)) => format!("  {against} {theirs:.3}, ratio {ratio:.2}"),
                _ => String::new(),
            };
            text += &format!("{:<44} {:>14.3} {:<8}{theirs}{budget}\n", row.case, row.ours, row.unit);
        }
        text
    }
}

/// Where what a program measures cannot be had: exit status 77, which is no success.
#[allow(clippy::print_stderr, reason = "a command says why it did nothing")]
pub fn skipped(why: impl std::fmt::Display) -> ExitCode {
    eprintln!("nothing was measured: {why}");
    ExitCode::from(77)
}

#[allow(clippy::print_stderr, reason = "a command says why it fails")]
fn failed(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_kept_on_its_better_side() {
        let row = |ours, better| Row::alone("x", "s", ours, Some(2.0), better);
        assert!(row(2.0, Better::More).kept() && row(2.0, Better::Less).kept());
        assert!(!row(1.9, Better::More).kept() && !row(2.1, Better::Less).kept());
        let compared = Row { ratio: Some(3.0), ..row(1.0, Better::More) };
        assert!(compared.kept(), "what is compared is judged by its ratio");
    }
}
