//! A recorded run, replayed: the archive is what was trained, and trains to the same bits again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::process::ExitStatusExt,
    process::Output,
};

use tq_tests::Workplace;

const RECORD: &str = "+partitions.samples.keep=archive";
const ASYNC: [&str; 3] = ["schedule.use=fully_async", "schedule.lag=0.5", "schedule.max_lag=1"];
/// A hundredth of the small run's rewards is not zero: a rate that shows in the weights.
const RATE: &str = "actor_rollout_ref.actor.optim.lr=1e-3";

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

/// Records a small run of the quick start.
fn recorded(arguments: &[&str]) -> Workplace {
    let place = workplace();
    let mut all = vec![RECORD, RATE];
    all.extend(arguments);
    place.succeed("quickstart.yaml", &all);
    place
}

fn replay(place: &Workplace, arguments: &[&str]) -> Output {
    let mut all = vec!["replay", "runs/small", "--quiet"];
    all.extend(arguments);
    place.command(&all).output().expect("program under test")
}

fn replayed(place: &Workplace, arguments: &[&str]) {
    let output = replay(place, arguments);
    assert!(output.status.success(), "replay {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What it said when it was refused before anything started.
fn refused(place: &Workplace, arguments: &[&str]) -> String {
    let output = replay(place, arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "replay {arguments:?}: {said}");
    assert!(!place.run_file("small-replay", "plan.yaml").exists(), "a run was begun: {said}");
    said
}

/// Steps and rows in the audit of the surviving lineage.
fn trained(place: &Workplace, run: &str) -> BTreeSet<(u64, u64)> {
    place.trained(run).into_iter().map(|((_, row), (step, _))| (step, row)).collect()
}

/// How many rows were trained with which lag, by step.
fn lags(place: &Workplace, run: &str) -> BTreeMap<(u64, u64), usize> {
    let mut lags = BTreeMap::new();
    place.trained(run).into_values().for_each(|at| *lags.entry(at).or_default() += 1);
    lags
}

fn assert_trained_again(place: &Workplace, model: &str) {
    let replayed = place.weights("small-replay", model);
    assert!(replayed == place.weights("small", model), "the replay of `{model}` ends in other weights");
    place.assert_ledger_balances("small-replay");
}

#[test]
fn on_policy_is_replayed_bit_for_bit_and_recording_changes_nothing() {
    let (place, unrecorded) = (recorded(&[]), workplace());
    unrecorded.succeed("quickstart.yaml", &[RATE]);
    assert!(place.weights("small", "policy") == unrecorded.weights("small", "policy"), "recording changes the run");
    let warm =
        fs::read(place.run_file("small", "phases/warmup/final/policy/model.safetensors")).expect("the warm-up's");
    assert!(warm != place.weights("small", "policy"), "the recorded phase trained nothing");
    assert_eq!(place.archived("small"), trained(&place, "small"));

    replayed(&place, &[]);
    assert_trained_again(&place, "policy");
    assert_eq!(lags(&place, "small-replay"), lags(&place, "small"));
    let loss = |run: &str| {
        let lines = place.lines(run, "metrics.jsonl");
        lines.iter().filter_map(|line| line.get("actor/pg_loss").cloned()).collect::<Vec<_>>()
    };
    assert_eq!(loss("small-replay"), loss("small"));
    assert_eq!(loss("small").len(), 4);
}

#[test]
fn fully_async_is_replayed_bit_for_bit_with_its_lags() {
    let place = recorded(&ASYNC);
    assert_eq!(place.archive("small").len(), 4 * 2, "two mini-batches in each of four cycles");
    assert_eq!(place.archived("small"), trained(&place, "small"));
    replayed(&place, &[]);
    assert_trained_again(&place, "policy");
    let lags = lags(&place, "small-replay");
    assert_eq!(lags, self::lags(&place, "small"));
    assert!(lags.keys().any(|(_, lag)| *lag == 1), "nothing ran ahead although lag is 0.5");
}

#[test]
fn stages_before_the_trainer_compute_the_same_from_what_was_recorded() {
    let place = recorded(&["algorithm.rollout_correction.bypass_mode=false"]);
    replayed(&place, &["reward", "old", "advantage", "actor"]);
    assert_trained_again(&place, "policy");
}

#[test]
fn ppo_is_replayed_into_both_trainers_or_one_of_them() {
    let place = workplace();
    let sizes = ["data.train_batch_size=16", "actor_rollout_ref.rollout.n=1", "trainer.critic_warmup=2"];
    place.succeed("ppo.yaml", &[&[RECORD], &sizes[..]].concat());
    replayed(&place, &[]);
    assert_trained_again(&place, "policy");
    assert_trained_again(&place, "critic");
    replayed(&place, &["critic", "--overwrite"]);
    assert_trained_again(&place, "critic");
    replayed(&place, &["kl", "advantage", "actor", "critic", "--overwrite"]);
    assert_trained_again(&place, "policy");
    fs::remove_dir_all(place.path().join("runs/small-replay")).expect("the replay's folder");
    let said = refused(&place, &["values", "actor"]);
    assert!(
        said.contains("stage `values` computes with model `critic`, which none of the named stages trains"),
        "{said}"
    );
    let said = refused(&place, &["actor"]);
    assert!(said.contains("stage `actor` trains from step 2 on"), "{said}");
}

#[test]
fn a_trainer_that_is_done_first_waits_for_the_first_weights_of_the_other() {
    let place = workplace();
    place.succeed("ppo.yaml", &[RECORD, "data.train_batch_size=16", "actor_rollout_ref.rollout.n=1"]);
    // Replayed rows wait for no weights: whichever trainer is not held has done its part of a cycle before the other has begun.
    let mut command = place.command(&["replay", "runs/small", "--quiet"]);
    let output = command.env("TQ_STALL_AT", "trainer::offer:4").output().expect("program under test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_trained_again(&place, "policy");
    assert_trained_again(&place, "critic");
}

/// Columns of an archive, batch by batch, with what is known of the rows but for their numbers.
fn columns(place: &Workplace, run: &str, names: &[&str]) -> Vec<String> {
    let batch = |path: std::path::PathBuf| {
        let rows = stage_archive::Recorded::open(&path).and_then(|file| file.read(names)).expect("a whole file");
        let heads: Vec<_> = rows.heads.iter().map(|head| (head.sample, head.span, &head.tags)).collect();
        let arrays: Vec<_> = names.iter().map(|name| format!("{:?}", rows.column(name).expect("asked for"))).collect();
        format!("{heads:?} {arrays:?}")
    };
    place.archive(run).into_iter().map(batch).collect()
}

#[test]
fn stages_without_a_trainer_write_an_archive_of_what_they_compute() {
    let place = recorded(&ASYNC);
    let names = ["responses", "token_level_scores"];
    let expected = columns(&place, "small", &names);
    assert_eq!(expected.len(), 8);
    replayed(&place, &["reward"]);
    assert_eq!(columns(&place, "small-replay", &names), expected);
    assert!(!place.run_file("small-replay", "final").exists(), "nothing was trained");
    place.assert_ledger_balances("small-replay");

    let advantages = ["advantages", "token_level_scores"];
    let killed = place
        .command(&["replay", "runs/small", "reward", "advantage", "--quiet", "--overwrite"])
        .env("TQ_KILL_AT", "archive::written:5")
        .output()
        .expect("program under test");
    assert_eq!(killed.status.signal(), Some(9), "{}", String::from_utf8_lossy(&killed.stderr));
    replayed(&place, &["reward", "advantage", "--resume"]);
    assert_eq!(columns(&place, "small-replay", &advantages), columns(&place, "small", &advantages));

    // What was computed is an archive like others.
    let twice =
        place.command(&["replay", "runs/small-replay", "reward", "--quiet"]).output().expect("program under test");
    assert!(twice.status.success(), "{}", String::from_utf8_lossy(&twice.stderr));
    assert_eq!(columns(&place, "small-replay-replay", &["token_level_scores"]).len(), 8);
    let nobody = place.command(&["replay", "runs/small-replay"]).output().expect("program under test");
    let said = String::from_utf8_lossy(&nobody.stderr);
    assert!(nobody.status.code() == Some(2) && said.contains("phase `rl` ran no stage that trains"), "{said}");
}

#[test]
fn a_source_that_is_slower_than_the_trainer_costs_no_version() {
    let place = recorded(&ASYNC);
    let slow = place
        .command(&["replay", "runs/small", "reward", "--quiet"])
        .env("TQ_SLOW_AT", "recording::put:100")
        .output()
        .expect("program under test");
    assert!(slow.status.success(), "{}", String::from_utf8_lossy(&slow.stderr));
    let names = ["token_level_scores"];
    assert_eq!(columns(&place, "small-replay", &names), columns(&place, "small", &names));
}

#[test]
fn groups_that_lost_rows_are_replayed_as_they_were() {
    let place = recorded(&["+stages.thin={use: thin-out}"]);
    let rows = place.archived("small").len();
    assert!((4 * 8 * 3..4 * 8 * 4).contains(&rows), "{rows} rows: some groups have three, others four");
    assert_eq!(place.archived("small"), trained(&place, "small"));
    replayed(&place, &[]);
    assert_trained_again(&place, "policy");
    assert_eq!(trained(&place, "small-replay").len(), rows);
}

#[test]
fn a_phase_before_the_last_is_recorded_in_its_folder_and_replayed_by_name() {
    let place = recorded(&["+partitions.warmup.keep=archive"]);
    let files = stage_archive::list(&place.run_file("small", "phases/warmup/archive/warmup")).expect("its archive");
    assert_eq!(files.len(), 2, "two steps of one batch");
    replayed(&place, &["--phase", "warmup"]);
    let warm =
        fs::read(place.run_file("small", "phases/warmup/final/policy/model.safetensors")).expect("the warm-up's");
    assert!(place.weights("small-replay", "policy") == warm, "the replay of the warm-up ends in other weights");
    replayed(&place, &["--overwrite"]);
    assert_trained_again(&place, "policy");
}

#[test]
fn one_step_off_on_two_ranks_is_replayed_bit_for_bit() {
    let place = recorded(&["schedule=one_step_off", "+stages.actor.ranks=2"]);
    replayed(&place, &[]);
    assert_trained_again(&place, "policy");
    assert_eq!(lags(&place, "small-replay"), lags(&place, "small"));
}

#[test]
fn an_archive_trains_under_other_settings_and_other_batches() {
    let place = recorded(&ASYNC);
    let weights = |arguments: &[&str]| {
        replayed(&place, &[arguments, &["--overwrite"]].concat());
        place.assert_ledger_balances("small-replay");
        (place.weights("small-replay", "policy"), trained(&place, "small-replay").len())
    };
    let all = 4 * 8 * 4;
    let (again, _) = weights(&[]);
    let (faster, rows) = weights(&["actor_rollout_ref.actor.optim.lr=2e-3"]);
    assert!(faster != again && rows == all, "the rate has no effect");
    let (longer, rows) = weights(&["data.train_batch_size=16", "trainer.total_training_steps=2"]);
    assert!(longer == again && rows == all, "cycles of twice as many groups have the same mini-batches");
    let (larger, rows) = weights(&["actor_rollout_ref.actor.ppo_mini_batch_size=8"]);
    assert!(larger != again && rows == all, "the mini-batch has no effect");
    let (shorter, rows) = weights(&["trainer.total_training_steps=1"]);
    assert!(shorter != again && rows == 8 * 4, "{rows} rows of one cycle");
}

#[test]
fn a_killed_replay_goes_on_to_the_same_bits() {
    let place = recorded(&ASYNC);
    let killed = place
        .command(&["replay", "runs/small", "--quiet"])
        .env("TQ_KILL_AT", "trainer::committed:5")
        .output()
        .expect("program under test");
    assert_eq!(killed.status.signal(), Some(9), "{}", String::from_utf8_lossy(&killed.stderr));
    replayed(&place, &["--resume"]);
    assert_trained_again(&place, "policy");
}

/// Where a recording is killed: while a batch is written, when its file is there and not committed, while a state is named
/// and after, and in the middle of a cycle.
const POINTS: [(&str, u64); 7] = [
    ("archive::writing", 2),
    ("archive::written", 3),
    ("archive::written", 6),
    ("archive::written", 8),
    ("journal::naming", 6),
    ("journal::named", 4),
    ("trainer::committed", 6),
];

fn killed_and_resumed(schedule: &[&str], point: &str, pass: u64) -> Workplace {
    let place = workplace();
    let arguments = [&[RECORD, RATE], schedule].concat();
    let mut run = place.small("quickstart.yaml", &arguments);
    let killed = run.env("TQ_KILL_AT", format!("{point}:{pass}")).output().expect("program under test");
    let said = String::from_utf8_lossy(&killed.stderr);
    assert_eq!(killed.status.signal(), Some(9), "{point}:{pass} was never reached: {said}");
    place.succeed("quickstart.yaml", &[&arguments[..], &["--resume"]].concat());
    assert_eq!(
        place.archived("small"),
        trained(&place, "small"),
        "{point}:{pass}: the archive is not what was trained"
    );
    let names = fs::read_dir(place.run_file("small", "archive/samples")).expect("the archive").count();
    assert_eq!(names, place.archive("small").len(), "{point}:{pass} left something beside the batches");
    place
}

#[test]
fn the_archive_of_a_killed_run_is_that_of_an_undisturbed_one() {
    let undisturbed = recorded(&[]);
    let bytes = |place: &Workplace| {
        let file = |path| fs::read(path).expect("a file of the archive");
        place.archive("small").into_iter().map(file).collect::<Vec<_>>()
    };
    let expected = bytes(&undisturbed);
    for (point, pass) in POINTS {
        let place = killed_and_resumed(&[], point, pass);
        assert!(bytes(&place) == expected, "{point}:{pass}: another archive than without the kill");
    }
}

#[test]
fn the_archive_of_a_killed_asynchronous_run_is_what_was_trained() {
    for (point, pass) in POINTS {
        let place = killed_and_resumed(&ASYNC, point, pass);
        replayed(&place, &[]);
        assert_trained_again(&place, "policy");
    }
}

#[test]
fn batches_beyond_the_state_that_a_run_goes_on_from_are_deleted() {
    let place = recorded(&[]);
    // As if the run had been killed after step 4, and only the state of step 3 were left.
    for gone in ["final", "checkpoints/step_000004"] {
        fs::remove_dir_all(place.run_file("small", gone)).expect("was there");
    }
    let stale = place.run_file("small", "archive/samples/cycle_000009.mini_0000.parquet");
    fs::copy(&place.archive("small")[7], &stale).expect("a file of a cycle that was taken back");
    place.succeed("quickstart.yaml", &[RECORD, RATE, "--resume"]);
    assert!(!stale.exists(), "a batch of a cycle that does not exist is left");
    assert_eq!(place.archived("small"), trained(&place, "small"));
}

#[test]
fn a_store_in_a_process_of_its_own_records_the_same_files() {
    let (threads, apart) = (recorded(&[]), recorded(&["+store={kind: process}"]));
    let names = |place: &Workplace| {
        place.archive("small").iter().map(|p| p.file_name().map(|n| n.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(names(&threads), names(&apart));
    for (one, other) in threads.archive("small").iter().zip(apart.archive("small")) {
        assert!(fs::read(one).expect("a file") == fs::read(other).expect("a file"), "{}", one.display());
    }
}

#[test]
fn rounds_of_validation_are_archived_as_batches_of_their_version() {
    let place = recorded(&["+partitions.val.keep={responses: archive, token_level_scores: archive}"]);
    let files = stage_archive::list(&place.run_file("small", "archive/val")).expect("the archive");
    let versions: Vec<u64> = files.iter().map(|(name, _)| name.cycle).collect();
    assert_eq!(versions, [0, 2, 4], "validated before the first step and after every second");
    for (_, path) in files {
        let recorded = stage_archive::Recorded::open(&path).expect("a whole file");
        assert_eq!(recorded.facts().rows, 16);
        let columns: Vec<&str> = recorded.columns().iter().map(|column| column.name.as_str()).collect();
        assert_eq!(columns, ["responses", "token_level_scores"]);
    }
}

#[test]
fn what_cannot_be_replayed_is_refused_by_name_before_anything_trains() {
    let place = recorded(&[]);
    let files = place.archive("small");
    let whole = fs::read(&files[3]).expect("a file");
    let name = "cycle_000001.mini_0001.parquet";
    assert!(files[3].ends_with(name));

    let mut flipped = whole.clone();
    flipped[whole.len() / 4] ^= 4;
    for (damaged, expected) in
        [(&flipped[..], "checksum"), (&whole[..whole.len() / 2], "not readable"), (&[], "not readable")]
    {
        fs::write(&files[3], damaged).expect("a damaged file");
        let said = refused(&place, &[]);
        assert!(said.contains(name) && said.contains(expected), "{said}");
    }
    fs::remove_file(&files[3]).expect("the file");
    let said = refused(&place, &[]);
    assert!(said.contains(name) && said.contains("found no file"), "{said}");
    fs::write(&files[3], &whole).expect("the file again");

    let end = fs::read(&files[7]).expect("the last file");
    fs::remove_file(&files[7]).expect("the last file");
    let said = refused(&place, &[]);
    assert!(said.contains("cycle_000003.mini_0001.parquet") && said.contains("the 4 that audit.jsonl says"), "{said}");
    fs::write(&files[7], end).expect("the last file again");

    for (arguments, expected) in [
        (&["actr"][..], "found the stage `actr`"),
        (&["dataset"], "found the stage `dataset`"),
        (&["--phase", "warmup"], "phase `warmup` archived nothing"),
        (&["--phase", "late"], "found no phase `late`"),
        (&["actor_rollout_ref.actor.use_kl_loss=true"], "ref_log_probs"),
        (&["+store.kind=process"], "store.kind"),
        (&["trainer.sede=3"], "trainer.sede"),
    ] {
        let said = refused(&place, arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    let output = place.command(&["replay", "runs/nothing"]).output().expect("program under test");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("runs/nothing/plan.yaml"));
    replayed(&place, &[]);
    assert_trained_again(&place, "policy");
}

#[test]
fn a_column_that_was_not_archived_is_named_with_its_stage() {
    let place = workplace();
    let some = "+partitions.samples.keep={responses: archive, prompt: archive, advantages: archive}";
    place.succeed("quickstart.yaml", &[some]);
    let said = refused(&place, &[]);
    assert!(
        said.contains("`rollout_log_probs` of stage `actor` was not archived") && said.contains("keep: archive"),
        "{said}"
    );
}

#[test]
fn prompts_are_archived_where_they_are_expanded() {
    let place = workplace();
    let output = place.run("quickstart.yaml", &["+partitions.prompts.keep={prompt: archive}"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("partitions.prompts.keep") && said.contains("where these rows are expanded"), "{said}");
    let nothing = place.run("quickstart.yaml", &["+partitions.samples.keep=everything"]);
    let said = String::from_utf8_lossy(&nothing.stderr);
    assert!(said.contains("`archive` for all of them"), "{said}");
}
