//! Reward by rule: a response and the right answer in, one number per token out.
//!
//! A [`Scorer`] judges responses of one kind of task; [`Scorers`] finds the one that a row's `data_source` asks for. A source that nobody
//! registered is an error that lists the known ones: there is no default scorer, and a reward is never silently 0.
//!
//! Scorers see text only. Tokenizers, tensors and the store are the callers' matter.
//!
//! ```
//! use tq_reward::{Piece, Sample, Scorers};
//!
//! # fn main() -> tq_reward::Result<()> {
//! let scorers = Scorers::builtin();
//! // The right answer is `5,7`; the response is `5,3` and the end symbol.
//! let response = [Piece::text("5"), Piece::text(","), Piece::text("3"), Piece::end("E")];
//! let score = scorers.score(&Sample::new("digit_completion", "5,7", &response))?;
//! assert_eq!(score.rewards, [0.25, 0.25, 0.0, 0.0]); // four symbols are due: 5 , 7 and the end
//! assert_eq!(score.total, 0.5);
//! # Ok(())
//! # }
//! ```

mod digits;
mod error;
mod registry;
mod sample;

pub use digits::DigitCompletion;
pub use error::{Error, Result};
pub use registry::Scorers;
pub use sample::{Piece, Sample, Score, Scorer};
