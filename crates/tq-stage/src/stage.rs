//! The two traits of a stage, and how it is registered.

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use transferqueue::{Batch, Outputs};

use crate::{MapContext, Parameters, Ports, StageContext, StateReader, StateWriter, map};

/// A consumer of the store with its own loop: claim, read, put, commit, until the stream ends.
///
/// Stages are stateless: all data lives in the store, a worker may be killed at any moment, and a row that was not
/// committed is claimed again. A stage that does not train is a pure function of its inputs, the weights version and the
/// sample's seed.
pub trait Stage: Send + 'static {
    /// Which columns it reads and writes, under logical names that the pipeline binds to columns.
    fn ports(&self) -> Ports;

    /// Works until `cx.claim` says that the stream has ended.
    ///
    /// # Errors
    /// What cannot be mended by trying again; the rows of open leases return.
    fn run(&mut self, cx: &mut StageContext) -> Result<()>;

    /// Writes weights, optimizer, schedulers, controllers and RNG; called by `cx.publish(self)`. Trainers only.
    ///
    /// # Errors
    /// When the state cannot be copied out of the model.
    fn save(&self, _to: &mut StateWriter) -> Result<()> {
        Ok(())
    }

    /// Reads back what [`Stage::save`] wrote; called before [`Stage::run`] when a run resumes.
    ///
    /// # Errors
    /// When the saved state is not that of this model.
    fn restore(&mut self, _from: &StateReader) -> Result<()> {
        Ok(())
    }
}

/// The easy way for most stages: a batch in, columns (or drops) out. Every `Map` is a [`Stage`].
pub trait Map: Send + 'static {
    /// Which columns it reads and writes.
    fn ports(&self) -> Ports;

    /// Computes the outputs of one claimed batch, one value a row, in the batch's order.
    ///
    /// # Errors
    /// An error counts as a failed attempt of the batch's rows.
    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs>;
}

impl<M: Map> Stage for M {
    fn ports(&self) -> Ports {
        Map::ports(self)
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        map::run(self, cx)
    }
}

/// A stage that pipelines can name.
///
/// Constructing one must be cheap: the planner does it to ask for the ports. Models are loaded in [`Stage::run`].
pub trait Register: Stage + Sized {
    /// The name after `use:`.
    const NAME: &'static str;

    /// The stage's own settings, given by `with:` in the pipeline. `()` when it has none.
    type Config: DeserializeOwned + Serialize + JsonSchema;

    /// Makes the stage from its settings and the parameter tree.
    ///
    /// # Errors
    /// When a setting or parameter does not suit; names it.
    fn new(config: Self::Config, parameters: &Parameters) -> Result<Self>;
}
