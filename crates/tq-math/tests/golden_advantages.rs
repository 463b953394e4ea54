//! Advantage estimators against recorded values.

mod golden;

use std::collections::HashMap;

use golden::{Tally, batch, flat, flat_f32, layout, list, load, number, numbers, text};
use serde_json::Value;
use tq_math::advantage::{Batch, Estimator, Gdpo, Params, Registry};

fn params(of: &Value) -> Params {
    let mut params = Params::default();
    if let Some(gamma) = of.get("gamma") {
        params.gamma = number(gamma);
    }
    if let Some(lam) = of.get("lam") {
        params.lam = number(lam);
    }
    if let Some(by_std) = of["norm_adv_by_std_in_grpo"].as_bool() {
        params.norm_adv_by_std_in_grpo = by_std;
    }
    if let Some(tail) = of["handle_zero_tail"].as_bool() {
        params.handle_zero_tail = tail;
    }
    if let Some(keys) = of["gdpo_reward_keys"].as_array() {
        params.gdpo_reward_keys = keys.iter().map(|key| key.as_str().expect("a key").to_string()).collect();
    }
    if of["gdpo_reward_weights"].is_array() {
        // The peer holds the weights in single precision.
        params.gdpo_reward_weights =
            numbers(&of["gdpo_reward_weights"]).into_iter().map(|w| f64::from(w as f32)).collect();
    }
    params
}

#[test]
fn estimators_agree_with_the_recorded_values() {
    let Some(file) = load("advantages.json") else {
        return;
    };
    let registry = Registry::builtin();
    let mut tally = Tally::new("advantages.json");
    for case in list(&file, "cases") {
        let (id, estimator, data) = (text(case, "id"), text(case, "estimator"), batch(&file, text(case, "batch")));
        let mut params = params(&case["params"]);
        if estimator == "gae" {
            // The peer was given these as single-precision tensors, so it also rounds their product.
            let (gamma, lam) = (params.gamma as f32, params.lam as f32);
            params.gamma = f64::from(gamma);
            params.lam = if gamma == 0.0 { f64::from(lam) } else { f64::from(gamma * lam) / f64::from(gamma) };
        }
        let made: Box<dyn Estimator> = if estimator == "gdpo" && params.gdpo_reward_keys.is_empty() {
            Box::new(Gdpo { parts: vec![], by_std: true })
        } else {
            registry.get(estimator, &params).unwrap_or_else(|e| panic!("{id}: {e}"))
        };
        let layout = layout(data);
        let column = |name: &str| flat_f32(&data[name]);
        let per_row = |value: &Value| numbers(value).into_iter().map(|v| v as f32).collect::<Vec<f32>>();
        let (rewards, values, old, squared) =
            (column("token_level_rewards"), column("values"), column("old_log_probs"), column("sum_pi_squared"));
        let (importance, baselines) = (column("rollout_is_weights"), per_row(&data["reward_baselines"]));
        let (acc, fmt) = (per_row(&data["reward_components"]["acc"]), per_row(&data["reward_components"]["fmt"]));
        let mut known = HashMap::new();
        let groups: Vec<u64> = list(data, "uid")
            .iter()
            .map(|uid| {
                let next = known.len() as u64;
                *known.entry(uid.as_str().expect("an id")).or_insert(next)
            })
            .collect();
        let given = Batch {
            groups: Some(&groups),
            values: Some(&values),
            old_log_probs: Some(&old),
            sum_pi_squared: Some(&squared),
            rollout_is_weights: case["params"]["use_rollout_is_weights"]
                .as_bool()
                .unwrap_or(false)
                .then_some(&importance[..]),
            reward_baselines: Some(&baselines),
            components: &[("acc", &acc), ("fmt", &fmt)],
            ..Batch::new(&layout, &rewards)
        };
        tally.ran();
        let estimate = match (made.estimate(&given), case.get("error")) {
            (Ok(estimate), None) => estimate,
            (Err(_), Some(_)) => continue,
            (ours, theirs) => {
                tally.wrong(format!("{id}: {ours:?} instead of {theirs:?}"));
                continue;
            }
        };
        let all_equal = case["ill_conditioned"].as_bool().unwrap_or(false);
        // The peer sums cumulatively in single precision for these.
        let loose = estimator == "remax" || estimator.ends_with("optimal_token_baseline");
        let tolerance = if loose { 2e-5 } else { 1e-5 };
        let absolute = if all_equal { 5e-3 } else { tolerance };
        let advantages = flat(&case["advantages"]);
        tally.close_tokens(id, &layout, &estimate.advantages, &advantages, absolute, tolerance);
        if let Some(returns) = case.get("returns") {
            tally.close_tokens(
                &format!("{id} returns"),
                &layout,
                &estimate.returns,
                &flat(returns),
                tolerance,
                tolerance,
            );
        } else {
            tally.close_tokens(&format!("{id} returns"), &layout, &estimate.returns, &advantages, absolute, tolerance);
        }
        // gdpo is only partly in double precision on the peer's side; grpo_vectorized, the factor of gpg and the deviation 1 of a group of one are in single precision.
        let alone = groups.iter().any(|group| groups.iter().filter(|other| *other == group).count() == 1);
        let single = estimator == "grpo_vectorized" || estimator == "gpg" || (estimator == "grpo" && alone);
        let exact = if single { 1e-7 } else { 1e-9 };
        if estimator != "gdpo" && !all_equal {
            for (name, ours) in [("advantages_f64", &estimate.advantages), ("returns_f64", &estimate.returns)] {
                if let Some(theirs) = case.get(name) {
                    tally.close_tokens(&format!("{id} {name}"), &layout, ours, &flat(theirs), exact, exact);
                }
            }
        }
    }
    let names: Vec<String> = {
        let mut n: Vec<String> = list(&file, "registry").iter().map(|n| n.as_str().expect("a name").into()).collect();
        n.sort();
        n
    };
    assert_eq!(registry.names(), names, "the same estimators are registered");
    assert!(registry.get("nope", &Params::default()).is_err());
    tally.finish();
}
