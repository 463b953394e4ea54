//! Reading and refusing configurations.

use super::*;

fn digits() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 16, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "eos_token_id": 1,
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut config = digits();
    config[key] = value;
    config
}

fn refusal(value: &Value) -> String {
    ModelConfig::from_json(value).unwrap_err().to_string()
}

#[test]
fn head_width_follows_from_the_hidden_width_when_not_given() {
    let config = ModelConfig::from_json(&digits()).unwrap();
    assert_eq!((config.head_dim, config.num_key_value_heads, config.eos_token_ids), (32, 4, vec![1]));
}

#[test]
fn written_config_reads_back_equal() {
    let mut value = with(
        "rope_scaling",
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    );
    value["model_type"] = json!("qwen3");
    value["head_dim"] = json!(48);
    value["eos_token_id"] = json!([1, 2]);
    let config = ModelConfig::from_json(&value).unwrap();
    assert_eq!(ModelConfig::from_json(&config.to_json("float32")).unwrap(), config);
}

#[test]
fn rope_parameters_of_newer_folders_are_understood() {
    let config =
        ModelConfig::from_json(&with("rope_parameters", json!({"rope_theta": 5e5, "rope_type": "default"}))).unwrap();
    assert_eq!((config.rope_theta, config.rope_scaling), (5e5, RopeScaling::None));
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    assert!(refusal(&with("model_type", json!("gemma"))).contains("\"gemma\""));
    assert!(refusal(&with("rope_scaling", json!({"type": "yarn", "factor": 2.0}))).contains("\"yarn\""));
    assert!(refusal(&with("attention_bias", json!(true))).contains("attention_bias"));
    assert!(refusal(&with("hidden_act", json!("gelu"))).contains("\"gelu\""));
    assert!(
        refusal(&with("layer_types", json!(["full_attention", "sliding_attention"]))).contains("sliding_attention")
    );
    assert!(refusal(&with("quantization_config", json!({}))).contains("quantization_config"));
}

#[test]
fn wrong_values_are_refused_with_key_and_value() {
    assert_eq!(
        refusal(&with("hidden_size", json!("big"))),
        "model config: hidden_size is \"big\"; expected an integer"
    );
    assert_eq!(refusal(&with("hidden_size", json!(null))), "model config: hidden_size is missing");
    assert!(refusal(&with("num_key_value_heads", json!(3))).contains("does not divide num_attention_heads 4"));
    assert!(refusal(&with("head_dim", json!(33))).contains("even"));
}

#[test]
fn sizes_that_no_model_has_are_refused_with_their_bound() {
    for (key, value, bound) in [
        ("vocab_size", json!(9_000_000_000_000_i64), 16_777_216),
        ("num_hidden_layers", json!(u64::MAX), 4096),
        ("hidden_size", json!(1_i64 << 40), 1_048_576),
        ("max_position_embeddings", json!(1e30), 268_435_456),
    ] {
        let said = refusal(&with(key, value.clone()));
        assert_eq!(said, format!("model config: {key} is {value}; expected at most {bound}"));
    }
    for (key, bound) in MOST {
        assert!(!refusal_of(&with(key, json!(bound))).contains("at most"), "{key}: the bound itself may be");
    }
    assert!(refusal(&with("max_position_embeddings", json!(-5))).contains("is -5; expected the longest row"));
}

/// What is said, if anything: sizes may not fit together.
fn refusal_of(value: &Value) -> String {
    ModelConfig::from_json(value).map_or_else(|error| error.to_string(), |_| String::new())
}
