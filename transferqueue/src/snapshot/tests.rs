use std::{
    fs,
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    Claim, Error, Options, Outputs, Sampled, SavedRow, Store,
    catalog::definition::OnLost,
    ids::{PartitionId, RowId, Rows},
    testing::{self, soon, training},
};

/// A run with work in every stage of its life: one cycle published, the next one half done.
fn half_way(dir: &Path) -> Store {
    let store = Store::create(training(3), Options::at(dir)).unwrap();
    let session = store.session("all").unwrap();
    testing::publish(&session, None, 0);
    testing::feed(&session, 0, 6);
    for task in ["rollout", "reward", "advantage", "actor"] {
        drive(&session, task);
    }
    testing::feed(&session, 6, 9);
    for _ in 0..2 {
        assert!(testing::step(&session, "rollout"));
    }
    assert!(testing::step(&session, "reward"));
    store
}

/// Runs a stage for as long as something is ready for it.
fn drive(session: &crate::Session, task: &str) {
    let ready = |store: &crate::Session| match store.claim(task, 1, std::time::Instant::now()) {
        Ok(Claim::Lease(lease)) => {
            drop(lease);
            true
        }
        Ok(Claim::Ended) | Err(Error::Deadline(_)) => false,
        Err(error) => panic!("{error}"),
    };
    while ready(session) {
        testing::step(session, task);
    }
}

/// Every cell that can be read, in text: partition, row, column, value.
fn contents(store: &Store) -> Vec<String> {
    let mut all = Vec::new();
    let partitions = store.with_state(|state, _| state.partitions()).unwrap();
    for partition in partitions {
        let columns = store.with_state(|state, _| state.describe(partition.id)).unwrap().unwrap().columns;
        let rows = store.with_state(|state, _| state.rows(partition.id)).unwrap().unwrap();
        for (row, column) in rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column))) {
            if let Ok(batch) = store.read(partition.id, Some(&Rows::run(row, 1)), &[&column.name]) {
                let array = batch.gather().unwrap();
                all.push(format!("{} {row} {} {:?}", partition.name, column.name, array.column(0)));
            }
        }
    }
    all
}

#[test]
fn a_restored_store_has_the_cells_and_goes_on_to_the_same_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = half_way(dir.path());
    let before = contents(&store);
    for part in ["prompts 6 truth", "samples 9 response", "samples 9 reward", "weights/policy"] {
        assert!(before.iter().any(|cell| cell.starts_with(part)), "{part} in {before:#?}");
    }
    let manifest = store.snapshot(&dir.path().join("s")).unwrap();
    assert_eq!(manifest.version, 1);
    drop(store);
    let restored = Store::restore(&dir.path().join("s"), Options::at(dir.path())).unwrap();
    assert_eq!(contents(&restored), before);
    let reader = restored.session("reader").unwrap();
    let pinned = reader.pin("policy", None, soon()).unwrap();
    assert_eq!((pinned.version().version, pinned.version().lineage), (1, 0));
    drop(pinned);
    std::thread::scope(|scope| {
        for task in ["rollout", "reward", "advantage", "actor"] {
            let session = restored.session(task).unwrap();
            scope.spawn(move || while testing::step(&session, task) {});
        }
        scope.spawn(|| {
            testing::feed(&reader, 9, 12);
            reader.close_partition(PartitionId(0)).unwrap();
        });
    });
    assert_eq!(restored.with_state(|state, _| state.version()).unwrap(), 3);
    for entry in restored.with_state(|state, _| state.ledger()).unwrap() {
        assert!(entry.balanced() && entry.live == 0, "{entry:?}");
    }
}

#[test]
fn leases_return_with_a_restore() {
    let dir = tempfile::tempdir().unwrap();
    let store = half_way(dir.path());
    let session = store.session("holder").unwrap();
    let lease = session.claim("reward", 2, soon()).unwrap().lease().unwrap();
    store.snapshot(&dir.path().join("s")).unwrap();
    let restored = Store::restore(&dir.path().join("s"), Options::default()).unwrap();
    let next = restored.session("next").unwrap();
    let again = next.claim("reward", 2, soon()).unwrap().lease().unwrap();
    assert_eq!(again.rows(), lease.rows());
}

#[test]
fn a_publication_hook_captures_exactly_the_publication() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(training(2), Options::default()).unwrap();
    let captured = Arc::new(Mutex::new(Vec::new()));
    let keep = captured.clone();
    store.on_publication(move |publication| keep.lock().unwrap().push(publication.capture())).unwrap();
    testing::run(&store, 2);
    let captured = std::mem::take(&mut *captured.lock().unwrap());
    for (version, captured) in captured.into_iter().enumerate() {
        let path = dir.path().join(format!("v{version}"));
        assert_eq!(captured.write(&path).unwrap().version, version as u64);
        let restored = Store::restore(&path, Options::default()).unwrap();
        let pinned = restored.session("reader").unwrap().pin("policy", None, soon()).unwrap();
        assert_eq!(
            pinned.read(&["data"]).unwrap().binary("data").unwrap().row(0),
            format!("weights {version}").as_bytes()
        );
    }
    assert_eq!(latest(dir.path()).unwrap(), Some(dir.path().join("v2")));
}

#[test]
fn only_live_cells_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = half_way(dir.path());
    let manifest = store.snapshot(&dir.path().join("s")).unwrap();
    let live = store.with_state(|state, _| state.live_cells().map(|run| u64::from(run.len)).sum::<u64>()).unwrap();
    let mut written = 0;
    for file in manifest.files.iter().filter(|file| file.name.ends_with(".arrow")) {
        let file = fs::File::open(dir.path().join("s").join(&file.name)).unwrap();
        let reader = arrow::ipc::reader::FileReader::try_new(file, None).unwrap();
        written += reader.map(|batch| batch.unwrap().num_rows() as u64).sum::<u64>();
    }
    assert_eq!(written, live);
    let held = store.units().stats().total().cells;
    assert!(held > live, "{held} cells in chunks, dead ones among them, {live} alive");
}

#[test]
fn every_damaged_byte_is_found_and_the_file_named() {
    let dir = tempfile::tempdir().unwrap();
    half_way(dir.path()).snapshot(&dir.path().join("s")).unwrap();
    let manifest = Manifest::load(&dir.path().join("s")).unwrap();
    for entry in &manifest.files {
        let path = dir.path().join("s").join(&entry.name);
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x10;
        for damaged in [&flipped[..], &whole[..whole.len() - 1], &[]] {
            fs::write(&path, damaged).unwrap();
            let error = Store::restore(&dir.path().join("s"), Options::default()).err().unwrap();
            assert!(matches!(error, Error::Snapshot(SnapshotError::Damaged { .. })), "{error}");
            assert!(error.to_string().contains(&entry.name), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let missing = Store::restore(&dir.path().join("s"), Options::default()).err().unwrap().to_string();
        assert!(missing.contains(&entry.name), "{missing}");
        fs::write(&path, whole).unwrap();
    }
    Store::restore(&dir.path().join("s"), Options::default()).unwrap();
}

#[test]
fn each_of_many_flipped_bits_is_harmless_or_refused_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    half_way(dir.path()).snapshot(&path).unwrap();
    let told = |store: &Store| (contents(store), store.with_state(|state, _| state.ledger()).unwrap());
    let whole = told(&Store::restore(&path, Options::default()).unwrap());
    let mut names: Vec<String> = Manifest::load(&path).unwrap().files.into_iter().map(|file| file.name).collect();
    names.push("manifest.json".to_owned());
    let mut refused = 0;
    for flip in 0..400_usize {
        let name = &names[flip % names.len()];
        let bytes = fs::read(path.join(name)).unwrap();
        let mut damaged = bytes.clone();
        // Places and bits all over the file, the same in every run.
        let at = flip.wrapping_mul(2_654_435_761) % bytes.len();
        damaged[at] ^= 1 << (flip % 8);
        fs::write(path.join(name), &damaged).unwrap();
        match Store::restore(&path, Options::default()) {
            Ok(store) => assert!(told(&store) == whole, "bit {} of byte {at} of {name} changes what is read", flip % 8),
            Err(error) => {
                refused += 1;
                // The manifest names other files; a wrong name or checksum of it shows there.
                let by_file = error.to_string().contains(name) || name == "manifest.json";
                assert!(by_file, "byte {at} of {name}: {error}");
                assert!(error.to_string().contains(path.to_str().unwrap()), "byte {at} of {name}: {error}");
            }
        }
        fs::write(path.join(name), &bytes).unwrap();
    }
    assert!(refused > 300, "{refused} of 400 were refused");
}

#[test]
fn foreign_files_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let other = dir.path().join("other");
    half_way(dir.path()).snapshot(&path).unwrap();
    Store::create(training(1), Options::default()).unwrap().snapshot(&other).unwrap();
    let whole = fs::read(path.join("manifest.json")).unwrap();
    let refused = |manifest: &Manifest, expected: &str| {
        fs::write(path.join("manifest.json"), serde_json::to_vec(manifest).unwrap()).unwrap();
        let error = Store::restore(&path, Options::default()).err().unwrap().to_string();
        assert!(error.contains("is foreign") && error.contains(expected), "{error}");
        fs::write(path.join("manifest.json"), &whole).unwrap();
    };
    let manifest = Manifest::load(&path).unwrap();
    refused(&Manifest { format: "npz".into(), ..manifest.clone() }, "manifest.json");
    refused(&Manifest { seq: manifest.seq + 1, ..manifest.clone() }, "state.json");
    let mut retyped = manifest.clone();
    let samples = retyped.partitions.iter_mut().find(|partition| partition.name == "samples").unwrap();
    samples.columns[0].kind = crate::Kind::Utf8;
    refused(&retyped, "p1.c0.arrow");
    let mut without_state = manifest;
    without_state.files.retain(|file| file.name != "state.json");
    refused(&without_state, "state.json");
    fs::write(path.join("manifest.json"), "{").unwrap();
    assert!(Store::restore(&path, Options::default()).err().unwrap().to_string().contains("manifest.json is damaged"));
}

#[test]
fn an_unfinished_snapshot_is_none_and_a_finished_one_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(latest(&dir.path().join("nowhere")).unwrap(), None);
    let store = half_way(dir.path());
    store.snapshot(&dir.path().join("s")).unwrap();
    let again = store.snapshot(&dir.path().join("s")).unwrap_err().to_string();
    assert!(again.contains("already exists"), "{again}");
    let unfinished = dir.path().join(format!("t.1.{}", write::UNFINISHED));
    fs::create_dir(&unfinished).unwrap();
    for file in ["manifest.json", "state.json"] {
        fs::copy(dir.path().join("s").join(file), unfinished.join(file)).unwrap();
    }
    fs::create_dir(dir.path().join("empty")).unwrap();
    assert_eq!(latest(dir.path()).unwrap(), Some(dir.path().join("s")));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_str().unwrap().starts_with("s.")), "{names:?}");
}

#[test]
fn chunk_ids_of_a_new_life_are_new() {
    let dir = tempfile::tempdir().unwrap();
    let store = half_way(dir.path());
    let old: Vec<_> = store.with_state(|state, _| state.live_cells().map(|run| run.chunk).collect()).unwrap();
    store.snapshot(&dir.path().join("s")).unwrap();
    let restored = Store::restore(&dir.path().join("s"), Options::default()).unwrap();
    let session = restored.session("rollout").unwrap();
    assert!(testing::step(&session, "rollout"));
    let samples = session.partition("samples").unwrap();
    let new = restored.with_state(|state, _| state.live_cells().map(|run| run.chunk).max()).unwrap().unwrap();
    assert!(old.iter().all(|chunk| *chunk < new), "{new} is among {old:?}");
    let row = Rows::run(RowId(8), 1);
    assert!(restored.read(samples, Some(&row), &["response"]).is_ok());
}

#[test]
fn a_snapshot_goes_from_one_unit_to_three_to_two_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let store = half_way(dir.path());
    let before = contents(&store);
    let mut taken = dir.path().join("one");
    store.snapshot(&taken).unwrap();
    drop(store);
    for units in [3, 2, 1, 4] {
        let store = Store::restore(&taken, Options { units, ..Options::default() }).unwrap();
        assert_eq!(contents(&store), before, "{units} units");
        let live: Vec<u64> = store.units().iter().map(|unit| unit.stats().total().live).collect();
        assert!(live.len() == units && live.iter().all(|bytes| *bytes > 0), "{live:?}");
        // The same position goes on, from these units to the next ones.
        taken = dir.path().join(format!("after-{units}"));
        store.snapshot(&taken).unwrap();
        // What is put from now on lies beside it, under numbers of its own.
        assert!(testing::step(&store.session("reward").unwrap(), "reward"));
        assert_eq!(store.units().chunk_ids(), chunks(&store), "{units} units");
    }
}

/// The chunks that the catalog names.
fn chunks(store: &Store) -> std::collections::BTreeSet<ChunkId> {
    store.with_state(|state, _| state.live_cells().map(|run| run.chunk).collect()).unwrap()
}

#[test]
fn what_a_worker_saved_comes_back_with_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let [first, taken, second] = ["first", "taken", "second"].map(|name| dir.path().join(name));
    let mut definition = training(1);
    definition.tasks[0].on_lost = OnLost::Resume;
    let store = Store::create(definition, Options::at(&first)).unwrap();
    let session = store.session("rollout-0").unwrap();
    testing::publish(&session, None, 0);
    testing::feed(&session, 0, 4);
    let mut lease = session.claim("rollout", 3, soon()).unwrap().lease().unwrap();
    let (rows, sampled) = (Rows::run(RowId(1), 2), vec![Sampled { version: 0, tokens: 2 }]);
    let begun = Outputs::for_rows(rows.clone()).ragged("response", [vec![7, 8], vec![9, 10]]);
    let said = rows.iter().map(|row| SavedRow { row, sampled: sampled.clone() }).collect();
    lease.save(begun, said).unwrap();
    store.snapshot(&taken).unwrap();

    let store = Store::restore(&taken, Options::at(&second)).unwrap();
    store.with_state(|state, _| state.verify()).unwrap().unwrap();
    let lease = store.session("rollout-1").unwrap().claim("rollout", 8, soon()).unwrap().lease().unwrap();
    let saved = lease.saved().unwrap();
    assert_eq!((saved.len(), saved[0].batch.rows(), &saved[0].sampled), (1, &rows, &vec![sampled; 2]));
    let tokens: Vec<Vec<i32>> = saved[0].batch.ragged::<i32>("response").unwrap().iter().map(<[i32]>::to_vec).collect();
    assert_eq!(tokens, [[7, 8], [9, 10]]);
}
