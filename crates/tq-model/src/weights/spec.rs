//! Which parameters a model has: names, shapes, and their order.

use crate::config::{Family, ModelConfig};

/// What stands on top of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The vocabulary: `lm_head.weight` [vocab, hidden], or the embedding when tied.
    Lm,
    /// One number a position: `score.weight` [1, hidden], always computed in f32.
    Value,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    /// The name Hugging Face's libraries use.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
}

impl ParameterSpec {
    /// Whether the parameter scales a norm (fresh value 1).
    pub fn is_norm(&self) -> bool {
        self.name.ends_with("norm.weight") || self.name.ends_with("layernorm.weight")
    }

    /// Whether the parameter is a bias (fresh value 0).
    pub fn is_bias(&self) -> bool {
        self.name.ends_with(".bias")
    }
}

/// Every parameter of a model in its fixed order: embedding, blocks from first to last, final norm, head.
pub fn parameters(config: &ModelConfig, head: Head) -> Vec<ParameterSpec> {
    let mut specs = Vec::new();
    let mut push = |name: String, shape: &[i64]| specs.push(ParameterSpec { name, shape: shape.to_vec() });
    let hidden = config.hidden_size;
    let queries = config.num_attention_heads * config.head_dim;
    let keys = config.num_key_value_heads * config.head_dim;

    push("model.embed_tokens.weight".into(), &[config.vocab_size, hidden]);
    for layer in 0..config.num_hidden_layers {
        let at = |part: &str| format!("model.layers.{layer}.{part}");
        push(at("self_attn.q_proj.weight"), &[queries, hidden]);
        push(at("self_attn.k_proj.weight"), &[keys, hidden]);
        push(at("self_attn.v_proj.weight"), &[keys, hidden]);
        push(at("self_attn.o_proj.weight"), &[hidden, queries]);
        match config.family {
            Family::Llama => {}
            Family::Qwen2 => {
                push(at("self_attn.q_proj.bias"), &[queries]);
                push(at("self_attn.k_proj.bias"), &[keys]);
                push(at("self_attn.v_proj.bias"), &[keys]);
            }
            Family::Qwen3 => {
                push(at("self_attn.q_norm.weight"), &[config.head_dim]);
                push(at("self_attn.k_norm.weight"), &[config.head_dim]);
            }
        }
        push(at("mlp.gate_proj.weight"), &[config.intermediate_size, hidden]);
        push(at("mlp.up_proj.weight"), &[config.intermediate_size, hidden]);
        push(at("mlp.down_proj.weight"), &[hidden, config.intermediate_size]);
        push(at("input_layernorm.weight"), &[hidden]);
        push(at("post_attention_layernorm.weight"), &[hidden]);
    }
    push("model.norm.weight".into(), &[hidden]);
    match head {
        Head::Lm if config.tie_word_embeddings => {}
        Head::Lm => push("lm_head.weight".into(), &[config.vocab_size, hidden]),
        Head::Value => push("score.weight".into(), &[1, hidden]),
    }
    specs
}
