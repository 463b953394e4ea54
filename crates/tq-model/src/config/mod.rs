//! The architecture of a model, read from a Hugging Face `config.json`.
//!
//! What is not implemented is refused by name rather than run wrongly.

mod keys;

use std::path::Path;

use serde_json::{Value, json};

use crate::{Error, Result};

use keys::Keys;

/// The families whose decoder block is implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1–3 and everything shaped like it (SmolLM2, TinyLlama, verl's digits model).
    Llama,
    /// Qwen2 and Qwen2.5: biases on the query, key and value projections.
    Qwen2,
    /// Qwen3: RMS norms on each query and key head, no biases.
    Qwen3,
}

impl Family {
    /// The `model_type` of `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    fn class_prefix(self) -> &'static str {
        match self {
            Self::Llama => "Llama",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
        }
    }
}

/// How rotary frequencies are stretched for long contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// Llama 3.1's rule: long wavelengths are divided by `factor`, short ones kept, those between blended.
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are short.
        high_freq_factor: f64,
        /// The context length the model was first trained with.
        original_max_position_embeddings: i64,
    },
}

/// A decoder-only model's dimensions and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which block is used.
    pub family: Family,
    /// Symbols in the vocabulary: rows of the embedding.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width inside the feed-forward block.
    pub intermediate_size: i64,
    /// Number of decoder blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: i64,
    /// Key/value heads; a divisor of the query heads.
    pub num_key_value_heads: i64,
    /// Width of one head. Even; times the heads it need not equal the hidden width.
    pub head_dim: i64,
    /// The longest row, prompt and response together.
    pub max_position_embeddings: usize,
    /// ε of every RMS norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary wavelengths.
    pub rope_theta: f64,
    /// Stretching of the rotary wavelengths.
    pub rope_scaling: RopeScaling,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
    /// Tokens that end a response, when the folder names any.
    pub eos_token_ids: Vec<i64>,
    /// The token that starts a text, when the folder names one.
    pub bos_token_id: Option<i64>,
    /// The token used as padding by others, when the folder names one.
    pub pad_token_id: Option<i64>,
}

/// The largest value of each size: several times those of the largest models there are, and small enough that no
/// product of two of them overflows.
const MOST: [(&str, i64); 8] = [
    ("vocab_size", 1 << 24),
    ("hidden_size", 1 << 20),
    ("intermediate_size", 1 << 22),
    ("num_hidden_layers", 1 << 12),
    ("num_attention_heads", 1 << 12),
    ("num_key_value_heads", 1 << 12),
    ("head_dim", 1 << 14),
    ("max_position_embeddings", 1 << 28),
];

impl ModelConfig {
    /// Reads `config.json` in a model folder; `generation_config.json`, when present, has the last word on the tokens that end a response.
    ///
    /// # Errors
    /// The file is absent or is not JSON, a key is missing or mistyped, or the model needs something that is not implemented.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join("config.json");
        let mut config = Self::from_json(&read_json(&path)?)?;
        let generation = folder.join("generation_config.json");
        if generation.exists() {
            let value = read_json(&generation)?;
            let ids = token_ids(&value, "eos_token_id")?;
            if !ids.is_empty() {
                config.eos_token_ids = ids;
            }
        }
        Ok(config)
    }

    /// Reads the contents of a `config.json`.
    ///
    /// # Errors
    /// See [`ModelConfig::from_folder`].
    pub fn from_json(value: &Value) -> Result<Self> {
        let keys = Keys::of(value)?;
        let family = match keys.text("model_type")? {
            Some("llama") => Family::Llama,
            Some("qwen2") => Family::Qwen2,
            Some("qwen3") => Family::Qwen3,
            Some(other) => {
                return Err(Error::Config(format!(
                    "model_type {other:?} is not implemented; expected one of llama, qwen2, qwen3"
                )));
            }
            None => {
                return Err(Error::Config("model_type is missing; expected one of llama, qwen2, qwen3".into()));
            }
        };
        refuse_unimplemented(&keys)?;
        for (key, most) in MOST {
            keys.at_most(key, most)?;
        }

        let hidden_size = keys.positive("hidden_size")?;
        let num_attention_heads = keys.positive("num_attention_heads")?;
        let num_key_value_heads = keys.integer("num_key_value_heads")?.unwrap_or(num_attention_heads);
        let head_dim = match keys.integer("head_dim")? {
            Some(width) => width,
            None if family == Family::Qwen3 => 128,
            None if hidden_size % num_attention_heads == 0 => hidden_size / num_attention_heads,
            None => {
                return Err(Error::Config(format!(
                    "hidden_size {hidden_size} is not a multiple of num_attention_heads {num_attention_heads} and head_dim is not given"
                )));
            }
        };
        let (rope_theta, rope_scaling) = rope(&keys)?;
        let config = Self {
            family,
            vocab_size: keys.positive("vocab_size")?,
            hidden_size,
            intermediate_size: keys.positive("intermediate_size")?,
            num_hidden_layers: keys.positive("num_hidden_layers")? as usize,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            max_position_embeddings: keys.integer("max_position_embeddings")?.map_or(Ok(2048), longest)?,
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            eos_token_ids: token_ids(value, "eos_token_id")?,
            bos_token_id: keys.integer("bos_token_id")?,
            pad_token_id: keys.integer("pad_token_id")?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        if self.head_dim <= 0 || self.head_dim % 2 != 0 {
            return Err(Error::Config(format!(
                "head_dim is {}; rotary positions need a positive even number",
                self.head_dim
            )));
        }
        if self.num_key_value_heads <= 0 || self.num_attention_heads % self.num_key_value_heads != 0 {
            return Err(Error::Config(format!(
                "num_key_value_heads {} does not divide num_attention_heads {}",
                self.num_key_value_heads, self.num_attention_heads
            )));
        }
        if !(self.rms_norm_eps > 0.0 && self.rope_theta > 0.0 && self.initializer_range >= 0.0) {
            return Err(Error::Config(format!(
                "rms_norm_eps {} and rope_theta {} must be positive, initializer_range {} not negative",
                self.rms_norm_eps, self.rope_theta, self.initializer_range
            )));
        }
        Ok(())
    }

    /// The `config.json` that Hugging Face's libraries read; `dtype` is the type of the weights beside it (`float32`, `bfloat16`).
    pub fn to_json(&self, dtype: &str) -> Value {
        let scaling = match self.rope_scaling {
            RopeScaling::None => Value::Null,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                json!({
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": low_freq_factor,
                    "high_freq_factor": high_freq_factor,
                    "original_max_position_embeddings": original_max_position_embeddings,
                })
            }
        };
        let eos = match self.eos_token_ids.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            many => json!(many),
        };
        json!({
            "architectures": [format!("{}ForCausalLM", self.family.class_prefix())],
            "model_type": self.family.model_type(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "tie_word_embeddings": self.tie_word_embeddings,
            "initializer_range": self.initializer_range,
            "eos_token_id": eos,
            "bos_token_id": self.bos_token_id,
            "pad_token_id": self.pad_token_id,
            "torch_dtype": dtype,
        })
    }
}

/// `max_position_embeddings` as a number of tokens.
fn longest(tokens: i64) -> Result<usize> {
    usize::try_from(tokens).ok().filter(|tokens| *tokens > 0).ok_or_else(|| {
        Error::Config(format!("max_position_embeddings is {tokens}; expected the longest row in tokens, at least 1"))
    })
}

fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).map_err(Error::io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| Error::Config(format!("{} is not JSON: {error}", path.display())))
}

/// Settings whose plain value is the only one implemented.
fn refuse_unimplemented(keys: &Keys<'_>) -> Result<()> {
    for key in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        if keys.flag(key)? == Some(true) {
            return Err(Error::Config(format!("{key} is true, which is not implemented; only false is")));
        }
    }
    match keys.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => {
            return Err(Error::Config(format!("hidden_act {other:?} is not implemented; only \"silu\" is")));
        }
    }
    if let Some(Value::Array(kinds)) = keys.get("layer_types")
        && let Some(other) = kinds.iter().find(|kind| kind.as_str() != Some("full_attention"))
    {
        return Err(Error::Config(format!(
            "layer_types names {other}, which is not implemented; only \"full_attention\" is"
        )));
    }
    if keys.get("quantization_config").is_some() {
        return Err(Error::Config("quantization_config is set; quantised weights are not implemented, use a folder with float32 or bfloat16 weights".into()));
    }
    Ok(())
}

/// θ and scaling, from the flat keys or from the `rope_parameters` map of newer folders.
fn rope(keys: &Keys<'_>) -> Result<(f64, RopeScaling)> {
    let nested = keys.map("rope_parameters")?;
    let scaling = match nested {
        Some(map) => Some(Keys { map, prefix: "rope_parameters." }),
        None => keys.map("rope_scaling")?.map(|map| Keys { map, prefix: "rope_scaling." }),
    };
    let inside = match nested {
        Some(map) => Keys { map, prefix: "rope_parameters." }.number("rope_theta")?,
        None => None,
    };
    let theta = match inside {
        Some(theta) => theta,
        None => keys.number("rope_theta")?.unwrap_or(10_000.0),
    };
    let Some(scaling) = scaling else {
        return Ok((theta, RopeScaling::None));
    };
    let kind = match scaling.text("rope_type")? {
        Some(kind) => Some(kind),
        None => scaling.text("type")?,
    };
    match kind {
        None | Some("default") => Ok((theta, RopeScaling::None)),
        Some("llama3") => Ok((
            theta,
            RopeScaling::Llama3 {
                factor: scaling.required("factor")?,
                low_freq_factor: scaling.required("low_freq_factor")?,
                high_freq_factor: scaling.required("high_freq_factor")?,
                original_max_position_embeddings: scaling.positive("original_max_position_embeddings")?,
            },
        )),
        Some(other) => {
            Err(Error::Config(format!("rope scaling {other:?} is not implemented; expected \"default\" or \"llama3\"")))
        }
    }
}

fn token_ids(value: &Value, key: &str) -> Result<Vec<i64>> {
    let wrong = || Error::Config(format!("{key} is {}; expected an id or a list of ids", value[key]));
    match &value[key] {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(|id| id.as_i64().ok_or_else(wrong)).collect(),
        id => Ok(vec![id.as_i64().ok_or_else(wrong)?]),
    }
}

#[cfg(test)]
mod tests;
