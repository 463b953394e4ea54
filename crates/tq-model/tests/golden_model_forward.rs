//! Forward passes, greedy generation and training steps against `transformers` and `torch`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::path::Path;

use common::{golden, ids, json, numbers, shared};
use serde_json::Value;
use tq_model::generate::{Generator, GeneratorOptions, Partial, Request, Sampling, TorchGenerator};
use tq_model::train::{LrSchedule, TrainOptions};
use tq_model::weights::{DType, Head, NamedTensor, read_folder};
use tq_model::{Model, ModelConfig, PackedBatch, Placement, TokenGradients, TokenStats, TorchModel, Want, weights_for};

/// Runs `check` on every small model of the golden file that is there; returns how many are not.
fn each_model(mut check: impl FnMut(&str, &Value, &Path)) -> Option<usize> {
    let path = golden("model_forward.json")?;
    let (mut run, mut skipped) = (0, 0);
    for (name, model) in json(&path).as_object().unwrap() {
        if let Some(folder) = shared(model["path"].as_str().unwrap()) {
            check(name, model, &folder);
            run += 1;
        } else {
            skipped += 1;
        }
    }
    assert!(run > 0, "the golden file is there, its models are not");
    Some(skipped)
}

fn open(folder: &Path, dtype: DType) -> TorchModel {
    TorchModel::open(folder, Head::Lm, Placement::cpu(dtype), 0).unwrap()
}

/// Every token of `ids` but the first, and one more token so that the last position has an entropy.
fn all_positions(ids: &[i64]) -> PackedBatch {
    let mut batch = PackedBatch::new();
    batch.push(&ids[..1], &[&ids[1..], &[0]].concat()).unwrap();
    batch
}

fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (position, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*found) - expected).abs() <= tolerance,
            "{what}[{position}] is {found}, expected {expected} within {tolerance}"
        );
    }
}

fn assert_near(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differences: Vec<f64> =
        found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs()).collect();
    let mean = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
    let largest = differences.iter().copied().fold(0.0, f64::max);
    assert!(mean <= 0.05 && largest <= 0.5, "{what}: mean difference {mean}, largest {largest}");
}

#[test]
fn forward_passes_agree() {
    let mut run = 0;
    let skipped = each_model(|name, model, folder| {
        let (mut full, mut half) = (open(folder, DType::F32), open(folder, DType::Bf16));
        for (index, case) in model["forward"].as_array().unwrap().iter().enumerate() {
            let what = |field: &str| format!("{name}.forward[{index}].{field}");
            let ids = ids(&case["ids"]);
            let batch = all_positions(&ids);
            let want = Want { entropy: true, sum_pi_squared: true, ..Want::log_probs(1.0) };
            let known = ids.len() - 1;

            let stats = full.score(&batch, &want).unwrap();
            assert_close(&what("logprob_f32"), &stats.log_probs[..known], &numbers(&case["logprob_f32"]), 5e-5);
            assert_close(&what("entropy_f32"), &stats.entropy, &numbers(&case["entropy_f32"]), 5e-5);
            assert_close(
                &what("sum_pi_squared_f32"),
                &stats.sum_pi_squared,
                &numbers(&case["sum_pi_squared_f32"]),
                5e-5,
            );

            let want_tempered = Want { temperature: case["temperature"].as_f64().unwrap(), ..want };
            let stats = full.score(&batch, &want_tempered).unwrap();
            assert_close(
                &what("logprob_f32_temp"),
                &stats.log_probs[..known],
                &numbers(&case["logprob_f32_temp"]),
                5e-5,
            );
            assert_close(&what("entropy_f32_temp"), &stats.entropy, &numbers(&case["entropy_f32_temp"]), 5e-5);

            let stats = half.score(&batch, &want).unwrap();
            assert_near(&what("logprob_bf16"), &stats.log_probs[..known], &numbers(&case["logprob_bf16"]));
            assert_near(&what("entropy_bf16"), &stats.entropy, &numbers(&case["entropy_bf16"]));
            assert_near(&what("sum_pi_squared_bf16"), &stats.sum_pi_squared, &numbers(&case["sum_pi_squared_bf16"]));
            run += 1;
        }
    });
    if let Some(skipped) = skipped {
        println!("model_forward.json: {run} run, {skipped} skipped (forward)");
    }
}

#[test]
fn logits_agree() {
    let Some(path) = golden("model_forward.safetensors") else {
        return;
    };
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut run = 0;
    let skipped = each_model(|name, model, folder| {
        for (dtype, suffix) in [(DType::F32, "_f32"), (DType::Bf16, "_bf16")] {
            let model_here = open(folder, dtype);
            for case in model["forward"].as_array().unwrap() {
                let key = format!("{}{suffix}", case["logits_key"].as_str().unwrap());
                let stored = tensors.tensor(&key).unwrap();
                let stored_dtype = if stored.dtype() == safetensors::Dtype::F32 { DType::F32 } else { DType::Bf16 };
                let values = NamedTensor::new(
                    stored_dtype,
                    [(stored.data().len() / stored_dtype.size()) as i64],
                    stored.data().to_vec(),
                )
                .unwrap();
                let expected: Vec<f64> = values.to_f32().unwrap().into_iter().map(f64::from).collect();
                let rows = model_here.decoder().logits_at(&ids(&case["ids"]), &ids(&case["logit_positions"])).unwrap();
                if dtype == DType::F32 {
                    assert_close(&format!("{name} {key}"), &rows, &expected, 1e-4);
                } else {
                    let allowed = 2.0 * case["max_abs_bf16_vs_f32"].as_f64().unwrap() + 0.05;
                    assert_close(&format!("{name} {key}"), &rows, &expected, allowed);
                }
                run += 1;
            }
        }
    });
    if let Some(skipped) = skipped {
        println!("model_forward.safetensors: {run} run, {skipped} skipped");
    }
}

#[test]
fn greedy_generation_agrees_until_a_margin_vanishes() {
    let mut run = 0;
    let skipped = each_model(|name, model, folder| {
        let config = ModelConfig::from_folder(folder).unwrap();
        let weights = weights_for(&config, Head::Lm, 0, &read_folder(folder).unwrap()).unwrap();
        let cases = model["greedy"].as_array().unwrap();
        for (dtype, field, margin) in [(DType::F32, "ids_f32", 1e-4), (DType::Bf16, "ids_bf16", 0.5)] {
            let mut generator =
                TorchGenerator::new(&config, Placement::cpu(dtype), 0, &weights, GeneratorOptions::new(3, 128))
                    .unwrap();
            for (id, case) in cases.iter().enumerate() {
                let request = Request {
                    id: id as u64,
                    prompt: ids(&case["prompt"]),
                    max_new_tokens: 64,
                    seed: 0,
                    sampling: Sampling::GREEDY,
                    partial: Partial::default(),
                };
                generator.submit(request).unwrap();
            }
            let mut finished = Vec::new();
            while !generator.is_idle() {
                finished.extend(generator.step().unwrap());
            }
            finished.sort_by_key(|response| response.id);
            for (index, (response, case)) in finished.iter().zip(cases).enumerate() {
                let (expected, margins) = (ids(&case[field]), numbers(&case["top2_margin_f32"]));
                // Up to the first token that was nearly another, every token must be the peer's.
                let sure = margins.iter().position(|&gap| gap < margin).unwrap_or(expected.len());
                assert_eq!(response.tokens[..sure], expected[..sure], "{name}.greedy[{index}].{field}");
                run += 1;
            }
            assert_eq!(finished.len(), cases.len());
        }
    });
    if let Some(skipped) = skipped {
        println!("model_forward.json: {run} run, {skipped} skipped (greedy)");
    }
}

/// The two losses of the golden file, as value and gradients of the scored tokens.
struct Loss<'a> {
    case: &'a Value,
    masks: Vec<Vec<i64>>,
}

impl Loss<'_> {
    fn evaluate(&self, batch: &PackedBatch, stats: &TokenStats) -> (f64, TokenGradients) {
        let count: i64 = self.masks.iter().map(|mask| mask[1..].iter().sum::<i64>()).sum();
        let share = 1.0 / count as f64;
        let mut loss = 0.0;
        let mut gradients = TokenGradients {
            log_probs: vec![0.0; stats.log_probs.len()],
            entropy: vec![0.0; stats.entropy.len()],
            values: vec![],
        };
        for (row, mask) in self.masks.iter().enumerate() {
            for (index, output) in batch.scored_range(row).enumerate() {
                if mask[index + 1] == 0 {
                    continue;
                }
                let log_prob = f64::from(stats.log_probs[output]);
                if self.case["kind"] == "sft" {
                    loss -= share * log_prob;
                    gradients.log_probs[output] = -share as f32;
                    continue;
                }
                let at = |field: &str| self.case[field][row][index].as_f64().unwrap();
                let advantage = self.case["advantage_per_row"][row].as_f64().unwrap();
                let ratio = (log_prob - at("old_log_prob")).exp();
                let (plain, clipped) = (-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2));
                let mut policy = plain.max(clipped);
                let mut slope = if plain >= clipped || (0.8..1.2).contains(&ratio) { -advantage * ratio } else { 0.0 };
                if advantage < 0.0 && policy > -advantage * 3.0 {
                    (policy, slope) = (-advantage * 3.0, 0.0);
                }
                let gap = at("ref_log_prob") - log_prob;
                // The peer clamps its estimate to at most 10, where the gradient ends.
                let k3 = gap.exp() - gap - 1.0;
                let (k3, k3_slope) = if k3 > 10.0 { (10.0, 0.0) } else { (k3, 1.0 - gap.exp()) };
                loss += share * (policy + 0.05 * k3 - 0.01 * f64::from(stats.entropy[output]));
                gradients.log_probs[output] = (share * (slope + 0.05 * k3_slope)) as f32;
                gradients.entropy[output] = (-0.01 * share) as f32;
            }
        }
        (loss, gradients)
    }
}

#[test]
fn training_steps_agree() {
    let mut run = 0;
    let skipped = each_model(|name, model, folder| {
        for case in model["train"].as_array().unwrap() {
            let what = format!("{name}.train {}", case["kind"]);
            let optim = &case["optim"];
            let setting = |key: &str| optim[key].as_f64().unwrap();
            let options = TrainOptions {
                betas: (optim["betas"][0].as_f64().unwrap(), optim["betas"][1].as_f64().unwrap()),
                eps: setting("eps"),
                weight_decay: setting("weight_decay"),
                clip_grad: Some(setting("clip_grad")),
                ..TrainOptions::new(LrSchedule::constant(setting("lr")))
            };
            let mut trained = open(folder, DType::F32).training(options).unwrap();
            let rows: Vec<Vec<i64>> = case["input_ids"].as_array().unwrap().iter().map(ids).collect();
            let loss = Loss { case, masks: case["loss_mask"].as_array().unwrap().iter().map(ids).collect() };
            let mut batch = PackedBatch::new();
            for row in &rows {
                batch.push(&row[..1], &row[1..]).unwrap();
            }
            for (step, expected) in case["steps"].as_array().unwrap().iter().enumerate() {
                let mut value = 0.0;
                trained
                    .accumulate(&batch, &Want::log_probs_and_entropy(1.0), &mut |stats| {
                        let (loss, gradients) = loss.evaluate(&batch, stats);
                        value = loss;
                        Ok(gradients)
                    })
                    .unwrap();
                let gradients = trained.gradients().unwrap();
                let report = trained.step().unwrap();
                if step == 0 {
                    let shrink = (setting("clip_grad") / (report.grad_norm + 1e-6)).min(1.0);
                    for (name, values) in expected["grad_after_clip_first8"].as_object().unwrap() {
                        let found = gradients.require(name).unwrap().to_f32().unwrap();
                        for (found, expected) in found.iter().zip(numbers(values)) {
                            let found = f64::from(*found) * shrink;
                            assert!(
                                (found - expected).abs() <= 1e-6 + 1e-3 * expected.abs(),
                                "{what}: gradient of {name} is {found}, expected {expected}"
                            );
                        }
                    }
                }
                let tolerance = if step == 0 { 1e-4 } else { 1e-3 };
                for (field, found) in [("loss", value), ("grad_norm", report.grad_norm)] {
                    let expected = expected[field].as_f64().unwrap();
                    assert!(
                        (found - expected).abs() <= tolerance * expected.abs() + 1e-7,
                        "{what} step {step}: {field} is {found}, expected {expected}"
                    );
                }
                check_parameters(
                    &format!("{what} step {step}"),
                    &trained,
                    expected,
                    2.0 * setting("lr") * (step + 1) as f64,
                );
            }
            let stats = trained.score(&batch, &Want::log_probs(1.0)).unwrap();
            for (row, expected) in case["logprob_after_3_steps"].as_array().unwrap().iter().enumerate() {
                assert_close(
                    &format!("{what} after three steps, row {row}"),
                    &stats.log_probs[batch.scored_range(row)],
                    &numbers(expected),
                    0.02,
                );
            }
            run += 1;
        }
    });
    if let Some(skipped) = skipped {
        println!("model_forward.json: {run} run, {skipped} skipped (train)");
    }
}

/// The first steps of Adam move a parameter by about the learning rate whatever its gradient: a few of tiny gradient may go the other way.
fn check_parameters(what: &str, model: &TorchModel, expected: &Value, most: f64) {
    let weights = model.weights(DType::F32).unwrap();
    if let Some(first) = expected["param_first8"].as_object() {
        let mut differences = Vec::new();
        for (name, values) in first {
            let found = weights.require(name).unwrap().to_f32().unwrap();
            for (found, expected) in found.iter().zip(numbers(values)) {
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference <= most + 1e-6, "{what}: {name} is {found}, expected {expected}");
                differences.push(difference);
            }
        }
        differences.sort_by(f64::total_cmp);
        let median = differences[differences.len() / 2];
        assert!(median <= 2e-5, "{what}: half of the parameters are off by more than {median}");
    }
    if let Some(sums) = expected["param_abs_sum_f64"].as_object() {
        for (name, sum) in sums {
            let found: f64 =
                weights.require(name).unwrap().to_f32().unwrap().iter().map(|value| f64::from(value.abs())).sum();
            let expected = sum.as_f64().unwrap();
            assert!((found - expected).abs() <= 1e-4 * expected, "{what}: Σ|{name}| is {found}, expected {expected}");
        }
    }
}
