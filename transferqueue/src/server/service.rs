//! Flight's methods, each in a line or two: what they do is in the modules beside this one.

use std::sync::Arc;

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, SchemaResult, Ticket, flight_service_server::FlightService,
};
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{Program, control, limits, listing, ucx::Ucx, writing};
use crate::{
    catalog::{command::Request as Call, definition::Partition},
    error::Error,
    ids::PartitionId,
    link::Link,
    store::{Store, asking::Asked, core::Sender},
    wire,
};

/// What a partition is: asked of the catalog, which alone says what may be stored where.
pub(crate) type Describe = Arc<dyn Fn(PartitionId) -> Result<Arc<Partition>, Error> + Send + Sync>;

/// What every request works on.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) store: Store,
    pub(crate) describe: Describe,
    pub(crate) program: Option<Program>,
    pub(crate) incarnation: u64,
    pub(crate) message_bytes: usize,
    /// KiB of puts that may be under way.
    pub(crate) under_way: Arc<Semaphore>,
    /// Where readers on this host come in.
    pub(crate) shm: Option<String>,
    /// Where readers through UCX do.
    pub(crate) ucx: Option<Arc<Ucx>>,
}

impl Service {
    /// Over a store, whose catalog says what may be stored where.
    pub(crate) fn over(store: &Store, incarnation: u64, message_bytes: usize) -> Self {
        let describing = store.clone();
        let describe = Arc::new(move |id| describing.describe(id));
        let under_way = Arc::new(Semaphore::new(limits::UNDER_WAY >> 10));
        Self {
            store: store.clone(),
            describe,
            program: None,
            incarnation,
            message_bytes,
            under_way,
            shm: None,
            ucx: None,
        }
    }

    /// Waits until so many bytes of a put may be under way; they are for as long as what this returns is kept.
    pub(super) async fn under_way(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let kib = bytes.div_ceil(1 << 10) as u32;
        if let Ok(share) = self.under_way.clone().try_acquire_many_owned(kib) {
            return Ok(share);
        }
        let share = tokio::time::timeout(limits::PUT_WAIT, self.under_way.clone().acquire_many_owned(kib)).await;
        let share = share.map_err(|_| {
            let (most, waited) = (limits::UNDER_WAY, limits::PUT_WAIT);
            Status::unavailable(format!(
                "{bytes} bytes of a put beside others that are under way: at most {most} at once, after {waited:?}"
            ))
        })?;
        share.map_err(|_| Status::unavailable("the server ends"))
    }

    /// Asks the store once.
    pub(super) fn ask(&self, sender: Sender, request: &mut Call, sleep: bool) -> Result<Asked, Error> {
        self.aside(|| self.store.ask(sender, request, sleep))
    }

    /// Does what may wait for the disk; others of this thread go on elsewhere then.
    pub(super) fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.store.waits_for_disk() { tokio::task::block_in_place(work) } else { work() }
    }

    /// Does what goes through so many bytes; others of this thread go on elsewhere if that takes long.
    pub(super) fn aside_for<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes > limits::ASIDE_BYTES { tokio::task::block_in_place(work) } else { work() }
    }
}

/// A stream of answers.
pub(crate) type Answers<T> = BoxStream<'static, Result<T, Status>>;

/// An error of the store for whoever asked.
pub(super) fn status(error: &Error) -> Status {
    wire::Failure::of(error).into_status(Code::FailedPrecondition)
}

/// A request that is none.
pub(super) fn invalid(text: impl Into<String>) -> Status {
    wire::Failure::other(text).into_status(Code::InvalidArgument)
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    /// For stock clients that begin with it. The token has been seen already.
    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        let answer = HandshakeResponse { protocol_version: wire::PROTOCOL.into(), payload: Default::default() };
        Ok(Response::new(stream::iter([Ok(answer)]).boxed()))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Ok(Response::new(stream::iter(listing::all(self)?.into_iter().map(Ok)).boxed()))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        listing::info(self, request.get_ref()).map(Response::new)
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(Status::unimplemented("nothing here takes long enough to be polled; use GetFlightInfo"))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        listing::schema(self, request.get_ref()).map(Response::new)
    }

    /// Does not come here: [`Sending`](super::sending::Sending) has answered it.
    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(Status::internal("DoGet is answered without tonic's encoder"))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        writing::put(self, request.into_inner()).await.map(Response::new)
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(Status::unimplemented("use DoGet and DoPut"))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        control::act(self, request.into_inner()).await.map(Response::new)
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let action = |(name, what): (&str, &str)| ActionType { r#type: name.to_owned(), description: what.to_owned() };
        Ok(Response::new(stream::iter(wire::action::ALL.map(|known| Ok(action(known)))).boxed()))
    }
}
