//! The same pipeline under three schedules: bits, lag, ledger.

use tq_tests::Workplace;

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

#[test]
fn on_policy_twice_gives_the_same_bits_and_never_lags() {
    let (one, two) = (workplace(), workplace());
    one.succeed("quickstart.yaml", &[]);
    two.succeed("quickstart.yaml", &[]);
    assert!(
        one.weights("small", "policy") == two.weights("small", "policy"),
        "two runs of one seed end in different weights"
    );
    let trained = one.trained("small");
    assert_eq!(trained.len(), 4 * 8 * 4, "4 cycles of 8 groups of 4 rows, each trained once");
    assert!(trained.values().all(|(_, lag)| *lag == 0), "a row trained on-policy lags");
    one.assert_ledger_balances("small");
}

#[test]
fn another_seed_gives_other_bits() {
    let (one, two) = (workplace(), workplace());
    one.succeed("quickstart.yaml", &["trainer.total_training_steps=1"]);
    two.succeed("quickstart.yaml", &["trainer.total_training_steps=1", "trainer.seed=2"]);
    assert!(one.weights("small", "policy") != two.weights("small", "policy"), "the seed has no effect");
}

#[test]
fn fully_async_without_lag_on_whole_cycles_equals_on_policy_bit_for_bit() {
    let (one, two) = (workplace(), workplace());
    one.succeed("quickstart.yaml", &[]);
    two.succeed("quickstart.yaml", &["schedule.use=fully_async", "schedule.lag=0", "schedule.grain=cycle"]);
    assert!(
        one.weights("small", "policy") == two.weights("small", "policy"),
        "S = 0 on whole cycles is not on-policy training"
    );
}

#[test]
fn a_phase_ends_with_the_first_cycle_that_reaches_its_level() {
    let place = workplace();
    let until = |level: &str| format!("phases.warmup.until={{steps: 3, at_most: {{train/loss: {level}}}}}");
    let rl = "trainer.total_training_steps=1";
    place.succeed("quickstart.yaml", &[&until("1000"), rl]);
    let steps = |place: &Workplace| {
        let file = place.run_file("small", "phases/warmup/metrics.jsonl");
        std::fs::read_to_string(file).expect("the warm-up's metrics").lines().count()
    }; // one line a step: the warm-up is not validated
    assert_eq!(steps(&place), 1);
    let other = workplace();
    other.succeed("quickstart.yaml", &[&until("0"), rl]);
    assert_eq!(steps(&other), 3, "a level that is not reached leaves the phase its length");
}

#[test]
fn a_level_of_a_metric_that_is_not_reported_is_an_error_that_lists_those_that_are() {
    let place = workplace();
    let output = place.run("quickstart.yaml", &["phases.warmup.until={steps: 3, at_most: {train/los: 1}}"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("train/los at most 1") && said.contains("train/loss"), "{said}");
}

#[test]
fn one_step_off_lags_by_one_in_steady_state() {
    let place = workplace();
    place.succeed("quickstart.yaml", &["schedule=one_step_off"]);
    for ((task, row), (step, lag)) in place.trained("small") {
        assert_eq!(lag, u64::from(step > 1), "row {row} of `{task}` in step {step}");
    }
    place.assert_ledger_balances("small");
}

#[test]
fn fully_async_never_exceeds_its_bound() {
    let place = workplace();
    place.succeed("quickstart.yaml", &["schedule.use=fully_async", "schedule.lag=0.5", "schedule.max_lag=1"]);
    let trained = place.trained("small");
    assert_eq!(trained.len(), 4 * 8 * 4);
    assert!(trained.values().all(|(_, lag)| *lag <= 1), "max_lag is 1");
    assert!(trained.values().any(|(_, lag)| *lag == 1), "nothing ran ahead although lag is 0.5");
    place.assert_ledger_balances("small");
}

#[test]
fn a_learning_rate_of_zero_leaves_the_weights_as_they_were() {
    let place = workplace();
    place.succeed("quickstart.yaml", &["actor_rollout_ref.actor.optim.lr=0"]);
    let warm = std::fs::read(place.run_file("small", "phases/warmup/final/policy/model.safetensors"))
        .expect("weights of the warm-up");
    assert!(warm == place.weights("small", "policy"), "training without a learning rate changed the weights");
}

#[test]
fn ppo_with_critic_reference_and_kl_runs_to_its_end() {
    let place = workplace();
    place
        .succeed("ppo.yaml", &["data.train_batch_size=16", "actor_rollout_ref.rollout.n=1", "trainer.critic_warmup=2"]);
    let tasks: std::collections::BTreeSet<String> = place.trained("small").into_keys().map(|(task, _)| task).collect();
    assert_eq!(tasks.into_iter().collect::<Vec<_>>(), ["actor", "critic"]);
    place.assert_ledger_balances("small");
}

#[test]
fn bypass_mode_trains_on_the_rollouts_own_log_probs() {
    let place = workplace();
    place.succeed("quickstart.yaml", &["algorithm.rollout_correction.bypass_mode=true"]);
    let tasks = std::fs::read_to_string(place.run_file("small", "ledger.json")).expect("ledger.json");
    assert!(!tasks.contains("\"old\""), "the old log-probs are computed although nobody needs them");
    for line in place.lines("small", "metrics.jsonl").iter().filter(|l| l.get("actor/pg_loss").is_some()) {
        assert_eq!(line["training/rollout_probs_diff_max"], 0.0, "old log-probs are not the rollout's: {line}");
    }
}
