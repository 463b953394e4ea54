//! Policy, value and KL losses, aggregation and masked statistics against recorded values.

mod golden;

use golden::{Tally, batch, flat, flat_f32, layout, list, load, number, numbers, text};
use serde_json::Value;
use tq_math::aggregate::{Aggregation, Mode};
use tq_math::kl::Penalty;
use tq_math::loss::{Loss, Params, Registry, Tokens, kl_loss, value_loss};
use tq_math::{Error, Layout, Result, stats};

fn aggregation(mode: &str, totals: &Value, padded_width: &Value) -> Result<Aggregation> {
    let total = |name: &str| totals.get(name).filter(|v| !v.is_null()).map(number);
    Ok(Aggregation {
        dp_size: total("dp_size").map_or(1, |n| n as usize),
        batch_num_tokens: total("batch_num_tokens"),
        global_batch_size: total("global_batch_size"),
        // The peer falls back on the width it padded to.
        loss_scale_factor: total("loss_scale_factor").or(Some(number(padded_width))),
        ..Aggregation::new(mode.parse::<Mode>()?)
    })
}

fn params(config: &Value) -> Params {
    let mut params = Params::default();
    let policy = &config["policy_loss"];
    let set = |from: &Value, name: &str, to: &mut f64| {
        if let Some(value) = from.get(name) {
            *to = number(value);
        }
    };
    set(config, "clip_ratio", &mut params.clip_ratio);
    set(config, "clip_ratio_c", &mut params.clip_ratio_c);
    set(config, "tau_pos", &mut params.tau_pos);
    set(config, "tau_neg", &mut params.tau_neg);
    set(policy, "clip_cov_ratio", &mut params.clip_cov_ratio);
    set(policy, "clip_cov_lb", &mut params.clip_cov_lb);
    set(policy, "clip_cov_ub", &mut params.clip_cov_ub);
    set(policy, "kl_cov_ratio", &mut params.kl_cov_ratio);
    set(policy, "ppo_kl_coef", &mut params.ppo_kl_coef);
    params.clip_ratio_low = config["clip_ratio_low"].as_f64();
    params.clip_ratio_high = config["clip_ratio_high"].as_f64();
    params.dro_beta = policy["dro_beta"].as_f64();
    params
}

/// Compares value, gradient and metrics in both precisions.
fn compare(tally: &mut Tally, id: &str, layout: &Layout, ours: &Loss, case: &Value, names: [&str; 2], relative: f64) {
    tally.close(id, ours.value, number(&case[names[0]]), 1e-6, 1e-5);
    tally.close(&format!("{id} f64"), ours.value, number(&case[names[1]]), 1e-12, 1e-9);
    tally.close_tokens(&format!("{id} grad"), layout, &ours.grad, &flat(&case["grad"]), 1e-7, relative);
    if let Some(grad) = case.get("grad_f64") {
        tally.close_tokens(&format!("{id} grad_f64"), layout, &ours.grad, &flat(grad), 1e-12, 1e-9);
    }
    for (name, theirs) in case.get("metrics").and_then(Value::as_object).into_iter().flatten() {
        match ours.metrics.iter().find(|(known, _)| known == name) {
            Some((_, value)) => tally.close(&format!("{id} {name}"), *value, number(theirs), 1e-6, 1e-6),
            None => tally.wrong(format!("{id}: metric {name} is missing")),
        }
    }
}

fn policy_losses(file: &Value, tally: &mut Tally) {
    let registry = Registry::builtin();
    for case in list(file, "cases") {
        let (name, data) = (text(case, "loss"), batch(file, text(case, "batch")));
        let id = format!("case {} {name}", text(case, "id"));
        if name == "bypass_mode" {
            tally.skip("bypass_mode: needs rollout correction");
            continue;
        }
        let layout = layout(data);
        // The peer's geo_mean ignores the totals of the batch.
        let totals = if name == "geo_mean" { &Value::Null } else { &case["config"]["global_batch_info"] };
        let column = |name: &str| flat_f32(&data[name]);
        let (log_probs, old, advantages, importance) =
            (column("log_prob"), column("old_log_prob"), column("advantages"), column("rollout_is_weights"));
        let mut tokens = Tokens::new(&layout, &log_probs, &old, &advantages);
        if case["use_rollout_is_weights"] == true {
            tokens.rollout_is_weights = Some(&importance);
        }
        let ours = aggregation(text(case, "loss_agg_mode"), totals, &data["padded_width"])
            .and_then(|aggregation| registry.get(name, &params(&case["config"]))?.evaluate(&tokens, &aggregation));
        tally.ran();
        let relative = if data["name"] == "extreme_ratio" { 1e-3 } else { 1e-4 };
        match (ours, case.get("error")) {
            (Ok(ours), None) => compare(tally, &id, &layout, &ours, case, ["loss_value", "loss_f64"], relative),
            (Err(_), Some(_)) => {}
            (ours, theirs) => tally.wrong(format!("{id}: {ours:?} instead of {theirs:?}")),
        }
    }
    assert!(registry.get("nope", &Params::default()).is_err());
}

fn value_losses(file: &Value, tally: &mut Tally) {
    for (nth, case) in list(file, "value_loss").iter().enumerate() {
        let data = batch(file, text(case, "batch"));
        let layout = layout(data);
        let aggregation = aggregation(text(case, "loss_agg_mode"), &case["global_batch_info"], &data["padded_width"])
            .expect("a known mode");
        let column = |name: &str| flat_f32(&data[name]);
        let ours = value_loss(
            &layout,
            &column("vpreds"),
            &column("returns"),
            &column("values_old"),
            number(&case["cliprange_value"]),
            &aggregation,
        );
        let ours = ours.expect("values have a loss");
        let id = format!("value loss {nth}");
        tally.ran();
        compare(tally, &id, &layout, &ours, case, ["vf_loss", "vf_loss_f64"], 1e-4);
        tally.close(&format!("{id} clipfrac"), ours.metrics[0].1, number(&case["vf_clipfrac"]), 1e-6, 1e-6);
    }
}

fn kl_losses(file: &Value, tally: &mut Tally) {
    for (nth, case) in list(file, "kl_loss").iter().enumerate() {
        let (kind, data) = (text(case, "kl_type"), batch(file, text(case, "batch")));
        let id = format!("kl loss {nth} {kind}");
        let layout = layout(data);
        tally.ran();
        let penalty = match (kind.parse::<Penalty>(), case.get("error")) {
            (Ok(penalty), None) => penalty,
            (Err(_), Some(_)) => continue,
            (ours, theirs) => {
                tally.wrong(format!("{id}: {ours:?} instead of {theirs:?}"));
                continue;
            }
        };
        let aggregation =
            aggregation(text(case, "loss_agg_mode"), &Value::Null, &data["padded_width"]).expect("a known mode");
        let (log_probs, reference) = (flat_f32(&data["log_prob"]), flat_f32(&data["ref_log_prob"]));
        let ours =
            kl_loss(&layout, &log_probs, &reference, penalty, &aggregation).expect("log-probabilities have a loss");
        let relative = if data["name"] == "extreme_ratio" { 1e-3 } else { 1e-4 };
        compare(tally, &id, &layout, &ours, case, ["loss", "loss_f64"], relative);
        let values: Vec<f64> =
            log_probs.iter().zip(&reference).map(|(lp, r)| penalty.evaluate((*lp).into(), (*r).into()).0).collect();
        tally.close_tokens(&format!("{id} kl"), &layout, &values, &flat(&case["kl"]), 1e-5, 1e-5);
        tally.close_tokens(&format!("{id} kl_f64"), &layout, &values, &flat(&case["kl_f64"]), 1e-12, 1e-9);
    }
}

fn aggregations(file: &Value, tally: &mut Tally) {
    for (nth, case) in list(file, "agg_loss").iter().enumerate() {
        let (mode, data) = (text(case, "loss_agg_mode"), batch(file, text(case, "batch")));
        let layout = layout(data);
        let aggregation = aggregation(mode, &case["global_batch_info"], &data["padded_width"]).expect("a known mode");
        let weights = aggregation.weights(&layout).expect("there are tokens");
        let input = flat(&data[text(case, "input")]);
        let ours: f64 = layout.all_kept().map(|k| weights[k] * input[k]).sum();
        let theirs = number(&case["loss"]);
        tally.ran();
        if theirs.is_nan() {
            // What lies outside the mask is never read here, so NaN there does no harm: the result is that of the clean input.
            let clean = list(file, "agg_loss").iter().find(|other| {
                other["nan_outside_mask"] == false
                    && ["batch", "input", "loss_agg_mode", "global_batch_info"]
                        .iter()
                        .all(|key| other[*key] == case[*key])
            });
            tally.close(
                &format!("agg_loss {nth}"),
                ours,
                number(&clean.expect("a clean twin")["loss_f64"]),
                1e-12,
                1e-9,
            );
            continue;
        }
        tally.close(&format!("agg_loss {nth}"), ours, theirs, 1e-6, 1e-5);
        tally.close(&format!("agg_loss {nth} f64"), ours, number(&case["loss_f64"]), 1e-12, 1e-9);
    }
    let empty = Layout::from_lengths([2]).with_mask(vec![false, false]).expect("two flags");
    for (mode, theirs) in file["agg_all_masked"].as_object().expect("modes") {
        let weights = aggregation(mode, &Value::Null, &Value::from(2)).expect("a known mode").weights(&empty);
        tally.ran();
        match number(theirs) {
            // 0/0 there is an error here.
            nan if nan.is_nan() => {
                if !matches!(weights, Err(Error::TooFewTokens { .. })) {
                    tally.wrong(format!("agg_all_masked {mode}: {weights:?}"));
                }
            }
            value => tally.close(mode, weights.expect("a sum over nothing").iter().sum(), value, 0.0, 0.0),
        }
    }
}

fn statistics(file: &Value, tally: &mut Tally) {
    for case in list(file, "masked_stats") {
        let data = batch(file, text(case, "batch"));
        let id = format!("masked_stats {}", text(case, "batch"));
        let (layout, input) = (layout(data), flat_f32(&data[text(case, "input")]));
        tally.ran();
        for (suffix, absolute, relative) in [("", 1e-5, 1e-5), ("_f64", 1e-12, 1e-9)] {
            let of = |name: &str| &case[format!("{name}{suffix}").as_str()];
            tally.close(
                &format!("{id} sum"),
                stats::sum(&layout, &input).expect("sum"),
                number(of("masked_sum")),
                absolute,
                relative,
            );
            tally.close(
                &format!("{id} mean"),
                stats::mean(&layout, &input).expect("mean"),
                number(of("masked_mean")),
                absolute,
                relative,
            );
            let rows = stats::row_means(&layout, &input).expect("row means");
            for (ours, theirs) in rows.iter().zip(numbers(of("row_mean"))) {
                tally.close(&format!("{id} row mean"), *ours, theirs, absolute, relative);
            }
            let variance = of("masked_var");
            if variance.is_number() {
                tally.close(
                    &format!("{id} var"),
                    stats::variance(&layout, &input).expect("variance"),
                    number(variance),
                    absolute,
                    relative,
                );
                for (name, shift) in [("whiten", true), ("whiten_noshift", false)] {
                    let ours = stats::whiten(&layout, &input, shift).expect("whitens");
                    tally.close_tokens(&format!("{id} {name}"), &layout, &ours, &flat(of(name)), absolute, relative);
                }
            } else if stats::variance(&layout, &input).is_ok() {
                tally.wrong(format!("{id}: a variance where the peer gives {variance}"));
            }
        }
    }
}

#[test]
fn losses_agree_with_the_recorded_values() {
    let Some(file) = load("policy_losses.json") else {
        return;
    };
    let mut tally = Tally::new("policy_losses.json");
    policy_losses(&file, &mut tally);
    value_losses(&file, &mut tally);
    kl_losses(&file, &mut tally);
    aggregations(&file, &mut tally);
    statistics(&file, &mut tally);
    for _ in list(&file, "entropy") {
        tally.skip("entropy from logits: the model computes it");
    }
    tally.finish();
}
