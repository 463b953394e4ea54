//! What validation found: means, and best, worst and majority of n answers.

use std::collections::BTreeMap;

use crate::bootstrap::{bootstrap, mean_and_deviation};
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// One answer to a validation prompt.
#[derive(Debug, Clone)]
pub struct Sample<'a> {
    /// Which task the prompt belongs to.
    pub data_source: &'a str,
    /// The prompt; answers to one prompt share it.
    pub prompt: u64,
    /// What the answer was given, by name. The score is called `reward`; a task that also reports `acc` is judged by that. All samples of a data source
    /// have the same names.
    pub values: &'a [(&'a str, f64)],
    /// What the answer says, for majority votes.
    pub prediction: Option<&'a str>,
}

/// The seed of every resampling, verl's.
const SEED: u32 = 42;

/// verl's validation metrics, `val-core/{source}/{value}/{metric}` and `val-aux/…`.
///
/// With N answers per prompt: `mean@N` and, if N > 1, `std@N`, and for n = 2, 4, 8, … below N and N itself `best@n/{mean,std}`, `worst@n/{mean,std}` and
/// (if every answer has a prediction) `maj@n/{mean,std}`, from 1,000 draws of n answers with replacement; of equally frequent predictions the first drawn
/// wins. Each is computed per prompt and averaged over the prompts of a data source.
///
/// `val-core` are `mean`, `best` and `maj` at the largest N of the value that judges the task: `acc` if reported, else `reward`.
///
/// ```
/// use tq_metrics::validation::{Sample, metrics};
/// let answer = |prompt, reward| Sample { data_source: "digit_completion", prompt, values: reward, prediction: None };
/// let found = metrics(&[answer(0, &[("reward", 1.0)]), answer(1, &[("reward", 0.5)])])?;
/// assert_eq!(found.get("val-core/digit_completion/reward/mean@1"), Some(0.75));
/// # Ok::<(), tq_metrics::Error>(())
/// ```
///
/// # Errors
/// [`Error::Validation`] if the samples of one data source have different value names.
pub fn metrics(samples: &[Sample<'_>]) -> Result<Metrics> {
    let mut by_source: BTreeMap<&str, Vec<&Sample<'_>>> = BTreeMap::new();
    for sample in samples {
        by_source.entry(sample.data_source).or_default().push(sample);
    }
    let mut metrics = Metrics::new();
    for (source, samples) in by_source {
        of_source(source, &samples, &mut metrics)?;
    }
    Ok(metrics)
}

fn of_source(source: &str, samples: &[&Sample<'_>], metrics: &mut Metrics) -> Result<()> {
    let names: Vec<&str> = samples[0].values.iter().map(|(name, _)| *name).collect();
    if let Some(other) = samples.iter().find(|s| !s.values.iter().map(|(name, _)| *name).eq(names.iter().copied())) {
        let found: Vec<&str> = other.values.iter().map(|(name, _)| *name).collect();
        let problem = format!(
            "one sample reports {names:?}, another {found:?}; report the same values, in the same order, for every sample"
        );
        return Err(Error::Validation { data_source: source.into(), problem });
    }
    let mut prompts: BTreeMap<u64, Vec<&Sample<'_>>> = BTreeMap::new();
    for sample in samples {
        prompts.entry(sample.prompt).or_default().push(sample);
    }
    let largest = prompts.values().map(Vec::len).max().unwrap_or(0);
    let judge = if names.contains(&"acc") { "acc" } else { "reward" };
    for (place, name) in names.iter().enumerate() {
        // Prompts may differ in their number of answers, and then in their metrics: each is averaged over the prompts that have it.
        let mut averages: Vec<(Metric, f64, f64)> = Vec::new();
        for answers in prompts.values() {
            for (metric, value) in of_prompt(answers, place) {
                match averages.iter_mut().find(|(known, _, _)| *known == metric) {
                    Some((_, sum, n)) => (*sum, *n) = (*sum + value, *n + 1.0),
                    None => averages.push((metric, value, 1.0)),
                }
            }
        }
        for (metric, sum, n) in averages {
            let core = *name == judge && metric.n == largest && matches!(metric.kind, "mean" | "best" | "maj");
            let section = if core { "val-core" } else { "val-aux" };
            metrics.set(format!("{section}/{source}/{name}/{}@{}{}", metric.kind, metric.n, metric.part), sum / n);
        }
    }
    Ok(())
}

/// `{kind}@{n}{part}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Metric {
    kind: &'static str,
    n: usize,
    part: &'static str,
}

fn of_prompt(answers: &[&Sample<'_>], place: usize) -> Vec<(Metric, f64)> {
    let values: Vec<f64> = answers.iter().map(|answer| answer.values[place].1).collect();
    let total = values.len();
    let (mean, deviation) = mean_and_deviation(&values);
    let mut found = vec![(Metric { kind: "mean", n: total, part: "" }, mean)];
    if total == 1 {
        return found;
    }
    found.push((Metric { kind: "std", n: total, part: "" }, deviation));
    let mut pair = |kind, n, (mean, deviation)| {
        found.push((Metric { kind, n, part: "/mean" }, mean));
        found.push((Metric { kind, n, part: "/std" }, deviation));
    };
    let predictions: Option<Vec<&str>> = answers.iter().map(|answer| answer.prediction).collect();
    for n in sizes(total) {
        let extremes = |draw: &[usize]| {
            let drawn = draw.iter().map(|index| values[*index]);
            [drawn.clone().fold(f64::MIN, f64::max), drawn.fold(f64::MAX, f64::min)]
        };
        let [best, worst] = bootstrap(total, n, SEED, extremes);
        pair("best", n, best);
        pair("worst", n, worst);
        if let Some(predictions) = &predictions {
            let [majority] = bootstrap(total, n, SEED, |draw| [values[majority(draw, predictions)]]);
            pair("maj", n, majority);
        }
    }
    found
}

/// 2, 4, 8, … below `total`, then `total`.
fn sizes(total: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(2), |n| Some(n * 2)).take_while(move |n| *n < total).chain([total])
}

/// The first drawn answer with the most frequent prediction; of equally frequent predictions, the one drawn first.
fn majority(draw: &[usize], predictions: &[&str]) -> usize {
    let count = |index: usize| draw.iter().filter(|other| predictions[**other] == predictions[index]).count();
    let mut winner = draw[0];
    for index in draw {
        if count(*index) > count(winner) {
            winner = *index;
        }
    }
    winner
}
