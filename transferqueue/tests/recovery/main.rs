//! A store whose process is killed goes on where it was, under its clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod killed;
mod reopened;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use transferqueue::{
    Column, Definition, Dtype, Durability, Kind, Options,
    catalog::definition::{Birth, OnLost, Partition, Task},
};

/// Far enough away that only a defect reaches it.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Rows of a number and a text; `square` makes squares of the numbers, `sum` reads squares and texts.
fn definition() -> Definition {
    let number = |name: &str| Column::new(name, Kind::Dense { dtype: Dtype::I64, shape: vec![] });
    let columns = vec![number("number"), Column::new("text", Kind::Utf8), number("square")];
    let partitions = vec![Partition { name: "jobs".into(), columns, birth: Birth::Put { capacity: None } }];
    let square = Task {
        reads: vec!["number".into()],
        writes: vec!["square".into()],
        on_lost: OnLost::Resume,
        ..Task::new("square", "jobs")
    };
    let sum = Task { reads: vec!["square".into(), "text".into()], ..Task::new("sum", "jobs") };
    let tasks = vec![square, sum].into_iter().map(|task| Task { attempts: 1_000, ..task }).collect();
    Definition { partitions, tasks, ..Definition::default() }
}

/// Bytes and events outlive the process; small files, so that many are filled and emptied.
fn options(dir: &Path) -> Options {
    Options {
        durability: Durability::Process,
        arena_segment_bytes: 64 << 10,
        chunk_bytes: 4 << 10,
        segment_bytes: 64 << 10,
        ..Options::at(dir)
    }
}

/// The same with two units.
fn two(dir: &Path) -> Options {
    Options { units: 2, ..options(dir) }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { _ = fs::copy(&path, &target).unwrap() }
    }
}
