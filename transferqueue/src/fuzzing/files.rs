//! Files that another life of the store, or someone, left.

use std::{
    fs,
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::world::World;
use crate::{
    checked_line,
    ids::{ChunkId, RowId},
    inspect::history::Story,
    log::{self, line},
    snapshot::{self, Manifest},
    unit::Unit,
};

/// A folder of its own in memory where there is such a file system, gone when dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("tq-fuzzing-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Lines of an event log: as they are, and with a checksum that is right. A folder whose segments (cut at each byte 0)
/// they are.
pub fn log(bytes: &[u8]) {
    let mut story = Story::new(RowId(1), "samples");
    for found in bytes.split(|byte| *byte == b'\n') {
        drop(line::parse(found));
        let sealed = checked_line::sealed(found.strip_suffix(b"}").unwrap_or(found).to_vec());
        if let Ok(record) = line::parse(&sealed[..sealed.len() - 1]) {
            story.tell(&record);
        }
    }
    let folder = Folder::new();
    for (number, segment) in bytes.split(|byte| *byte == 0).take(4).enumerate() {
        fs::write(folder.0.join(format!("{number:06}.jsonl")), segment).unwrap();
    }
    if let Ok(mut reader) = log::read(&folder.0) {
        let read = reader.by_ref().count();
        let torn = reader.torn().is_some();
        assert!(!torn || read <= bytes.len());
    }
    drop(log::last_lineage(&folder.0, 7));
}

/// Names and content of a snapshot of a run under way.
fn whole() -> &'static [(String, Vec<u8>)] {
    static WHOLE: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let folder = Folder::new();
        let path = folder.0.join("s");
        let manifest = World::training().store.snapshot(&path).unwrap();
        let names = manifest.files.iter().map(|file| file.name.clone()).chain(["manifest.json".to_owned()]);
        names.map(|name| (name.clone(), fs::read(path.join(name)).unwrap())).collect()
    })
}

/// A snapshot with one file (the first byte says which) that is something else, its checksum set right.
pub fn snapshot(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let whole = whole();
    let which = usize::from(which) % whole.len();
    let folder = Folder::new();
    fs::create_dir(folder.0.join("cells")).unwrap();
    let content = |at: usize| if at == which { bytes } else { &whole[at].1 };
    let mut manifest: Manifest = serde_json::from_slice(&whole.last().unwrap().1).unwrap();
    for file in &mut manifest.files {
        let at = whole.iter().position(|(name, _)| *name == file.name).unwrap();
        (file.bytes, file.crc32) = (content(at).len() as u64, crc32fast::hash(content(at)));
    }
    let manifest = serde_json::to_vec(&manifest).unwrap();
    for (at, (name, _)) in whole.iter().enumerate() {
        let right = if at + 1 == whole.len() && at != which { &manifest[..] } else { content(at) };
        fs::write(folder.0.join(name), right).unwrap();
    }
    let Ok(taken) = snapshot::read(&folder.0) else { return };
    let unit = Unit::new(1 << 20, 1);
    let chunks: Vec<ChunkId> = taken.chunks.iter().map(|chunk| chunk.id).collect();
    taken.chunks.into_iter().for_each(|chunk| unit.adopt(chunk.key, chunk.id, chunk.pieces, true));
    chunks.into_iter().for_each(|chunk| drop(unit.grant(chunk).map(|grant| grant.pieces())));
    drop(unit.stats());
}

#[cfg(test)]
pub(super) fn snapshot_files() -> &'static [(String, Vec<u8>)] {
    whole()
}
