//! A chunk: pieces of one column at numbered slots, and who holds it.

use std::sync::{Arc, Mutex, MutexGuard};

use arrow::array::{Array, ArrayRef};

use super::{
    Key,
    spill::{Held, InFile, Pieces},
};
use crate::ids::ChunkId;

pub(super) struct Chunk {
    pub(super) id: ChunkId,
    pub(super) key: Key,
    state: Mutex<State>,
}

struct State {
    /// By first slot; never changed once pushed.
    pieces: Vec<Piece>,
    /// Next free slot.
    end: u32,
    bytes: usize,
    /// The catalog holds it.
    live: bool,
    /// Nothing is appended any more.
    closed: bool,
    /// Left the unit; nobody can hold it again.
    retired: bool,
    grants: u32,
    writes: u32,
    /// The file that the pieces lie in, if they do.
    spill: Option<Arc<Held>>,
}

struct Piece {
    first: u32,
    array: ArrayRef,
}

/// What a chunk counts as, for the byte accounts.
pub(super) struct Account {
    pub(super) bytes: u64,
    pub(super) cells: u64,
    pub(super) live: bool,
    pub(super) granted: bool,
    pub(super) spilled: bool,
}

/// Pieces with their bytes. They are slices of one array: each counts for what it shows.
fn shown(pieces: Pieces) -> (usize, Vec<Piece>) {
    let bytes = pieces.iter().map(|(_, array)| array.to_data().get_slice_memory_size().unwrap_or(0)).sum();
    (bytes, pieces.into_iter().map(|(first, array)| Piece { first, array }).collect())
}

impl Chunk {
    /// A chunk with its first piece, held by that piece's writer.
    pub(super) fn new(id: ChunkId, key: Key, array: &ArrayRef, bytes: usize) -> Self {
        let state = State {
            pieces: vec![Piece { first: 0, array: array.clone() }],
            end: array.len() as u32,
            bytes,
            live: false,
            closed: false,
            retired: false,
            grants: 0,
            writes: 1,
            spill: None,
        };
        Self { id, key, state: Mutex::new(state) }
    }

    /// A closed chunk of an earlier life; slots between the pieces are gone. `live`: the catalog holds it.
    pub(super) fn restored(id: ChunkId, key: Key, pieces: Pieces, live: bool) -> Self {
        let end = pieces.last().map_or(0, |(first, array)| first + array.len() as u32);
        let (bytes, pieces) = shown(pieces);
        let state = State { end, bytes, pieces, live, closed: true, retired: false, grants: 0, writes: 0, spill: None };
        Self { id, key, state: Mutex::new(state) }
    }

    /// Appends a piece and holds the chunk for its writer; `None` when it is closed or full.
    pub(super) fn push(&self, array: &ArrayRef, bytes: usize, capacity: usize, max_pieces: usize) -> Option<u32> {
        let mut state = self.lock();
        let full = state.bytes + bytes > capacity || state.pieces.len() >= max_pieces;
        if full || state.closed || state.retired {
            return None;
        }
        let first = state.end;
        state.end = first.checked_add(u32::try_from(array.len()).ok()?)?;
        state.pieces.push(Piece { first, array: array.clone() });
        state.bytes += bytes;
        state.writes += 1;
        Some(first)
    }

    /// Calls `each` with slices that cover the cells in order; whether all of them are there.
    pub(super) fn slices(&self, slot: u32, len: u32, mut each: impl FnMut(ArrayRef)) -> bool {
        let state = self.lock();
        let Some(end) = slot.checked_add(len) else { return false };
        let mut at = slot;
        let mut index = state.pieces.partition_point(|piece| piece.first <= slot).saturating_sub(1);
        while at < end {
            let Some(piece) = state.pieces.get(index) else {
                return false;
            };
            let piece_end = piece.first + piece.array.len() as u32;
            if at < piece.first || at >= piece_end {
                return false;
            }
            let take = end.min(piece_end) - at;
            let whole = at == piece.first && take as usize == piece.array.len();
            each(if whole {
                piece.array.clone()
            } else {
                piece.array.slice((at - piece.first) as usize, take as usize)
            });
            at += take;
            index += 1;
        }
        true
    }

    pub(super) fn pieces(&self) -> Vec<(u32, ArrayRef)> {
        self.lock().pieces.iter().map(|piece| (piece.first, piece.array.clone())).collect()
    }

    /// Takes a grant; `false` when the chunk has left the unit.
    pub(super) fn hold(&self) -> bool {
        let mut state = self.lock();
        state.grants += u32::from(!state.retired);
        !state.retired
    }

    pub(super) fn let_go(&self) {
        self.lock().grants -= 1;
    }

    pub(super) fn begin_write(&self) {
        self.lock().writes += 1;
    }

    pub(super) fn end_write(&self) {
        self.lock().writes -= 1;
    }

    /// The catalog's word. A freed chunk is closed; an event that names it again (a write that was under way) keeps
    /// it until it is freed again.
    pub(super) fn set_live(&self, live: bool) {
        let mut state = self.lock();
        state.live = live;
        state.closed |= !live;
    }

    /// Takes no more cells from now on; whether every one of it is decided, so that it may be written to a file.
    pub(super) fn close(&self) -> bool {
        let mut state = self.lock();
        state.closed = true;
        state.live && state.writes == 0 && state.spill.is_none()
    }

    /// Its live cells lie in a file from now on; what they were views of before.
    pub(super) fn spill(&self, InFile { pieces, file }: InFile) -> Vec<ArrayRef> {
        let mut state = self.lock();
        let (bytes, pieces) = shown(pieces);
        (state.bytes, state.spill) = (bytes, Some(file));
        let before = std::mem::replace(&mut state.pieces, pieces);
        before.into_iter().map(|piece| piece.array).collect()
    }

    /// Marks the chunk as having left when nobody holds it; whether it did so just now.
    pub(super) fn retire_if_unheld(&self) -> bool {
        let mut state = self.lock();
        let leaves = !state.live && state.grants == 0 && state.writes == 0 && !state.retired;
        state.retired |= leaves;
        leaves
    }

    /// Bytes that it holds in memory.
    pub(super) fn memory(&self) -> u64 {
        let state = self.lock();
        if state.spill.is_some() { 0 } else { state.bytes as u64 }
    }

    pub(super) fn account(&self) -> Account {
        let state = self.lock();
        Account {
            bytes: state.bytes as u64,
            cells: state.pieces.iter().map(|piece| piece.array.len() as u64).sum(),
            live: state.live,
            granted: state.grants > 0,
            spilled: state.spill.is_some(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }
}
