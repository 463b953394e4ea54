//! Ten wrong pipelines, each refused before anything starts, with the sentence that helps.

use tq_tests::{Workplace, repository};

/// What is changed in `pipelines/grpo.yaml` (text, replacement), further arguments, and what the refusal must say.
type Case = (&'static str, Option<(&'static str, &'static str)>, &'static [&'static str], &'static [&'static str]);

const CASES: [Case; 10] = [
    ("unknown stage", Some(("use: advantage", "use: advantaeg")), &[], &["advantaeg", "advantage", ".yaml:"]),
    ("misspelt key", Some(("link: [prompt", "lnik: [prompt")), &[], &["lnik", "link", ".yaml:"]),
    (
        "type clash",
        Some(("{log_probs: old_log_probs}", "{log_probs: old_log_probs, responses: token_level_scores}")),
        &[],
        &["token_level_scores", "i64", "f32"],
    ),
    (
        "missing producer",
        Some(("  reward:    {use: reward, serve: [samples, val]}\n", "")),
        &[],
        &["token_level_scores"],
    ),
    (
        "two producers",
        Some(("  advantage: {use", "  again: {use: reward, serve: [samples, val]}\n  advantage: {use")),
        &[],
        &["token_level_scores", "again", "reward"],
    ),
    ("dead column", Some(("when: need.reference", "when: true")), &[], &["ref_log_probs", "keep"]),
    ("n = 0", None, &["actor_rollout_ref.rollout.n=0"], &["n", "0"]),
    ("S negative", None, &["schedule.lag=-0.5"], &["lag", "-0.5"]),
    (
        "mini-batch larger than the cycle",
        None,
        &["actor_rollout_ref.actor.ppo_mini_batch_size=32"],
        &["ppo_mini_batch_size", "32", "8"],
    ),
    ("budget below one cycle", None, &["+store.budget=1KiB"], &["store.budget", "1KiB"]),
];

#[test]
fn each_is_refused_before_the_start_with_the_right_sentence() {
    let grpo = std::fs::read_to_string(repository().join("pipelines/grpo.yaml")).expect("pipelines/grpo.yaml");
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    for (what, change, arguments, says) in CASES {
        let text = change.map_or_else(
            || grpo.clone(),
            |(from, to)| {
                assert!(grpo.contains(from), "{what}: pipelines/grpo.yaml has no `{from}` any more");
                grpo.replacen(from, to, 1)
            },
        );
        std::fs::write(place.path().join("wrong.yaml"), text).expect("a file in the test's folder");
        let mut all = vec![
            "wrong.yaml",
            "data.train_files=data/digits/train.parquet",
            "data.val_files=data/digits/test.parquet",
            "actor_rollout_ref.model.path=data/digits/model",
            "data.train_batch_size=8",
            "trainer.test_freq=1",
            "trainer.experiment_name=wrong",
        ];
        if !arguments.iter().any(|a| a.contains("ppo_mini_batch_size")) {
            all.push("actor_rollout_ref.actor.ppo_mini_batch_size=4");
        }
        all.extend(arguments);
        let output = place.command(&all).output().expect("program under test");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{what}: {stderr}");
        for word in says {
            assert!(stderr.contains(word), "{what}: `{word}` is not in: {stderr}");
        }
        assert!(!place.path().join("runs/wrong").exists(), "{what}: something was started");
    }
}
