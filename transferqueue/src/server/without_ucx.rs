//! A build without UCX: nobody can have what this names.

use std::sync::Arc;

use tonic::Status;

use super::service::{Answers, Service, invalid};
use crate::{ucx, wire::ucx::Offer};

/// There is none.
pub(crate) enum Ucx {}

impl Ucx {
    pub(crate) fn start(options: &ucx::Ucx) -> Result<Arc<Self>, String> {
        options.check()?;
        Err(ucx::Ucx::MISSING.to_owned())
    }

    pub(super) fn offer(&self) -> &Offer {
        match *self {}
    }
}

pub(super) async fn act(_: &Service, _: &[u8]) -> Result<Answers<arrow_flight::Result>, Status> {
    Err(invalid(ucx::Ucx::MISSING))
}
