//! Blocks against Hugging Face's transformers; `scripts/peers-transformers.sh` makes the models and sets `TQ_PEER_MODELS`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::path::PathBuf;

use common::{ids, json, numbers};
use tq_model::train::{LrSchedule, TrainOptions};
use tq_model::weights::{DType, Head};
use tq_model::{Model, PackedBatch, Placement, TokenGradients, TorchModel, Want};

#[test]
fn logits_log_probs_and_gradients_agree_with_transformers() {
    let Some(folder) = std::env::var_os("TQ_PEER_MODELS").map(PathBuf::from) else {
        println!("skipped: TQ_PEER_MODELS is not set; run scripts/peers-transformers.sh");
        return;
    };
    let mut run = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let open = || TorchModel::open(&folder, Head::Lm, Placement::cpu(DType::F32), 0).unwrap();
        let mut model = open().training(TrainOptions::new(LrSchedule::constant(0.0))).unwrap();
        for row in json(&folder.join("peer.json")).as_array().unwrap() {
            let ids = ids(&row["ids"]);
            let positions: Vec<i64> = (0..ids.len() as i64).collect();
            let logits = model.decoder().logits_at(&ids, &positions).unwrap();
            for (found, expected) in logits.iter().zip(numbers(&row["logits"])) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-4,
                    "{name}, {} tokens: {found} against {expected}",
                    ids.len()
                );
            }
            run += 1;
            if ids.len() == 1 {
                continue;
            }
            let mut batch = PackedBatch::new();
            batch.push(&ids[..1], &ids[1..]).unwrap();
            let share = -1.0 / batch.scored_tokens() as f32;
            let stats = model
                .accumulate(&batch, &Want::log_probs(1.0), &mut |stats| {
                    Ok(TokenGradients { log_probs: vec![share; stats.log_probs.len()], ..TokenGradients::default() })
                })
                .unwrap();
            for (found, expected) in stats.log_probs.iter().zip(numbers(&row["log_probs"])) {
                assert!((f64::from(*found) - expected).abs() < 5e-5, "{name}: {found} against {expected}");
            }
            for (parameter, gradient) in model.gradients().unwrap().iter() {
                let norm = gradient.to_f32().unwrap().iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
                let expected = row["grad_norms"][parameter].as_f64().unwrap();
                assert!(
                    (norm - expected).abs() < 1e-3 * expected + 1e-5,
                    "{name}: gradient of {parameter} has norm {norm}, expected {expected}"
                );
            }
            model.discard_gradients();
        }
    }
    println!("transformers: {run} run, 0 skipped (rows)");
    assert!(run > 0, "TQ_PEER_MODELS holds no models");
}
