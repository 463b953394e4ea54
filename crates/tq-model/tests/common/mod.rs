//! Where the tests' data lie.
#![allow(dead_code, clippy::print_stdout)]

pub(crate) mod models;

use std::path::{Path, PathBuf};

fn beside_workspace(variable: &str, default: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match std::env::var_os(variable) {
        Some(path) if Path::new(&path).is_absolute() => PathBuf::from(path),
        Some(path) => root.join(path),
        None => root.join(default),
    }
}

/// A file of golden values; says so when it is not there.
pub(crate) fn golden(name: &str) -> Option<PathBuf> {
    present(beside_workspace("TQ_GOLDEN", "../shared/golden").join(name))
}

/// A path in the shared folder; says so when it is not there.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    present(beside_workspace("TQ_SHARED", "../shared").join(name))
}

fn present(path: PathBuf) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} not found", path.display());
    None
}

pub(crate) fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub(crate) fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

pub(crate) fn ids(value: &serde_json::Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
}
