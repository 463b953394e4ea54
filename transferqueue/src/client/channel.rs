//! Connections, and one request over them: sent again with growing pauses while the connection is lost.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use arrow_flight::{Action, PutResult, flight_service_client::FlightServiceClient};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use prost::Message;
use serde::de::DeserializeOwned;
use tonic::{
    Request, Status, Streaming,
    body::Body,
    codec::BufferSettings,
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};
use tonic_prost::ProstDecoder;
use tower_service::Service;

use super::{
    Options,
    nudged::{self, Nudged},
    runtime::runtime,
};
use crate::{
    bulk::incoming::{self, Incoming},
    error::Error,
    server::limits::{FRAME, WINDOW},
    wire::{self, Answer, INCARNATION, Outcome, Ticket, decode},
};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

type Channel = Nudged<tonic::transport::Channel>;

pub(super) type Client = FlightServiceClient<Channel>;

/// The answers of one action.
pub(super) type Answers = Streaming<arrow_flight::Result>;

pub(super) struct Channels {
    url: String,
    control: Client,
    bulk: Vec<Channel>,
    next: AtomicUsize,
    token: MetadataValue<Ascii>,
    incarnation: Option<u64>,
    options: Options,
}

/// Pauses between attempts, and when to give up.
pub(super) struct Attempts {
    begun: Instant,
    until: Instant,
    pause: Duration,
}

impl Attempts {
    pub(super) fn new(until: Instant) -> Self {
        Self { begun: Instant::now(), until, pause: FIRST_PAUSE }
    }

    pub(super) fn until(&self) -> tokio::time::Instant {
        self.until.into()
    }

    /// How long it has been tried.
    pub(super) fn waited_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Pauses; `false`: there is no time for another attempt.
    pub(super) async fn again(&mut self) -> bool {
        if Instant::now() + self.pause >= self.until {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

fn client(channel: Channel, options: &Options) -> Client {
    FlightServiceClient::new(channel)
        .max_decoding_message_size(options.message_bytes)
        .max_encoding_message_size(usize::MAX)
}

impl Channels {
    /// Connections to be made when they are needed.
    pub(super) fn new(url: &str, token: &str, options: Options) -> Result<Self, Error> {
        let wrong = |why: String| Error::Server { url: url.to_owned(), why };
        let expected = "expected grpc://HOST:PORT or grpc+tls://HOST:PORT";
        let (scheme, address) = match (url.strip_prefix("grpc://"), url.strip_prefix("grpc+tls://"), &options.tls) {
            (Some(address), None, None) => ("http", address),
            (None, Some(address), Some(_)) => ("https", address),
            (Some(_), ..) => {
                return Err(wrong("certificates are given and the URL does not say grpc+tls://".to_owned()));
            }
            (None, Some(_), None) => return Err(wrong("an encrypted connection needs the roots to trust".to_owned())),
            (None, None, _) => return Err(wrong(expected.to_owned())),
        };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| wrong(format!("{expected}: {error}")))?
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(5))
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .max_frame_size(FRAME)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true);
        if let Some(tls) = &options.tls {
            let config = tls.config().map_err(|why| wrong(format!("TLS: {why}")))?;
            endpoint =
                endpoint.tls_config(config).map_err(|error| wrong(format!("TLS: {}", wire::tls::causes(&error))))?;
        }
        let _entered = runtime().enter();
        let token = format!("Bearer {token}").parse().map_err(|_| wrong("the token is not plain text".to_owned()))?;
        let lazy = || Nudged::new(endpoint.connect_lazy());
        let bulk = (0..options.connections.max(1)).map(|_| lazy()).collect();
        let (control, next) = (client(lazy(), &options), AtomicUsize::new(0));
        Ok(Self { url: url.to_owned(), control, bulk, next, token, incarnation: None, options })
    }

    /// The store that every further request is for.
    pub(super) fn know(&mut self, incarnation: u64) {
        self.incarnation = Some(incarnation);
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation.unwrap_or_default()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// A connection for bytes, each in turn.
    pub(super) fn bulk(&self) -> Client {
        client(self.channel(), &self.options)
    }

    fn channel(&self) -> Channel {
        self.bulk[self.next.fetch_add(1, Ordering::Relaxed) % self.bulk.len()].clone()
    }

    /// Sends a ticket on a connection for bytes. What comes back is not tonic's to put together: it would be copied once
    /// more, to memory that is not aligned.
    pub(super) async fn get(&self, ticket: &Ticket) -> Result<Incoming, Status> {
        let ticket = arrow_flight::Ticket::new(ticket.encode_to_vec());
        let mut message = BytesMut::with_capacity(5 + ticket.encoded_len());
        message.put_u8(0);
        message.put_u32(ticket.encoded_len() as u32);
        ticket.encode(&mut message).expect("invariant: it grows");
        let request = nudged::request(wire::DO_GET, Body::new(Full::from(message.freeze())));
        Ok(Incoming::new(self.sent(request).await?, self.options.message_bytes))
    }

    /// Sends the one message of a put to its place on a connection for bytes, and hears where that is.
    pub(super) async fn put(&self, body: Body) -> Result<PutResult, Status> {
        let mut request = nudged::request(wire::DO_PUT, body);
        request.headers_mut().insert(wire::IN_PLACE, HeaderValue::from_static("1"));
        let (body, decoder) = (self.sent(request).await?, ProstDecoder::new(BufferSettings::default()));
        let limit = Some(self.options.message_bytes);
        let mut answers = Streaming::<PutResult>::new_response(decoder, body, StatusCode::OK, None, limit);
        answers.message().await?.ok_or_else(|| Status::unavailable("the answer broke off"))
    }

    /// Sends a request that is not tonic's on a connection for bytes; the body of its answer.
    async fn sent(&self, mut request: http::Request<Body>) -> Result<Body, Status> {
        let (metadata, ..) = self.request(()).into_parts();
        request.headers_mut().extend(metadata.into_headers());
        let mut channel = self.channel();
        let lost = |error: tonic::transport::Error| Status::from_error(error.into());
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(lost)?;
        let (head, body) = channel.call(request).await.map_err(lost)?.into_parts();
        if head.status != StatusCode::OK || head.headers.contains_key("grpc-status") {
            incoming::status(&head.headers)?;
        }
        Ok(body)
    }

    /// A request with who asks and which store is meant.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.clone());
        if let Some(incarnation) = self.incarnation {
            request.metadata_mut().insert(INCARNATION, MetadataValue::from(incarnation));
        }
        request
    }

    /// The server's refusal, or why the connection was lost.
    pub(super) fn lost(&self, status: &Status) -> Result<String, Error> {
        if self.options.tls.is_some()
            && let Some(why) = wire::tls::refused(status)
        {
            return Err(Error::Server { url: self.url.clone(), why: format!("TLS: {why}") });
        }
        match wire::refused(status, &self.url) {
            Some(error) => Err(error),
            None => Ok(format!("{} ({:?})", status.message(), status.code())),
        }
    }

    pub(super) fn unreachable(&self, what: &str, attempts: &Attempts, why: impl Into<String>) -> Error {
        let (url, what, waited_ms) = (self.url.clone(), what.to_owned(), attempts.waited_ms());
        Error::Unreachable { url, what, waited_ms, why: why.into() }
    }

    /// Sends an action until its first answer is heard; the others follow in the stream.
    pub(super) async fn act(
        &self,
        action: &str,
        what: &str,
        body: &Bytes,
        until: Instant,
    ) -> Result<(Outcome, Answers), Error> {
        self.act_over(&|| self.control.clone(), action, what, body, until).await
    }

    async fn act_over(
        &self,
        client: &(dyn Fn() -> Client + Sync),
        action: &str,
        what: &str,
        body: &Bytes,
        until: Instant,
    ) -> Result<(Outcome, Answers), Error> {
        let mut attempts = Attempts::new(until);
        let mut why = "no answer came".to_owned();
        loop {
            match tokio::time::timeout_at(attempts.until(), self.act_once(client(), action, body)).await {
                Ok(Ok((Some(first), answers))) => return Ok((self.outcome(action, &first)?, answers)),
                Ok(Ok((None, _))) => "the answer broke off".clone_into(&mut why),
                Ok(Err(status)) => why = self.lost(&status)?,
                Err(_) => return Err(self.unreachable(what, &attempts, why)),
            }
            if !attempts.again().await {
                return Err(self.unreachable(what, &attempts, why));
            }
        }
    }

    /// Sends an action with one answer on a connection for bytes.
    pub(super) async fn act_in_bulk(
        &self,
        action: &str,
        what: &str,
        body: &Bytes,
        until: Instant,
    ) -> Result<Outcome, Error> {
        Ok(self.act_over(&|| self.bulk(), action, what, body, until).await?.0)
    }

    /// Sends an action once, on the connection for control.
    #[cfg(feature = "ucx")]
    pub(super) async fn act_in_control(
        &self,
        action: &str,
        body: &Bytes,
    ) -> Result<(Option<arrow_flight::Result>, Answers), Status> {
        self.act_once(self.control.clone(), action, body).await
    }

    async fn act_once(
        &self,
        mut client: Client,
        action: &str,
        body: &Bytes,
    ) -> Result<(Option<arrow_flight::Result>, Answers), Status> {
        let request = self.request(Action { r#type: action.to_owned(), body: body.clone() });
        let mut answers = client.do_action(request).await?.into_inner();
        Ok((answers.message().await?, answers))
    }

    /// What an answer brings.
    pub(super) fn outcome(&self, action: &str, answer: &arrow_flight::Result) -> Result<Outcome, Error> {
        let answer: Answer = self.message(action, &answer.body)?;
        answer.outcome.ok_or_else(|| self.nonsense(action, "an answer this client does not know"))
    }

    /// A question with one answer.
    pub(super) async fn question(&self, action: &'static str, body: Bytes, until: Instant) -> Result<Bytes, Error> {
        match self.act(action, action, &body, until).await?.0 {
            Outcome::Reply(bytes) => Ok(bytes),
            Outcome::Failure(failure) => Err(failure.into_error(&self.url)),
            Outcome::Later(_) | Outcome::Woken(_) => Err(self.nonsense(action, "a wait as its answer")),
        }
    }

    pub(super) fn message<M: Message + Default>(&self, action: &str, bytes: &[u8]) -> Result<M, Error> {
        decode(action, bytes).map_err(|why| self.nonsense(action, &why))
    }

    pub(super) fn parse<T: DeserializeOwned>(&self, action: &str, bytes: &[u8]) -> Result<T, Error> {
        wire::parse(action, bytes).map_err(|why| self.nonsense(action, &why))
    }

    pub(super) fn nonsense(&self, action: &str, why: &str) -> Error {
        let why = format!("it answered `{action}` with what this client does not understand ({why}); use one version");
        Error::Server { url: self.url.clone(), why }
    }
}
