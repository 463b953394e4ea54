//! Between plain values and libtorch's tensors.

use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::weights::{DType, NamedTensor};

pub(crate) fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::F32 => Kind::Float,
        DType::Bf16 => Kind::BFloat16,
        DType::F64 => Kind::Double,
        DType::I64 => Kind::Int64,
    }
}

/// A tensor over the same values (copied).
pub(crate) fn import(tensor: &NamedTensor) -> Result<Tensor> {
    Ok(Tensor::f_from_data_size(tensor.data(), tensor.shape(), kind(tensor.dtype()))?)
}

/// The values as bytes of `dtype` (copied).
pub(crate) fn export(tensor: &Tensor, dtype: DType) -> Result<NamedTensor> {
    let _guard = tch::no_grad_guard();
    let tensor = tensor.f_to_kind(kind(dtype))?.f_to(Device::Cpu)?.f_contiguous()?;
    let mut bytes = vec![0u8; tensor.numel() * dtype.size()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
    NamedTensor::new(dtype, tensor.size(), bytes)
}

/// The values of a one-dimensional tensor as f32.
pub(crate) fn to_vec(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(Vec::<f32>::try_from(tensor.f_to_kind(Kind::Float)?)?)
}

/// The type that statistics over a tensor of `kind` are computed in.
pub(crate) fn statistics(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// A one-dimensional tensor of ids.
pub(crate) fn indices(values: &[i64], device: Device) -> Result<Tensor> {
    Ok(Tensor::f_from_slice(values)?.f_to(device)?)
}
