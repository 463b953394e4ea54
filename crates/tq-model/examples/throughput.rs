//! How fast a small model generates, scores and trains: `cargo run -p tq-model --example throughput [rows] [slots] [threads]`.
//!
//! Random weights of the "digit completion" size (0.8 M parameters): responses run to their full length.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use tq_model::generate::{Generator, GeneratorOptions, Partial, Request, Sampling, TorchGenerator};
use tq_model::train::{LrSchedule, TrainOptions};
use tq_model::weights::{DType, Head};
use tq_model::{
    Decoder, Model, ModelConfig, PackedBatch, Placement, Result, TokenGradients, TorchModel, Want, init_random,
};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().unwrap_or(0));
    let mut argument = |default: usize| arguments.next().filter(|&number| number > 0).unwrap_or(default);
    let (rows, slots) = (argument(512), argument(256));
    tq_model::set_threads(argument(2));
    let config = ModelConfig::from_json(&serde_json::json!({
        "model_type": "llama", "vocab_size": 16, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4,
        "num_attention_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
    }))?;
    let place = Placement::cpu(DType::F32);
    let weights = init_random(&config, Head::Lm, 1)?;
    let mut generator = TorchGenerator::new(&config, place, 0, &weights, GeneratorOptions::new(slots, 32))?;
    let mut model = TorchModel::new(Decoder::from_named(&config, Head::Lm, place, &weights)?)
        .training(TrainOptions::new(LrSchedule::constant(1e-4)))?;

    for round in 0..3 {
        let mut batch = PackedBatch::new();
        let begin = Instant::now();
        for id in 0..rows as u64 {
            let prompt: Vec<i64> = (0..6 + id as i64 % 2).map(|token| (token * 7 + id as i64) % 16).collect();
            generator.submit(Request {
                id,
                prompt,
                max_new_tokens: 12 + id as usize % 14,
                seed: id,
                sampling: Sampling::full(1.0),
                partial: Partial::default(),
            })?;
        }
        let (mut tokens, mut steps) = (0, 0);
        while !generator.is_idle() {
            for response in generator.step()? {
                tokens += response.tokens.len();
                batch.push(&[0, 1, 2, 3, 4, 5], &response.tokens)?;
            }
            steps += 1;
        }
        let generated = begin.elapsed();
        let begin = Instant::now();
        model.score(&batch, &Want::log_probs(1.0))?;
        let scored = begin.elapsed();
        let begin = Instant::now();
        model.accumulate(&batch, &Want::log_probs_and_entropy(1.0), &mut |stats| {
            Ok(TokenGradients { log_probs: vec![-1e-4; stats.log_probs.len()], ..TokenGradients::default() })
        })?;
        let differentiated = begin.elapsed();
        let begin = Instant::now();
        model.step()?;
        let stepped = begin.elapsed();
        println!(
            "round {round}: {rows} rows, {tokens} tokens in {steps} steps: generate {generated:.0?}, score {scored:.0?}, forward and backward {differentiated:.0?}, step {stepped:.0?}"
        );
    }
    Ok(())
}
