//! Where metrics go.
//!
//! A [`Sink`] takes one step's numbers at a time. Writing never changes them: what a sink cannot express it says in its own documentation.

mod console;
mod json_lines;
mod record;
mod tensorboard;

pub use console::Console;
pub use json_lines::JsonLines;
pub use tensorboard::TensorBoard;

use crate::error::Result;
use crate::metrics::Metrics;

/// Takes the numbers of one step after the other.
pub trait Sink: Send {
    /// Writes the numbers of `step` so that they survive the end of the process.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) with the file or stream.
    fn write(&mut self, step: u64, metrics: &Metrics) -> Result<()>;
}
