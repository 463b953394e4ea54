//! The corpus, and real messages, through every decoder.

use std::{fs, path::PathBuf};

use super::{TARGETS, seeds};

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

/// What fuzzers found once stays found: every file of the corpus, on every run of the tests.
#[test]
fn the_corpus_is_decoded_or_refused() {
    for (name, target) in TARGETS {
        let folder = corpus().join(name);
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut replayed = 0;
        for file in files {
            let path = file.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let done = std::panic::catch_unwind(|| target(&bytes));
            assert!(done.is_ok(), "{name} panics on {}", path.display());
            replayed += 1;
        }
        assert!(replayed >= 6, "{replayed} files for {name} in {}", folder.display());
    }
}

#[test]
fn real_messages_get_through_every_target() {
    for (target, name, bytes) in seeds::all() {
        let (_, decode) = TARGETS.into_iter().find(|(known, _)| *known == target).unwrap();
        let done = std::panic::catch_unwind(|| decode(&bytes));
        assert!(done.is_ok(), "{target} panics on {name}");
    }
}

/// `make fuzz-seeds`: real messages into `fuzz/corpus`.
#[test]
#[ignore = "writes into the repository: make fuzz-seeds"]
fn write_seeds() {
    for (target, name, bytes) in seeds::all() {
        fs::create_dir_all(corpus().join(target)).unwrap();
        fs::write(corpus().join(target).join(name), bytes).unwrap();
    }
}
