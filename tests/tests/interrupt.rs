//! Ctrl-C ends the step cleanly, says what is saved, and the run goes on from there to the same end.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tq_tests::Workplace;

#[test]
fn ctrl_c_saves_the_step_and_resuming_ends_in_the_same_bits() {
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let undisturbed = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    undisturbed.succeed("quickstart.yaml", &[]);

    let job = place.small("quickstart.yaml", &[]).stderr(Stdio::piped()).spawn().expect("program under test");
    let begun = Instant::now();
    let metrics = place.run_file("small", "metrics.jsonl");
    while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"step\":1,")) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the first step never ended");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let signalled = Command::new("kill").args(["-INT", &job.id().to_string()]).status().expect("kill");
    assert!(signalled.success());
    let output = job.wait_with_output().expect("the job's end");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("is saved, go on with --resume"), "{stderr}");

    place.succeed("quickstart.yaml", &["--resume"]);
    assert!(
        place.weights("small", "policy") == undisturbed.weights("small", "policy"),
        "other weights than without Ctrl-C"
    );
    place.assert_ledger_balances("small");
}
