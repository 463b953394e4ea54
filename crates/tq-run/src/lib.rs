//! Runs pipelines: the library behind `tq-run`, and behind programs with stages of their own.
//!
//! ```no_run
//! use anyhow::Result;
//! use tq_stage::{Batch, Map, MapContext, Outputs, Parameters, Ports, Register};
//!
//! struct Nothing;
//!
//! impl Map for Nothing {
//!     fn ports(&self) -> Ports {
//!         Ports::new(vec![], vec![])
//!     }
//!
//!     fn map(&mut self, _: &Batch, _: &MapContext<'_>) -> Result<Outputs> {
//!         Ok(Outputs::new())
//!     }
//! }
//!
//! #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
//! struct Config {}
//!
//! impl Register for Nothing {
//!     const NAME: &'static str = "nothing";
//!     type Config = Config;
//!
//!     fn new(_: Config, _: &Parameters) -> Result<Self> {
//!         Ok(Self)
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     tq_run::App::new().stage::<Nothing>().main()
//! }
//! ```

mod app;
mod assignment;
mod builtin;
mod children;
mod cli;
mod data;
mod definition;
pub mod exit;
mod export;
mod folder;
mod ground;
mod interrupt;
mod keeper;
mod office;
mod outsiders;
mod phase;
mod process;
mod recorder;
mod registry;
mod replay;
mod reports;
mod settings;
mod worker;

/// Cells come and go by the megabyte, allocated on one thread and freed on another. The system's allocator held on to what was
/// freed: a store of 10 MB grew by 0.7 MB a step (`docs/performance.md`).
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub use app::App;
