//! kill -9 at twelve points, each followed by --resume: weights, audit and ledger as of an undisturbed run.

use std::os::unix::process::ExitStatusExt;

use tq_tests::Workplace;

/// Where the process is killed, and at which pass.
const POINTS: [(&str, u64); 12] = [
    ("rollout::step", 7),
    ("rollout::step", 40),
    ("rollout::commit", 9),
    ("map::commit", 5),
    ("map::commit", 30),
    ("trainer::updated", 4),
    ("trainer::committed", 5),
    ("trainer::offer", 5),
    ("journal::published", 6),
    ("snapshot::writing", 7),
    ("journal::naming", 6),
    ("journal::named", 6),
];

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

/// Kills a run at a point, resumes it, and returns it with the steps that were trained twice.
fn killed_and_resumed(schedule: &[&str], point: &str, pass: u64) -> (Workplace, Vec<u64>) {
    let place = workplace();
    let output = place
        .small("quickstart.yaml", schedule)
        .env("TQ_KILL_AT", format!("{point}:{pass}"))
        .output()
        .expect("program under test");
    assert_eq!(
        output.status.signal(),
        Some(9),
        "{point}:{pass} was never reached: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut resume = schedule.to_vec();
    resume.push("--resume");
    place.succeed("quickstart.yaml", &resume);
    let steps: Vec<u64> = place
        .lines("small", "metrics.jsonl")
        .iter()
        .filter(|l| l.get("actor/pg_loss").is_some())
        .filter_map(|l| l["step"].as_u64())
        .collect();
    assert_eq!(steps, [1, 2, 3, 4], "{point}:{pass}: each step has one line");
    let states = place.run_file("small", "checkpoints");
    let half: Vec<_> = std::fs::read_dir(states)
        .expect("named states")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with("step_"))
        .collect();
    assert!(half.is_empty(), "{point}:{pass} left {half:?}");
    place.assert_ledger_balances("small");
    assert_eq!(
        place.trained("small").len(),
        4 * 8 * 4,
        "{point}:{pass}: each row of the surviving lineage is trained once"
    );
    let repeated = place.repeated_steps("small");
    (place, repeated)
}

fn equal_bits_after_every_kill(schedule: &[&str]) {
    let undisturbed = workplace();
    undisturbed.succeed("quickstart.yaml", schedule);
    let expected = undisturbed.weights("small", "policy");
    for (point, pass) in POINTS {
        let (place, repeated) = killed_and_resumed(schedule, point, pass);
        assert!(repeated.len() <= 1, "{point}:{pass} repeated steps {repeated:?}");
        assert!(place.weights("small", "policy") == expected, "{point}:{pass}: other weights than without the kill");
    }
}

#[test]
fn on_policy_ends_in_the_same_bits() {
    equal_bits_after_every_kill(&[]);
}

#[test]
fn one_step_off_ends_in_the_same_bits() {
    equal_bits_after_every_kill(&["schedule=one_step_off"]);
}

#[test]
fn fully_async_keeps_ledger_and_audit_exact() {
    for (point, pass) in POINTS {
        let (place, repeated) =
            killed_and_resumed(&["schedule.use=fully_async", "schedule.lag=0.5", "schedule.max_lag=1"], point, pass);
        assert!(repeated.len() <= 1, "{point}:{pass} repeated steps {repeated:?}");
        assert!(place.trained("small").values().all(|(_, lag)| *lag <= 1), "{point}:{pass}: a row lags beyond max_lag");
    }
}
