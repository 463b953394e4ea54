//! How stages report numbers: by cycle, under verl's metric names.

use std::sync::Arc;

/// Takes metrics of a cycle; the runner turns them into one line a step when the cycle is published.
pub trait Reporter: Send + Sync {
    /// Adds `value` to metric `name` of `cycle`, with `weight` samples behind it.
    fn metric(&self, cycle: u64, name: &str, value: f64, weight: f64);

    /// Adds seconds spent to `timing_s/<name>` of the cycle in progress.
    fn timing(&self, name: &str, seconds: f64);

    /// A finished validation round under weight version `version`.
    fn validation(&self, version: u64, metrics: &[(String, f64)]);

    /// A note about a long wait, shown to people.
    fn waiting(&self, text: &str);

    /// Called by a trainer after it offered its part: waits while the runner is behind with writing down publications.
    fn pace(&self);
}

/// Reports nowhere; for tests of single stages.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Reporter for Silent {
    fn metric(&self, _: u64, _: &str, _: f64, _: f64) {}
    fn timing(&self, _: &str, _: f64) {}
    fn validation(&self, _: u64, _: &[(String, f64)]) {}
    fn waiting(&self, _: &str) {}
    fn pace(&self) {}
}

/// A shared reporter.
pub type SharedReporter = Arc<dyn Reporter>;
