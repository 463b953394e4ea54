//! Validation metrics against numbers computed with verl 0.9.1 on the same answers.

use tq_metrics::validation::{Sample, metrics};
use tq_metrics::{Error, Metrics};

const REWARDS: [[f64; 6]; 2] = [[0.0, 1.0, 0.25, 0.5, 0.0, 0.75], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]];
const PREDICTIONS: [[&str; 6]; 2] = [["a", "b", "a", "c", "b", "b"], ["x", "y", "x", "y", "z", "z"]];

const EXPECTED: [(&str, f64); 20] = [
    ("mean@6", 0.38333333333333336),
    ("std@6", 0.2717302545079791),
    ("best@2/mean", 0.529),
    ("best@2/std", 0.2431492273697707),
    ("worst@2/mean", 0.22935),
    ("worst@2/std", 0.2114666233974975),
    ("maj@2/mean", 0.37715),
    ("maj@2/std", 0.2733403575012235),
    ("best@4/mean", 0.6665),
    ("best@4/std", 0.16863221733279182),
    ("worst@4/mean", 0.12405000000000002),
    ("worst@4/std", 0.12662716593305026),
    ("maj@4/mean", 0.38949999999999996),
    ("maj@4/std", 0.2803023748338364),
    ("best@6/mean", 0.7243249999999999),
    ("best@6/std", 0.1206144487810637),
    ("worst@6/mean", 0.08424999999999999),
    ("worst@6/std", 0.08024183574772875),
    ("maj@6/mean", 0.39625),
    ("maj@6/std", 0.28458496648121656),
];

/// Metrics of the answers above under the value name `name`.
fn of(name: &str, with_predictions: bool) -> Metrics {
    let values: Vec<Vec<[(&str, f64); 1]>> =
        REWARDS.iter().map(|rewards| rewards.iter().map(|r| [(name, *r)]).collect()).collect();
    let mut samples = Vec::new();
    for prompt in 0..2 {
        for answer in 0..6 {
            let prediction = with_predictions.then_some(PREDICTIONS[prompt][answer]);
            samples.push(Sample {
                data_source: "d",
                prompt: prompt as u64,
                values: &values[prompt][answer],
                prediction,
            });
        }
    }
    metrics(&samples).expect("equal names")
}

#[test]
fn best_worst_and_majority_equal_those_of_the_peer() {
    let found = of("reward", true);
    assert_eq!(found.len(), EXPECTED.len());
    for (name, expected) in EXPECTED {
        let core = name.contains("@6") && ["mean", "best", "maj"].iter().any(|kind| name.starts_with(kind));
        let full = format!("{}/d/reward/{name}", if core { "val-core" } else { "val-aux" });
        let value = found.get(&full).unwrap_or_else(|| panic!("{full} is missing among {found:?}"));
        assert!((value - expected).abs() < 1e-12, "{full}: {value} instead of {expected}");
    }
}

#[test]
fn without_predictions_there_is_no_majority() {
    let found = of("reward", false);
    assert!(found.iter().all(|(name, _)| !name.contains("maj@")));
    assert_eq!(found.len(), 14);
}

#[test]
fn a_task_that_reports_accuracy_is_judged_by_it() {
    let values = [("reward", 0.5), ("acc", 1.0)];
    let sample = |source| Sample { data_source: source, prompt: 0, values: &values, prediction: None };
    let found = metrics(&[sample("math"), sample("code")]).expect("equal names");
    let names: Vec<&str> = found.iter().map(|(name, _)| name).collect();
    let expected = [
        "val-aux/code/reward/mean@1",
        "val-core/code/acc/mean@1",
        "val-aux/math/reward/mean@1",
        "val-core/math/acc/mean@1",
    ];
    assert_eq!(names, expected);
}

#[test]
fn prompts_with_different_numbers_of_answers_are_averaged_apart() {
    let value = [("reward", 1.0)];
    let sample = |prompt| Sample { data_source: "d", prompt, values: &value, prediction: None };
    let found = metrics(&[sample(0), sample(1), sample(1)]).expect("equal names");
    assert_eq!(found.get("val-aux/d/reward/mean@1"), Some(1.0));
    assert_eq!(found.get("val-core/d/reward/mean@2"), Some(1.0));
}

#[test]
fn samples_that_report_different_values_are_refused_with_both_lists() {
    let samples = [
        Sample { data_source: "d", prompt: 0, values: &[("reward", 1.0)], prediction: None },
        Sample { data_source: "d", prompt: 1, values: &[("reward", 1.0), ("acc", 1.0)], prediction: None },
    ];
    let error = metrics(&samples).expect_err("one reports more");
    assert!(matches!(&error, Error::Validation { data_source, .. } if data_source == "d"));
    assert!(error.to_string().contains(r#"one sample reports ["reward"], another ["reward", "acc"]"#), "{error}");
}
