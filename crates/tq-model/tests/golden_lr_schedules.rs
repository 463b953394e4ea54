//! Learning rates against verl's schedules.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use common::{golden, json, numbers};
use tq_model::train::{LrSchedule, LrShape};

#[test]
fn every_schedule_gives_the_recorded_rates() {
    let Some(path) = golden("lr_schedules.json") else {
        return;
    };
    let mut run = 0;
    for case in json(&path).as_array().unwrap() {
        let args = &case["args"];
        let number = |key: &str, default: f64| args.get(key).map_or(default, |value| value.as_f64().unwrap());
        let count = |key: &str| args[key].as_u64().unwrap();
        let shape = match case["kind"].as_str().unwrap() {
            "constant" => LrShape::Constant,
            "cosine" => LrShape::Cosine {
                total: count("num_training_steps"),
                min_lr_ratio: number("min_lr_ratio", 0.0),
                num_cycles: number("num_cycles", 0.5),
                init_lr_ratio: number("init_lr_ratio", 0.0),
                zero_indexed_step: args.get("zero_indexed_step").is_none_or(|value| value.as_bool().unwrap()),
            },
            "wsd" => LrShape::Wsd {
                total: count("num_training_steps"),
                min_lr_ratio: number("min_lr_ratio", 0.0),
                num_cycles: number("num_cycles", 0.5),
                stable_ratio: number("stable_ratio", 0.9),
            },
            other => panic!("unknown kind {other}"),
        };
        let schedule = LrSchedule { base: case["base_lr"].as_f64().unwrap(), warmup: count("num_warmup_steps"), shape };
        for (update, expected) in numbers(&case["lr"]).into_iter().enumerate() {
            let found = schedule.lr(update as u64);
            assert!(
                (found - expected).abs() <= 1e-12 * expected.abs().max(1e-12),
                "{case}: update {update} is {found}, expected {expected}"
            );
        }
        run += 1;
    }
    println!("lr_schedules.json: {run} run, 0 skipped");
    assert!(run > 0);
}
