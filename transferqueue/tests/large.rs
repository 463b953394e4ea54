//! `make snapshot`: a snapshot of 1 GiB, restored into memory (one unit, and three) and stored into the files of two units,
//! recovered; every byte is compared.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and this one tells figures")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use transferqueue::{
    Column, Definition, Dtype, Durability, Kind, NewRow, Options, Outputs, RowId, Rows, Store,
    catalog::definition::{Birth, Partition},
};

const ROWS: u64 = 65_536;
/// Rows of one put.
const STEP: u64 = 256;
/// Numbers of a dense cell; a ragged one has up to as many tokens.
const WIDTH: u64 = 3_072;

fn definition() -> Definition {
    let columns = vec![
        Column::new("hidden", Kind::Dense { dtype: Dtype::F32, shape: vec![WIDTH as usize] }),
        Column::new("tokens", Kind::Ragged { dtype: Dtype::I32, inner: vec![] }),
        Column::new("text", Kind::Utf8),
    ];
    let partitions = vec![Partition { name: "samples".into(), columns, birth: Birth::Put { capacity: None } }];
    Definition { partitions, ..Definition::default() }
}

/// SplitMix64 of a row and a position: what every cell is made of.
fn value(row: u64, at: u64) -> u64 {
    let mut z = row.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

fn hidden(row: u64) -> impl Iterator<Item = f32> {
    (0..WIDTH).map(move |at| (value(row, at) >> 40) as f32)
}

fn tokens(row: u64) -> Vec<i32> {
    (0..value(row, WIDTH) % 2_048).map(|at| value(row, at) as i32).collect()
}

fn fill(store: &Store) {
    let session = store.session("feeder").unwrap();
    let samples = session.partition("samples").unwrap();
    for first in (0..ROWS).step_by(STEP as usize) {
        let rows = first..first + STEP;
        let outputs = Outputs::new()
            .dense("hidden", rows.clone().flat_map(hidden).collect::<Vec<f32>>())
            .ragged("tokens", rows.clone().map(tokens).collect::<Vec<_>>())
            .utf8("text", rows.map(|row| format!("row {row}")));
        let deadline = Instant::now() + Duration::from_secs(60);
        session.put(samples, vec![NewRow::default(); STEP as usize], outputs, deadline).unwrap();
    }
}

fn compare(store: &Store) {
    let samples = store.with_state(|state, _| state.partition("samples")).unwrap().unwrap();
    for first in (0..ROWS).step_by(STEP as usize) {
        let rows = Rows::run(RowId(first), STEP);
        let batch = store.read(samples, Some(&rows), &["hidden", "tokens", "text"]).unwrap();
        let (dense, ragged, text) = (batch.dense::<f32>("hidden"), batch.ragged::<i32>("tokens"), batch.utf8("text"));
        let (dense, ragged, text) = (dense.unwrap(), ragged.unwrap(), text.unwrap());
        for at in 0..STEP as usize {
            let row = first + at as u64;
            assert!(dense.row(at).iter().copied().eq(hidden(row)), "hidden of row {row}");
            assert_eq!(ragged.row(at), tokens(row), "tokens of row {row}");
            assert_eq!(text.row(at), format!("row {row}"));
        }
    }
}

fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.path().is_dir() { size(&entry.path()) } else { entry.metadata().unwrap().len() }).sum()
}

fn timed<T>(what: &str, bytes: u64, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    println!(
        "{what}: {:.2} s, {:.2} GB/s",
        begun.elapsed().as_secs_f64(),
        bytes as f64 / 1e9 / begun.elapsed().as_secs_f64()
    );
    done
}

#[test]
#[ignore = "a gigabyte: make snapshot"]
fn a_gigabyte_comes_back_byte_for_byte_from_a_snapshot_and_from_files() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (snapshot, run) = (dir.path().join("snapshot"), dir.path().join("run"));
    let store = Store::create(definition(), Options::default()).unwrap();
    fill(&store);
    let live = store.units().stats().total().live;
    assert!(live > 1 << 30, "{live} bytes");
    timed("snapshot written", live, || store.snapshot(&snapshot).unwrap());
    drop(store);
    let ratio = size(&snapshot) as f64 / live as f64;
    println!("size of the snapshot: {ratio:.4} of {live} live bytes");
    assert!(ratio <= 1.05, "{ratio}");
    let store = timed("restored into memory", live, || Store::restore(&snapshot, Options::default()).unwrap());
    compare(&store);
    drop(store);
    let three = Options { units: 3, ..Options::default() };
    let store = timed("restored into three units", live, || Store::restore(&snapshot, three).unwrap());
    let shares: Vec<u64> = store.units().iter().map(|unit| unit.stats().total().live).collect();
    println!("live bytes of each unit: {shares:?}");
    assert!(shares.len() == 3 && shares.iter().all(|share| *share > live / 4), "{shares:?}");
    compare(&store);
    drop(store);
    let lasting = Options { durability: Durability::Process, units: 2, ..Options::at(&run) };
    let store = Store::create(definition(), lasting.clone()).unwrap();
    timed("stored into files", live, || fill(&store));
    drop(store);
    let (store, recovered) = timed("recovered from files", live, || Store::recover(&lasting, |_, _, _| {}).unwrap());
    assert_eq!(recovered.bytes, store.units().stats().total().live);
    compare(&store);
}
