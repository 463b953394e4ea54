//! Training: gradients gather, steps repeat, saved state continues bit for bit.
#![allow(clippy::unwrap_used)]

mod common;

use common::models::{digits, families, lively, tokens};
use tq_model::train::{Flat, LrSchedule, LrShape, TrainOptions};
use tq_model::weights::{DType, Head, NamedTensors};
use tq_model::{
    Decoder, Error, Model, ModelConfig, PackedBatch, Placement, TokenGradients, TokenStats, TorchModel, Want,
};

fn options() -> TrainOptions {
    TrainOptions::new(LrSchedule { base: 1e-2, warmup: 2, shape: LrShape::cosine(10, 0.1) })
}

fn model(config: &ModelConfig, head: Head, place: Placement, options: TrainOptions) -> TorchModel {
    TorchModel::new(Decoder::from_named(config, head, place, &lively(config, head, 8)).unwrap())
        .training(options)
        .unwrap()
}

fn batch(config: &ModelConfig, rows: std::ops::Range<u64>) -> PackedBatch {
    let mut batch = PackedBatch::new();
    for row in rows {
        batch
            .push(
                &tokens(row, 2 + row as usize % 3, config.vocab_size),
                &tokens(50 + row, 3 + row as usize % 5, config.vocab_size),
            )
            .unwrap();
    }
    batch
}

/// Raises the log-probs and, a little, the entropies.
fn reinforce(stats: &TokenStats) -> tq_model::Result<TokenGradients> {
    let ramp = |count: usize| (0..count).map(|token| -0.01 - 0.001 * (token % 7) as f32).collect();
    Ok(TokenGradients {
        log_probs: ramp(stats.log_probs.len()),
        entropy: vec![-0.002; stats.entropy.len()],
        values: vec![],
    })
}

fn one_step(model: &mut TorchModel, rows: std::ops::Range<u64>) {
    let batch = batch(model.config(), rows);
    model.accumulate(&batch, &Want::log_probs_and_entropy(0.9), &mut reinforce).unwrap();
    assert!(model.step().unwrap().applied);
}

fn largest_difference(a: &NamedTensors, b: &NamedTensors) -> f32 {
    a.iter()
        .flat_map(|(name, tensor)| {
            let (a, b) = (tensor.to_f32().unwrap(), b.require(name).unwrap().to_f32().unwrap());
            a.into_iter().zip(b).map(|(a, b)| (a - b).abs()).collect::<Vec<_>>()
        })
        .fold(0.0, f32::max)
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for (name, config) in families() {
        for (head, want) in [(Head::Lm, Want::log_probs_and_entropy(0.8)), (Head::Value, Want::values())] {
            let mut model = model(&config, head, Placement::cpu(DType::F32), options());
            let batch = batch(&config, 0..3);
            let weight = |token: usize| 0.3 + 0.1 * (token % 5) as f32;
            let objective = |stats: &TokenStats| -> f64 {
                let sum = |values: &[f32]| {
                    values.iter().enumerate().map(|(token, value)| f64::from(weight(token) * value)).sum::<f64>()
                };
                sum(&stats.log_probs) + sum(&stats.entropy) + sum(&stats.values)
            };
            model
                .accumulate(&batch, &want, &mut |stats| {
                    let weights = |values: &[f32]| (0..values.len()).map(weight).collect();
                    Ok(TokenGradients {
                        log_probs: weights(&stats.log_probs),
                        entropy: weights(&stats.entropy),
                        values: weights(&stats.values),
                    })
                })
                .unwrap();
            let gradients = model.gradients().unwrap();
            let weights = model.weights(DType::F32).unwrap();
            for (parameter, gradient) in gradients.iter() {
                let gradient = gradient.to_f32().unwrap();
                // The direction of the gradient itself, so that the difference stands out of f32's rounding.
                let norm = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
                assert!(norm > 1e-3, "{name} {head:?}: {parameter} gets no gradient");
                let step = 2e-3 / norm;
                let mut moved = |sign: f64| {
                    let mut changed = NamedTensors::new();
                    for (other, tensor) in weights.iter() {
                        let mut values = tensor.to_f32().unwrap();
                        if other == parameter {
                            values
                                .iter_mut()
                                .zip(&gradient)
                                .for_each(|(value, slope)| *value += (sign * step * f64::from(*slope)) as f32);
                        }
                        changed
                            .insert(other, tq_model::weights::NamedTensor::from_f32(tensor.shape(), &values).unwrap())
                            .unwrap();
                    }
                    model.load_weights(&changed).unwrap();
                    objective(&model.score(&batch, &want).unwrap())
                };
                let slope = (moved(1.0) - moved(-1.0)) / (2.0 * step);
                assert!(
                    (slope - norm * norm).abs() <= 0.05 * norm * norm,
                    "{name} {head:?}: {parameter}: {slope} against {}",
                    norm * norm
                );
            }
            model.load_weights(&weights).unwrap();
        }
    }
}

#[test]
fn micro_batches_add_up_to_the_whole() {
    let config = digits();
    let mut whole = model(&config, Head::Lm, Placement::cpu(DType::F32), options());
    let mut parts = model(&config, Head::Lm, Placement::cpu(DType::F32), options());
    let flat = |stats: &TokenStats| {
        Ok(TokenGradients { log_probs: vec![-0.01; stats.log_probs.len()], ..TokenGradients::default() })
    };
    whole.accumulate(&batch(&config, 0..12), &Want::log_probs(1.0), &mut { flat }).unwrap();
    for rows in [0..5, 5..6, 6..12] {
        parts.accumulate(&batch(&config, rows), &Want::log_probs(1.0), &mut { flat }).unwrap();
    }
    let difference = largest_difference(&whole.gradients().unwrap(), &parts.gradients().unwrap());
    assert!(difference < 1e-5, "{difference}");
    let (whole, parts) = (whole.step().unwrap(), parts.step().unwrap());
    assert!((whole.grad_norm - parts.grad_norm).abs() < 1e-4 * whole.grad_norm);
}

#[test]
fn gradients_of_two_workers_added_up_take_the_step_of_one() {
    let config = digits();
    let mut flat = |stats: &TokenStats| {
        Ok(TokenGradients { log_probs: vec![-0.01; stats.log_probs.len()], ..TokenGradients::default() })
    };
    for (place, close) in [(Placement::cpu(DType::F32), 1e-6), (Placement::cpu(DType::F64), 1e-14)] {
        let fresh = || model(&config, Head::Lm, place, options());
        let (mut whole, mut zero, mut one, mut idle) = (fresh(), fresh(), fresh(), fresh());
        whole.accumulate(&batch(&config, 0..12), &Want::log_probs(1.0), &mut flat).unwrap();
        zero.accumulate(&batch(&config, 0..7), &Want::log_probs(1.0), &mut flat).unwrap();
        one.accumulate(&batch(&config, 7..12), &Want::log_probs(1.0), &mut flat).unwrap();
        let values = |flat: &Flat| match flat {
            Flat::F32(values) => values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(),
            Flat::F64(values) => values.clone(),
        };
        assert!(values(&idle.gathered().unwrap()).iter().all(|value| *value == 0.0));
        let sum = match (zero.gathered().unwrap(), one.gathered().unwrap()) {
            (Flat::F32(a), Flat::F32(b)) => Flat::F32(a.iter().zip(&b).map(|(a, b)| a + b).collect()),
            (Flat::F64(a), Flat::F64(b)) => Flat::F64(a.iter().zip(&b).map(|(a, b)| a + b).collect()),
            other => panic!("{other:?}"),
        };
        let expected = values(&whole.gathered().unwrap());
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let gap: Vec<f64> = values(&sum).iter().zip(&expected).map(|(a, b)| a - b).collect();
        assert!(norm(&gap) <= close * norm(&expected), "{place:?}: {} of {}", norm(&gap), norm(&expected));
        // A worker without a row takes the very same step.
        for worker in [&mut zero, &mut one, &mut idle] {
            worker.replace_gathered(&sum).unwrap();
            assert_eq!(worker.gathered().unwrap(), sum);
        }
        let reports = [zero.step().unwrap(), one.step().unwrap(), idle.step().unwrap()];
        assert_eq!((reports[0], reports[1]), (reports[2], reports[2]));
        assert!((reports[0].grad_norm - whole.step().unwrap().grad_norm).abs() <= close * reports[0].grad_norm);
        let state = zero.training_state().unwrap();
        assert_eq!((one.training_state().unwrap(), idle.training_state().unwrap()), (state.clone(), state));
        assert_eq!(idle.weights(place.storage).unwrap(), zero.weights(place.storage).unwrap());
        let refused = zero.replace_gathered(&Flat::F32(vec![0.0; 3])).unwrap_err().to_string();
        assert!(refused.contains("3 gradients of f32 were given, expected "), "{refused}");
    }
}

#[test]
fn a_vocabulary_too_large_for_one_slice_gives_the_same_gradients() {
    let config = ModelConfig { vocab_size: 120_000, ..families().remove(0).1 };
    let mut sliced = model(&config, Head::Lm, Placement::cpu(DType::F32), options());
    let mut whole = model(&config, Head::Lm, Placement::cpu(DType::F32), options());
    let want = Want::log_probs_and_entropy(1.0);
    // 120,000 logits a token and slices of 16 Mi logits: 139 tokens a slice.
    let rows = |range: std::ops::Range<u64>| batch(&config, range);
    assert!(
        rows(0..40).scored_tokens() > 139 && rows(0..20).scored_tokens() <= 139 && rows(20..40).scored_tokens() <= 139
    );
    let mut flat = |stats: &TokenStats| {
        Ok(TokenGradients {
            log_probs: vec![-0.01; stats.log_probs.len()],
            entropy: vec![0.02; stats.entropy.len()],
            values: vec![],
        })
    };
    let stats = sliced.accumulate(&rows(0..40), &want, &mut flat).unwrap();
    let mut parts = whole.accumulate(&rows(0..20), &want, &mut flat).unwrap();
    let second = whole.accumulate(&rows(20..40), &want, &mut flat).unwrap();
    parts.log_probs.extend(second.log_probs);
    parts.entropy.extend(second.entropy);
    assert_eq!(stats, parts);
    let difference = largest_difference(&sliced.gradients().unwrap(), &whole.gradients().unwrap());
    assert!(difference < 1e-4, "{difference}");
}

#[test]
fn a_saved_state_continues_bit_for_bit() {
    for (name, config) in families() {
        for place in [Placement::cpu(DType::F32), Placement::cpu_mixed(DType::Bf16), Placement::cpu(DType::F64)] {
            let mut straight = model(&config, Head::Lm, place, options());
            (0..3).for_each(|step| one_step(&mut straight, step..step + 6));
            let (weights, state) = (straight.weights(place.storage).unwrap(), straight.training_state().unwrap());
            (3..6).for_each(|step| one_step(&mut straight, step..step + 6));

            let mut resumed = model(&config, Head::Lm, place, options());
            one_step(&mut resumed, 0..2);
            resumed.load_weights(&weights).unwrap();
            resumed.load_training_state(&state).unwrap();
            assert_eq!(resumed.training_state().unwrap(), state, "{name}");
            (3..6).for_each(|step| one_step(&mut resumed, step..step + 6));
            assert_eq!(resumed.weights(place.storage).unwrap(), straight.weights(place.storage).unwrap(), "{name}");
            assert_eq!(resumed.training_state().unwrap(), straight.training_state().unwrap(), "{name}");
            assert_ne!(resumed.weights(place.storage).unwrap(), weights, "{name}: training changes the weights");
        }
    }
}

#[test]
fn values_learn_their_targets() {
    let config = digits();
    let schedule = TrainOptions::new(LrSchedule::constant(3e-3));
    let mut critic = model(&config, Head::Value, Placement::cpu(DType::F32), schedule);
    let batch = batch(&config, 0..8);
    let target = |token: usize| (token % 3) as f32;
    let mut losses = Vec::new();
    for _ in 0..40 {
        critic
            .accumulate(&batch, &Want::values(), &mut |stats| {
                let errors: Vec<f32> =
                    stats.values.iter().enumerate().map(|(token, value)| value - target(token)).collect();
                losses.push(errors.iter().map(|error| error * error).sum::<f32>() / errors.len() as f32);
                let share = 2.0 / errors.len() as f32;
                Ok(TokenGradients {
                    values: errors.iter().map(|error| error * share).collect(),
                    ..TokenGradients::default()
                })
            })
            .unwrap();
        critic.step().unwrap();
    }
    assert!(losses[39] < 0.2 * losses[0], "{losses:?}");
}

#[test]
fn a_norm_that_is_not_finite_skips_the_step_and_moves_the_schedule() {
    let config = digits();
    let mut model = model(&config, Head::Lm, Placement::cpu(DType::F32), options());
    let before = model.weights(DType::F32).unwrap();
    model
        .accumulate(&batch(&config, 0..2), &Want::log_probs(1.0), &mut |stats| {
            Ok(TokenGradients { log_probs: vec![f32::NAN; stats.log_probs.len()], ..TokenGradients::default() })
        })
        .unwrap();
    let report = model.step().unwrap();
    assert!(!report.applied && report.grad_norm.is_nan());
    assert_eq!(model.weights(DType::F32).unwrap(), before);
    assert_eq!(model.lr().unwrap(), options().schedule.lr(1));
    one_step(&mut model, 0..2);
    assert_ne!(model.weights(DType::F32).unwrap(), before, "the gradients that were not finite are gone");
}

#[test]
fn learning_rate_zero_without_decay_leaves_the_weights() {
    let config = digits();
    let still = TrainOptions { weight_decay: 0.0, ..TrainOptions::new(LrSchedule::constant(0.0)) };
    let mut model = model(&config, Head::Lm, Placement::cpu(DType::F32), still);
    let before = model.weights(DType::F32).unwrap();
    one_step(&mut model, 0..4);
    assert_eq!(model.weights(DType::F32).unwrap(), before);
}

#[test]
fn misuse_is_refused() {
    let config = digits();
    let half = Decoder::random(&config, Head::Lm, Placement::cpu(DType::Bf16), 0).unwrap();
    assert!(TorchModel::new(half).training(options()).unwrap_err().to_string().contains("kept in bf16"));
    let mut frozen = TorchModel::new(Decoder::random(&config, Head::Lm, Placement::cpu(DType::F32), 0).unwrap());
    assert!(
        frozen
            .accumulate(&batch(&config, 0..1), &Want::log_probs(1.0), &mut reinforce)
            .unwrap_err()
            .to_string()
            .contains("scoring alone")
    );
    assert!(frozen.score(&batch(&config, 0..1), &Want::values()).unwrap_err().to_string().contains("value head"));
    assert!(
        frozen
            .score(&batch(&config, 0..1), &Want::log_probs(0.0))
            .unwrap_err()
            .to_string()
            .contains("temperature is 0")
    );

    let mut model = model(&config, Head::Lm, Placement::cpu(DType::F32), options());
    assert!(model.step().unwrap_err().to_string().contains("without gradients"));
    let rows = batch(&config, 0..2);
    let wrong_length = model.accumulate(&rows, &Want::log_probs(1.0), &mut |_| {
        Ok(TokenGradients { log_probs: vec![1.0], ..TokenGradients::default() })
    });
    assert!(wrong_length.unwrap_err().to_string().contains("returned 1 gradients of log_probs"));
    let not_asked = model.accumulate(&rows, &Want::log_probs(1.0), &mut |_| {
        Ok(TokenGradients { entropy: vec![1.0], ..TokenGradients::default() })
    });
    assert!(not_asked.unwrap_err().to_string().contains("entropy, which were not asked for"));
    let failed = model.accumulate(&rows, &Want::log_probs(1.0), &mut |_| Err(Error::loss("no such advantage")));
    let failed = failed.unwrap_err();
    let cause = std::error::Error::source(&failed).map(ToString::to_string);
    assert_eq!((failed.to_string(), cause.as_deref()), ("loss function failed".into(), Some("no such advantage")));
    let state = model.training_state().unwrap().filtered(|name| !name.contains("exp_avg_sq.model.norm"));
    assert!(model.load_training_state(&state).is_err());
}
