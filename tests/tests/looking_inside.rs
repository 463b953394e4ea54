//! What a running job shows, and that it says who holds it up.

use std::{
    process::Child,
    time::{Duration, Instant},
};

use serde_json::Value;
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
    drop(job);
    let lease = &stalled["leases"][0];
    assert!(lease["rows"].as_u64() > Some(0), "{stalled}");
    assert!(lease["holder"].as_str().is_some_and(|holder| holder.ends_with("-0")), "{stalled}");
}
