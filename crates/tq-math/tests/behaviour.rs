//! What callers may count on, without recorded values: shapes, refusals, invariants.

use proptest::prelude::*;
use tq_math::advantage::{Batch, Column, Estimate, Estimator, Params, Registry, Scope};
use tq_math::aggregate::{Aggregation, Mode};
use tq_math::balance::{Packing, greedy, inverse, micro_batches, partitions};
use tq_math::kl::{self, Controller};
use tq_math::loss::{self, Tokens};
use tq_math::{Error, Layout, Result, stats};

fn grpo(by_std: bool) -> Box<dyn Estimator> {
    Registry::builtin().get("grpo", &Params { norm_adv_by_std_in_grpo: by_std, ..Params::default() }).expect("grpo")
}

#[test]
fn a_column_of_the_wrong_length_is_named() {
    let layout = Layout::from_lengths([2, 1]);
    let batch = Batch { groups: Some(&[0, 0]), ..Batch::new(&layout, &[0.0; 4]) };
    let error = grpo(true).estimate(&batch).expect_err("four rewards for three tokens");
    assert_eq!(error.to_string(), "token_level_rewards: 4 values, expected 3 (one per token)");
    let error = grpo(true)
        .estimate(&Batch { groups: Some(&[0]), ..Batch::new(&layout, &[0.0; 3]) })
        .expect_err("one group for two rows");
    assert_eq!(error.to_string(), "groups: 1 values, expected 2 (one per row)");
    let policy = loss::Registry::builtin().get("vanilla", &loss::Params::default()).expect("vanilla");
    let error =
        policy.evaluate(&Tokens::new(&layout, &[0.0; 3], &[0.0; 2], &[0.0; 3]), &Aggregation::new(Mode::TokenMean));
    assert_eq!(
        error.expect_err("two old log-probs").to_string(),
        "old_log_probs: 2 values, expected 3 (one per token)"
    );
    assert!(layout.with_mask(vec![true]).is_err());
}

#[test]
fn a_missing_column_is_named_with_its_reader() {
    let layout = Layout::from_lengths([2]);
    for name in Registry::builtin().names() {
        let params = Params { gdpo_reward_keys: vec!["acc".into()], ..Params::default() };
        let estimator = Registry::builtin().get(&name, &params).expect("built in");
        let refused = estimator.estimate(&Batch::new(&layout, &[0.0, 1.0]));
        // Whoever needs nothing works on rewards alone.
        assert_eq!(refused.is_err(), !estimator.needs().is_empty(), "{name}: {refused:?}");
    }
    let gae = Registry::builtin().get("gae", &Params::default()).expect("gae");
    assert_eq!((gae.needs(), gae.scope()), (&[Column::Values][..], Scope::Batch));
    let error = gae.estimate(&Batch::new(&layout, &[0.0, 1.0])).expect_err("no critic");
    assert_eq!(error.to_string(), "gae needs values, which is absent; produce the column or choose another algorithm");
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    let error = Registry::builtin().get("grop", &Params::default()).expect_err("misspelt").to_string();
    assert!(
        error.starts_with("unknown advantage estimator `grop`; expected one of gae, ") && error.contains("grpo"),
        "{error}"
    );
    let error = loss::Registry::builtin().get("ppo", &loss::Params::default()).expect_err("not its name").to_string();
    assert!(error.contains("vanilla"), "{error}");
    assert!("token-maen".parse::<Mode>().expect_err("misspelt").to_string().contains("token-mean"));
    assert!(
        "full".parse::<kl::Penalty>().expect_err("needs the whole distribution").to_string().contains("low_var_kl")
    );
    assert!(Controller::new("linear", 0.1, 0.1, 1.0).expect_err("no such kind").to_string().contains("adaptive"));
}

#[test]
fn parameters_out_of_range_are_refused() {
    let bad = |params: Params, name: &str| Registry::builtin().get(name, &params).expect_err("refused").to_string();
    assert_eq!(bad(Params { gamma: 1.5, ..Params::default() }, "gae"), "gamma = 1.5; expected a number from 0 to 1");
    assert!(bad(Params::default(), "gdpo").starts_with("gdpo_reward_keys = none"));
    let keys = vec!["a".to_string(), "b".to_string()];
    let uneven = Params { gdpo_reward_keys: keys, gdpo_reward_weights: vec![1.0], ..Params::default() };
    assert!(bad(uneven, "gdpo").contains("1 weights for 2 keys"));
    let error = loss::Registry::builtin().get("dro", &loss::Params::default()).expect_err("no β").to_string();
    assert_eq!(error, "policy_loss.dro_beta = none; expected a positive number");
    let norm = Aggregation::new(Mode::SeqMeanTokenSumNorm).weights(&Layout::from_lengths([1]));
    assert!(norm.expect_err("no constant").to_string().contains("data.max_response_length"));
}

/// Rewards the last token of a row by its number.
#[derive(Debug)]
struct RowNumber;

impl Estimator for RowNumber {
    fn needs(&self) -> &'static [Column] {
        &[]
    }

    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn estimate(&self, batch: &Batch<'_>) -> Result<Estimate> {
        let advantages: Vec<f64> = (0..batch.layout.rows()).flat_map(|i| vec![i as f64; batch.layout.len(i)]).collect();
        Ok(Estimate { returns: advantages.clone(), advantages })
    }
}

#[test]
fn a_program_registers_its_own_estimator_once() {
    let mut registry = Registry::builtin();
    registry.register("row_number", |_| Ok(Box::new(RowNumber))).expect("a new name");
    let again = registry.register("row_number", |_| Ok(Box::new(RowNumber)));
    assert!(matches!(again, Err(Error::AlreadyRegistered { .. })));
    let layout = Layout::from_lengths([1, 2]);
    let estimator = registry.get("row_number", &Params::default()).expect("registered");
    assert_eq!(estimator.estimate(&Batch::new(&layout, &[0.0; 3])).expect("estimates").advantages, [0.0, 1.0, 1.0]);
}

#[test]
fn kl_in_reward_charges_generated_tokens_and_reports_the_mean_over_rows() {
    let layout = Layout::from_lengths([2, 2]).with_mask(vec![true, true, true, false]).expect("four flags");
    let penalty = "kl".parse().expect("kl");
    let charged = kl::in_reward(
        &layout,
        &[0.0, 1.0, 0.0, 1.0],
        &[-1.0, -1.0, -2.0, -9.0],
        &[-2.0, -1.5, -1.0, 0.0],
        penalty,
        0.5,
    );
    let charged = charged.expect("charges");
    assert_eq!(charged.rewards, [-0.5, 0.75, 0.5, 1.0]);
    // Row means: (1 + 0.5) / 2 and -1.
    assert!((charged.current_kl - (0.75 - 1.0) / 2.0).abs() < 1e-7);
}

#[test]
fn micro_batches_refuse_what_cannot_fit_and_say_what_would() {
    let error = micro_batches(&[3, 9, 4], &Packing::new(8)).expect_err("9 tokens").to_string();
    assert!(
        error.contains("rows 1..2 have 9 tokens, more than the budget of 8") && error.contains("at least 9"),
        "{error}"
    );
    assert!(micro_batches(&[], &Packing::new(8)).is_err());
    assert!(micro_batches(&[1, 1], &Packing { at_least: 3, ..Packing::new(8) }).is_err());
    assert!(partitions(&[0, 0, 0], 0, false).is_err());
    assert!(greedy(&[1, 2, 3], 2, true).is_err());
}

proptest! {
    #[test]
    fn group_advantages_sum_to_nothing_and_ignore_a_shift(scores in prop::collection::vec(-4.0f32..4.0, 2..12), shift in -3.0f32..3.0) {
        let layout = Layout::from_lengths(scores.iter().map(|_| 1));
        let groups = vec![3u64; scores.len()];
        let advantages = |scores: &[f32]| {
            grpo(true).estimate(&Batch { groups: Some(&groups), ..Batch::new(&layout, scores) }).expect("estimates").advantages
        };
        let (plain, shifted) = (advantages(&scores), advantages(&scores.iter().map(|s| s + shift).collect::<Vec<_>>()));
        prop_assert!(plain.iter().sum::<f64>().abs() < 1e-9);
        // `f32` rounds the shifted scores, and a nearly constant group magnifies that.
        let (low, high) = scores.iter().fold((f32::MAX, f32::MIN), |(l, h), s| (l.min(*s), h.max(*s)));
        if high - low > 0.1 {
            prop_assert!(plain.iter().zip(&shifted).all(|(a, b)| (a - b).abs() < 1e-4));
        }
    }

    #[test]
    fn equal_scores_give_no_advantage(score in -4.0f32..4.0, n in 2usize..9) {
        let layout = Layout::from_lengths(vec![2; n]);
        let rewards: Vec<f32> = (0..n).flat_map(|_| [0.0, score]).collect();
        let groups = vec![0u64; n];
        let batch = Batch { groups: Some(&groups), ..Batch::new(&layout, &rewards) };
        let advantages = grpo(true).estimate(&batch).expect("estimates").advantages;
        prop_assert!(advantages.iter().all(|a| a.abs() < 1e-6), "{advantages:?}");
    }

    #[test]
    fn whitened_tokens_have_mean_0_and_variance_1(values in prop::collection::vec(-9.0f64..9.0, 3..40)) {
        let layout = Layout::from_lengths([values.len()]);
        prop_assume!(stats::variance(&layout, &values).expect("enough tokens") > 1e-3);
        let white = stats::whiten(&layout, &values, true).expect("enough tokens");
        prop_assert!(stats::mean(&layout, &white).expect("a mean").abs() < 1e-6);
        prop_assert!((stats::variance(&layout, &white).expect("a variance") - 1.0).abs() < 1e-4);
    }

    #[test]
    fn micro_batches_hold_every_row_once_within_the_budget(lengths in prop::collection::vec(1usize..50, 1..40), slack in 0usize..200) {
        let budget = lengths.iter().max().expect("a row") + slack;
        let lists = micro_batches(&lengths, &Packing::new(budget)).expect("the longest row fits");
        prop_assert!(lists.iter().all(|rows| rows.iter().map(|row| lengths[*row]).sum::<usize>() <= budget));
        let places = inverse(&lists); // panics unless each row is listed once
        prop_assert_eq!(places.len(), lengths.len());
        prop_assert!(lists.len() >= lengths.iter().sum::<usize>().div_ceil(budget));
    }

    #[test]
    fn equal_sized_partitions_are_equal_and_no_worse_than_file_order(costs in prop::collection::vec(1u64..1000, 4usize)
        .prop_flat_map(|_| (1usize..6, 1usize..6)).prop_flat_map(|(parts, each)| (Just(parts), prop::collection::vec(1u64..1000, parts * each)))) {
        let (parts, costs) = costs;
        let lists = partitions(&costs, parts, true).expect("divides");
        prop_assert!(lists.iter().all(|rows| rows.len() * parts == costs.len() && rows.is_sorted()));
        let worst = |lists: &[Vec<usize>]| lists.iter().map(|rows| rows.iter().map(|row| costs[*row]).sum::<u64>()).max();
        let mut sorted: Vec<usize> = (0..costs.len()).collect();
        sorted.sort_by_key(|row| costs[*row]);
        let blocks: Vec<Vec<usize>> = sorted.chunks(costs.len() / parts).map(<[usize]>::to_vec).collect();
        prop_assert!(worst(&lists) <= worst(&blocks), "worse than long rows with long rows");
    }
}
