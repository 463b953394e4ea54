//! SmolLM2-135M-Instruct against `transformers`. Its weights are not part of the shared data: `scripts/peers-transformers.sh smollm2` fetches
//! them and names their folder in `TQ_SMOLLM2`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::path::PathBuf;

use common::{golden, ids, json, numbers};
use serde_json::Value;
use tq_model::generate::{Generator, GeneratorOptions, Partial, Request, Sampling, TorchGenerator};
use tq_model::train::{LrSchedule, TrainOptions};
use tq_model::weights::{DType, Head, read_folder};
use tq_model::{Model, ModelConfig, PackedBatch, Placement, TokenGradients, TorchModel, Want, weights_for};

fn places() -> Option<(Value, PathBuf)> {
    let values = json(&golden("model_forward_smollm2.json")?);
    let Some(folder) = std::env::var_os("TQ_SMOLLM2") else {
        println!(
            "skipped: model_forward_smollm2.json: TQ_SMOLLM2 is not set; run scripts/peers-transformers.sh smollm2"
        );
        return None;
    };
    Some((values, folder.into()))
}

fn differences(found: &[f32], expected: &[f64]) -> (f64, f64) {
    assert_eq!(found.len(), expected.len());
    let gaps: Vec<f64> =
        found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs()).collect();
    (gaps.iter().sum::<f64>() / gaps.len() as f64, gaps.into_iter().fold(0.0, f64::max))
}

#[test]
fn answers_prompts_and_first_logits_agree() {
    let Some((values, folder)) = places() else {
        return;
    };
    let open = |dtype| TorchModel::open(&folder, Head::Lm, Placement::cpu(dtype), 0).unwrap();
    let (mut full, mut half) = (open(DType::F32), open(DType::Bf16));
    let items = values["items"].as_array().unwrap();
    for (index, item) in items.iter().enumerate() {
        let (prompt, answer) = (ids(&item["prompt_ids"]), ids(&item["answer_ids"]));
        let mut batch = PackedBatch::new();
        batch.push(&prompt, &answer).unwrap();
        batch.push(&prompt[..1], &prompt[1..]).unwrap();
        let stats = full.score(&batch, &Want::log_probs_and_entropy(1.0)).unwrap();
        for (name, found, expected) in [
            ("answer log-probs", &stats.log_probs[batch.scored_range(0)], &item["answer_logprob_f32"]),
            ("answer entropies", &stats.entropy[batch.scored_range(0)], &item["answer_entropy_f32"]),
            ("prompt log-probs", &stats.log_probs[batch.scored_range(1)], &item["prompt_logprob_f32"]),
        ] {
            let (_, largest) = differences(found, &numbers(expected));
            assert!(largest < 1e-3, "item {index}: {name} differ by {largest}");
        }
        let stats = half.score(&batch, &Want::log_probs(1.0)).unwrap();
        let scored = &stats.log_probs[batch.scored_range(0)];
        // Two bf16 runs are each off the f32 one by their own rounding; over thirty layers they may be further from each other than from it.
        let (mean, largest) = differences(scored, &numbers(&item["answer_logprob_f32"]));
        let peer = item["bf16_vs_f32_logprob_abs_diff"]["mean"].as_f64().unwrap();
        assert!(
            mean <= 1.1 * peer && largest <= 0.5,
            "item {index}: bf16 is off f32 by {mean} in the mean (the peer by {peer}), {largest} at most"
        );
        let (mean, largest) = differences(scored, &numbers(&item["answer_logprob_bf16"]));
        assert!(
            mean <= 0.1 && largest <= 0.5,
            "item {index}: bf16 is off the peer's by {mean} in the mean, {largest} at most"
        );

        let logits = full.decoder().logits_at(&prompt, &[prompt.len() as i64 - 1]).unwrap();
        let top = &item["first_answer_pos_top20"];
        for (id, expected) in ids(&top["ids"]).into_iter().zip(numbers(&top["logits"])) {
            assert!((f64::from(logits[id as usize]) - expected).abs() < 1e-3, "item {index}: logit of {id}");
        }
    }
    println!("model_forward_smollm2.json: {} run, 0 skipped (items)", items.len());
}

#[test]
fn greedy_answers_agree() {
    let Some((values, folder)) = places() else {
        return;
    };
    let config = ModelConfig::from_folder(&folder).unwrap();
    let weights = weights_for(&config, Head::Lm, 0, &read_folder(&folder).unwrap()).unwrap();
    let items = values["items"].as_array().unwrap();
    let mut generator =
        TorchGenerator::new(&config, Placement::cpu(DType::F32), 0, &weights, GeneratorOptions::new(items.len(), 256))
            .unwrap();
    for (id, item) in items.iter().enumerate() {
        let prompt = ids(&item["prompt_ids"]);
        let max_new_tokens = ids(&item["greedy_ids"]).len();
        generator
            .submit(Request {
                id: id as u64,
                prompt,
                max_new_tokens,
                seed: 0,
                sampling: Sampling::GREEDY,
                partial: Partial::default(),
            })
            .unwrap();
    }
    let mut run = 0;
    while !generator.is_idle() {
        for response in generator.step().unwrap() {
            let item = &items[response.id as usize];
            let (expected, margins) = (ids(&item["greedy_ids"]), numbers(&item["greedy_top2_margin"]));
            let sure = margins.iter().position(|&gap| gap < 1e-3).unwrap_or(expected.len());
            assert_eq!(response.tokens[..sure], expected[..sure], "item {}", response.id);
            run += 1;
        }
    }
    println!("model_forward_smollm2.json: {run} run, 0 skipped (greedy)");
}

#[test]
fn a_training_step_agrees() {
    let Some((values, folder)) = places() else {
        return;
    };
    let step = &values["train_step"];
    let setting = |key: &str| step["optim"][key].as_f64().unwrap();
    let options = TrainOptions {
        weight_decay: setting("weight_decay"),
        clip_grad: Some(setting("clip_grad")),
        ..TrainOptions::new(LrSchedule::constant(setting("lr")))
    };
    let mut model =
        TorchModel::open(&folder, Head::Lm, Placement::cpu(DType::F32), 0).unwrap().training(options).unwrap();
    let item = &values["items"][step["item"].as_u64().unwrap() as usize];
    let mut batch = PackedBatch::new();
    batch.push(&ids(&item["prompt_ids"]), &ids(&item["answer_ids"])).unwrap();
    let share = -1.0 / batch.scored_tokens() as f32;
    let loss =
        |log_probs: &[f32]| -log_probs.iter().map(|value| f64::from(*value)).sum::<f64>() / log_probs.len() as f64;
    let stats = model
        .accumulate(&batch, &Want::log_probs(1.0), &mut |stats| {
            Ok(TokenGradients { log_probs: vec![share; stats.log_probs.len()], ..TokenGradients::default() })
        })
        .unwrap();
    let near = |what: &str, found: f64, expected: &Value, tolerance: f64| {
        let expected = expected.as_f64().unwrap();
        assert!((found - expected).abs() <= tolerance * expected.abs(), "{what} is {found}, expected {expected}");
    };
    near("loss", loss(&stats.log_probs), &step["loss"], 1e-4);
    let gradients = model.gradients().unwrap();
    for (name, norm) in step["per_param_grad_l2_before_clip"].as_object().unwrap() {
        let values = gradients.require(name).unwrap().to_f32().unwrap();
        near(name, values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt(), norm, 1e-3);
    }
    near("grad_norm", model.step().unwrap().grad_norm, &step["grad_norm"], 1e-3);
    let after = model.score(&batch, &Want::log_probs(1.0)).unwrap();
    near("loss after the step", loss(&after.log_probs), &step["loss_after"], 1e-2);
    println!("model_forward_smollm2.json: 1 run, 0 skipped (train_step)");
}
