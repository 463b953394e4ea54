//! Damaged logs and arenas: refused by file, or harmless.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
};

use transferqueue::{Error, NewRow, Outputs, Store};

use crate::{copy, definition, options, soon};

fn life(dir: &Path) {
    let store = Store::create(definition(), options(dir)).unwrap();
    let session = store.session("feeder").unwrap();
    let jobs = session.partition("jobs").unwrap();
    let outputs = Outputs::new()
        .dense("number", (0..1000).collect::<Vec<i64>>())
        .utf8("text", (0..1000).map(|number| number.to_string()).collect::<Vec<_>>());
    session.put(jobs, vec![NewRow::default(); 1000], outputs, soon()).unwrap();
}

/// The numbers and texts that a recovered store serves.
fn served(dir: &Path) -> Result<Vec<(i64, String)>, Error> {
    let (store, _) = Store::recover(&options(dir), |_, _, _| {})?;
    let jobs = store.with_state(|state, _| state.partition("jobs"))?.unwrap();
    let batch = store.read(jobs, None, &["number", "text"])?;
    let numbers = batch.dense::<i64>("number")?.to_vec();
    let texts: Vec<String> = batch.utf8("text")?.iter().map(str::to_owned).collect();
    Ok(numbers.into_iter().zip(texts).collect())
}

#[test]
fn two_hundred_flipped_bits_are_harmless_or_refused_by_file() {
    let original = tempfile::tempdir().unwrap();
    life(original.path());
    let right: Vec<(i64, String)> = (0..1000).map(|n| (n, n.to_string())).collect();
    let mut files = Vec::new();
    for folder in ["events", "arena"] {
        let paths = fs::read_dir(original.path().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let paths = paths.filter(|path| path.metadata().unwrap().len() > 0);
        files.extend(paths.map(|path| path.strip_prefix(original.path()).unwrap().to_owned()));
    }
    files.sort();
    let (mut refused, mut harmless, mut random) = (0, 0, 0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..200 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let file = &files[(random >> 33) as usize % files.len()];
        let dir = tempfile::tempdir().unwrap();
        copy(original.path(), dir.path());
        let path = dir.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        // Payloads fill the beginning of their file; the rest is room.
        let at = (random >> 7) as usize % bytes.len().min(24_000);
        bytes[at] ^= 1 << (random % 8);
        fs::write(&path, &bytes).unwrap();
        match served(dir.path()) {
            Ok(found) => {
                assert_eq!(found, right, "{} at {at}", file.display());
                harmless += 1;
            }
            Err(error) => {
                let (text, folder) = (error.to_string(), file.parent().unwrap().to_str().unwrap());
                assert!(text.contains(folder), "{} at {at}: {text}", file.display());
                refused += 1;
                // A recovery that was refused has taken nothing along: mended, all of it is there.
                bytes[at] ^= 1 << (random % 8);
                fs::write(&path, &bytes).unwrap();
                assert_eq!(served(dir.path()).unwrap(), right, "{} mended at {at}", file.display());
            }
        }
    }
    assert!(refused > 50 && harmless > 0, "{refused} refused, {harmless} harmless");
}

#[test]
fn a_torn_last_record_is_cut_off_and_said() {
    let dir = tempfile::tempdir().unwrap();
    life(dir.path());
    let log = fs::read_dir(dir.path().join("events")).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    OpenOptions::new().append(true).open(log).unwrap().write_all(b"{\"version\":1,\"seq\":99,").unwrap();
    let (_, recovered) = Store::recover(&options(dir.path()), |_, _, _| {}).unwrap();
    assert_eq!(recovered.torn.unwrap().bytes, 22);
    assert_eq!(served(dir.path()).unwrap().len(), 1000);
}

#[test]
fn a_missing_file_of_the_arena_is_refused_with_the_cells_it_held() {
    let dir = tempfile::tempdir().unwrap();
    life(dir.path());
    for name in ["000000.data", "000000.index"] {
        fs::remove_file(dir.path().join("arena").join(name)).unwrap();
    }
    let error = served(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no payload holds cells 0..1000 of chunk"), "{error}");
}

#[test]
fn bytes_of_another_store_are_foreign() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    life(one.path());
    life(other.path());
    fs::remove_dir_all(one.path().join("arena")).unwrap();
    copy(&other.path().join("arena"), &one.path().join("arena"));
    let error = served(one.path()).unwrap_err().to_string();
    assert!(error.contains("holds the bytes of store") && error.contains("expected those of"), "{error}");
}

/// What the next worker of `square` finds saved, and how many rows were forgotten.
fn saved(dir: &Path) -> (Vec<i64>, usize) {
    let (store, recovered) = Store::recover(&options(dir), |_, _, _| {}).unwrap();
    store.with_state(|state, _| state.verify()).unwrap().unwrap();
    let lease = store.session("square-1").unwrap().claim("square", 3, soon()).unwrap().lease().unwrap();
    let saved = lease.saved().unwrap();
    (saved.iter().flat_map(|saved| saved.batch.dense::<i64>("square").unwrap().to_vec()).collect(), recovered.forgotten)
}

#[test]
fn saved_work_is_found_again_and_where_its_bytes_are_damaged_its_rows_begin_anew() {
    const BEGUN: i64 = 0x0123_4567_89ab_cdef;
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    life(dir.path());
    let (store, _) = Store::recover(&options(dir.path()), |_, _, _| {}).unwrap();
    let mut lease = store.session("square-0").unwrap().claim("square", 2, soon()).unwrap().lease().unwrap();
    lease.save(Outputs::new().dense("square", [BEGUN, 1]), vec![]).unwrap();
    drop((lease, store));
    copy(dir.path(), other.path());
    assert_eq!(saved(other.path()), (vec![BEGUN, 1], 0));
    let mut damaged = 0;
    for entry in fs::read_dir(dir.path().join("arena")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(8).position(|window| window == BEGUN.to_le_bytes()) {
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1, "its bytes lie in one file");
    assert_eq!(saved(dir.path()), (vec![], 2));
    // What was forgotten stays forgotten, and the cells that others need are served.
    assert_eq!(saved(dir.path()), (vec![], 0));
    assert_eq!(served(dir.path()).unwrap().len(), 1000);
}
