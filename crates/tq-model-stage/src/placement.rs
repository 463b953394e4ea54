//! Where a stage's model lies and in which types, from verl's parameters.

use anyhow::{Context, Result, bail};

use tq_model::{Device, Placement, weights::DType};
use tq_stage::{Parameters, Refusal, StageContext};

/// What [`device`] reads, for messages.
pub const DEVICES: &str = "`cpu`, `cuda` or `cuda:N`";

/// The device of this name: `cpu`, `cuda` (the first) or `cuda:N`.
///
/// ```
/// use tq_model_stage::device;
/// assert!(device("cpu").is_some() && device("cuda").is_some() && device("cuda:7").is_some());
/// assert!(device("gpu").is_none() && device("cuda:").is_none() && device("cuda:-1").is_none());
/// ```
pub fn device(name: &str) -> Option<Device> {
    match name.split_once(':') {
        None if name == "cpu" => Some(Device::Cpu),
        None if name == "cuda" => Some(Device::Cuda(0)),
        Some(("cuda", index)) => index.parse().ok().map(Device::Cuda),
        _ => None,
    }
}

/// For models that only score or generate, in `dtype`.
///
/// # Errors
/// When the worker's device is unknown.
pub fn placement(cx: &StageContext, dtype: DType) -> Result<Placement> {
    Ok(Placement { storage: dtype, compute: dtype, device: of_worker(cx)? })
}

/// For models that train: parameters in f32 (in f64 if `dtype` is), products in `dtype`.
///
/// # Errors
/// As [`placement`].
pub fn trained_placement(cx: &StageContext, dtype: DType) -> Result<Placement> {
    let storage = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    Ok(Placement { storage, compute: dtype, device: of_worker(cx)? })
}

fn of_worker(cx: &StageContext) -> Result<Device> {
    let name = cx.device();
    device(name).with_context(|| format!("stage `{}`: found the device `{name}`; expected {DEVICES}", cx.stage()))
}

/// The type of weights that parameter `key` names.
///
/// # Errors
/// When it names none.
pub fn dtype(parameters: &Parameters, key: &str) -> Result<DType> {
    match parameters.get::<String>(key)?.as_str() {
        "fp32" | "float32" | "f32" => Ok(DType::F32),
        "bf16" | "bfloat16" => Ok(DType::Bf16),
        "fp64" | "float64" | "f64" => Ok(DType::F64),
        other => bail!(Refusal::new(key, format!("`{other}`"), "fp32, bf16 or fp64")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_type_is_known_by_its_names_or_refused() {
        let read = |name: &str| {
            dtype(&Parameters::new(json!({"critic": {"fsdp": {"model_dtype": name}}})), "critic.fsdp.model_dtype")
        };
        assert_eq!(read("float32").expect("known"), DType::F32);
        assert_eq!(read("bfloat16").expect("known"), DType::Bf16);
        let refused = read("fp16").expect_err("not built in").to_string();
        assert_eq!(refused, "critic.fsdp.model_dtype: found `fp16`; expected fp32, bf16 or fp64");
    }
}
