//! What a training run reports: numbers by name, where they come from and where they go.
//!
//! - [`Metrics`] is one step's numbers, in order, under verl's names; [`Accumulator`] makes one of many parts of a step.
//! - [`batch`], [`timing`] and [`validation`] hold the formulas of the common metrics, from plain slices.
//! - [`sink`] writes them: a console line, `metrics.jsonl`, TensorBoard event files.
//! - [`curve`] draws them: in the terminal and as SVG. [`history`] reads `metrics.jsonl` back.
//!
//! Nothing here measures or decides: it is given numbers and keeps none beyond what an accumulator is asked to.
//!
//! ```
//! use tq_metrics::sink::{JsonLines, Sink};
//! use tq_metrics::{Accumulator, curve, history};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("metrics.jsonl");
//! let mut log = JsonLines::open(&path)?;
//! for step in 1..=20u32 {
//!     let mut parts = Accumulator::new();
//!     parts.add("critic/score/mean", 1.0 - 1.0 / f64::from(step));
//!     parts.add("critic/score/max", 1.0);
//!     log.write(step.into(), &parts.reduce())?;
//! }
//! let series = history::read(&path)?.series("critic/score/mean");
//! let chart = curve::Chart { title: "reward".into(), x_label: "step".into(), series: vec![series] };
//! assert!(curve::terminal(&chart, 60, 12).contains("reward"));
//! assert!(curve::svg(&chart).starts_with("<svg"));
//! # Ok(())
//! # }
//! ```

mod accumulator;
pub mod batch;
mod bootstrap;
pub mod curve;
mod error;
pub mod history;
mod metrics;
pub mod sink;
pub mod timing;
pub mod validation;

pub use accumulator::{Accumulator, Rule};
pub use error::{Error, Result};
pub use metrics::Metrics;
