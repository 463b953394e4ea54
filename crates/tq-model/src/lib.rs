//! Decoder-only language models on libtorch: scoring, training and generation for the stages that need them.
//!
//! - [`TorchModel`] opens a Hugging Face folder (Llama, Qwen2, Qwen3), scores packed batches and trains on them. Stages hold it as a
//!   [`Model`], through which only plain values pass, so that another engine can take its place.
//! - [`generate::TorchGenerator`] samples responses with a KV cache and continuous batching, behind [`generate::Generator`].
//! - [`weights`] carries parameters and optimizer state as named bytes, the form in which they travel through the store.
//!
//! ```
//! use tq_model::train::{LrSchedule, TrainOptions};
//! use tq_model::weights::{DType, Head};
//! use tq_model::{Decoder, Model, ModelConfig, PackedBatch, Placement, TokenGradients, TorchModel, Want};
//!
//! let config = ModelConfig::from_json(&serde_json::json!({
//!     "model_type": "llama", "vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
//! }))?;
//! let decoder = Decoder::random(&config, Head::Lm, Placement::cpu(DType::F32), 1)?;
//! let mut model = TorchModel::new(decoder).training(TrainOptions::new(LrSchedule::constant(1e-2)))?;
//!
//! // Two rows of different lengths, no padding; the responses are scored.
//! let mut batch = PackedBatch::new();
//! batch.push(&[4, 14, 5], &[6, 7, 1])?;
//! batch.push(&[9], &[9, 1])?;
//! let before = model.score(&batch, &Want::log_probs(1.0))?;
//! assert_eq!(before.log_probs.len(), 5);
//!
//! // One step towards likelier responses: the loss is the mean of −ln p, so each gradient is −1/5.
//! model.accumulate(&batch, &Want::log_probs(1.0), &mut |stats| {
//!     Ok(TokenGradients { log_probs: vec![-0.2; stats.log_probs.len()], ..TokenGradients::default() })
//! })?;
//! let report = model.step()?;
//! assert!(report.applied && report.grad_norm > 0.0);
//! let after = model.score(&batch, &Want::log_probs(1.0))?;
//! assert!(after.log_probs.iter().sum::<f32>() > before.log_probs.iter().sum::<f32>());
//! # Ok::<(), tq_model::Error>(())
//! ```
//!
//! # Equal bits
//!
//! On the CPU, at a fixed number of threads, what is computed for a row depends on that row alone: not on the rows packed beside it, and in
//! generation not on when it enters or which slot it gets. Three rules give this, each measured on libtorch 2.11: at least 16 rows in every
//! matrix product; numbers of rows that leave point-wise kernels no remainder; attention over a row's own length rounded up to 8, or, over
//! cached keys, in chunks of a fixed size. Training repeats bit for bit on equal batches, and from a saved state.
//!
//! # Threads
//!
//! libtorch's OpenMP threads spin while they wait, which costs several times the speed when other threads want the cores. Start the process
//! with `OMP_WAIT_POLICY=PASSIVE`: it is read when libtorch is loaded, so setting it from within is too late.
//!
//! # What it is not
//!
//! No tokenizer, no losses (they are functions from [`TokenStats`] to [`TokenGradients`]), no data parallelism, and no attention kernels of
//! its own. Rotary scalings other than Llama 3's, sliding windows and quantised weights are refused by name.

mod batch;
mod config;
mod cuda;
mod decoder;
mod error;
pub mod generate;
mod model;
pub mod random;
mod rope;
mod score;
mod tensor;
mod torch;
pub mod train;
pub mod weights;

pub use batch::PackedBatch;
pub use config::{Family, ModelConfig, RopeScaling};
pub use decoder::{Decoder, Placement};
pub use error::{Error, Result};
pub use model::Model;
pub use score::{TokenGradients, TokenStats, Want};
pub use tch::Device;
pub use torch::{TorchModel, init_random, weights_for};

/// Sets how many threads libtorch's operators use on the CPU, for the process. Bits repeat at a fixed number.
///
/// Call it before the first model is made; generators keep the number they were made with.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(i32::try_from(threads.max(1)).unwrap_or(i32::MAX));
}

/// How many threads libtorch's operators use on the CPU.
pub fn threads() -> usize {
    tch::get_num_threads().max(1) as usize
}
