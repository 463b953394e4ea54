//! From the parts of a step to its numbers.

use crate::metrics::Metrics;

/// How several values of one metric become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// Their sum.
    Sum,
    /// The one reported last.
    Last,
    /// Their mean by weight.
    Mean,
}

impl Rule {
    /// The rule for a metric of this name: times (`timing_s/…`), totals (`perf/total_…`) and what lost workers had made
    /// (`rollout/resumed_tokens`, `rollout/discarded_tokens`) are summed, of a learning rate (`…/lr`) and of counters (`training/global_step`,
    /// `training/epoch`) the last counts, a name with `max` or `min` in it says what it is, all else is averaged.
    pub fn of(name: &str) -> Rule {
        let saved = name == "rollout/resumed_tokens" || name == "rollout/discarded_tokens";
        if saved || name.starts_with("timing_s/") || name.starts_with("perf/total_") {
            Rule::Sum
        } else if name.ends_with("/lr") || name == "training/global_step" || name == "training/epoch" {
            Rule::Last
        } else if name.contains("max") {
            Rule::Max
        } else if name.contains("min") {
            Rule::Min
        } else {
            Rule::Mean
        }
    }
}

/// Collects the values that micro-batches, mini-batches or workers report during a step.
///
/// ```
/// use tq_metrics::Accumulator;
/// let mut step = Accumulator::new();
/// step.add_weighted("actor/pg_loss", 1.0, 30.0); // a micro-batch of 30 rows
/// step.add_weighted("actor/pg_loss", 3.0, 10.0); // and one of 10
/// step.add("timing_s/update_actor", 0.5);
/// step.add("timing_s/update_actor", 0.25);
/// let metrics = step.reduce();
/// assert_eq!(metrics.get("actor/pg_loss"), Some(1.5));
/// assert_eq!(metrics.get("timing_s/update_actor"), Some(0.75));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Accumulator {
    totals: Vec<(String, Total)>,
}

#[derive(Debug, Clone, Copy)]
struct Total {
    rule: Rule,
    value: f64,
    weight: f64,
}

impl Total {
    fn add(&mut self, value: f64, weight: f64) {
        match self.rule {
            Rule::Max => self.value = self.value.max(value),
            Rule::Min => self.value = self.value.min(value),
            Rule::Sum => self.value += value,
            Rule::Last => self.value = value,
            Rule::Mean => self.value += value * weight,
        }
        self.weight += weight;
    }

    fn merge(&mut self, other: Total) {
        match self.rule {
            Rule::Max => self.value = self.value.max(other.value),
            Rule::Min => self.value = self.value.min(other.value),
            Rule::Last => self.value = other.value,
            Rule::Sum | Rule::Mean => self.value += other.value,
        }
        self.weight += other.weight;
    }

    fn result(self) -> f64 {
        if self.rule == Rule::Mean { self.value / self.weight } else { self.value }
    }
}

impl Accumulator {
    /// Nothing collected yet.
    pub fn new() -> Self {
        Accumulator::default()
    }

    /// Takes a value of weight 1.
    pub fn add(&mut self, name: &str, value: f64) {
        self.add_weighted(name, value, 1.0);
    }

    /// Takes a value that stands for `weight` rows (or tokens). The weight matters to means only.
    pub fn add_weighted(&mut self, name: &str, value: f64, weight: f64) {
        if let Some((_, total)) = self.totals.iter_mut().find(|(known, _)| known == name) {
            return total.add(value, weight);
        }
        let rule = Rule::of(name);
        let first = if rule == Rule::Mean { value * weight } else { value };
        self.totals.push((name.to_string(), Total { rule, value: first, weight }));
    }

    /// Takes every number of `metrics` with the same weight.
    pub fn add_all(&mut self, metrics: &Metrics, weight: f64) {
        metrics.iter().for_each(|(name, value)| self.add_weighted(name, value, weight));
    }

    /// Adds what another one has collected, as if it had been reported here.
    pub fn merge(&mut self, other: &Accumulator) {
        for (name, part) in &other.totals {
            match self.totals.iter_mut().find(|(known, _)| known == name) {
                Some((_, total)) => total.merge(*part),
                None => self.totals.push((name.clone(), *part)),
            }
        }
    }

    /// One number per name, in order of first appearance. A mean over no weight is NaN.
    pub fn reduce(&self) -> Metrics {
        self.totals.iter().map(|(name, total)| (name.as_str(), total.result())).collect()
    }

    /// The same, and the accumulator is empty afterwards.
    pub fn take(&mut self) -> Metrics {
        let metrics = self.reduce();
        self.totals.clear();
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_rule() {
        for (name, rule) in [
            ("critic/score/max", Rule::Max),
            ("perf/max_memory_allocated_gb", Rule::Max),
            ("response_length/min", Rule::Min),
            ("global_seqlen/minmax_diff", Rule::Max),
            ("timing_s/max_wait", Rule::Sum),
            ("perf/total_num_tokens", Rule::Sum),
            ("actor/lr", Rule::Last),
            ("training/epoch", Rule::Last),
            ("actor/pg_loss", Rule::Mean),
        ] {
            assert_eq!(Rule::of(name), rule, "{name}");
        }
    }

    #[test]
    fn values_are_reduced_by_their_rule() {
        let mut step = Accumulator::new();
        for (value, weight) in [(2.0, 1.0), (-1.0, 3.0)] {
            for name in ["a/max", "a/min", "timing_s/a", "a/lr", "a/mean"] {
                step.add_weighted(name, value, weight);
            }
        }
        let expected = [("a/max", 2.0), ("a/min", -1.0), ("timing_s/a", 1.0), ("a/lr", -1.0), ("a/mean", -0.25)];
        assert_eq!(step.take().iter().collect::<Vec<_>>(), expected);
        assert!(step.reduce().is_empty(), "taken");
    }

    #[test]
    fn merged_parts_reduce_to_what_one_would_have_collected() {
        let (mut whole, mut parts) = (Accumulator::new(), [Accumulator::new(), Accumulator::new()]);
        for (i, (value, weight)) in [(2.0, 1.0), (-1.0, 3.0), (5.0, 0.5)].into_iter().enumerate() {
            for name in ["a/max", "a/min", "timing_s/a", "a/lr", "a/mean"] {
                whole.add_weighted(name, value, weight);
                parts[i / 2].add_weighted(name, value, weight);
            }
        }
        let mut merged = Accumulator::new();
        parts.iter().for_each(|part| merged.merge(part));
        assert_eq!(merged.reduce(), whole.reduce());
    }

    #[test]
    fn metrics_of_several_workers_are_added_whole() {
        let mut step = Accumulator::new();
        step.add_all(&Metrics::from_iter([("x", 1.0), ("x/max", 1.0)]), 1.0);
        step.add_all(&Metrics::from_iter([("x", 4.0), ("x/max", 0.0), ("y", 7.0)]), 2.0);
        assert_eq!(step.reduce().iter().collect::<Vec<_>>(), [("x", 3.0), ("x/max", 1.0), ("y", 7.0)]);
    }
}
