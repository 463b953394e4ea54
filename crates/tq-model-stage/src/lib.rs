//! What stages that run models share.
//!
//! * [`Follower`]: a model for scoring whose weights are those of a published version;
//! * [`pack`], [`Sequences`]: rows of a batch into packed micro-batches and flat columns;
//! * [`Trainer`]: the training loop (claim, micro-batches, update, commit, publish) around an [`Objective`];
//! * [`Collective`]: what several trainers of one model do together;
//! * [`loss`]: settings that several losses share;
//! * [`convert`]: parameters between the engine and the store.
//!
//! It is *not* an engine: models, optimizers and generators are in `tq-model`.

mod collective;
pub mod convert;
mod follower;
pub mod loss;
mod objective;
mod optim;
pub mod pack;
mod placement;
mod sequences;
mod sums;
mod trainer;

pub use collective::{Alive, Alone, Collective, OverStore};
pub use follower::Follower;
pub use objective::{Objective, Totals};
pub use optim::OptimSettings;
pub use placement::{DEVICES, device, dtype, placement, trained_placement};
pub use sequences::Sequences;
pub use sums::Sums;
pub use trainer::{Trainer, TrainerSettings};
