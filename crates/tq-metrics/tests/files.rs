//! What is written can be read: `metrics.jsonl`, event files.

use std::fs;
use std::io::Write;

use tq_metrics::sink::{JsonLines, Sink, TensorBoard};
use tq_metrics::{Error, Metrics, history};

fn metrics(score: f64) -> Metrics {
    Metrics::from_iter([
        ("critic/score/mean", score),
        ("perf/total_num_tokens", 1234.0),
        ("critic/values/mean", f64::NAN),
    ])
}

#[test]
fn a_line_holds_the_step_and_its_numbers_in_order() {
    let folder = tempfile::tempdir().expect("temp dir");
    let path = folder.path().join("metrics.jsonl");
    JsonLines::open(&path).expect("opens").write(7, &metrics(0.5)).expect("writes");
    let text = fs::read_to_string(&path).expect("reads");
    assert_eq!(
        text,
        "{\"step\":7,\"critic/score/mean\":0.5,\"perf/total_num_tokens\":1234,\"critic/values/mean\":null}\n"
    );
}

#[test]
fn a_killed_run_leaves_a_torn_line_that_the_next_one_removes() {
    let folder = tempfile::tempdir().expect("temp dir");
    let path = folder.path().join("metrics.jsonl");
    let mut log = JsonLines::open(&path).expect("opens");
    log.write(1, &metrics(0.25)).expect("writes");
    log.write(2, &metrics(0.5)).expect("writes");
    drop(log);
    // Longer than a block, so that the search for its beginning takes several.
    let torn = format!("{{\"step\":3,\"x\":\"{}", "y".repeat(10_000));
    fs::OpenOptions::new().append(true).open(&path).expect("opens").write_all(torn.as_bytes()).expect("writes");
    assert_eq!(history::read(&path).expect("reads").last_step(), Some(2), "a reader leaves the torn line out");

    let mut resumed = JsonLines::open(&path).expect("opens");
    resumed.write(2, &metrics(0.75)).expect("writes");
    resumed.write(3, &metrics(1.0)).expect("writes");
    let history = history::read(&path).expect("every line is whole");
    assert_eq!(
        history.series("critic/score/mean").points,
        [(1.0, 0.25), (2.0, 0.75), (3.0, 1.0)],
        "a repeated step is there once"
    );
    assert_eq!(history.names(), ["critic/score/mean", "perf/total_num_tokens"]);
}

#[test]
fn steps_that_a_resumed_run_left_behind_are_gone() {
    let folder = tempfile::tempdir().expect("temp dir");
    let path = folder.path().join("metrics.jsonl");
    let mut log = JsonLines::open(&path).expect("opens");
    for (step, score) in [(1, 0.125), (2, 0.25), (3, 0.375), (4, 0.5), (2, 0.75)] {
        log.write(step, &metrics(score)).expect("writes");
    }
    let history = history::read(&path).expect("reads");
    assert_eq!(history.series("critic/score/mean").points, [(1.0, 0.125), (2.0, 0.75)]);
    assert_eq!(history.last_step(), Some(2));
}

#[test]
fn a_file_without_any_whole_line_starts_anew() {
    let folder = tempfile::tempdir().expect("temp dir");
    let path = folder.path().join("metrics.jsonl");
    fs::write(&path, "{\"step\":").expect("writes");
    JsonLines::open(&path).expect("opens").write(1, &metrics(0.5)).expect("writes");
    assert_eq!(history::read(&path).expect("reads").last_step(), Some(1));
}

#[test]
fn a_line_of_something_else_is_named() {
    let folder = tempfile::tempdir().expect("temp dir");
    let path = folder.path().join("metrics.jsonl");
    fs::write(&path, "{\"step\":1}\n{\"epoch\":1}\n").expect("writes");
    let error = history::read(&path).expect_err("no step");
    assert!(matches!(&error, Error::Malformed { line: 2, .. }), "{error}");
    assert!(matches!(history::read(&folder.path().join("none")), Err(Error::Io { .. })));
}

/// The records of an event file, frames undone and lengths followed.
fn records(bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().expect("eight bytes")) as usize;
        records.push(&rest[12..12 + length]);
        rest = &rest[12 + length + 4..];
    }
    records
}

#[test]
fn an_event_file_begins_with_its_version_and_holds_an_event_per_step() {
    let folder = tempfile::tempdir().expect("temp dir");
    let mut board = TensorBoard::create(&folder.path().join("tb")).expect("creates");
    board.write(300, &Metrics::from_iter([("a/b", 1.0)])).expect("writes");
    let bytes = fs::read(board.path()).expect("reads");
    let [version, event] = records(&bytes)[..] else { panic!("two records") };
    // Field 1: wall time, a double; field 3: the version.
    assert_eq!((version[0], &version[9..]), (0x09, &b"\x1a\x0dbrain.Event:2"[..]));
    // Field 2: the step; field 5: a summary of one value {1: tag, 2: number}.
    assert_eq!((event[0], &event[9..]), (0x09, &b"\x10\xac\x02\x2a\x0c\x0a\x0a\x0a\x03a/b\x15\x00\x00\x80\x3f"[..]));
    let second = TensorBoard::create(&folder.path().join("tb")).expect("creates");
    assert_ne!(board.path(), second.path(), "each opening has its own file");
}
