//! Where cells lie, for readers that take them from there; what a reader is told of is held for it.

use std::collections::{BTreeMap, HashMap};

use arrow::array::Array;

use super::{limits, reading, service::Service};
use crate::{
    arrow_map,
    catalog::command::ColumnRef,
    schema::Column,
    transport::View,
    unit::arena::{Backed, Watch},
    wire::{
        self, Failure,
        shm::{Granted, Piece, Place},
    },
};

/// What one reader was told of, until it says that it is done or has gone.
#[derive(Default)]
pub(super) struct Grants {
    held: HashMap<u64, Vec<View>>,
    /// The last one's number.
    last: u64,
}

/// Cells that are to be granted.
pub(super) struct Located {
    column: Column,
    views: Vec<View>,
    pieces: Vec<Piece>,
    /// By number.
    pub(super) segments: BTreeMap<u64, Backed>,
}

/// Why there are no places.
pub(super) enum Unlocated {
    /// Some of the cells lie outside of any segment.
    Elsewhere(String),
    Failure(Failure),
}

/// Which bytes hold the values of an array: all that its offsets count from the start of, for who builds an array over them where they
/// lie ([`arrow_map::leaf_bytes`]), or those of its own cells.
pub(super) type Values = for<'a> fn(&'a dyn Array) -> Option<&'a [u8]>;

impl Grants {
    /// Finds the cells of a pointer.
    pub(super) fn locate(
        &self,
        service: &Service,
        pointer: wire::Pointer,
        values: Values,
    ) -> Result<Located, Unlocated> {
        let open = self.held.len();
        if open >= limits::GRANTS || pointer.runs.len() > limits::RUNS {
            let (runs, most, most_runs) = (pointer.runs.len(), limits::GRANTS, limits::RUNS);
            let why = format!("{open} gets are open, and this one has {runs} runs; at most {most} and {most_runs}");
            return Err(Unlocated::Failure(Failure::other(why)));
        }
        let pointer = ColumnRef::try_from(pointer).map_err(|why| Unlocated::Failure(Failure::other(why)))?;
        let read = reading::read(service, pointer);
        let (column, views) = read.map_err(|error| Unlocated::Failure(Failure::of(&error)))?;
        let mut segments = BTreeMap::new();
        let piece = |view| piece(service, view, values, &mut segments);
        let Some(pieces) = views.iter().map(piece).collect() else {
            let why = format!("cells of column `{}` lie outside of shared memory", column.name);
            return Err(Unlocated::Elsewhere(why));
        };
        Ok(Located { column, views, pieces, segments })
    }

    /// Holds what was found from now on. `gone`: segments that the reader shall forget.
    pub(super) fn hold(&mut self, located: Located, gone: Vec<u64>) -> Granted {
        let Located { column, views, pieces, .. } = located;
        self.last += 1;
        let granted = Granted { grant: self.last, column: wire::json(&column), pieces, gone };
        self.held.insert(self.last, views);
        granted
    }

    /// The cells of a grant, if it is held.
    #[cfg(feature = "ucx")]
    pub(super) fn held(&self, grant: u64) -> Option<&[View]> {
        self.held.get(&grant).map(Vec::as_slice)
    }

    /// Lets a grant go; whether it was held.
    pub(super) fn release(&mut self, grant: u64) -> bool {
        self.held.remove(&grant).is_some()
    }
}

/// Where a view lies; the segments are collected.
fn piece(service: &Service, view: &View, values: Values, segments: &mut BTreeMap<u64, Backed>) -> Option<Piece> {
    let mut place = |bytes: &[u8]| {
        if bytes.is_empty() {
            return Some(None);
        }
        let backed = service.store.units().backed(bytes)?;
        let place = Place { segment: backed.id(), at: backed.at as u64, len: bytes.len() as u64 };
        segments.entry(place.segment).or_insert(backed);
        Some(Some(place))
    };
    let array = view.array();
    let offsets = place(arrow_map::offset_bytes(array))?;
    let values = place(values(array)?)?;
    Some(Piece { rows: array.len() as u32, offsets, values })
}

/// Segments that a reader was told of and that are not there any more: it is told so, and of them no more.
pub(super) fn gone(told: &mut BTreeMap<u64, Watch>) -> impl Iterator<Item = u64> {
    told.extract_if(.., |_, segment| !segment.is_there()).map(|(id, _)| id)
}
