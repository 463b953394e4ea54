//! The contract between stages and the store.
//!
//! A stage is a consumer of the store: it claims rows whose input columns are ready, reads them by pointer, and puts
//! columns back. Most stages are a [`Map`]: a batch in, columns out. Stages that need a loop of their own (continuous
//! batching, training) implement [`Stage`]. A stage crate is a type, a serde config and one line in a program:
//!
//! ```
//! use anyhow::Result;
//! use tq_stage::{Batch, Input, Map, MapContext, Output, Outputs, Parameters, Ports, Register, ragged_f32, ragged_i64};
//!
//! /// Costs one unit per token.
//! struct TokenCost {
//!     price: f32,
//! }
//!
//! #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
//! struct Config {
//!     price: f32,
//! }
//!
//! impl Map for TokenCost {
//!     fn ports(&self) -> Ports {
//!         Ports::new(vec![Input::new("responses", ragged_i64())], vec![Output::new("token_cost", ragged_f32())])
//!     }
//!
//!     fn map(&mut self, batch: &Batch, _: &MapContext<'_>) -> Result<Outputs> {
//!         let costs: Vec<Vec<f32>> = batch.ragged::<i64>("responses")?.iter().map(|r| vec![self.price; r.len()]).collect();
//!         Ok(Outputs::new().ragged("token_cost", costs))
//!     }
//! }
//!
//! impl Register for TokenCost {
//!     const NAME: &'static str = "token-cost";
//!     type Config = Config;
//!
//!     fn new(config: Config, _: &Parameters) -> Result<Self> {
//!         Ok(Self { price: config.price })
//!     }
//! }
//! ```
//!
//! What it is *not*: it knows no model library. Stages that run models build on `tq-model-stage`.

mod context;
mod map;
mod parameters;
mod publish;
mod report;
mod seed;
mod stage;
mod state;
mod weights;

pub use context::{MapContext, ModelUse, ScheduleFacts, Served, Setup, StageContext, TryWork, Work};
pub use parameters::{Parameters, read};
pub use report::{Reporter, SharedReporter, Silent};
pub use seed::sample_seed;
pub use stage::{Map, Register, Stage};
pub use state::{NamedTensor, StateReader, StateWriter};
pub use tq_config::{Range, Refusal};
pub use tq_schedule::{
    Version,
    port::{Extent, Input, Output, Per, Ports, ROW_COLUMNS},
};
pub use transferqueue::{
    Batch, Outputs, Rows,
    schema::{Dtype, Kind},
};
pub use weights::{MAX_PART_BYTES, Weights};

/// The kind of a ragged `f32` column: log-probs, rewards, advantages per token.
pub fn ragged_f32() -> Kind {
    Kind::Ragged { dtype: Dtype::F32, inner: Vec::new() }
}

/// The kind of a ragged `i64` column: token ids.
pub fn ragged_i64() -> Kind {
    Kind::Ragged { dtype: Dtype::I64, inner: Vec::new() }
}
