use std::fs;

use serde_json::Value;
use transferqueue::{
    LeaseId, RowId, SessionId,
    catalog::{
        views::{BudgetView, FailedRow, HealthView, LeaseView, PoisonedRow, QuietLease, SessionView, TaskWait},
        wait::{Cause, Wait},
    },
    inspect::Status,
    server,
    unit::ColumnBytes,
};

use super::{Check, Verdict, files, live, log::Activity};
use crate::{
    Outcome,
    tests::{Job, job},
};

/// The lines of a check in the text for people.
fn lines(job: &Job, arguments: &[&str], check: &str) -> (Vec<String>, Outcome) {
    let (out, _, outcome) = job.raw(&[&["doctor"], arguments].concat()).unwrap();
    let lines = out.lines().filter(|line| line.split_whitespace().nth(1) == Some(check));
    (lines.map(str::to_owned).collect(), outcome)
}

fn line(job: &Job, arguments: &[&str], check: &str) -> String {
    let (lines, _) = lines(job, arguments, check);
    assert_eq!(lines.len(), 1, "{check}: {lines:?}");
    lines[0].clone()
}

#[test]
fn a_healthy_run_is_said_to_be_well() {
    let job = job();
    fs::create_dir_all(job.folder().join("checkpoints")).unwrap();
    job.store.snapshot(&job.folder().join("checkpoints/step_000001")).unwrap();
    for arguments in [&[][..], &["--deep"]] {
        let (_, outcome) = lines(&job, arguments, "run");
        assert_eq!(outcome, Outcome::Done);
        for (check, found) in [
            ("socket", " µs (median of 5)"),
            ("folder", "is there and writable"),
            ("events", "records, every checksum holds"),
            ("states", "1 named states are complete"),
            ("leases", "showed progress in the last"),
            ("sessions", "1 sessions, all heard of lately"),
            ("rows", "no live row has failed"),
            ("tasks", "none waits"),
        ] {
            let line = line(&job, arguments, check);
            assert!(line.starts_with("ok ") && line.contains(found), "{check}: {line}");
        }
    }
    let out = job.raw(&["doctor", "--format", "json"]).unwrap().0;
    let checks: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert!(checks.iter().any(|check| check["check"] == "socket" && check["verdict"] == "ok"), "{out}");
}

#[test]
fn each_way_to_a_served_store_is_proved() {
    let job = job();
    assert!(line(&job, &[], "paths").contains("the store serves no other process"));
    let server = server::serve(&job.store, &server::Options::default()).unwrap();
    fs::write(job.folder().join("url"), server.url()).unwrap();
    fs::write(job.folder().join("token"), server.token()).unwrap();
    // On the heap: nothing to be mapped. The text is the largest column that every row has.
    let line = line(&job, &[], "paths");
    assert!(line.starts_with("ok ") && line.contains("flight: "), "{line}");
    assert!(line.contains(" of `jobs.t") && line.contains("a bare TCP connection over loopback"), "{line}");
    fs::write(job.folder().join("token"), "wrong").unwrap();
    let (lines, outcome) = lines(&job, &[], "paths");
    assert!(lines[0].starts_with("failed") && lines[0].contains("no valid token"), "{lines:?}");
    assert_eq!(outcome, Outcome::Unwell);
}

#[test]
fn a_worker_that_shows_no_progress_is_named() {
    let job = job();
    job.age(150);
    let line = line(&job, &["--patience", "0.1"], "leases");
    assert!(line.starts_with("warning  leases    `score`: scorer-0 holds 2 rows under lease 2 for"), "{line}");
    assert_eq!(lines(&job, &["--patience", "0.1"], "leases").1, Outcome::Done, "a warning is no failure");
}

#[test]
fn a_damaged_log_a_damaged_state_and_a_killed_job_fail() {
    let mut job = job();
    let state = job.folder().join("checkpoints/step_000002");
    fs::create_dir_all(job.folder().join("checkpoints")).unwrap();
    job.store.snapshot(&state).unwrap();
    let flip = |path: &std::path::Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    // One bit of a state: only reading every byte shows it.
    flip(&state.join("state.json"), 40);
    assert!(line(&job, &[], "states").starts_with("ok "));
    let (found, outcome) = lines(&job, &["--deep"], "states");
    assert!(found[0].starts_with("failed ") && found[0].contains("state.json has checksum"), "{found:?}");
    assert_eq!(outcome, Outcome::Unwell);
    fs::remove_file(state.join("state.json")).unwrap();
    assert!(line(&job, &[], "states").starts_with("failed "));
    fs::remove_dir_all(&state).unwrap();
    assert!(line(&job, &[], "states").contains("no named state yet"));

    job.kill();
    let (found, outcome) = lines(&job, &[], "socket");
    assert!(found[0].starts_with("failed ") && found[0].contains("the job was killed"), "{found:?}");
    assert_eq!(outcome, Outcome::Unwell);
    assert!(line(&job, &[], "events").starts_with("ok "));
    let log = job.folder().join("events/000000.jsonl");
    let end = fs::metadata(&log).unwrap().len() as usize;
    flip(&log, end - 100);
    let (found, outcome) = lines(&job, &[], "events");
    assert!(found[0].starts_with("failed ") && found[0].contains("checksum"), "{found:?}");
    assert_eq!(outcome, Outcome::Unwell);
    fs::remove_file(job.folder().join("control.sock")).unwrap();
    assert!(line(&job, &[], "socket").starts_with("warning "));
}

#[test]
fn space_is_judged_by_what_the_next_state_takes() {
    let verdict = |free, state| files::space(free, state).verdict;
    assert_eq!(verdict(10 << 30, 0), Verdict::Ok);
    assert_eq!(verdict(10 << 30, 4 << 30), Verdict::Warning);
    assert_eq!(verdict(10 << 30, 11 << 30), Verdict::Failed);
    assert_eq!(verdict(500 << 20, 0), Verdict::Warning);
    assert_eq!(verdict(1 << 20, 0), Verdict::Failed);
}

fn status() -> Status {
    Status {
        pid: 1,
        up_ms: 100_000,
        incarnation: 1,
        lineage: 0,
        seq: 9,
        version: 2,
        schedule: None,
        rows: 8,
        sessions: 1,
        leased: 0,
        bytes: ColumnBytes::default(),
        weights: Vec::new(),
        transport: "local".into(),
        stopped: None,
    }
}

/// A task that waits for another one, whose worker holds rows under lease 7.
fn health(quiet_ms: u64) -> HealthView {
    let (holder, for_ms) = ("reward-0".to_owned(), 40_000);
    let lease = LeaseView { lease: LeaseId(7), holder, rows: 8, for_ms, left_ms: 20_000, progress: None };
    let cause =
        Cause { task: "reward".into(), rows: 8, lease: Some(LeaseId(7)), holder: None, for_ms, note: "".into() };
    let wait = Wait { who: "task `advantage`".into(), wants: "rows".into(), have: "none".into(), causes: vec![cause] };
    HealthView {
        leases: vec![QuietLease { task: "reward".into(), lease, quiet_ms }],
        sessions: Vec::new(),
        failed: Vec::new(),
        poisoned: None,
        waits: vec![TaskWait { task: "advantage".into(), leased: 0, wait }],
        budget: None,
    }
}

/// The checks of that name.
fn checks(health: &HealthView, log: Option<&Activity>, check: &str) -> Vec<Check> {
    let checks: Vec<Check> = live::checks(&status(), health, log, 15_000);
    checks.into_iter().filter(|found| found.check == check).collect()
}

/// Their verdicts and what was found.
fn judged(health: &HealthView, log: Option<&Activity>, check: &str) -> Vec<(Verdict, String)> {
    checks(health, log, check).into_iter().map(|found| (found.verdict, found.found)).collect()
}

/// What the first of them says to do.
fn advice(health: &HealthView, check: &str) -> String {
    checks(health, None, check).remove(0).advice.unwrap_or_default()
}

#[test]
fn waiting_is_fine_while_whoever_is_waited_for_moves() {
    let moved = |last| Activity { tasks: [("advantage".to_owned(), 70_000)].into(), last };
    let found = judged(&health(500), Some(&moved(99_000)), "tasks");
    assert_eq!(found[0].0, Verdict::Ok);
    assert!(found[0].1.starts_with("waits for 30.0s: task `advantage` wants rows"), "{found:?}");
    assert_eq!(judged(&health(16_000), Some(&moved(99_000)), "tasks")[0].0, Verdict::Warning, "its holder is quiet");
    assert_eq!(judged(&health(500), Some(&moved(80_000)), "tasks")[0].0, Verdict::Warning, "nothing moves at all");
    assert_eq!(judged(&health(500), None, "tasks")[0].0, Verdict::Ok);
    let mut working = health(500);
    working.waits[0].leased = 3;
    assert_eq!(judged(&working, None, "tasks"), [(Verdict::Ok, "none waits".to_owned())], "its own workers are busy");
}

#[test]
fn silent_sessions_failing_rows_poison_and_a_full_budget_are_told() {
    let mut health = health(0);
    let name = "rollout-3".to_owned();
    let session =
        SessionView { session: SessionId(4), name, seen_ms_ago: 11_000, leases: vec![], more_leases: 0, rows: 5 };
    health.sessions.push(session);
    assert_eq!(judged(&health, None, "sessions")[0].0, Verdict::Ok);
    health.sessions[0].seen_ms_ago = 12_000;
    let found = judged(&health, None, "sessions");
    assert!(found[0].0 == Verdict::Warning && found[0].1.contains("rollout-3 is silent for 12.0s"), "{found:?}");

    let (task, partition) = ("reward".to_owned(), "val".to_owned());
    health.failed.push(FailedRow {
        task: task.clone(),
        partition: partition.clone(),
        row: RowId(5),
        failed: 1,
        attempts: 3,
    });
    assert_eq!(judged(&health, None, "rows")[0].0, Verdict::Ok);
    health.failed[0].failed = 2;
    let found = judged(&health, None, "rows");
    assert!(found[0].0 == Verdict::Warning && found[0].1.contains("row 5 of `val` failed 2 of 3"), "{found:?}");
    assert!(advice(&health, "rows").contains("tq-cli why val 5 "), "{}", advice(&health, "rows"));
    health.poisoned = Some(PoisonedRow { task, partition, row: RowId(5), error: "no luck".into() });
    let found = judged(&health, None, "rows");
    assert!(found[0].0 == Verdict::Failed && found[0].1.contains("no luck"), "{found:?}");
    assert!(advice(&health, "rows").contains("tq-cli why val 5;"), "{}", advice(&health, "rows"));

    health.budget = Some(BudgetView { bytes: 1 << 20, used: 1 << 19, blocks: false, spilled: 0 });
    assert_eq!(judged(&health, None, "budget")[0].0, Verdict::Ok);
    health.budget = Some(BudgetView { bytes: 1 << 20, used: 1 << 20, blocks: true, spilled: 0 });
    let found = judged(&health, None, "budget");
    assert!(found[0].0 == Verdict::Warning && found[0].1.contains("keeps the next group out"), "{found:?}");
}
