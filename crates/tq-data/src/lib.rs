//! Prompts, tokenizers and the digits task: everything that stands between files on disk and the rows of a `prompts` partition.
//!
//! - [`Dataset`] reads parquet files in verl's layout; [`Order`] says which row a cursor points at, epoch after epoch, as a pure function.
//! - [`Tokenizer`] loads a model folder's `tokenizer.json` together with the ids and the chat template its configuration files name.
//! - [`PromptSet`] is a data set turned into token ids, with the rule for prompts that are too long applied.
//! - [`digits`] generates the "digit completion" task: data, tokenizer and model configuration.
//!
//! Nothing here knows the store, a tensor library or a reward.
//!
//! ```
//! use tq_data::{Dataset, Order, PromptOptions, PromptSet, ReadOptions, Tokenizer, digits};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let written = digits::write(folder.path(), &digits::Options::default())?;
//!
//! let data = Dataset::read(&[written.train], &ReadOptions::default())?;
//! let tokenizer = Tokenizer::load(&written.model)?;
//! let prompts = PromptSet::prepare(&data, &tokenizer, &PromptOptions { max_length: 16, ..PromptOptions::default() })?;
//! assert_eq!(prompts.len(), 650);
//!
//! let order = Order::shuffled(prompts.len(), 1);
//! let first = &prompts[order.at(0)];
//! assert_eq!(first.data_source, "digit_completion");
//! assert_eq!(first.ids.len(), "0,1:9,4S".len());
//! # Ok(())
//! # }
//! ```

mod chat;
mod dataset;
pub mod digits;
mod error;
mod json;
mod order;
mod prompts;
mod rng;
mod tokenizer;
mod write;

pub use chat::{ChatTemplate, Message};
pub use dataset::{Dataset, ReadOptions, Row};
pub use error::{Error, Result};
pub use order::Order;
pub use prompts::{Prompt, PromptOptions, PromptSet, Truncation};
pub use rng::SplitMix64;
pub use tokenizer::{Piece, Tokenizer};
pub use write::{Record, write_parquet};
