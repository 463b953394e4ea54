//! Metrics of an update, gathered over its forward passes, and over its ranks.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Weighted sums of metrics over the passes of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    sums: BTreeMap<String, Sum>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    sum: f64,
    weight: f64,
    /// Passes and ranks bring parts of one total, rather than means.
    total: bool,
}

/// As it travels: floats by their bits, since JSON has no NaN.
#[derive(Serialize, Deserialize)]
struct Packed(String, u64, u64, bool);

impl Sums {
    /// Adds a mean over `weight` items.
    pub fn mean(&mut self, name: &str, value: f64, weight: f64) {
        let found = self.sums.entry(name.to_owned()).or_default();
        found.sum += value * weight;
        found.weight += weight;
    }

    /// Adds a part of a total.
    pub fn part(&mut self, name: &str, value: f64) {
        let found = self.sums.entry(name.to_owned()).or_default();
        found.sum += value;
        (found.weight, found.total) = (1.0, true);
    }

    /// Adds what another mini-batch came to.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(name, value, weight)| self.mean(name, value, weight));
    }

    /// The means and totals: name, value, weight.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64, f64)> {
        self.sums
            .iter()
            .filter(|(_, found)| found.weight > 0.0)
            .map(|(name, found)| (name.as_str(), found.sum / found.weight, found.weight))
    }

    /// What the ranks of one update came to together: parts of totals are added up, means are weighed, and of a metric
    /// called `max` or `min` the largest or smallest is kept (as verl reduces them).
    pub fn of_ranks(ranks: &[Self]) -> Self {
        let mut all = Self::default();
        for (name, found) in ranks.iter().flat_map(|rank| &rank.sums).filter(|(_, found)| found.weight > 0.0) {
            let Some(before) = all.sums.get_mut(name) else {
                all.sums.insert(name.clone(), *found);
                continue;
            };
            if found.total {
                before.sum += found.sum;
                continue;
            }
            let (one, other) = (before.sum / before.weight, found.sum / found.weight);
            let weight = before.weight + found.weight;
            let sum = match name.rsplit(['/', '_']).next() {
                Some("max") => one.max(other) * weight,
                Some("min") => one.min(other) * weight,
                _ => before.sum + found.sum,
            };
            (before.sum, before.weight) = (sum, weight);
        }
        all
    }

    /// For another rank.
    pub fn pack(&self) -> Vec<u8> {
        let packed = |(name, found): (&String, &Sum)| {
            Packed(name.clone(), found.sum.to_bits(), found.weight.to_bits(), found.total)
        };
        let all: Vec<Packed> = self.sums.iter().map(packed).collect();
        serde_json::to_vec(&all).expect("invariant: names and numbers are plain values")
    }

    /// From another rank.
    ///
    /// # Errors
    /// When it is of another version of the program.
    pub fn unpack(bytes: &[u8]) -> Result<Self> {
        let all: Vec<Packed> = serde_json::from_slice(bytes).context("metrics of another rank")?;
        let sum = |Packed(name, sum, weight, total)| {
            (name, Sum { sum: f64::from_bits(sum), weight: f64::from_bits(weight), total })
        };
        Ok(Self { sums: all.into_iter().map(sum).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_together_come_to_what_one_would_have() {
        let rank = |loss: f64, rows: &[f64]| {
            let mut sums = Sums::default();
            sums.part("actor/loss", loss);
            rows.iter().for_each(|row| sums.mean("score/mean", *row, 1.0));
            sums.mean("score/max", rows.iter().copied().fold(f64::MIN, f64::max), rows.len() as f64);
            sums.mean("gap_min", rows.iter().copied().fold(f64::MAX, f64::min), rows.len() as f64);
            sums
        };
        let (zero, one) = (rank(0.25, &[1.0, 2.0, 3.0]), rank(-1.0, &[7.0]));
        let told = [zero, one, Sums::default()].map(|sums| Sums::unpack(&sums.pack()).unwrap());
        let all: Vec<_> = Sums::of_ranks(&told).iter().map(|(name, v, w)| (name.to_owned(), v, w)).collect();
        let expected =
            [("actor/loss", -0.75, 1.0), ("gap_min", 1.0, 4.0), ("score/max", 7.0, 4.0), ("score/mean", 3.25, 4.0)];
        assert_eq!(all, expected.map(|(name, value, weight)| (name.to_owned(), value, weight)));
    }

    #[test]
    fn a_diverged_metric_arrives_as_it_is() {
        let mut sums = Sums::default();
        sums.mean("actor/grad_norm", f64::NAN, 1.0);
        sums.part("actor/loss", f64::INFINITY);
        let told = Sums::unpack(&sums.pack()).unwrap();
        let values: Vec<f64> = told.iter().map(|(_, value, _)| value).collect();
        assert!(values[0].is_nan() && values[1].is_infinite(), "{values:?}");
        assert!(Sums::unpack(b"{}").is_err());
    }
}
