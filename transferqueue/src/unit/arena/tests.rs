//! Payloads come back as they were, or their damage is told; room that is let go is given back.

use std::{fs, path::Path};

use arrow::array::ArrayRef;

use super::*;
use crate::{
    arrow_map::{bytes_array, dense_array, ragged_array},
    disk::machine,
    ids::{ChunkId, ColumnId, PartitionId},
    schema::{Dtype, Kind},
};

const SEGMENT: usize = 64 << 10;

fn dense() -> Column {
    Column::new("x", Kind::Dense { dtype: Dtype::I64, shape: vec![2] })
}

fn numbers(from: i64, rows: usize) -> ArrayRef {
    let mut values = arrow::buffer::MutableBuffer::new(0);
    (from..from + 2 * rows as i64).for_each(|value| values.push(value));
    dense_array(&dense().kind, rows, values.into())
}

fn entry(chunk: u64) -> impl FnOnce(Place) -> Entry {
    move |place| {
        let (partition, column) = (PartitionId(0), ColumnId(0));
        Entry { partition, column, chunk: ChunkId(chunk), slot: 0, writer: None, place }
    }
}

/// Stores and notes cells.
fn keep(arena: &Arena, chunk: u64, column: &Column, array: &ArrayRef) -> Payload {
    let payload = arena.store(column, array).unwrap();
    payload.note(entry(chunk)).unwrap();
    payload
}

/// Bytes of the blocks that files of the folder have.
fn blocks(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

fn segments(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = files(dir).unwrap().into_iter().map(|(_, path)| path.display().to_string()).collect();
    names.iter_mut().for_each(|name| *name = name.rsplit('/').next().unwrap().to_owned());
    names
}

#[test]
fn every_kind_of_column_comes_back_from_the_files_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let ragged = Kind::Ragged { dtype: Dtype::F32, inner: vec![3] };
    let floats: Vec<f32> = (0..9).map(|i| i as f32).collect();
    let floats = arrow::buffer::Buffer::from_vec(floats);
    let cells = [
        (dense(), numbers(5, 100)),
        (Column::new("r", ragged.clone()), ragged_array("r", &ragged, &[2, 0, 1], floats).unwrap()),
        (
            Column::new("t", Kind::Utf8),
            bytes_array("t", &Kind::Utf8, &[3, 0, 2], b"abc\xc3\xa4".to_vec().into()).unwrap(),
        ),
        (Column::new("b", Kind::Binary), bytes_array("b", &Kind::Binary, &[1], vec![255].into()).unwrap()),
        (dense(), numbers(0, 0)),
    ];
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 7).unwrap();
    let kept: Vec<Payload> =
        cells.iter().enumerate().map(|(i, (column, array))| keep(&arena, i as u64, column, array)).collect();
    for (payload, (_, array)) in kept.iter().zip(&cells) {
        assert_eq!(&payload.array, array);
    }
    arena.close();
    drop((kept, arena));
    let (arena, found) = Arena::open(machine(), dir.path(), SEGMENT).unwrap();
    arena.go_on();
    arena.is_of(7).unwrap();
    assert_eq!(found.len(), cells.len());
    for (found, (column, array)) in found.iter().zip(&cells) {
        assert_eq!(&found.cells(column).unwrap(), array);
    }
}

#[test]
fn an_array_points_into_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 0).unwrap();
    let payload = keep(&arena, 1, &dense(), &numbers(1, 4));
    let bytes = arrow_map::leaf_bytes(&*payload.array).unwrap();
    assert_eq!(bytes.as_ptr(), payload.extent.bytes().as_ptr());
    assert!((bytes.as_ptr() as usize).is_multiple_of(64));
}

#[test]
fn freed_payloads_give_their_pages_back_and_an_empty_segment_goes() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 0).unwrap();
    // 32,000 bytes each: two a segment.
    let mut kept: Vec<Payload> = (0..4).map(|i| keep(&arena, i, &dense(), &numbers(0, 2000))).collect();
    assert_eq!(segments(dir.path()), ["000000.data", "000000.index", "000001.data", "000001.index"]);
    let before = blocks(dir.path());
    let array = kept[0].array.clone();
    drop(kept.remove(0));
    assert_eq!(blocks(dir.path()), before, "an array over it still holds it");
    drop(array);
    assert!(blocks(dir.path()) <= before - 28_000, "{} of {before}", blocks(dir.path()));
    drop(kept.remove(0));
    assert_eq!(segments(dir.path()), ["000001.data", "000001.index"]);
    // The segment that is being filled stays until it is full.
    kept.clear();
    assert_eq!(segments(dir.path()), ["000001.data", "000001.index"]);
    let large = keep(&arena, 9, &dense(), &numbers(0, 10_000));
    assert_eq!(segments(dir.path()), ["000002.data", "000002.index"]);
    assert_eq!(&large.array, &numbers(0, 10_000));
}

#[test]
fn cells_of_rows_that_stay_keep_no_file_of_versions_that_go() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 0).unwrap();
    let rows = Column { max_bytes: Some(16), ..dense() };
    let mut kept = Vec::new();
    for i in 0..50 {
        kept.push(keep(&arena, 2 * i, &rows, &numbers(0, 2)));
        drop(keep(&arena, 2 * i + 1, &dense(), &numbers(0, 2000)));
    }
    assert_eq!(segments(dir.path()).len(), 4, "one segment each: {:?}", segments(dir.path()));
}

#[test]
fn a_store_that_never_flushes_holds_no_file_that_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 0).unwrap();
    (0..50).for_each(|i| drop(keep(&arena, i, &dense(), &numbers(0, 2000))));
    let filling = arena.lock();
    let held: Vec<_> = filling.unsynced.values().filter(|segment| segment.strong_count() > 0).collect();
    assert_eq!((held.len(), filling.unsynced.len()), (1, 1), "the one that is being filled");
}

#[test]
fn an_empty_payload_behind_one_that_fills_its_segment_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), 64, 0).unwrap();
    // 9,392 bytes: more than a segment, and no multiple of 64.
    let (large, empty) = (keep(&arena, 1, &dense(), &numbers(0, 587)), keep(&arena, 2, &dense(), &numbers(0, 0)));
    arena.close();
    drop((large, empty, arena));
    let (arena, found) = Arena::open(machine(), dir.path(), 64).unwrap();
    arena.go_on();
    assert_eq!(&found[0].cells(&dense()).unwrap(), &numbers(0, 587));
    assert_eq!(&found[1].cells(&dense()).unwrap(), &numbers(0, 0));
    arena.close();
}

#[test]
fn what_nobody_wants_after_a_recovery_goes_and_the_rest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 0).unwrap();
    let kept: Vec<Payload> = (0..4).map(|i| keep(&arena, i, &dense(), &numbers(i as i64, 2000))).collect();
    arena.close();
    drop((kept, arena));
    let (arena, mut found) = Arena::open(machine(), dir.path(), SEGMENT).unwrap();
    arena.go_on();
    let third = found.remove(2).cells(&dense()).unwrap();
    drop(found);
    assert_eq!(segments(dir.path()), ["000001.data", "000001.index"]);
    assert_eq!(&third, &numbers(2, 2000));
    // Numbers of files are not used twice while one is there.
    let _new = keep(&arena, 9, &dense(), &numbers(0, 1));
    assert_eq!(segments(dir.path()), ["000001.data", "000001.index", "000002.data", "000002.index"]);
}

#[test]
fn damage_is_told_by_file_and_cells() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 3).unwrap();
    let kept = keep(&arena, 1, &dense(), &numbers(0, 4));
    arena.close();
    drop((kept, arena));
    let data = dir.path().join("000000.data");
    let mut bytes = fs::read(&data).unwrap();
    bytes[17] ^= 1;
    fs::write(&data, &bytes).unwrap();
    let (arena, found) = Arena::open(machine(), dir.path(), SEGMENT).unwrap();
    arena.go_on();
    let error = found[0].cells(&dense()).unwrap_err().to_string();
    assert!(error.contains("000000.data is damaged: chunk 1 from slot 0 (column `x`): checksum"), "{error}");
    let foreign = arena.is_of(4).unwrap_err().to_string();
    assert!(foreign.contains("the bytes of store 3, expected those of 4"), "{foreign}");
    arena.close();
    drop((arena, found));

    let index = dir.path().join("000000.index");
    let line = fs::read_to_string(&index).unwrap();
    fs::write(&index, line.replacen("\"rows\":4", "\"rows\":5", 1)).unwrap();
    let error = Arena::open(machine(), dir.path(), SEGMENT).err().unwrap().to_string();
    assert!(error.contains("000000.index is damaged: line 1: checksum"), "{error}");

    // An unfinished last line is a payload that nobody heard of.
    fs::write(&index, format!("{line}{}", &line[..20])).unwrap();
    assert_eq!(Arena::open(machine(), dir.path(), SEGMENT).unwrap().1.len(), 1);
}

#[test]
fn a_disk_without_room_is_an_error_that_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), 1 << 60, 0).unwrap();
    let error = arena.store(&dense(), &numbers(0, 4)).err().unwrap().to_string();
    assert!(error.contains("000000.data: cannot reserve room for a segment:"), "{error}");
    assert_eq!(segments(dir.path()), [""; 0]);
}

#[test]
fn a_folder_has_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 0).unwrap();
    let kept = keep(&arena, 1, &dense(), &numbers(0, 4));
    for other in [
        Arena::create(machine(), dir.path(), SEGMENT, 1).map(drop),
        Arena::open(machine(), dir.path(), SEGMENT).map(drop),
    ] {
        let error = other.unwrap_err().to_string();
        assert!(error.contains("another store uses it"), "{error}");
    }
    arena.close();
    drop((kept, arena));
    assert_eq!(Arena::open(machine(), dir.path(), SEGMENT).unwrap().1.len(), 1);
}

#[test]
fn a_folder_without_an_arena_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let error = Arena::open(machine(), dir.path(), SEGMENT).err().unwrap().to_string();
    assert!(error.contains("none there"), "{error}");
}

#[test]
fn a_note_that_found_no_room_leaves_no_half_a_line_between_two_others() {
    use crate::disk::Disk;
    /// Full when it is told so: of the next line of an index only the first bytes are written.
    #[derive(Default)]
    struct Small(AtomicBool);
    impl Disk for Small {
        fn append(&self, mut file: &File, path: &Path, bytes: &[u8]) -> io::Result<()> {
            use std::io::Write;
            let index = path.extension().is_some_and(|extension| extension == segment::INDEX);
            let full = index && self.0.swap(false, Ordering::SeqCst);
            file.write_all(if full { &bytes[..20] } else { bytes })?;
            if full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }
    let (dir, disk) = (tempfile::tempdir().unwrap(), Arc::new(Small::default()));
    let arena = Arena::create(disk.clone(), dir.path(), SEGMENT, 0).unwrap();
    let first = keep(&arena, 1, &dense(), &numbers(1, 4));
    let homeless = arena.store(&dense(), &numbers(5, 4)).unwrap();
    disk.0.store(true, Ordering::SeqCst);
    let error = homeless.note(entry(2)).unwrap_err().to_string();
    assert!(error.contains("cannot note a payload"), "{error}");
    let third = keep(&arena, 3, &dense(), &numbers(9, 4));
    arena.close();
    drop((first, homeless, third, arena));
    let (_arena, found) = Arena::open(machine(), dir.path(), SEGMENT).unwrap();
    assert_eq!(found.iter().map(|found| found.entry.chunk.0).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn what_an_earlier_life_did_not_flush_is_flushed_with_the_next_one() {
    use crate::disk::Disk;
    #[derive(Default)]
    struct Watched(Mutex<Vec<PathBuf>>);
    impl Disk for Watched {
        fn sync(&self, _: &File, path: &Path) -> io::Result<()> {
            self.0.lock().unwrap().push(path.to_owned());
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let arena = Arena::create(machine(), dir.path(), SEGMENT, 0).unwrap();
    let payload = keep(&arena, 1, &dense(), &numbers(1, 4));
    arena.close();
    drop((payload, arena));
    let disk = Arc::new(Watched::default());
    let (arena, found) = Arena::open(disk.clone(), dir.path(), SEGMENT).unwrap();
    arena.sync().unwrap();
    let flushed = disk.0.lock().unwrap().clone();
    assert_eq!(flushed, ["000000.data", "000000.index"].map(|name| dir.path().join(name)));
    arena.sync().unwrap();
    assert_eq!(disk.0.lock().unwrap().len(), 2, "once is enough");
    arena.close();
    drop(found);
}

#[test]
fn what_is_attached_to_a_mapping_is_made_once_and_goes_before_the_memory() {
    /// Says whether the memory that it was attached to is mapped when it goes.
    struct Attached(usize, Arc<Mutex<Option<bool>>>);
    impl Drop for Attached {
        fn drop(&mut self) {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            let range = |line: &str| {
                let (from, rest) = line.split_once('-')?;
                let (to, _) = rest.split_once(' ')?;
                Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
            };
            let mapped = maps.lines().filter_map(range).any(|range| range.contains(&self.0));
            *self.1.lock().unwrap() = Some(mapped);
        }
    }
    let memory = Memory::new(SEGMENT);
    let [first, second] = [1, 2].map(|from| memory.store(&dense(), &numbers(from, 10)).unwrap());
    let bytes = |array: &ArrayRef| Mapping::of(arrow_map::leaf_bytes(array).unwrap());
    let (mapping, gone) = (bytes(&first).unwrap(), Arc::default());
    let start = mapping.range().cast::<u8>().as_ptr() as usize;
    let refused = mapping.attached(|_| Err::<Attached, _>("not yet")).err();
    assert_eq!(refused, Some("not yet"));
    let make = |_: &Mapping| Ok::<_, ()>(Attached(start, Arc::clone(&gone)));
    let attached = mapping.attached(make).unwrap();
    let again = bytes(&second).unwrap().attached(|_| -> Result<Attached, ()> { panic!("made twice") });
    assert!(Arc::ptr_eq(&attached, &again.unwrap()), "one segment, one attachment");
    assert!(bytes(&numbers(0, 10)).is_none(), "on the heap");
    drop((attached, mapping, first, second));
    assert_eq!(*gone.lock().unwrap(), None, "the store keeps the segment");
    drop(memory);
    assert_eq!(*gone.lock().unwrap(), Some(true));
}
