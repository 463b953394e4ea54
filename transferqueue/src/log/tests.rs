use std::{fs, path::Path};

use super::*;
use crate::{
    Options, Store,
    ids::Millis,
    snapshot,
    testing::{run, training},
};

fn record(seq: u64) -> Record {
    let events = vec![Event::ClockJumped { to: Millis(seq * 10) }];
    Record { version: Record::VERSION, seq, at: Millis(seq), call: None, reply: None, events }
}

fn policy(segment_bytes: u64) -> Policy {
    Policy { segment_bytes, flush: Flush::Publication, disk: crate::disk::machine() }
}

fn seqs(dir: &Path) -> Vec<u64> {
    read(dir).unwrap().map(|entry| entry.unwrap().record.seq).collect()
}

#[test]
fn what_is_appended_is_read_back_across_segments() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::create(dir.path(), policy(200)).unwrap();
    (0..10).for_each(|seq| log.append(&record(seq)).unwrap());
    let entries: Vec<Entry> = read(dir.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(
        entries.iter().map(|entry| entry.record.clone()).collect::<Vec<_>>(),
        (0..10).map(record).collect::<Vec<_>>()
    );
    let last = entries.last().unwrap();
    assert!(last.path.ends_with("000003.jsonl") && last.line >= 1, "{}", last.path.display());
}

#[test]
fn an_unfinished_last_line_is_cut_off_and_said_wherever_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::create(dir.path(), policy(1 << 20)).unwrap();
    (0..3).for_each(|seq| log.append(&record(seq)).unwrap());
    let path = dir.path().join("000000.jsonl");
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for end in [last + 1, last + 20, whole.len() - 1] {
        fs::write(&path, &whole[..end]).unwrap();
        let mut reader = read(dir.path()).unwrap();
        assert_eq!(reader.by_ref().map(|entry| entry.unwrap().record.seq).collect::<Vec<_>>(), [0, 1]);
        let expected = Torn { path: path.clone(), line: 3, offset: last as u64, bytes: (end - last) as u64 };
        assert_eq!(reader.torn(), Some(&expected));
        let copy = tempfile::tempdir().unwrap();
        fs::copy(&path, copy.path().join("000000.jsonl")).unwrap();
        let (mut resumed, torn) = Log::resume(copy.path(), policy(1 << 20)).unwrap();
        assert_eq!(torn.map(|torn| torn.line), Some(3));
        resumed.append(&record(2)).unwrap();
        assert_eq!(seqs(copy.path()), [0, 1, 2]);
    }
}

#[test]
fn any_other_damage_is_refused_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::create(dir.path(), policy(150)).unwrap();
    (0..6).for_each(|seq| log.append(&record(seq)).unwrap());
    let path = dir.path().join("000001.jsonl");
    let whole = fs::read(&path).unwrap();
    let damaged = |bytes: &[u8], expected: &str| {
        fs::write(&path, bytes).unwrap();
        let error = read(dir.path()).unwrap().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("000001.jsonl, line 2") && error.contains(expected), "{error}");
        fs::write(&path, &whole).unwrap();
    };
    let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for at in second..whole.len() - 1 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        if bytes[at] != b'\n' {
            damaged(&bytes, "the file is damaged");
        }
    }
    damaged(&whole[..whole.len() - 1], "an unfinished line before the last segment");
}

#[test]
fn numbers_come_back_to_the_last_bit() {
    use crate::catalog::command::{NewRow, Tag, Tags};
    let tag = |value| NewRow { key: None, tags: Tags::from([("x".to_owned(), Tag::Float(value))]) };
    let rows: Vec<NewRow> = [0.1 + 0.2, 1.0, -0.0, f64::MIN_POSITIVE, 5.0e-324, 123_456_789.123_456_78].map(tag).into();
    let put = Event::RowsPut { partition: crate::PartitionId(0), first: crate::RowId(0), rows, cells: vec![] };
    let told = Record { events: vec![put], ..record(0) };
    let line = line::write(&told);
    assert_eq!(line::parse(&line[..line.len() - 1]).unwrap(), told);
}

#[test]
fn a_log_of_a_newer_form_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::create(dir.path(), policy(1 << 20)).unwrap();
    log.append(&Record { version: Record::VERSION + 1, ..record(0) }).unwrap();
    let error = read(dir.path()).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("a record of form 2"), "{error}");
}

#[test]
fn a_folder_without_a_log_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for missing in [dir.path().to_owned(), dir.path().join("nowhere")] {
        assert!(matches!(read(&missing), Err(LogError::Missing { .. })));
        assert_eq!(last_lineage(&missing, 1).unwrap(), 0);
    }
}

#[test]
fn records_that_a_restore_took_back_are_history_but_do_not_survive() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::create(dir.path(), policy(1 << 20)).unwrap();
    (0..6).for_each(|seq| log.append(&record(seq)).unwrap());
    let (mut log, _) = Log::resume(dir.path(), policy(1 << 20)).unwrap();
    (4..6).for_each(|seq| log.append(&record(seq)).unwrap());
    let (mut log, _) = Log::resume(dir.path(), policy(1 << 20)).unwrap();
    (2..5).for_each(|seq| log.append(&record(seq)).unwrap());
    assert_eq!(seqs(dir.path()), [0, 1, 2, 3, 4, 5, 4, 5, 2, 3, 4]);
    let entries: Vec<Entry> = surviving(dir.path()).unwrap().map(Result::unwrap).collect();
    let places: Vec<_> =
        entries.iter().map(|e| (e.record.seq, e.path.file_stem().unwrap().to_str().unwrap())).collect();
    assert_eq!(places, [(0, "000000"), (1, "000000"), (2, "000002"), (3, "000002"), (4, "000002")]);
}

#[test]
fn a_whole_run_replays_to_its_state_also_after_it_was_restored_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (events, checkpoint) = (dir.path().join("events"), dir.path().join("checkpoint"));
    let store = Store::create(training(2), Options::at(dir.path())).unwrap();
    run(&store, 1); // the feeder closes the prompts after one cycle's worth
    store.snapshot(&checkpoint).unwrap();
    drop(store);
    let mut lineages = Vec::new();
    for _ in 0..2 {
        let store = Store::restore(&checkpoint, Options::at(dir.path())).unwrap();
        let session = store.session("late").unwrap();
        drop(session);
        let (state, lineage) = store.with_state(|state, _| (state.clone(), state.lineage())).unwrap();
        assert_eq!(replay(&events).unwrap().state(), &state);
        lineages.push(lineage);
    }
    assert_eq!(lineages, [1, 2], "no lineage is begun twice");
    let other = tempfile::tempdir().unwrap();
    drop(Store::create(training(1), Options::at(other.path())).unwrap());
    let foreign = Store::restore(&checkpoint, Options::at(other.path())).err().unwrap().to_string();
    assert!(foreign.contains("holds the events of catalog"), "{foreign}");
    assert_eq!(snapshot::latest(dir.path()).unwrap(), Some(checkpoint));
}

proptest::proptest! {
    #[test]
    fn no_line_makes_the_reader_panic(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), at in 0usize..200) {
        // Garbage, and garbage in the middle of a good line.
        let mut good = line::write(&record(3));
        let _ = line::parse(&noise);
        let at = at.min(good.len());
        good.splice(at..at, noise.iter().copied());
        good.retain(|byte| *byte != b'\n');
        if let Ok(parsed) = line::parse(&good) {
            proptest::prop_assert_eq!(parsed, record(3));
        }
    }
}
