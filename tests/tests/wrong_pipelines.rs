//! Ten wrong pipelines, each refused before anything starts, with the sentence that helps.

use tq_tests::{Workplace, repository};

/// The data of the quick start, for `pipelines/grpo.yaml`.
const DATA: [&str; 3] = [
    "data.train_files=data/digits/train.parquet",
    "data.val_files=data/digits/test.parquet",
    "actor_rollout_ref.model.path=data/digits/model",
];

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

/// Values that suit no stage: an argument, and what the refusal must say beside it.
const VALUES: [(&str, &[&str]); 27] = [
    ("actor_rollout_ref.actor.optim.optimizer=Lion", &["`AdamW`"]),
    ("actor_rollout_ref.actor.optim.lr=-1e-6", &["a number of at least 0"]),
    ("actor_rollout_ref.actor.optim.lr_warmup_steps=-2", &["-1 (by lr_warmup_steps_ratio) or at least 0"]),
    ("actor_rollout_ref.actor.optim.lr_scheduler_type=linear", &["`constant`, `cosine`, `wsd`"]),
    ("actor_rollout_ref.actor.optim.betas=[0.9,1.5]", &["at least 0 and below 1"]),
    ("actor_rollout_ref.actor.grad_clip=0", &["actor_rollout_ref.actor.optim.clip_grad", "a number above 0"]),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=0", &["at least 1"]),
    ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=-1", &["a whole number of 0 or more"]),
    ("actor_rollout_ref.actor.ppo_epochs=0", &["from 1 to 1000000"]),
    ("actor_rollout_ref.actor.fsdp_config.model_dtype=fp16", &["fp32, bf16 or fp64"]),
    ("actor_rollout_ref.rollout.dtype=half", &["fp32, bf16 or fp64"]),
    ("actor_rollout_ref.rollout.temperature=-1", &["a number of at least 0"]),
    ("actor_rollout_ref.rollout.temperature=0", &["a number above 0"]),
    ("actor_rollout_ref.rollout.top_p=1.5", &["above 0 and at most 1"]),
    ("actor_rollout_ref.rollout.top_k=-5", &["-1 (all) or at least 0"]),
    ("actor_rollout_ref.rollout.max_num_seqs=1000000000000", &["from 1 to 65536"]),
    ("actor_rollout_ref.rollout.val_kwargs.n=0", &["at least 1"]),
    ("actor_rollout_ref.actor.clip_ratio=-0.2", &["a number of at least 0"]),
    ("actor_rollout_ref.actor.clip_ratio_high=-0.2", &["a number of at least 0"]),
    ("actor_rollout_ref.actor.clip_ratio_c=1", &["a number above 1"]),
    ("algorithm.lam=1.5", &["from 0 to 1"]),
    ("algorithm.gamma=-0.5", &["from 0 to 1"]),
    ("data.val_max_samples=-7", &["-1 (all) or at least 1"]),
    ("trainer.critic_warmup=-1", &["at least 0"]),
    ("trainer.device=gpu", &["`cpu`, `cuda` or `cuda:N`"]),
    ("schedule.lag=1e30", &["from 0 to 1000"]),
    ("workers.all.count=100000", &["100000 workers", "from 1 to 1024"]),
];

#[test]
fn a_value_that_suits_no_stage_is_refused_before_the_start() {
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    for (argument, says) in VALUES {
        let output = place.small("grpo.yaml", &[DATA.as_slice(), &["--dry-run", argument]].concat()).output();
        let output = output.expect("program under test");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{argument}: {stderr}");
        let key = argument.split('=').next().expect("a key").trim_start_matches('+');
        for word in [key].iter().chain(says) {
            assert!(stderr.contains(word), "{argument}: `{word}` is not in: {stderr}");
        }
        assert!(stderr.contains(&format!("argument `{argument}`")), "{argument}: not placed: {stderr}");
        assert!(stderr.len() < 2000, "{argument}: says too much: {stderr}");
    }
    let right = place.small("grpo.yaml", &[DATA.as_slice(), &["--dry-run"]].concat()).output();
    let right = right.expect("program under test");
    assert!(right.status.success(), "{}", String::from_utf8_lossy(&right.stderr));
}

#[test]
fn a_model_that_cannot_be_is_refused_before_the_start() {
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let config = std::fs::read_to_string(place.path().join("data/digits/model/config.json")).expect("the model's");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["num_hidden_layers"] = 4_000_000_000_u64.into();
    std::fs::create_dir(place.path().join("huge")).expect("a folder");
    std::fs::write(place.path().join("huge/config.json"), config.to_string()).expect("a file in the test's folder");
    let arguments =
        [DATA.as_slice(), &["actor_rollout_ref.model.path=huge", "data.tokenizer=data/digits/model"]].concat();
    let output = place.run("grpo.yaml", &arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for word in ["huge/config.json", "num_hidden_layers is 4000000000", "at most 4096"] {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    assert!(!place.path().join("runs").exists(), "something was started");
}

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
        let mut all =
            vec!["wrong.yaml", "data.train_batch_size=8", "trainer.test_freq=1", "trainer.experiment_name=wrong"];
        if !arguments.iter().any(|a| a.contains("ppo_mini_batch_size")) {
            all.push("actor_rollout_ref.actor.ppo_mini_batch_size=4");
        }
        all.extend(DATA);
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
