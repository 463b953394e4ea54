//! What a trainer keeps beside its weights: optimizer, schedulers, controllers, RNG. Entries travel as rows of a
//! partition of the store, so that a snapshot holds them like any other data.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use serde::{Serialize, de::DeserializeOwned};
use transferqueue::schema::Dtype;

/// A named tensor as plain little-endian bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Parameter name, unique within its set.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Axes, outermost first.
    pub shape: Vec<i64>,
    /// Row-major, little-endian; `shape` × `dtype.size()` bytes.
    pub data: Vec<u8>,
}

/// Takes what `Stage::save` writes.
#[derive(Debug, Default)]
pub struct StateWriter {
    weights: Vec<NamedTensor>,
    entries: Vec<NamedTensor>,
}

impl StateWriter {
    /// An empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// The model's parameters, in their fixed order. They become the next weight version.
    pub fn weights(&mut self, tensors: impl IntoIterator<Item = NamedTensor>) {
        self.weights.extend(tensors);
    }

    /// A tensor of the trainer's own, such as a moment of the optimizer.
    pub fn tensor(&mut self, tensor: NamedTensor) {
        self.entries.push(tensor);
    }

    /// Anything small, as JSON: step counters, controllers, RNG state.
    ///
    /// # Errors
    /// When the value cannot be written as JSON.
    pub fn value<T: Serialize>(&mut self, name: &str, value: &T) -> Result<()> {
        let data = serde_json::to_vec(value).with_context(|| format!("state entry `{name}`"))?;
        self.entries.push(NamedTensor {
            name: name.to_owned(),
            dtype: Dtype::U8,
            shape: vec![data.len() as i64],
            data,
        });
        Ok(())
    }

    /// Weights and other entries, for the store.
    pub fn into_parts(self) -> (Vec<NamedTensor>, Vec<NamedTensor>) {
        (self.weights, self.entries)
    }
}

/// Gives back what `Stage::save` wrote.
#[derive(Debug, Default)]
pub struct StateReader {
    /// The weights saved with the state.
    pub weights: Vec<NamedTensor>,
    entries: BTreeMap<String, NamedTensor>,
}

impl StateReader {
    /// From the two parts a [`StateWriter`] gave.
    pub fn new(weights: Vec<NamedTensor>, entries: impl IntoIterator<Item = NamedTensor>) -> Self {
        Self { weights, entries: entries.into_iter().map(|t| (t.name.clone(), t)).collect() }
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// When no entry of that name was saved.
    pub fn tensor(&self, name: &str) -> Result<&NamedTensor> {
        self.entries.get(name).ok_or_else(|| {
            let names: Vec<_> = self.entries.keys().take(8).collect();
            anyhow!("saved state has no entry `{name}`; it has {} entries, such as {names:?}", self.entries.len())
        })
    }

    /// Every tensor whose name starts with `prefix`, in name order.
    pub fn tensors<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a NamedTensor> {
        self.entries.values().filter(move |t| t.name.starts_with(prefix))
    }

    /// A JSON entry by name.
    ///
    /// # Errors
    /// When it is missing or has another form.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        serde_json::from_slice(&self.tensor(name)?.data).with_context(|| format!("state entry `{name}`"))
    }
}
