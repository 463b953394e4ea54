//! Cells that a store has said the places of: their arrays, once their bytes are at hand.

use arrow::{
    array::{Array, ArrayRef},
    buffer::Buffer,
};

use super::paths::Otherwise;
use crate::{
    arrow_map,
    catalog::command::ColumnRef,
    error::Error,
    schema::Column,
    transport::TransportError,
    wire::{Failure, shm::Piece},
};

/// Arrays of the cells that a pointer names, checked. `buffers` gives the bytes of a piece: its offsets, its values.
pub(super) fn arrays(
    pointer: &ColumnRef,
    column: &Column,
    pieces: &[Piece],
    mut buffers: impl FnMut(&Piece) -> Result<[Buffer; 2], String>,
) -> Result<Vec<ArrayRef>, String> {
    let mut array = |piece: &Piece| {
        let [offsets, values] = buffers(piece)?;
        let array = arrow_map::from_buffers(column, piece.rows as usize, offsets, values);
        array.map_err(|error| error.to_string())
    };
    let arrays: Vec<ArrayRef> = pieces.iter().map(&mut array).collect::<Result<_, _>>()?;
    let asked: u64 = pointer.runs.iter().map(|run| u64::from(run.len)).sum();
    let came: u64 = arrays.iter().map(|array| array.len() as u64).sum();
    if came == asked { Ok(arrays) } else { Err(format!("{came} cells came, {asked} were asked for")) }
}

/// A refusal of the store at `url`.
pub(super) fn refused(column: &str, failure: Failure, url: &str) -> Otherwise {
    Otherwise::Refused(match failure.into_error(url) {
        Error::Transport(gone @ TransportError::Gone { .. }) => gone,
        error => TransportError::Travel { column: column.to_owned(), why: error.to_string() },
    })
}
