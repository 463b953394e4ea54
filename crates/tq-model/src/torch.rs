//! The [`Model`] on libtorch.

use std::path::Path;

use crate::config::ModelConfig;
use crate::decoder::{Decoder, Placement};
use crate::model::Model;
use crate::score;
use crate::train::{self, AdamW, Flat, StepReport, TrainOptions};
use crate::weights::{DType, Head, NamedTensors, ParameterSpec, parameters, read_folder};
use crate::{Error, PackedBatch, Result, TokenGradients, TokenStats, Want};

/// A decoder with, when it trains, its optimizer.
pub struct TorchModel {
    decoder: Decoder,
    optimizer: Option<AdamW>,
    /// Backward passes whose gradients wait for a step.
    gathered: usize,
}

impl std::fmt::Debug for TorchModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TorchModel").field("decoder", &self.decoder).field("trains", &self.optimizer.is_some()).finish()
    }
}

impl TorchModel {
    /// A model around a decoder, for scoring alone.
    pub fn new(decoder: Decoder) -> Self {
        Self { decoder, optimizer: None, gathered: 0 }
    }

    /// Opens a Hugging Face folder.
    ///
    /// With [`Head::Value`] the folder's `lm_head.weight` is left out, and `score.weight`, unless the folder has it, gets fresh values
    /// from `seed`. With tied embeddings an `lm_head.weight` in the folder is left out. Rotary buffers that old folders carry are left out.
    ///
    /// # Errors
    /// The folder cannot be read, needs what is not implemented, or its weights are not the model's.
    pub fn open(folder: impl AsRef<Path>, head: Head, placement: Placement, seed: u64) -> Result<Self> {
        let config = ModelConfig::from_folder(&folder)?;
        let weights = weights_for(&config, head, seed, &read_folder(folder)?)?;
        Ok(Self::new(Decoder::from_named(&config, head, placement, &weights)?))
    }

    /// Makes the model trainable.
    ///
    /// # Errors
    /// Parameters are kept in bf16, or an option is out of range.
    pub fn training(mut self, options: TrainOptions) -> Result<Self> {
        let storage = self.decoder.placement().storage;
        if !matches!(storage, DType::F32 | DType::F64) {
            return Err(Error::Training(format!(
                "parameters are kept in {storage}; training needs f32 or f64 (compute may be bf16: see `Placement::cpu_mixed`)"
            )));
        }
        self.optimizer = Some(AdamW::new(options, self.decoder.parameters())?);
        Ok(self)
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The gathered gradients, unclipped, in the order of the weights: for inspection. A parameter without one has zeros.
    ///
    /// # Errors
    /// The model does not train, or memory is short.
    pub fn gradients(&self) -> Result<NamedTensors> {
        self.optimizer.as_ref().ok_or_else(untrained)?;
        let mut gradients = NamedTensors::new();
        for (spec, parameter) in self.decoder.specs().iter().zip(self.decoder.parameters()) {
            let gradient = parameter.f_grad()?;
            let gradient = if gradient.defined() { gradient } else { parameter.f_detach()?.f_zeros_like()? };
            gradients.insert(spec.name.as_str(), crate::tensor::export(&gradient, DType::F32)?)?;
        }
        Ok(gradients)
    }

    /// The learning rate of the next step.
    ///
    /// # Errors
    /// The model does not train.
    pub fn lr(&self) -> Result<f64> {
        Ok(self.optimizer.as_ref().ok_or_else(untrained)?.lr())
    }
}

fn untrained() -> Error {
    Error::Training("the model was opened for scoring alone; make it trainable with `training`".into())
}

impl Model for TorchModel {
    fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    fn head(&self) -> Head {
        self.decoder.head()
    }

    fn score(&mut self, batch: &PackedBatch, want: &Want) -> Result<TokenStats> {
        want.check(self.decoder.head())?;
        score::evaluate(&self.decoder, &self.decoder.layout(batch)?, want)
    }

    fn accumulate(
        &mut self,
        batch: &PackedBatch,
        want: &Want,
        loss: &mut dyn FnMut(&TokenStats) -> Result<TokenGradients>,
    ) -> Result<TokenStats> {
        want.check(self.decoder.head())?;
        if self.optimizer.is_none() {
            return Err(untrained());
        }
        let stats = score::differentiate(&self.decoder, &self.decoder.layout(batch)?, want, loss)?;
        self.gathered += 1;
        Ok(stats)
    }

    fn step(&mut self) -> Result<StepReport> {
        let optimizer = self.optimizer.as_mut().ok_or_else(untrained)?;
        if self.gathered == 0 {
            return Err(Error::Training("a step was asked for without gradients; call `accumulate` first".into()));
        }
        self.gathered = 0;
        optimizer.step(self.decoder.parameters_mut())
    }

    fn gathered(&self) -> Result<Flat> {
        self.optimizer.as_ref().ok_or_else(untrained)?;
        train::flatten(self.decoder.parameters())
    }

    fn replace_gathered(&mut self, gradients: &Flat) -> Result<()> {
        self.optimizer.as_ref().ok_or_else(untrained)?;
        train::unflatten(self.decoder.parameters(), gradients)?;
        self.gathered = self.gathered.max(1);
        Ok(())
    }

    fn discard_gradients(&mut self) {
        self.gathered = 0;
        for parameter in self.decoder.parameters_mut() {
            parameter.zero_grad();
        }
    }

    fn weights(&self, dtype: DType) -> Result<NamedTensors> {
        self.decoder.to_named(dtype)
    }

    fn load_weights(&mut self, weights: &NamedTensors) -> Result<()> {
        self.decoder.load_named(weights)
    }

    fn training_state(&self) -> Result<NamedTensors> {
        self.optimizer.as_ref().ok_or_else(untrained)?.save(self.decoder.specs())
    }

    fn load_training_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.optimizer.as_mut().ok_or_else(untrained)?.restore(self.decoder.specs(), state)
    }
}

/// Fresh weights in the order of [`parameters`], as f32: what a new model's folder is written from.
///
/// # Errors
/// Memory is short.
pub fn init_random(config: &ModelConfig, head: Head, seed: u64) -> Result<NamedTensors> {
    Decoder::random(config, head, Placement::cpu(DType::F32), seed)?.to_named(DType::F32)
}

/// Turns a folder's weights into those of a model with `head`: see [`TorchModel::open`].
///
/// # Errors
/// Memory is short. What does not fit is refused when the weights are loaded.
pub fn weights_for(config: &ModelConfig, head: Head, seed: u64, folder: &NamedTensors) -> Result<NamedTensors> {
    let unused = |name: &str| {
        name.ends_with("rotary_emb.inv_freq")
            || (name == "lm_head.weight" && (head == Head::Value || config.tie_word_embeddings))
    };
    let mut weights = folder.filtered(|name| !unused(name));
    if head == Head::Value && weights.get("score.weight").is_none() {
        let score = ParameterSpec { name: "score.weight".into(), shape: vec![1, config.hidden_size] };
        debug_assert!(parameters(config, head).contains(&score));
        let mut values = vec![0f32; config.hidden_size as usize];
        crate::random::fill_normal(seed, &score.name, config.initializer_range, &mut values);
        weights.insert(score.name, crate::weights::NamedTensor::from_f32(score.shape, &values)?)?;
    }
    Ok(weights)
}
