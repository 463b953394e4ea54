//! The generator's life: exchange of weights, cancelling, refusals.
#![allow(clippy::unwrap_used)]

mod common;

use common::models::{digits, families, lively};
use tq_model::generate::{
    FinishReason, Finished, Generator, GeneratorOptions, Partial, Request, Sampling, TorchGenerator,
};
use tq_model::weights::{DType, Head, NamedTensor, NamedTensors};
use tq_model::{Placement, init_random};

fn request(id: u64, max_new_tokens: usize) -> Request {
    let (prompt, partial) = (vec![4, 14, 5], Partial::default());
    Request { id, prompt, max_new_tokens, seed: id, sampling: Sampling::full(1.0), partial }
}

fn generator(slots: usize, version: u64, seed: u64) -> TorchGenerator {
    let config = digits();
    TorchGenerator::new(
        &config,
        Placement::cpu(DType::F32),
        version,
        &lively(&config, Head::Lm, seed),
        GeneratorOptions::new(slots, 40),
    )
    .unwrap()
}

fn drain(generator: &mut TorchGenerator) -> Vec<Finished> {
    let mut finished = Vec::new();
    while !generator.is_idle() {
        finished.extend(generator.step().unwrap());
    }
    finished
}

#[test]
fn exchanged_weights_continue_running_rows_and_stamp_their_tokens() {
    let mut changing = generator(4, 1, 1);
    changing.submit(request(0, 8)).unwrap();
    for _ in 0..3 {
        changing.step().unwrap();
    }
    changing.set_weights(2, &lively(&digits(), Head::Lm, 2)).unwrap();
    changing.submit(request(1, 8)).unwrap();
    let changed = drain(&mut changing);
    assert_eq!(changed[0].versions, [1, 1, 1, 2, 2, 2, 2, 2]);
    assert_eq!(changed[1].versions, [2; 8]);

    let mut old = generator(4, 1, 1);
    old.submit(request(0, 8)).unwrap();
    let kept = drain(&mut old);
    assert_eq!(kept[0].log_probs[..3], changed[0].log_probs[..3]);
    assert_ne!(kept[0].log_probs[3..], changed[0].log_probs[3..]);

    let mut new = generator(4, 2, 2);
    new.submit(request(1, 8)).unwrap();
    assert_eq!(drain(&mut new)[0], changed[1], "a row that enters after the exchange knows nothing of the old weights");
}

#[test]
fn a_resumed_response_goes_on_with_the_weights_there_are_and_keeps_the_stamps_it_had() {
    let mut first = generator(4, 1, 1);
    first.submit(request(0, 8)).unwrap();
    for _ in 0..3 {
        first.step().unwrap();
    }
    let partial = first.partials()[0].1.clone();
    assert_eq!((first.partials()[0].0, partial.tokens.len(), &partial.versions), (0, 3, &vec![1; 3]));
    let mut second = generator(4, 2, 2);
    second.submit(Request { partial: partial.clone(), ..request(0, 8) }).unwrap();
    let ended = drain(&mut second).pop().unwrap();
    assert_eq!(ended.versions, [1, 1, 1, 2, 2, 2, 2, 2]);
    assert_eq!((&ended.tokens[..3], &ended.log_probs[..3]), (&partial.tokens[..], &partial.log_probs[..]));
    assert!(second.partials().is_empty());
}

#[test]
fn more_requests_than_slots_enter_as_others_leave() {
    let mut generator = generator(3, 0, 1);
    for id in 0..10 {
        generator.submit(request(id, 1 + id as usize % 4)).unwrap();
    }
    let mut finished = Vec::new();
    while !generator.is_idle() {
        finished.extend(generator.step().unwrap());
        assert!(generator.running() <= 3);
        assert!(generator.running() == 3 || generator.queued() == 0, "a slot stays empty while requests wait");
    }
    finished.sort_by_key(|response| response.id);
    assert!(
        finished
            .iter()
            .enumerate()
            .all(|(id, response)| response.id == id as u64 && response.tokens.len() == 1 + id % 4)
    );
    assert!(finished.iter().all(|response| response.reason == FinishReason::Length && !response.restricted));
}

#[test]
fn a_cancelled_request_is_gone_and_leaves_the_others_as_they_were() {
    let mut undisturbed = generator(4, 0, 1);
    let mut disturbed = generator(4, 0, 1);
    for id in 0..6 {
        undisturbed.submit(request(id, 9)).unwrap();
        disturbed.submit(request(id, 9)).unwrap();
    }
    disturbed.step().unwrap();
    disturbed.step().unwrap();
    assert!(disturbed.cancel(0) && disturbed.cancel(5) && !disturbed.cancel(5) && !disturbed.cancel(77));
    let mut kept = drain(&mut undisturbed);
    kept.retain(|response| !matches!(response.id, 0 | 5));
    let mut left = drain(&mut disturbed);
    kept.sort_by_key(|response| response.id);
    left.sort_by_key(|response| response.id);
    assert_eq!(kept, left);
}

#[test]
fn impossible_requests_are_refused_with_their_id() {
    let mut generator = generator(2, 0, 1);
    fn partial(tokens: Vec<i64>) -> Partial {
        let (log_probs, versions) = (vec![-0.5; tokens.len()], vec![0; tokens.len()]);
        Partial { tokens, log_probs, versions }
    }
    let mut refusal = |change: fn(&mut Request)| {
        let mut request = request(9, 4);
        change(&mut request);
        generator.submit(request).unwrap_err().to_string()
    };
    assert!(refusal(|request| request.prompt.clear()).contains("request 9: a prompt of 0 tokens"));
    assert!(refusal(|request| request.max_new_tokens = 38).contains("do not fit into max_len 40"));
    assert!(refusal(|request| request.prompt[0] = 16).contains("id 16 is outside the vocabulary of 16"));
    assert!(refusal(|request| request.partial.tokens = vec![1, 2]).contains("from 2 tokens with 0 log-probs and 0"));
    assert!(refusal(|request| request.partial = partial(vec![1; 5])).contains("at most 4 (max_new_tokens)"));
    assert!(refusal(|request| request.partial = partial(vec![16])).contains("id 16 is outside the vocabulary of 16"));
    assert!(refusal(|request| request.sampling.temperature = -1.0).contains("temperature is -1"));
    assert!(refusal(|request| request.sampling.top_p = 0.0).contains("top_p is 0"));
    assert!(refusal(|request| request.sampling.top_k = Some(0)).contains("top_k is 0"));
    generator.submit(request(9, 4)).unwrap();
    assert!(generator.submit(request(9, 4)).unwrap_err().to_string().contains("submitted before"));
}

#[test]
fn impossible_sizes_are_refused() {
    let (config, place) = (digits(), Placement::cpu(DType::F32));
    let weights = init_random(&config, Head::Lm, 0).unwrap();
    let refusal = |options| TorchGenerator::new(&config, place, 0, &weights, options).unwrap_err().to_string();
    assert!(refusal(GeneratorOptions::new(0, 40)).contains("slots 0"));
    assert!(refusal(GeneratorOptions::new(4, 4096)).contains("max_len is 4096"));
}

#[test]
fn broken_weights_are_named_and_stop_the_generator() {
    let config = digits();
    let mut broken = NamedTensors::new();
    for (name, tensor) in init_random(&config, Head::Lm, 0).unwrap().iter() {
        let mut values = tensor.to_f32().unwrap();
        if name == "model.norm.weight" {
            values[3] = f32::NAN;
        }
        broken.insert(name, NamedTensor::from_f32(tensor.shape(), &values).unwrap()).unwrap();
    }
    let mut generator = generator(2, 0, 1);
    generator.set_weights(7, &broken).unwrap();
    generator.submit(request(3, 4)).unwrap();
    let error = generator.step().unwrap_err().to_string();
    assert!(error.contains("request 3") && error.contains("version 7"), "{error}");
    assert!(generator.step().is_err());
}

#[test]
fn weights_that_do_not_fit_are_refused_and_the_old_ones_stay() {
    let mut generator = generator(2, 5, 1);
    let other = lively(&families()[0].1, Head::Lm, 1);
    assert!(generator.set_weights(6, &other).is_err());
    assert_eq!(generator.version(), 5);
    generator.submit(request(0, 4)).unwrap();
    assert_eq!(drain(&mut generator)[0].versions, [5; 4]);
}
