//! What a running job shows, and that it says who holds it up.

use std::{
    process::Child,
    time::{Duration, Instant},
};

use serde_json::Value;
use tq_cli::{Cli, Outcome};
use tq_tests::Workplace;
use transferqueue::inspect::{Client, Request};

/// Kills the job also when the test fails.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        // An error means that the job had ended by itself, which the test notices elsewhere.
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

#[test]
fn a_stalled_stage_shows_with_rows_holder_and_seconds() {
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let mut command = place.small("quickstart.yaml", &[]);
    // The first batch of the reward stage is held for a minute before it is committed.
    let job = Job(command.env("TQ_STALL_AT", "map::commit:60").spawn().expect("program under test"));
    let socket = place.run_file("small", "control.sock");
    let begun = Instant::now();
    let stalled = loop {
        assert!(begun.elapsed() < Duration::from_secs(50), "the stalled stage never showed");
        let tasks = Client::connect(&socket).ok().and_then(|mut client| client.get(&Request::Tasks).ok());
        let tasks: Option<Value> = tasks.map(|reply| serde_json::to_value(reply).expect("a reply in JSON"));
        let found = tasks.iter().flat_map(|t| t["tasks"].as_array().into_iter().flatten()).find(|task| {
            task["leases"].as_array().is_some_and(|leases| leases.iter().any(|l| l["for_ms"].as_u64() > Some(2_000)))
        });
        if let Some(task) = found {
            break task.clone();
        }
        std::thread::park_timeout(Duration::from_millis(300));
    };
    let lease = &stalled["leases"][0];
    assert!(lease["rows"].as_u64() > Some(0), "{stalled}");
    let holder = lease["holder"].as_str().expect("a name");
    assert!(holder.ends_with("-0"), "{stalled}");

    // The same in words: whoever asks what is wrong with the run is told who holds what.
    let task = stalled["task"].as_str().expect("a name");
    let (doctor, outcome) = look(&place, &["doctor", "--patience", "2"]);
    let named = format!("`{task}`: {holder} holds {} rows under lease {}", lease["rows"], lease["lease"]);
    let line = doctor.lines().find(|line| line.starts_with("warning") && line.contains(&named));
    assert!(line.is_some(), "{named}: {doctor}");
    assert!(doctor.lines().any(|line| line.starts_with("ok       events")), "{doctor}");
    assert_eq!(outcome, Outcome::Done, "nothing failed: {doctor}");

    // And whoever asks after one of its rows.
    let partition = stalled["partition"].as_str().expect("a name");
    let (rows, _) = look(&place, &["--format", "json", "peek", partition]);
    let rows: Value = serde_json::from_str(&rows).expect("JSON");
    let under = format!("held by {holder} under lease {}", lease["lease"]);
    let told = rows["rows"].as_array().expect("rows").iter().map(|row| {
        let id = row["row"].to_string();
        look(&place, &["why", partition, &id]).0
    });
    let told = told.into_iter().find(|told| told.contains(&under)).unwrap_or_else(|| panic!("no row is {under}"));
    let claimed = format!("`{task}`: claimed by worker {holder} under lease {}", lease["lease"]);
    assert!(told.contains(&claimed), "the event log of the phase tells it too: {told}");
    drop(job);

    // The job is gone, its files are not.
    let (doctor, outcome) = look(&place, &["doctor"]);
    assert!(doctor.contains("the job was killed"), "{doctor}");
    assert_eq!(outcome, Outcome::Unwell);
}

/// What tq-cli shows of the run.
fn look(place: &Workplace, arguments: &[&str]) -> (String, Outcome) {
    let run = place.path().join("runs/small");
    let run = run.to_str().expect("a path in UTF-8");
    let cli = Cli::read(["tq-cli", "--run", run].into_iter().chain(arguments.iter().copied())).expect("arguments");
    let mut out = Vec::new();
    let outcome =
        tq_cli::run(&cli, &mut out, &mut std::io::sink()).unwrap_or_else(|error| panic!("{arguments:?}: {error:#}"));
    (String::from_utf8(out).expect("text"), outcome)
}
