//! The decoder: from packed tokens to hidden states.
//!
//! Tokens of all rows go through every matrix product together; attention runs over each row's own length, rows of equal length in one call.
//! A row's bits depend neither on the rows beside it nor on their number.

mod block;
mod forward;
mod placement;
mod store;

use tch::{Kind, Tensor};

use crate::batch::{Layout, PackedBatch, padded_rows};
use crate::config::ModelConfig;
use crate::random;
use crate::rope::Rope;
use crate::tensor;
use crate::weights::{DType, Head, NamedTensors, ParameterSpec, parameters};
use crate::{Error, Result};

use block::Block;
use store::Store;

pub use placement::Placement;

/// A decoder-only model on libtorch.
pub struct Decoder {
    config: ModelConfig,
    head: Head,
    placement: Placement,
    specs: Vec<ParameterSpec>,
    parameters: Vec<Tensor>,
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    /// The vocabulary's or the value's projection.
    projection: Tensor,
    rope: Rope,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("config", &self.config)
            .field("head", &self.head)
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

impl Decoder {
    /// A model with fresh weights: normal with deviation `initializer_range`, norms 1, biases 0.
    ///
    /// A parameter's values follow from `seed` and its name alone.
    ///
    /// # Errors
    /// The placement is not possible, or memory is short.
    pub fn random(config: &ModelConfig, head: Head, placement: Placement, seed: u64) -> Result<Self> {
        let mut decoder = Self::empty(config, head, placement, false)?;
        decoder.fill(|_| true, seed)?;
        Ok(decoder)
    }

    /// A model with the given weights; names, shapes and types must be exactly the model's.
    ///
    /// # Errors
    /// A name is missing, unexpected, or has another shape; the placement is not possible.
    pub fn from_named(config: &ModelConfig, head: Head, placement: Placement, weights: &NamedTensors) -> Result<Self> {
        let mut decoder = Self::empty(config, head, placement, false)?;
        decoder.load_named(weights)?;
        Ok(decoder)
    }

    /// As [`Decoder::from_named`], with projections of equal input laid out to run as one product. Not for training.
    pub(crate) fn fused(
        config: &ModelConfig,
        head: Head,
        placement: Placement,
        weights: &NamedTensors,
    ) -> Result<Self> {
        let mut decoder = Self::empty(config, head, placement, true)?;
        decoder.load_named(weights)?;
        Ok(decoder)
    }

    fn empty(config: &ModelConfig, head: Head, placement: Placement, fused: bool) -> Result<Self> {
        placement.check()?;
        let specs = parameters(config, head);
        let mut store = Store::new(&specs, (tensor::kind(placement.storage), placement.device));
        let blocks =
            (0..config.num_hidden_layers).map(|layer| Block::new(&mut store, layer, fused)).collect::<Result<_>>()?;
        let embedding = store.get("model.embed_tokens.weight")?;
        let projection = match head {
            Head::Lm if config.tie_word_embeddings => embedding.shallow_clone(),
            Head::Lm => store.get("lm_head.weight")?,
            Head::Value => store.get("score.weight")?,
        };
        let norm = store.get("model.norm.weight")?;
        let parameters = specs.iter().map(|spec| store.get(&spec.name)).collect::<Result<_>>()?;
        Ok(Self {
            rope: Rope::new(config, tensor::kind(placement.compute), placement.device),
            config: config.clone(),
            head,
            placement,
            specs,
            parameters,
            embedding,
            blocks,
            norm,
            projection,
        })
    }

    /// Gives the parameters that `which` accepts fresh values.
    pub(crate) fn fill(&mut self, which: impl Fn(&ParameterSpec) -> bool, seed: u64) -> Result<()> {
        let _guard = tch::no_grad_guard();
        for (spec, parameter) in self.specs.iter().zip(&mut self.parameters).filter(|(spec, _)| which(spec)) {
            if spec.is_norm() {
                let _ = parameter.f_fill_(1.0)?;
            } else if spec.is_bias() {
                let _ = parameter.f_fill_(0.0)?;
            } else {
                let mut values = vec![0f32; parameter.numel()];
                random::fill_normal(seed, &spec.name, self.config.initializer_range, &mut values);
                parameter.f_copy_(&Tensor::f_from_slice(&values)?.f_view(spec.shape.as_slice())?)?;
            }
        }
        Ok(())
    }

    /// Replaces every parameter, in place. Nothing is changed unless all fit.
    ///
    /// # Errors
    /// A name is missing, unexpected, or has another shape than the model's.
    pub fn load_named(&mut self, weights: &NamedTensors) -> Result<()> {
        check_names(&self.specs, weights)?;
        let _guard = tch::no_grad_guard();
        for (spec, parameter) in self.specs.iter().zip(&mut self.parameters) {
            parameter.f_copy_(&tensor::import(weights.require(&spec.name)?)?)?;
        }
        Ok(())
    }

    /// Every parameter in the model's fixed order, as `dtype`.
    ///
    /// # Errors
    /// Memory is short.
    pub fn to_named(&self, dtype: DType) -> Result<NamedTensors> {
        let mut weights = NamedTensors::new();
        for (spec, parameter) in self.specs.iter().zip(&self.parameters) {
            weights.insert(spec.name.as_str(), tensor::export(parameter, dtype)?)?;
        }
        Ok(weights)
    }

    /// The architecture.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What stands on top.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Where and in which types.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Names and shapes of the parameters, in their fixed order.
    pub fn specs(&self) -> &[ParameterSpec] {
        &self.specs
    }

    /// The parameters, in the order of [`Decoder::specs`].
    pub(crate) fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    pub(crate) fn parameters_mut(&mut self) -> &mut [Tensor] {
        &mut self.parameters
    }

    /// The head's matrix: [vocab, hidden] or [1, hidden].
    pub(crate) fn projection(&self) -> &Tensor {
        &self.projection
    }

    pub(crate) fn compute_kind(&self) -> Kind {
        tensor::kind(self.placement.compute)
    }

    /// Lays a batch out for [`Decoder::hidden`].
    pub(crate) fn layout(&self, batch: &PackedBatch) -> Result<Layout> {
        let threads = tch::get_num_threads().max(1) as usize;
        let width = self.config.intermediate_size as usize;
        Layout::new(batch, self.config.vocab_size, self.config.max_position_embeddings, |tokens| {
            padded_rows(tokens, width, threads)
        })
    }
}

/// Checks that `weights` are exactly the parameters of `specs`.
pub(crate) fn check_names(specs: &[ParameterSpec], weights: &NamedTensors) -> Result<()> {
    let missing: Vec<&str> =
        specs.iter().map(|spec| spec.name.as_str()).filter(|name| weights.get(name).is_none()).collect();
    let known: std::collections::HashSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let unexpected: Vec<&str> = weights.names().filter(|name| !known.contains(name)).collect();
    if !missing.is_empty() || !unexpected.is_empty() {
        return Err(Error::Weights(format!(
            "the names are not the model's: {}; {}",
            listed("missing", &missing),
            listed("unexpected", &unexpected)
        )));
    }
    for spec in specs {
        let tensor = weights.require(&spec.name)?;
        if tensor.shape() != spec.shape {
            return Err(Error::Weights(format!(
                "{} is {:?}, the model has {:?}",
                spec.name,
                tensor.shape(),
                spec.shape
            )));
        }
        if !matches!(tensor.dtype(), DType::F32 | DType::Bf16 | DType::F64) {
            return Err(Error::Weights(format!("{} is {}, expected f32, bf16 or f64", spec.name, tensor.dtype())));
        }
    }
    Ok(())
}

fn listed(what: &str, names: &[&str]) -> String {
    match names {
        [] => format!("none {what}"),
        some if some.len() <= 5 => format!("{what}: {}", some.join(", ")),
        some => format!("{what}: {} and {} more", some[..5].join(", "), some.len() - 5),
    }
}
