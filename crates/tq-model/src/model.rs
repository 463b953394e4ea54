//! What stages ask of a model, whatever engine runs it.

use crate::config::ModelConfig;
use crate::train::{Flat, StepReport};
use crate::weights::{DType, Head, NamedTensors};
use crate::{PackedBatch, Result, TokenGradients, TokenStats, Want};

/// A language model that scores packed batches and can be trained.
///
/// Only plain values cross this boundary, so that another engine can stand behind it: a loss is a function from the numbers of the scored
/// tokens to their gradients, and weights travel as named bytes.
pub trait Model: Send {
    /// The architecture.
    fn config(&self) -> &ModelConfig;

    /// What stands on top, and so what can be asked for.
    fn head(&self) -> Head;

    /// Numbers of every scored token, without gradients. A row's bits depend on that row alone.
    ///
    /// # Errors
    /// The batch does not fit the model, or `want` asks what its head cannot give.
    fn score(&mut self, batch: &PackedBatch, want: &Want) -> Result<TokenStats>;

    /// Forward, `loss`, backward: adds d loss / d parameters to the gradients. Call it for each micro-batch, then [`Model::step`].
    ///
    /// `loss` is called once with the batch's numbers and returns the gradients with respect to them, divided by whatever the whole
    /// mini-batch is divided by. Returns the numbers.
    ///
    /// # Errors
    /// As [`Model::score`]; the model does not train; the loss fails or returns gradients of the wrong length.
    fn accumulate(
        &mut self,
        batch: &PackedBatch,
        want: &Want,
        loss: &mut dyn FnMut(&TokenStats) -> Result<TokenGradients>,
    ) -> Result<TokenStats>;

    /// The gathered gradients of all parameters, in the model's fixed order, as one vector: what data-parallel workers add up
    /// before a step. Zeros where nothing was gathered.
    ///
    /// # Errors
    /// The model does not train, or memory is short.
    fn gathered(&self) -> Result<Flat>;

    /// Takes other gradients in the place of those gathered; [`Model::step`] uses them.
    ///
    /// # Errors
    /// The model does not train, or the vector is of another length or type.
    fn replace_gathered(&mut self, gradients: &Flat) -> Result<()>;

    /// Clips the gathered gradients, updates the parameters, clears the gradients, moves the schedule on.
    ///
    /// # Errors
    /// The model does not train, or nothing was accumulated.
    fn step(&mut self) -> Result<StepReport>;

    /// Forgets gathered gradients.
    fn discard_gradients(&mut self);

    /// Every parameter in the model's fixed order, as `dtype`.
    ///
    /// # Errors
    /// Memory is short.
    fn weights(&self, dtype: DType) -> Result<NamedTensors>;

    /// Replaces every parameter.
    ///
    /// # Errors
    /// Names or shapes are not the model's; nothing is changed then.
    fn load_weights(&mut self, weights: &NamedTensors) -> Result<()>;

    /// Everything of training that is not a parameter: moments, counters, schedule position.
    ///
    /// # Errors
    /// The model does not train.
    fn training_state(&self) -> Result<NamedTensors>;

    /// Continues from a saved state: with the same weights the next steps equal, bit for bit, those that would have followed.
    ///
    /// # Errors
    /// The model does not train, or the state is another model's; nothing is changed then.
    fn load_training_state(&mut self, state: &NamedTensors) -> Result<()>;
}
