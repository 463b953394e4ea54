//! One step's numbers.

use serde_json::{Map, Number, Value};

/// Numbers by name, in the order in which they were first set.
///
/// ```
/// use tq_metrics::Metrics;
/// let mut metrics = Metrics::new();
/// metrics.set("lag/mean", 0.5);
/// metrics.set("actor/lr", 1e-4);
/// metrics.set("lag/mean", 0.0);
/// assert_eq!(metrics.iter().collect::<Vec<_>>(), [("lag/mean", 0.0), ("actor/lr", 1e-4)]);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    /// A step has a few dozen numbers: a list is as fast as a map, and keeps their order.
    entries: Vec<(String, f64)>,
}

impl Metrics {
    /// No number yet.
    pub fn new() -> Self {
        Metrics::default()
    }

    /// Sets the number called `name`; a number that is there keeps its place.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        match self.entries.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.entries.push((name, value)),
        }
    }

    /// The number called `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.entries.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Sets all numbers of `other`.
    pub fn merge(&mut self, other: Metrics) {
        other.entries.into_iter().for_each(|(name, value)| self.set(name, value));
    }

    /// Names and numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Mean, maximum and minimum of `values` as `{prefix}/mean`, `{prefix}/max`, `{prefix}/min`; NaN if there are none.
    pub fn set_summary(&mut self, prefix: &str, values: impl Iterator<Item = f64>) {
        let (mut sum, mut n, mut max, mut min) = (0.0, 0.0, f64::NAN, f64::NAN);
        for value in values {
            sum += value;
            n += 1.0;
            // `max` and `min` of f64 prefer the operand that is a number.
            max = value.max(max);
            min = value.min(min);
        }
        self.set(format!("{prefix}/mean"), sum / n);
        self.set(format!("{prefix}/max"), max);
        self.set(format!("{prefix}/min"), min);
    }

    /// As a JSON object. JSON has no NaN or infinity: those become null. Whole numbers are written without a fraction.
    pub fn to_json(&self) -> Map<String, Value> {
        self.entries.iter().map(|(name, value)| (name.clone(), number(*value))).collect()
    }
}

fn number(value: f64) -> Value {
    // Up to 2⁵³ every whole number is exact.
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

impl<S: Into<String>> FromIterator<(S, f64)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (S, f64)>>(entries: I) -> Self {
        let mut metrics = Metrics::new();
        metrics.extend(entries);
        metrics
    }
}

impl<S: Into<String>> Extend<(S, f64)> for Metrics {
    fn extend<I: IntoIterator<Item = (S, f64)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(name, value)| self.set(name, value));
    }
}
