//! The arithmetic of reinforcement learning on language models, over plain slices.
//!
//! - [`advantage`]: the estimators that turn rewards into advantages, by verl's names (`gae`, `grpo`, …).
//! - [`loss`]: policy losses, value loss and KL loss, each as a *value and its gradient* with respect to the model's output per token.
//! - [`kl`]: KL penalties and the controllers of their coefficient.
//! - [`aggregate`]: how per-token losses become one number, as a weight per token.
//! - [`balance`]: dividing rows of differing lengths evenly, and packing them under a token budget.
//! - [`stats`]: masked mean, variance and whitening.
//!
//! There is no tensor library and no padding here. The tokens of a batch lie one after the other in flat slices, and one [`Layout`] says where its rows
//! begin and which tokens the policy generated. Columns are `f32`; all arithmetic is done in `f64` and results are `f64` (see [`narrow`]).
//!
//! Because a loss comes with its gradient, whoever owns the model needs a single call: back-propagate `loss.grad` through the log-probabilities.
//!
//! ```
//! use tq_math::aggregate::{Aggregation, Mode};
//! use tq_math::{Layout, advantage, loss};
//!
//! # fn main() -> tq_math::Result<()> {
//! // Two responses to one prompt, of 3 and 2 tokens; the first earned 1, the second nothing.
//! let layout = Layout::from_lengths([3, 2]);
//! let estimator = advantage::Registry::builtin().get("grpo", &advantage::Params::default())?;
//! let batch = advantage::Batch { groups: Some(&[7, 7]), ..advantage::Batch::new(&layout, &[0.0, 0.0, 1.0, 0.0, 0.0]) };
//! let advantages = tq_math::narrow(&estimator.estimate(&batch)?.advantages);
//! assert!(advantages[0] > 0.7 && advantages[4] < -0.7);
//!
//! // On-policy: old and new log-probabilities agree, so the ratio is 1 and the gradient is -A / tokens.
//! let log_probs = [-1.0, -2.0, -0.5, -1.0, -3.0];
//! let policy = loss::Registry::builtin().get("vanilla", &loss::Params::default())?;
//! let tokens = loss::Tokens::new(&layout, &log_probs, &log_probs, &advantages);
//! let loss = policy.evaluate(&tokens, &Aggregation::new(Mode::TokenMean))?;
//! assert!((loss.grad[0] + f64::from(advantages[0]) / 5.0).abs() < 1e-9);
//! # Ok(())
//! # }
//! ```

pub mod advantage;
pub mod aggregate;
pub mod balance;
mod error;
pub mod kl;
mod layout;
pub mod loss;
pub mod stats;

pub use error::{Error, Result};
pub use layout::{Layout, Real, narrow};
