//! A build without UCX: nobody can have what this names.

use arrow::array::ArrayRef;

use super::{Inner, paths::Otherwise};
use crate::{catalog::command::ColumnRef, ucx, wire::ucx::Offer};

/// There is none.
pub(super) enum Ucx {}

impl Ucx {
    pub(super) fn new(_: &Offer) -> Result<Self, String> {
        Err(ucx::Ucx::MISSING.to_owned())
    }

    pub(super) fn connect(&self, _: &Inner) -> Result<(), Otherwise> {
        match *self {}
    }

    pub(super) fn get(&self, _: &Inner, _: &ColumnRef) -> Result<Vec<ArrayRef>, Otherwise> {
        match *self {}
    }
}
