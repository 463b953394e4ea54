//! A stage from a crate of its own, in a whole run.

use tq_tests::{SMALL, Workplace, repository};

#[test]
fn the_length_penalty_is_between_scores_and_advantages() {
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let pipeline = repository().join("examples/stage-length-penalty/pipeline.yaml");
    let mut arguments = vec![pipeline.to_str().expect("a path in UTF-8"), "--quiet"];
    arguments.extend(SMALL.into_iter().filter(|a| !a.starts_with("trainer.test_freq")));
    arguments.push("stages.penalty.with.free=0");
    let output = place.command(&arguments).output().expect("program under test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = place.lines("small", "metrics.jsonl");
    assert_eq!(lines.len(), 4);
    for line in lines {
        let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("`{name}` in {line}"));
        let charged = number("critic/score/mean") - number("critic/rewards/mean");
        let expected = 0.01 * number("response_length/mean");
        assert!((charged - expected).abs() < 1e-6, "charged {charged}, expected {expected}");
    }
    place.assert_ledger_balances("small");
}
