//! The metrics of a batch, by hand.

use tq_math::Layout;
use tq_metrics::batch::{Batch, metrics};

#[test]
fn a_batch_is_described_by_verls_names() {
    // Rows of 2, 0 and 3 tokens; the last row's middle token is an observation.
    let layout = Layout::from_lengths([2, 0, 3]).with_mask(vec![true, true, true, false, true]).expect("five flags");
    let batch = Batch {
        layout: &layout,
        prompt_lengths: &[4, 8, 6],
        max_prompt_length: 8,
        max_response_length: 3,
        token_level_scores: &[0.5, 0.5, 0.25, 0.0, 0.25],
        token_level_rewards: Some(&[0.25, 0.5, 0.25, 0.0, -0.75]),
        advantages: Some(&[1.0, -1.0, 2.0, 99.0, 0.0]),
        returns: Some(&[1.0, 2.0, 3.0, 99.0, 4.0]),
        values: Some(&[1.5, 2.0, 2.5, 0.0, 4.0]),
    };
    let found = metrics(&batch).expect("columns fit");
    let expected = [
        ("critic/score/mean", 0.75),
        ("critic/score/max", 1.0),
        ("critic/score/min", 0.5),
        ("critic/rewards/mean", 0.125),
        ("critic/rewards/max", 0.75),
        ("critic/rewards/min", -0.5),
        ("critic/advantages/mean", 0.5),
        ("critic/advantages/max", 2.0),
        ("critic/advantages/min", -1.0),
        ("critic/returns/mean", 2.5),
        ("critic/returns/max", 4.0),
        ("critic/returns/min", 1.0),
        ("critic/values/mean", 2.5),
        ("critic/values/max", 4.0),
        ("critic/values/min", 1.5),
        // Misses -0.5, 0, 0.5, 0 vary by 1/6; returns by 5/3.
        ("critic/vf_explained_var", 1.0 - (1.0 / 6.0) / (5.0 / 3.0 + 1e-5)),
        ("response_length/mean", 5.0 / 3.0),
        ("response_length/max", 3.0),
        ("response_length/min", 0.0),
        ("response_length/clip_ratio", 1.0 / 3.0),
        ("response_length_non_aborted/mean", 2.5),
        ("response_length_non_aborted/max", 3.0),
        ("response_length_non_aborted/min", 2.0),
        ("response_length_non_aborted/clip_ratio", 0.5),
        ("response/aborted_ratio", 1.0 / 3.0),
        ("prompt_length/mean", 6.0),
        ("prompt_length/max", 8.0),
        ("prompt_length/min", 4.0),
        ("prompt_length/clip_ratio", 1.0 / 3.0),
    ];
    let names: Vec<&str> = found.iter().map(|(name, _)| name).collect();
    assert_eq!(names, expected.map(|(name, _)| name));
    for (name, value) in expected {
        let ours = found.get(name).expect("listed");
        assert!((ours - value).abs() < 1e-8, "{name}: {ours} instead of {value}");
    }
}

#[test]
fn without_penalty_critic_or_responses_nothing_is_invented() {
    let layout = Layout::from_lengths([0, 0]);
    let batch = Batch {
        layout: &layout,
        prompt_lengths: &[1, 1],
        max_prompt_length: 8,
        max_response_length: 8,
        token_level_scores: &[],
        token_level_rewards: None,
        advantages: Some(&[]),
        returns: None,
        values: None,
    };
    let found = metrics(&batch).expect("columns fit");
    assert!(found.get("critic/score/mean").is_some_and(f64::is_nan), "a mean over no finished row");
    assert!(found.get("critic/advantages/max").is_some_and(f64::is_nan));
    assert_eq!(found.get("response/aborted_ratio"), Some(1.0));
    assert_eq!(found.get("critic/values/mean"), None);
    assert!(metrics(&Batch { token_level_scores: &[1.0], ..batch }).is_err(), "a score for no token");
}
