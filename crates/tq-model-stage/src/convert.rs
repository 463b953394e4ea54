//! Parameters between the engine's form and the store's. Bytes are shared or copied once, never reinterpreted.

use anyhow::{Result, bail};
use tq_model::weights::{DType, NamedTensor, NamedTensors};
use tq_stage::Dtype;

/// For the store, in the engine's order.
///
/// # Errors
/// Never for the engine's own types; kept fallible for engines to come.
pub fn to_store(tensors: &NamedTensors) -> Result<Vec<tq_stage::NamedTensor>> {
    tensors
        .iter()
        .map(|(name, tensor)| {
            let dtype = match tensor.dtype() {
                DType::F32 => Dtype::F32,
                DType::Bf16 => Dtype::Bf16,
                DType::F64 => Dtype::F64,
                DType::I64 => Dtype::I64,
            };
            Ok(tq_stage::NamedTensor {
                name: name.to_owned(),
                dtype,
                shape: tensor.shape().to_vec(),
                data: tensor.data().to_vec(),
            })
        })
        .collect()
}

/// For the engine, in the given order.
///
/// # Errors
/// When a tensor has an element type that the engine does not have, naming it.
pub fn to_engine<'a>(tensors: impl IntoIterator<Item = &'a tq_stage::NamedTensor>) -> Result<NamedTensors> {
    let mut out = NamedTensors::new();
    for tensor in tensors {
        let dtype = match tensor.dtype {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::Bf16,
            Dtype::F64 => DType::F64,
            Dtype::I64 => DType::I64,
            other => bail!("`{}` has element type {other}; the engine reads f32, bf16, f64 and i64", tensor.name),
        };
        out.insert(tensor.name.clone(), NamedTensor::new(dtype, tensor.shape.clone(), tensor.data.clone())?)?;
    }
    Ok(out)
}
