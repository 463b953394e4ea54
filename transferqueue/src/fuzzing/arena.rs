//! The files of an arena: what a killed store, or someone, left; and what is stored, let go and found again.

use std::{collections::BTreeMap, fs};

use arrow::array::ArrayRef;

use super::files::Folder;
use crate::{
    arrow_map::{self, bytes_array, dense_array, ragged_array},
    checked_line,
    disk::machine,
    ids::{ChunkId, ColumnId, PartitionId},
    schema::{Column, Dtype, Kind},
    unit::arena::{Arena, Entry, Payload},
};

/// Small segments: a few payloads fill one.
const SEGMENT: usize = 8 << 10;

fn columns() -> [Column; 4] {
    [
        Column::new("dense", Kind::Dense { dtype: Dtype::I32, shape: vec![2] }),
        Column::new("ragged", Kind::Ragged { dtype: Dtype::I64, inner: vec![] }),
        Column::new("text", Kind::Utf8),
        Column::new("bytes", Kind::Binary),
    ]
}

/// Behind an even first byte: lines of an index (up to a byte 0; their checksums are set right) and the data they speak of.
/// Behind an odd one: payloads that are stored, let go, and looked for in the next life of the arena.
pub fn arena(bytes: &[u8]) {
    match bytes.split_first() {
        Some((kind, rest)) if kind % 2 == 0 => left(rest),
        Some((_, rest)) => kept(rest),
        None => {}
    }
}

fn left(bytes: &[u8]) {
    let folder = Folder::new();
    Arena::create(machine(), &folder.0, SEGMENT, 7).unwrap().close();
    let (text, payload) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    let mut data = payload.to_vec();
    data.resize(SEGMENT, 0);
    let mut index = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let sealed = checked_line::sealed(line.strip_suffix(b"}").unwrap_or(line).to_vec());
        match checked_line::parse::<Entry>(&sealed[..sealed.len() - 1]) {
            Ok(mut entry) => {
                let range = usize::try_from(entry.place.at).ok().and_then(|at| {
                    let end = at.checked_add(usize::try_from(entry.place.bytes()).ok()?)?;
                    data.get(at..end)
                });
                entry.place.crc32 = range.map_or(entry.place.crc32, crc32fast::hash);
                index.extend(checked_line::write(&entry));
            }
            Err(_) => index.extend(sealed),
        }
    }
    fs::write(folder.0.join("000000.index"), index).unwrap();
    fs::write(folder.0.join("000000.data"), data).unwrap();
    let Ok((arena, found)) = Arena::open(machine(), &folder.0, SEGMENT) else { return };
    arena.go_on();
    for (found, column) in found.iter().flat_map(|found| columns().map(|column| (found, column))) {
        if let Ok(cells) = found.cells(&column) {
            // Every byte is looked at.
            assert_eq!(&arrow_map::copy(&column, [&cells]).unwrap(), &cells);
        }
    }
    drop(found);
    arena.close();
}

/// Cells whose content follows from two bytes.
fn cells(kind: usize, rows: u8, seed: u8) -> (Column, ArrayRef) {
    let column = columns()[kind].clone();
    let lens: Vec<usize> = (0..rows).map(|row| usize::from(row.wrapping_mul(seed)) % 40).collect();
    let total: usize = lens.iter().sum();
    let rows = usize::from(rows);
    let array = match kind {
        0 => dense_array(&column.kind, rows, vec![i32::from(seed); 2 * rows].into()),
        1 => ragged_array("ragged", &column.kind, &lens, vec![i64::from(seed); total].into()).unwrap(),
        _ => bytes_array(&column.name, &column.kind, &lens, vec![seed % 128; total].into()).unwrap(),
    };
    (column, array)
}

fn kept(bytes: &[u8]) {
    let folder = Folder::new();
    let mut arena = Arena::create(machine(), &folder.0, SEGMENT, 7).unwrap();
    // By chunk: what is held, and what it was made of.
    let mut there: BTreeMap<u64, (ArrayRef, (usize, u8, u8))> = BTreeMap::new();
    for (chunk, step) in (0..).zip(bytes.chunks_exact(3).take(200)) {
        match step[0] % 8 {
            // Let one go.
            0 | 1 => {
                let nth = there.keys().nth(usize::from(step[1]) % there.len().max(1)).copied();
                nth.map(|chunk| there.remove(&chunk));
            }
            // The next life.
            2 => {
                arena.close();
                let wanted: BTreeMap<u64, _> = there.iter().map(|(chunk, (_, made))| (*chunk, *made)).collect();
                there.clear();
                drop(arena);
                let (next, found) = Arena::open(machine(), &folder.0, SEGMENT).unwrap();
                next.go_on();
                arena = next;
                for found in found {
                    let chunk = found.entry.chunk.0;
                    if let Some(&(kind, rows, seed)) = wanted.get(&chunk) {
                        let array = found.cells(&columns()[kind]).unwrap();
                        there.insert(chunk, (array, (kind, rows, seed)));
                    }
                }
                assert_eq!(there.len(), wanted.len(), "what was held is found");
            }
            _ => {
                let made = (usize::from(step[0]) % 4, step[1] % 64, step[2]);
                let (column, array) = cells(made.0, made.1, made.2);
                let Payload { array, .. } = stored(&arena, chunk, &column, &array);
                there.insert(chunk, (array, made));
            }
        }
        for (array, (kind, rows, seed)) in there.values() {
            assert_eq!(array, &cells(*kind, *rows, *seed).1);
        }
    }
    arena.close();
}

fn stored(arena: &Arena, chunk: u64, column: &Column, array: &ArrayRef) -> Payload {
    let payload = arena.store(column, array).unwrap();
    let (partition, id) = (PartitionId(0), ColumnId(0));
    let entry = |place| Entry { partition, column: id, chunk: ChunkId(chunk), slot: 0, writer: None, place };
    payload.note(entry).unwrap();
    payload
}

/// The index and data of a real arena with a payload of each kind, as [`arena`] takes them.
#[cfg(test)]
pub(super) fn real() -> Vec<Vec<u8>> {
    let of = |kinds: &[usize]| {
        let folder = Folder::new();
        let arena = Arena::create(machine(), &folder.0, SEGMENT, 7).unwrap();
        let payloads: Vec<Payload> = kinds
            .iter()
            .map(|&kind| {
                let (column, array) = cells(kind, 3, 7);
                stored(&arena, kind as u64, &column, &array)
            })
            .collect();
        arena.close();
        drop(payloads);
        let index = fs::read(folder.0.join("000000.index")).unwrap();
        // The checksum is put there again.
        let lines = index.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let bare: Vec<Vec<u8>> = lines.map(|line| [&line[..line.len() - 18], b"}"].concat()).collect();
        let data = fs::read(folder.0.join("000000.data")).unwrap();
        let used = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        [b"\0", &bare.join(&b'\n')[..], b"\0", &data[..used]].concat()
    };
    let whole = [vec![0, 1, 2, 3], vec![0], vec![1], vec![2], vec![3]];
    whole.iter().map(|kinds| of(kinds)).collect()
}
