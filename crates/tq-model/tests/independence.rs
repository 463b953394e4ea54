//! A row's bits depend on that row alone: not on the rows beside it, on when it enters, or on the slot it gets.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Mutex, PoisonError};

use common::models::{DTYPES, digits, families, lively, tokens};
use tq_model::generate::{Finished, Generator, GeneratorOptions, Partial, Request, Sampling, TorchGenerator};
use tq_model::weights::{DType, Head};
use tq_model::{Decoder, Model, ModelConfig, PackedBatch, Placement, TorchModel, Want};

/// The number of threads is the process's: one test at a time sets it.
static THREADS: Mutex<()> = Mutex::new(());

fn with_threads(mut check: impl FnMut(usize)) {
    let _guard = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    for threads in [1, 2] {
        tq_model::set_threads(threads);
        check(threads);
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Scores rows of these (prompt, response) lengths together and each alone.
fn assert_rows_are_independent(what: &str, model: &mut TorchModel, lengths: &[(usize, usize)], want: &Want) {
    let vocab = model.config().vocab_size;
    let rows: Vec<(Vec<i64>, Vec<i64>)> = lengths
        .iter()
        .enumerate()
        .map(|(row, &(prompt, response))| {
            (tokens(row as u64, prompt, vocab), tokens(1000 + row as u64, response, vocab))
        })
        .collect();
    let mut together = PackedBatch::new();
    for (prompt, response) in &rows {
        together.push(prompt, response).unwrap();
    }
    let packed = model.score(&together, want).unwrap();
    for (row, (prompt, response)) in rows.iter().enumerate() {
        let mut alone = PackedBatch::new();
        alone.push(prompt, response).unwrap();
        let single = model.score(&alone, want).unwrap();
        let range = together.scored_range(row);
        for (name, alone, packed) in [
            ("log_probs", &single.log_probs, &packed.log_probs),
            ("entropy", &single.entropy, &packed.entropy),
            ("sum_pi_squared", &single.sum_pi_squared, &packed.sum_pi_squared),
            ("values", &single.values, &packed.values),
        ] {
            if !packed.is_empty() {
                assert_eq!(bits(alone), bits(&packed[range.clone()]), "{what}: {name} of row {row} {:?}", lengths[row]);
            }
        }
    }
}

#[test]
fn scores_do_not_depend_on_the_rows_beside() {
    let lengths: Vec<(usize, usize)> =
        (0..60).map(|row| (1 + row % 7, 1 + (row * row) % 41)).chain([(3, 200), (9, 1), (1, 77)]).collect();
    let want = Want { entropy: true, sum_pi_squared: true, ..Want::log_probs(0.7) };
    with_threads(|threads| {
        let models = families().into_iter().chain([("digits", digits())]);
        for (name, config) in models {
            for dtype in DTYPES {
                let what = format!("{name} {dtype} {threads} threads");
                let place = Placement::cpu(dtype);
                let decoder = Decoder::from_named(&config, Head::Lm, place, &lively(&config, Head::Lm, 5)).unwrap();
                assert_rows_are_independent(&what, &mut TorchModel::new(decoder), &lengths, &want);
                let decoder =
                    Decoder::from_named(&config, Head::Value, place, &lively(&config, Head::Value, 6)).unwrap();
                assert_rows_are_independent(&what, &mut TorchModel::new(decoder), &lengths, &Want::values());
            }
        }
    });
}

fn requests(config: &ModelConfig, count: u64, longest: usize) -> Vec<Request> {
    (0..count)
        .map(|id| Request {
            id,
            prompt: tokens(id / 3, 1 + (id as usize * 5) % 23, config.vocab_size),
            max_new_tokens: 1 + (id as usize * 17) % longest,
            seed: 77 + id,
            partial: Partial::default(),
            sampling: match id % 4 {
                0 => Sampling::GREEDY,
                1 => Sampling { temperature: 0.9, top_k: Some(7), top_p: 0.9 },
                _ => Sampling::full(1.0 + 0.1 * (id % 3) as f64),
            },
        })
        .collect()
}

/// Runs requests, letting `at_once` of them be known at a time; returns them by id.
fn run(generator: &mut TorchGenerator, requests: &[Request], at_once: usize) -> Vec<Finished> {
    let mut waiting = requests.iter();
    let mut finished = Vec::new();
    loop {
        while generator.queued() + generator.running() < at_once
            && let Some(request) = waiting.next()
        {
            generator.submit(request.clone()).unwrap();
        }
        if generator.is_idle() {
            break;
        }
        finished.extend(generator.step().unwrap());
    }
    finished.sort_by_key(|response| response.id);
    assert_eq!(finished.len(), requests.len());
    finished
}

fn assert_same(what: &str, alone: &[Finished], together: &[Finished]) {
    for (alone, together) in alone.iter().zip(together) {
        assert_eq!(alone.tokens, together.tokens, "{what}: tokens of request {}", alone.id);
        assert_eq!(bits(&alone.log_probs), bits(&together.log_probs), "{what}: log-probs of request {}", alone.id);
        assert_eq!(
            (alone.id, alone.reason, &alone.versions),
            (together.id, together.reason, &together.versions),
            "{what}"
        );
    }
}

#[test]
fn responses_do_not_depend_on_company_entry_or_slot() {
    with_threads(|threads| {
        let models =
            families().into_iter().map(|(name, config)| (name, config, 150, 25)).chain([("digits", digits(), 40, 90)]);
        for (name, config, longest, count) in models {
            for dtype in DTYPES {
                let what = format!("{name} {dtype} {threads} threads");
                let weights = lively(&config, Head::Lm, 3);
                let options = GeneratorOptions {
                    stop_tokens: vec![2],
                    prefill_tokens: 64,
                    ..GeneratorOptions::new(70, longest + 23)
                };
                let mut generator = TorchGenerator::new(&config, Placement::cpu(dtype), 4, &weights, options).unwrap();
                let requests = requests(&config, count, longest);
                let alone = run(&mut generator, &requests, 1);
                assert_same(&format!("{what}, five at a time"), &alone, &run(&mut generator, &requests, 5));
                assert_same(&format!("{what}, all at once"), &alone, &run(&mut generator, &requests, usize::MAX));
                let reversed: Vec<Request> = requests.iter().rev().cloned().collect();
                assert_same(&format!("{what}, in reverse"), &alone, &run(&mut generator, &reversed, 100));
                // A draw that never ends early or late would prove little.
                assert!(alone.iter().any(|response| response.tokens.last() == Some(&2)));
                assert!(alone.iter().any(|response| response.tokens.len() > longest / 2));
            }
        }
    });
}

/// The request, going on from the first `tokens` of its response.
fn resumed(request: &Request, whole: &Finished, tokens: usize) -> Request {
    let partial = Partial {
        tokens: whole.tokens[..tokens].to_vec(),
        log_probs: whole.log_probs[..tokens].to_vec(),
        versions: whole.versions[..tokens].to_vec(),
    };
    Request { id: 1000 * request.id + tokens as u64, partial, ..request.clone() }
}

#[test]
fn a_response_that_is_resumed_at_any_token_ends_in_the_same_bits() {
    with_threads(|threads| {
        let models = families().into_iter().map(|(name, config)| (name, config, 150)).chain([("digits", digits(), 40)]);
        for (name, config, longest) in models {
            for dtype in DTYPES {
                let weights = lively(&config, Head::Lm, 3);
                let options = GeneratorOptions { prefill_tokens: 64, ..GeneratorOptions::new(70, longest + 23) };
                let new = || TorchGenerator::new(&config, Placement::cpu(dtype), 4, &weights, options.clone()).unwrap();
                let requests = &requests(&config, 10, longest)[6..];
                let whole = run(&mut new(), requests, usize::MAX);
                // Longer than what is caught up side by side, and than a chunk of the cache.
                assert!(whole.iter().any(|response| response.tokens.len() > longest / 2));
                let mut generator = new();
                for (request, whole) in requests.iter().zip(&whole) {
                    let cuts: Vec<usize> = (1..=whole.tokens.len()).collect();
                    let requests: Vec<Request> = cuts.iter().map(|cut| resumed(request, whole, *cut)).collect();
                    let ended = run(&mut generator, &requests, 30);
                    for (cut, mut ended) in cuts.into_iter().zip(ended) {
                        ended.id = whole.id;
                        let what = format!("{name} {dtype} {threads} threads, from token {cut}");
                        assert_same(&what, std::slice::from_ref(whole), &[ended]);
                    }
                }
            }
        }
    });
}

#[test]
fn generated_log_probs_are_those_of_scoring() {
    for (name, config) in families() {
        let weights = lively(&config, Head::Lm, 3);
        let place = Placement::cpu(DType::F32);
        let mut generator = TorchGenerator::new(&config, place, 0, &weights, GeneratorOptions::new(16, 200)).unwrap();
        let mut model = TorchModel::new(Decoder::from_named(&config, Head::Lm, place, &weights).unwrap());
        let requests = requests(&config, 20, 170);
        for (request, response) in requests.iter().zip(run(&mut generator, &requests, 20)) {
            let mut batch = PackedBatch::new();
            batch.push(&request.prompt, &response.tokens).unwrap();
            let temperature = if request.sampling.temperature == 0.0 { 1.0 } else { request.sampling.temperature };
            let stats = model.score(&batch, &Want::log_probs(temperature)).unwrap();
            for (token, (generated, scored)) in response.log_probs.iter().zip(&stats.log_probs).enumerate() {
                assert!(
                    (generated - scored).abs() < 2e-4,
                    "{name}: token {token} of request {}: {generated} against {scored}",
                    request.id
                );
            }
            assert_eq!(response.restricted, request.id % 4 == 1);
        }
    }
}
