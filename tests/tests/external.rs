//! Readers that are no part of the run: one that never comes costs files, or the run; one that comes is served to the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use tq_tests::{Workplace, store_process, until};
use transferqueue::{
    Claim, Error, Outputs,
    client::{self, Remote},
};

const EXPORTER: &str =
    "+stages.exporter={use: external, with: {columns: [responses, rollout_log_probs]}, serve: [samples]}";
const STEPS: &str = "trainer.total_training_steps=30";
/// Cycles × prompts × samples.
const ROWS: usize = 30 * 8 * 4;

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

/// A run with the exporter; `store`: what else `store:` says. The budget is 1.2 × the peak of the plan's second phase.
fn exported(store: &str, more: &[&str]) -> (Workplace, Output) {
    let place = workplace();
    let store = format!("+store={{budget: {}, {store}}}", budget());
    let arguments = [&[EXPORTER, STEPS, &store], more].concat();
    let output = place.run("quickstart.yaml", &arguments);
    (place, output)
}

/// 1.2 × the bytes that the plan expects to be held at most.
fn budget() -> u64 {
    let pipeline = tq_tests::repository().join("pipelines/quickstart.yaml");
    let mut arguments = vec![pipeline.to_str().expect("a path in UTF-8"), EXPORTER];
    arguments.extend(tq_tests::SMALL.iter().chain(&tq_tests::SMALL_WARMUP));
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    let plan = tq_run::App::new().plan(&arguments).expect("a plan");
    let peak = plan.phases.iter().map(|phase| phase.arithmetic.bytes_at_peak).max();
    peak.expect("phases") * 6 / 5
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The line about the exporter, its rows and its bytes in files.
fn owed(output: &Output) -> Option<(usize, u64)> {
    let said = text(&output.stdout);
    let line = said.lines().find(|line| line.contains("`exporter` is still owed"))?;
    let number = |before: &str| line.split(before).nth(1)?.split(' ').next()?.parse().ok();
    assert!(line.contains("rows of `samples` (responses, rollout_log_probs)"), "{line}");
    Some((number("still owed ")? as usize, number("), ")?))
}

#[test]
fn a_reader_that_never_comes_leaves_the_run_as_it_is_and_is_told_what_it_missed() {
    let plain = workplace();
    plain.succeed("quickstart.yaml", &[STEPS]);
    let (place, output) = exported("spill: true", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(place.weights("small", "policy") == plain.weights("small", "policy"), "other weights than without it");
    let (rows, spilled) = owed(&output).expect("what is still owed is said");
    assert_eq!(rows, ROWS);
    assert!(spilled > 0, "{}", text(&output.stdout));
    assert!(!place.run_file("small", "spill").exists(), "spilled files are left behind");
}

#[test]
fn without_files_the_run_stops_and_names_the_reader_and_its_columns() {
    let (_, output) = exported("patience: 3", &[]);
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for part in
        ["`exporter`, which reads from outside the run", "`responses`", "`rollout_log_probs`", "rows of `samples`"]
    {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_reader_that_keeps_up_gets_every_row_and_the_run_needs_no_files() {
    let place = workplace();
    let store = format!("+store={{budget: {}}}", budget());
    let mut run = place.small("quickstart.yaml", &[EXPORTER, STEPS, &store]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("program under test");
    let rows = read_all(&place);
    let output = run.wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!((rows.len(), owed(&output)), (ROWS, None));
}

#[test]
fn a_reader_that_draws_every_row_three_times_is_served_exactly_that_often() {
    let place = workplace();
    let exporter = EXPORTER.replace("serve:", "reuse: 3, serve:");
    let mut run = place.small("quickstart.yaml", &[&exporter, "trainer.total_training_steps=4"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("program under test");
    let uses = draw_all(&place);
    let output = run.wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!((uses.len(), owed(&output)), (4 * 8 * 4, None));
    assert!(uses.values().all(|times| *times == 3), "{uses:?}");
}

#[test]
fn a_store_that_is_killed_finds_what_it_had_spilled() {
    let plain = workplace();
    plain.succeed("quickstart.yaml", &[STEPS]);
    let place = workplace();
    let store = format!("+store={{budget: {}, spill: true, kind: process}}", budget());
    let mut run = place.small("quickstart.yaml", &[EXPORTER, STEPS, &store]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("program under test");
    let spill = place.run_file("small", "spill");
    let files = || fs::read_dir(&spill).is_ok_and(|files| files.flatten().any(|f| f.file_name() != "lock"));
    until(|| files().then_some(()));
    let killed = store_process(run.id());
    kill(killed);
    until(|| (store_process(run.id()) != killed).then_some(()));
    // What was spilled before and after the kill is what it reads now.
    let rows = read_all(&place);
    let output = run.wait_with_output().expect("its end");
    let said = text(&output.stderr);
    assert!(output.status.success() && !said.contains("cannot go on where it was"), "{said}");
    assert_eq!((rows.len(), owed(&output)), (ROWS, None));
    assert!(place.weights("small", "policy") == plain.weights("small", "policy"), "other weights than without it");
    assert!(!spill.exists(), "spilled files are left behind");
}

fn kill(process: u32) {
    let killed = std::process::Command::new("kill").args(["-9", &process.to_string()]).status();
    assert!(killed.expect("kill").success(), "{process} had ended");
}

/// Consumes what the exporter is owed until the run ends: which rows.
fn read_all(place: &Workplace) -> BTreeSet<u64> {
    draw_all(place).into_keys().collect()
}

/// The same, with the number of commits of each row.
fn draw_all(place: &Workplace) -> BTreeMap<u64, u32> {
    let read = |name: &str| fs::read_to_string(place.run_file("small", name)).ok();
    // The warm-up knows no exporter, and opens no door.
    let (url, token) = until(|| Some((read("url")?, read("token")?)));
    let remote = Remote::connect(url.trim(), token.trim(), client::Options::default()).expect("the run's door");
    let session = remote.session("exporter-0").expect("a session");
    let mut rows = BTreeMap::new();
    loop {
        let lease = match session.claim("exporter", 16, Instant::now() + Duration::from_secs(60)) {
            Ok(Claim::Lease(lease)) => lease,
            Ok(Claim::Ended) | Err(Error::Stopped { .. }) => return rows,
            Err(error) => panic!("{error}"),
        };
        let batch = lease.batch().expect("leased rows can be read");
        let responses = batch.ragged::<i64>("responses").expect("tokens");
        let log_probs = batch.ragged::<f32>("rollout_log_probs").expect("one a token");
        assert_eq!(responses.lens(), log_probs.lens());
        let drawn: Vec<u64> = lease.heads().iter().map(|head| head.row.0).collect();
        drop(batch);
        lease.commit(Outputs::new()).expect("the lease lives");
        drawn.into_iter().for_each(|row| *rows.entry(row).or_insert(0) += 1);
    }
}
