//! A Hugging Face model folder: `config.json` with `model.safetensors`, whole or in shards with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::{DType, NamedTensor, NamedTensors};
use crate::config::ModelConfig;
use crate::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Reads every tensor of a model folder, in the order of their names.
///
/// `model.safetensors.index.json` is followed when there is one; a shard that lacks a tensor the index places in it is an error.
/// Tensors share their shard's memory; nothing is copied after the file is read.
///
/// # Errors
/// No weights are found, a file cannot be read or is damaged, or a tensor has a type other than f32, bf16 and f64.
pub fn read_folder(folder: impl AsRef<Path>) -> Result<NamedTensors> {
    let folder = folder.as_ref();
    let mut found = BTreeMap::new();
    let index = folder.join(INDEX);
    if index.exists() {
        for (shard, names) in shards(&index)? {
            let path = folder.join(&shard);
            let mut tensors = read_file(&path)?;
            for name in names {
                let tensor = tensors.remove(&name).ok_or_else(|| {
                    Error::Weights(format!(
                        "{INDEX} places {name} in {shard}, which lacks it; fetch the folder {} again",
                        folder.display()
                    ))
                })?;
                found.insert(name, tensor);
            }
        }
    } else if folder.join(SINGLE).exists() {
        found = read_file(&folder.join(SINGLE))?;
    } else {
        return Err(Error::Weights(format!("{} holds neither {SINGLE} nor {INDEX}", folder.display())));
    }
    let mut tensors = NamedTensors::new();
    for (name, tensor) in found {
        tensors.insert(name, tensor)?;
    }
    Ok(tensors)
}

/// The index's tensor names by shard.
fn shards(index: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let text = std::fs::read(index).map_err(Error::io("read", index))?;
    let value: Value = serde_json::from_slice(&text)
        .map_err(|error| Error::Weights(format!("{} is not JSON: {error}", index.display())))?;
    let map = value["weight_map"]
        .as_object()
        .ok_or_else(|| Error::Weights(format!("{} has no weight_map", index.display())))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, shard) in map {
        let shard = shard.as_str().filter(|shard| !shard.contains(['/', '\\'])).ok_or_else(|| {
            Error::Weights(format!(
                "{} places {name} in {shard}; expected the name of a file in the same folder",
                index.display()
            ))
        })?;
        shards.entry(shard.to_owned()).or_default().insert(name.clone());
    }
    Ok(shards)
}

fn read_file(path: &Path) -> Result<BTreeMap<String, NamedTensor>> {
    let file = Bytes::from(std::fs::read(path).map_err(Error::io("read", path))?);
    let damaged = |error: safetensors::SafeTensorError| {
        Error::Weights(format!("{} is not a safetensors file: {error}", path.display()))
    };
    let views = SafeTensors::deserialize(&file).map_err(damaged)?;
    let mut tensors = BTreeMap::new();
    for (name, view) in views.iter() {
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::BF16 => DType::Bf16,
            safetensors::Dtype::F64 => DType::F64,
            other => {
                return Err(Error::Weights(format!(
                    "{name} in {} is {other:?}; expected F32, BF16 or F64",
                    path.display()
                )));
            }
        };
        let shape: Vec<i64> = view.shape().iter().map(|&dim| dim as i64).collect();
        tensors.insert(name.to_owned(), NamedTensor::new(dtype, shape, file.slice_ref(view.data()))?);
    }
    Ok(tensors)
}

/// Writes `config.json` and the weights, in shards of at most `max_shard_bytes` (a larger tensor has a shard of its own).
///
/// Each file is written under another name and renamed, the index or single file last, so that a folder that has it is whole.
///
/// # Errors
/// The folder cannot be created or written, or a tensor is neither f32 nor bf16.
pub fn write_folder(
    folder: impl AsRef<Path>,
    config: &ModelConfig,
    weights: &NamedTensors,
    max_shard_bytes: usize,
) -> Result<()> {
    let folder = folder.as_ref();
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let dtype = weights.iter().next().map_or(DType::F32, |(_, tensor)| tensor.dtype());
    let text = serde_json::to_vec_pretty(&config.to_json(dtype.torch_name())).expect("a JSON value always has a text");
    write_file(&folder.join("config.json"), &text)?;

    let shards = split(weights, max_shard_bytes);
    let (stale, current) = if shards.len() == 1 { (INDEX, SINGLE) } else { (SINGLE, INDEX) };
    remove_file(&folder.join(stale))?;
    if let [tensors] = shards.as_slice() {
        return write_file(&folder.join(current), &encode(tensors)?);
    }
    let mut map = serde_json::Map::new();
    for (number, tensors) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", number + 1, shards.len());
        write_file(&folder.join(&name), &encode(tensors)?)?;
        map.extend(tensors.iter().map(|(tensor, _)| ((*tensor).to_owned(), json!(name))));
    }
    let index = json!({"metadata": {"total_size": weights.bytes()}, "weight_map": map});
    write_file(&folder.join(current), index.to_string().as_bytes())
}

type Shard<'a> = Vec<(&'a str, &'a NamedTensor)>;

fn split(weights: &NamedTensors, limit: usize) -> Vec<Shard<'_>> {
    let mut shards: Vec<Shard<'_>> = vec![Vec::new()];
    let mut bytes = 0;
    for (name, tensor) in weights.iter() {
        let current = shards.last_mut().expect("there is always a shard being filled");
        let size = tensor.data().len();
        if bytes + size > limit && !current.is_empty() {
            shards.push(vec![(name, tensor)]);
            bytes = size;
        } else {
            current.push((name, tensor));
            bytes += size;
        }
    }
    shards
}

fn encode(tensors: &Shard<'_>) -> Result<Vec<u8>> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let dtype = match tensor.dtype() {
            DType::F32 => safetensors::Dtype::F32,
            DType::Bf16 => safetensors::Dtype::BF16,
            DType::F64 => safetensors::Dtype::F64,
            other => {
                return Err(Error::Weights(format!(
                    "{name} is {other}; only f32, bf16 and f64 weights go into a model folder"
                )));
            }
        };
        let shape = tensor.shape().iter().map(|&dim| dim as usize).collect();
        let view =
            TensorView::new(dtype, shape, tensor.data()).map_err(|error| Error::Weights(format!("{name}: {error}")))?;
        views.push((*name, view));
    }
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(metadata)).map_err(|error| Error::Weights(error.to_string()))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial: PathBuf = path.with_extension("partial");
    std::fs::write(&partial, bytes).map_err(Error::io("write", &partial))?;
    std::fs::rename(&partial, path).map_err(Error::io("write", path))
}

fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}
