//! Configuration: a tree that knows where each of its values came from.
//!
//! YAML files become [`Node`]s with positions ([`yaml`]), `key=value` arguments become [`Override`]s, `${a.b.c}` reads
//! a value from elsewhere in the tree ([`interpolate`]), `~/` is the home folder ([`home`]), and [`extract`] turns a node into a Rust type. Whatever is
//! wrong becomes a [`Refusal`] that names file, line, key, what was found, what was expected and what to do.
//! [`Parameters`] is the tree of training parameters in verl's vocabulary, with its defaults.
//!
//! ```
//! use tq_config::{Override, Parameters};
//!
//! let mut parameters = Parameters::builtin();
//! parameters.apply(&Override::parse("data.train_batch_size=64")?)?;
//! // This key means nothing here: it is accepted, and noted.
//! parameters.apply(&Override::parse("actor_rollout_ref.rollout.gpu_memory_utilization=0.4")?)?;
//! // A slip is refused with the nearest key.
//! let slip = parameters.apply(&Override::parse("data.train_batchsize=64")?).expect_err("no such key");
//! assert!(slip.to_string().contains("did you mean `data.train_batch_size`?"));
//!
//! let tree = parameters.resolve()?;
//! assert_eq!(tree.to_json()["data"]["train_batch_size"], 64);
//! assert_eq!(parameters.notes().len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: pipelines and schedules (`tq-schedule`), and Hydra's config groups, sweeps and resolvers, which are
//! refused by name.

mod extract;
pub mod home;
pub mod interpolate;
mod node;
mod origin;
mod overrides;
mod parameters;
mod range;
mod refusal;
mod scalar;
pub mod suggest;
pub mod yaml;

pub use extract::extract;
pub use node::{Map, Node, Value, join};
pub use origin::Origin;
pub use overrides::{Action, Arguments, Override};
pub use parameters::{Note, Parameters};
pub use range::Range;
pub use refusal::{Refusal, Refusals};
pub use scalar::bare;
