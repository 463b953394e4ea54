//! Spill files that an earlier life of the store, or someone, left: their cells are views of a mapping.

use std::{fs, sync::Arc};

use super::{files::Folder, world::columns};
use crate::{
    arrow_map,
    catalog::command::{CellRun, SpillFile},
    ids::{ChunkId, ColumnId, PartitionId},
    unit::{Backing, Spills, Unit},
};

const KEY: (PartitionId, ColumnId) = (PartitionId(0), ColumnId(0));

fn unit(folder: &Folder) -> Unit {
    let spills = Spills::open(&folder.0, false, |number| number == 0).unwrap();
    Unit::over(Backing::Heap, Some(Arc::new(spills)), 1 << 20, 1, 0)
}

/// Behind a byte that picks the column: a spill file, its length and checksum set right. What is found in it can be read to
/// its last byte, and the file goes with its last chunk.
pub fn spills(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let column = &columns()[usize::from(which) % columns().len()];
    let folder = Folder::new();
    let path = folder.0.join("000000.arrow");
    fs::write(&path, bytes).unwrap();
    let file = SpillFile { number: 0, bytes: bytes.len() as u64, crc32: crc32fast::hash(bytes) };
    let unit = unit(&folder);
    let Ok(found) = unit.find_spilled(column, file) else { return };
    unit.go_on();
    let chunks: Vec<(ChunkId, Vec<(u32, usize)>)> = found
        .into_iter()
        .map(|(chunk, pieces)| {
            let slots = pieces.pieces().iter().map(|(first, array)| (*first, array.len())).collect();
            unit.adopt_spilled(KEY, chunk, pieces);
            (chunk, slots)
        })
        .collect();
    for (chunk, slots) in &chunks {
        for &(slot, len) in slots {
            let run = CellRun { chunk: *chunk, generation: 0, slot, len: len as u32 };
            let views = unit.read(KEY.0, KEY.1, &[run]).expect("adopted");
            let cells: Vec<_> = views.iter().map(|view| view.array().clone()).collect();
            assert_eq!(arrow_map::copy(column, &cells).unwrap().len(), len);
        }
    }
    chunks.iter().for_each(|(chunk, _)| unit.free(*chunk));
    // One without any was let go before files went: the next life of the store deletes it.
    assert!(chunks.is_empty() || !path.exists(), "the file goes with its last chunk");
}

/// Real spill files, of every kind of column, as [`spills`] takes them.
#[cfg(test)]
pub(super) fn real() -> Vec<Vec<u8>> {
    use super::world::values;
    use crate::{RowId, Rows, unit::Units};

    let encoded = values(3).arrays("all", &columns(), &Rows::run(RowId(0), 3)).unwrap();
    let of = |(at, column): (usize, &crate::schema::Column)| {
        let folder = Folder::new();
        let units = Units::from(unit(&folder));
        let placed = units.write(KEY.0, KEY.1, column, encoded[at].1.clone()).unwrap();
        let chunk = placed.chunk;
        units.committed(chunk);
        drop(placed);
        // The cell between them has died.
        let live = units.close_chunks(&[(chunk, vec![0, 2])].into());
        let file = units.write_out(column, &live).unwrap().expect("cells may leave memory");
        let bytes = fs::read(folder.0.join("000000.arrow")).unwrap();
        assert_eq!((file.number, file.bytes), (0, bytes.len() as u64));
        [&[at as u8], &bytes[..]].concat()
    };
    columns().iter().enumerate().map(of).collect()
}
