//! Where a stage's model lies and in which types, from verl's parameters.

use anyhow::{Context, Result, bail};

use tq_model::{Device, Placement, weights::DType};
use tq_stage::StageContext;

/// The worker's device: `cpu` or `cuda:N`.
///
/// # Errors
/// For anything else, naming it.
pub fn device(cx: &StageContext) -> Result<Device> {
    let name = cx.device();
    match name.split_once(':') {
        None if name == "cpu" => Ok(Device::Cpu),
        None if name == "cuda" => Ok(Device::Cuda(0)),
        Some(("cuda", index)) => Ok(Device::Cuda(index.parse().with_context(|| format!("device `{name}`"))?)),
        _ => bail!("device `{name}` of stage `{}`; expected `cpu`, `cuda` or `cuda:N`", cx.stage()),
    }
}

/// For models that only score or generate, in the type that parameter `key` names.
///
/// # Errors
/// When the parameter is no type of weights or the device is unknown.
pub fn placement(cx: &StageContext, key: &str) -> Result<Placement> {
    let dtype = dtype(cx, key)?;
    Ok(Placement { storage: dtype, compute: dtype, device: device(cx)? })
}

/// For models that train: parameters in f32, products in the type that parameter `key` names.
///
/// # Errors
/// As [`placement`].
pub fn trained_placement(cx: &StageContext, key: &str) -> Result<Placement> {
    Ok(Placement { storage: DType::F32, compute: dtype(cx, key)?, device: device(cx)? })
}

fn dtype(cx: &StageContext, key: &str) -> Result<DType> {
    match cx.parameters().get::<String>(key)?.as_str() {
        "fp32" | "float32" | "f32" => Ok(DType::F32),
        "bf16" | "bfloat16" => Ok(DType::Bf16),
        other => bail!("parameter `{key}` is `{other}`; expected fp32 or bf16"),
    }
}
