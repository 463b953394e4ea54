//! The pipeline file, and the plan derived from it.
//!
//! A pipeline names partitions, models and stages, and chooses a [`schedule`]. A [`Planner`] reads it together with
//! the arguments of the command line, asks a [`StageCatalog`] what each stage reads and writes ([`port`]), binds ports
//! to columns, and answers with a [`Plan`]: partitions with their columns, tasks, the arithmetic of cycles and memory,
//! and the largest lag the schedule promises. Whatever is wrong is refused before anything starts, all of it at once,
//! each with file, line, key, what was found, what was expected and what to do.
//!
//! ```
//! use tq_schedule::port::{DescribeError, Dtype, Input, Kind, Output, Ports, Query};
//! use tq_schedule::{Planner, StageCatalog};
//!
//! struct Stages;
//!
//! impl StageCatalog for Stages {
//!     fn describe(&self, query: &Query<'_>) -> Result<Ports, DescribeError> {
//!         let tokens = || Kind::Ragged { dtype: Dtype::I64, inner: vec![] };
//!         match query.stage {
//!             "dataset" => Ok(Ports::new(vec![], vec![Output::new("prompt", tokens())])),
//!             "sft" => Ok(Ports::new(vec![Input::new("prompt", tokens())], vec![])
//!                 .model("causal-lm")
//!                 .trains(16, "actor_rollout_ref.actor.ppo_mini_batch_size", 1)),
//!             _ => Err(DescribeError::Unknown),
//!         }
//!     }
//!     fn stages(&self) -> Vec<String> {
//!         vec!["sft".into()]
//!     }
//!     fn model_kinds(&self) -> Vec<String> {
//!         vec!["causal-lm".into()]
//!     }
//! }
//!
//! let pipeline = "
//! partitions:
//!   prompts: {files: train.parquet}
//!   lessons: {expand: prompts, link: [prompt]}
//! models: {policy: {use: causal-lm, path: model}}
//! stages: {teach: {use: sft, model: policy}}
//! parameters: {data.train_batch_size: 64, trainer.total_training_steps: 10}
//! ";
//! let planner = Planner::new(&Stages);
//! let plan = planner.plan_text(pipeline, "lessons.yaml", &[])?;
//! let cycle = &plan.phases[0].arithmetic;
//! assert_eq!((cycle.groups_per_cycle, cycle.mini_batches_per_cycle), (64, 4));
//! assert!(plan.describe().contains("while admitted − dropped − retired < 64 + 0 = 64"));
//!
//! let slip = planner.plan_text(&pipeline.replace("use: sft", "use: stf"), "lessons.yaml", &[]);
//! let said = slip.expect_err("no such stage").to_string();
//! assert!(said.starts_with("lessons.yaml:6:18: stages.teach.use: found the stage `stf`"), "{said}");
//! assert!(said.ends_with("did you mean `sft`?"), "{said}");
//! # Ok::<(), tq_schedule::Refusals>(())
//! ```
//!
//! Not here: running anything. The plan is data; `tq-run` turns it into a catalog and workers.

mod columns;
mod describe;
mod edit;
mod entry;
mod numbers;
mod phase;
pub mod plan;
mod planner;
pub mod port;
pub mod schedule;
mod scope;
mod tasks;

pub use plan::{Phase, Plan, Version};
pub use planner::{Planner, RowCounter, SourceFiles};
pub use port::{DescribeError, Ports, Query, StageCatalog};
pub use tq_config::{Arguments, Override, Refusal, Refusals};
