//! Small random models of every family.

use serde_json::json;
use tq_model::weights::{DType, Head, NamedTensor, NamedTensors};
use tq_model::{ModelConfig, init_random};

/// (name, configuration) of a model of each family: grouped heads, a feed-forward width that is no multiple of a vector, lively logits.
pub(crate) fn families() -> Vec<(&'static str, ModelConfig)> {
    let base = json!({
        "vocab_size": 19, "hidden_size": 32, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 600, "rms_norm_eps": 1e-6, "initializer_range": 0.2,
    });
    ["llama", "qwen2", "qwen3"]
        .into_iter()
        .map(|family| {
            let mut config = base.clone();
            config["model_type"] = json!(family);
            config["tie_word_embeddings"] = json!(family == "qwen2");
            config["head_dim"] = json!(if family == "qwen3" { 16 } else { 8 });
            (family, ModelConfig::from_json(&config).unwrap())
        })
        .collect()
}

/// verl's "digit completion" model with random weights.
pub(crate) fn digits() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "model_type": "llama", "vocab_size": 16, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "initializer_range": 0.1,
    }))
    .unwrap()
}

/// Random weights whose biases and norms are random too, so that mixing them up shows.
pub(crate) fn lively(config: &ModelConfig, head: Head, seed: u64) -> NamedTensors {
    let mut weights = NamedTensors::new();
    for (index, (name, tensor)) in init_random(config, head, seed).unwrap().iter().enumerate() {
        let mut values = tensor.to_f32().unwrap();
        if name.ends_with("bias") || name.ends_with("norm.weight") {
            for (place, value) in values.iter_mut().enumerate() {
                *value += 0.3 * (tq_model::random::uniform(seed, (index * 1000 + place) as u64) as f32 - 0.5);
            }
        }
        weights.insert(name, NamedTensor::from_f32(tensor.shape(), &values).unwrap()).unwrap();
    }
    weights
}

/// `len` ids below `vocab` that follow from `seed`.
pub(crate) fn tokens(seed: u64, len: usize, vocab: i64) -> Vec<i64> {
    (0..len as u64).map(|index| (tq_model::random::uniform(seed, index) * vocab as f64) as i64).collect()
}

pub(crate) const DTYPES: [DType; 2] = [DType::F32, DType::Bf16];
