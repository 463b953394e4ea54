//! A store in another process: the same [`Session`] as the embedded store gives, so that a stage does not notice.
//!
//! The interface blocks; underneath, one runtime of the process carries the connections, the waits and the heartbeats.
//! Do not call it from inside an asynchronous runtime.
//!
//! *Connections.* One for control and a few for bytes, kept for the life of the [`Remote`]: a large get does not delay
//! a heartbeat. A connection that is lost is made again with growing pauses until the call's deadline, and the call is
//! sent again under the same number, so that a lost reply does nothing twice. A call that has no deadline of its own
//! has [`Options::patience`]. Another store behind the same address is an error that says so
//! ([`Error::Incarnation`]).
//!
//! *Numbers.* A session's calls are numbered here, one at a time: whoever comes next waits until the answer is there,
//! which is one round trip, since a call that has to wait gives its number back first. When an answer is never heard,
//! nobody knows whether its number is taken: the session refuses further calls, and its leases return.
//!
//! *Copies.* A get: what HTTP/2 has read from the socket is copied once, into aligned memory that was there before; views
//! point into that. (A server that does not place buffers on 64 bytes within a message costs a second one.) A put: none here, the cells are sent
//! from where they lie. What comes through UCX is written to such memory by UCX; over shared memory nothing
//! is copied.

mod call;
mod channel;
pub(crate) mod flight;
mod gang;
mod granted;
mod lane;
mod link;
mod nudged;
mod paths;
mod probe;
pub(crate) mod runtime;
pub(crate) mod shm;
#[cfg(test)]
mod tests;
#[cfg_attr(not(feature = "ucx"), path = "without_ucx.rs")]
mod ucx;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message;

pub use self::paths::{Choice, Traffic, Ways};
pub use self::probe::{Probe, Speed, probe};
pub use crate::wire::tls::ClientTls;

use self::{
    channel::Channels,
    flight::Flight,
    lane::Lane,
    paths::{Counts, Otherwise, Paths},
    shm::Shm,
    ucx::Ucx,
};
use crate::{
    bulk::pool::Pool,
    catalog::definition::Definition,
    error::Error,
    ids::SessionId,
    inspect,
    server::limits::MESSAGE_BYTES,
    session::Session,
    transport::Transport,
    unit::Unit,
    wire::{self, FEATURE_ALONG, Hello, PROTOCOL, Welcome, action, shm::Enter, ucx::Offer},
};

/// How a client behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call without a deadline of its own may take, reconnecting included.
    pub patience: Duration,
    /// How long an answer may travel at least, also when the call's deadline is now. A store whose process gets no time for a while is
    /// waited for: its sessions live on through it.
    pub travel: Duration,
    /// Time between heartbeats of a session; it is lost after 30 s without one.
    pub heartbeat: Duration,
    /// Connections for bytes, beside the one for control.
    pub connections: usize,
    /// Largest message in bytes.
    pub message_bytes: usize,
    /// Which way bytes may come.
    pub transport: Choice,
    /// What is trusted and shown when the URL begins with `grpc+tls://`.
    pub tls: Option<ClientTls>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
            travel: Duration::from_secs(60),
            heartbeat: Duration::from_secs(5),
            connections: 2,
            message_bytes: MESSAGE_BYTES,
            transport: Choice::Auto,
            tls: None,
        }
    }
}

/// A store behind a URL; clones share its connections.
#[derive(Clone)]
pub struct Remote {
    inner: Arc<Inner>,
}

struct Inner {
    channels: Channels,
    definition: Arc<Definition>,
    lanes: Mutex<HashMap<SessionId, Arc<Lane>>>,
    /// Bytes of views that were received and are still open.
    received: Arc<AtomicU64>,
    /// What they are received into.
    pool: Pool,
    /// Counts cells that are being appended to here, before they are put.
    open: Unit,
    /// Whether the store offers its memory to processes of its host.
    offers_memory: bool,
    /// Whether it offers anything through UCX.
    offers_ucx: bool,
    /// Whether small cells may come along with a command.
    takes_along: bool,
    /// The store's memory, where it can be mapped.
    shm: Option<Arc<Shm>>,
    /// Beside it, or where it cannot.
    ucx: Option<Ucx>,
    counts: Arc<Counts>,
}

impl Remote {
    /// Connects and shakes hands. `url`: `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`; `token`: what the server's token file holds.
    ///
    /// # Errors
    /// [`Error::Unreachable`] after [`Options::patience`]; [`Error::Server`] for a wrong token, a certificate that is not
    /// accepted, or another protocol; when the only way allowed cannot be had.
    pub fn connect(url: &str, token: &str, options: Options) -> Result<Self, Error> {
        Self::connect_as(url, token, options, |welcome| welcome)
    }

    /// `heard`: what this client makes of the server's first word.
    fn connect_as(
        url: &str,
        token: &str,
        options: Options,
        heard: impl FnOnce(Welcome) -> Welcome,
    ) -> Result<Self, Error> {
        let until = Instant::now() + options.patience;
        let (token, choice, patience) = (token.trim(), options.transport, options.patience);
        let mut channels = Channels::new(url, token, options)?;
        let (definition, welcome) = runtime::block_on(async {
            let hello = Hello { protocol: PROTOCOL, features: vec!["flight".to_owned()] };
            let answer = channels.question(action::HANDSHAKE, hello.encode_to_vec().into(), until).await?;
            let welcome = heard(channels.message(action::HANDSHAKE, &answer)?);
            if welcome.protocol != PROTOCOL {
                let why = format!("it speaks protocol {}, this client {PROTOCOL}: use one version", welcome.protocol);
                return Err(Error::Server { url: url.to_owned(), why });
            }
            channels.know(welcome.incarnation);
            let answer = channels.question(action::DEFINITION, Bytes::new(), until).await?;
            Ok::<_, Error>((channels.parse(action::DEFINITION, &answer)?, welcome))
        })?;
        let takes_along = welcome.features.iter().any(|feature| feature == FEATURE_ALONG);
        let (near, offer) = (welcome.shm, welcome.ucx);
        let offers_memory = near.is_some();
        let enter = Enter { token: token.to_owned(), incarnation: channels.incarnation() };
        let shm = near_memory(url, choice, near, |address| {
            // Half of the time is left for another way.
            Shm::new(address, enter, patience / 2, channels.options().message_bytes)
        })?;
        let inner = Inner {
            channels,
            definition: Arc::new(definition),
            lanes: Mutex::default(),
            received: Arc::default(),
            pool: Pool::default(),
            open: Unit::new(0, 0),
            offers_memory,
            offers_ucx: offer.is_some(),
            takes_along,
            ucx: None,
            shm,
            counts: Arc::default(),
        };
        let ucx = through_ucx(&inner, offer.as_ref())?;
        let inner = Inner { ucx, ..inner };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A worker's session. Heartbeats are sent for it until it is closed or dropped.
    ///
    /// # Errors
    /// As any call.
    pub fn session(&self, name: impl Into<String>) -> Result<Session, Error> {
        let paths = |id| Arc::new(self.paths(id)) as Arc<dyn Transport>;
        Session::open(Arc::new(self.clone()), paths, name.into())
    }

    /// The ways that bytes of a session come.
    fn paths(&self, session: SessionId) -> Paths {
        let (shm, counts) = (self.inner.shm.clone(), self.inner.counts.clone());
        let (flight, choice) = (Flight::new(self.inner.clone(), session), self.inner.channels.options().transport);
        Paths { flight, shm, choice, counts }
    }

    /// The URL it is connected to.
    pub fn url(&self) -> &str {
        self.inner.channels.url()
    }

    /// Tells the store from others.
    pub fn incarnation(&self) -> u64 {
        self.inner.channels.incarnation()
    }

    /// What the run declared.
    pub fn definition(&self) -> Arc<Definition> {
        self.inner.definition.clone()
    }

    /// Looks inside the store, as `tq-cli` does. What cannot be answered is in [`inspect::Reply::Error`].
    ///
    /// # Errors
    /// As any call.
    pub fn inspect(&self, request: &inspect::Request) -> Result<inspect::Reply, Error> {
        let answer = self.inner.asked(action::INSPECT, wire::json(request))?;
        self.inner.channels.parse(action::INSPECT, &answer)
    }

    /// A message to the program that serves the store, and its answer within `patience`; the store does not look inside.
    /// It is sent again when the connection is lost, so it must bear being heard twice.
    ///
    /// # Errors
    /// As any call; [`Error::Server`] with the program's own words.
    pub fn program(&self, message: Vec<u8>, patience: Duration) -> Result<Bytes, Error> {
        let until = Instant::now() + patience;
        runtime::block_on(self.inner.channels.question(action::PROGRAM, message.into(), until))
    }

    /// How many gets came which way.
    pub fn traffic(&self) -> Traffic {
        self.inner.counts.traffic()
    }

    /// Bytes of views that were received and are still open.
    pub fn bytes_received(&self) -> u64 {
        self.inner.received.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The store's memory, if it offers any and this process may have it.
///
/// # Errors
/// [`Error::Server`] when it is the only path allowed and cannot be had.
fn near_memory(
    url: &str,
    choice: Choice,
    near: Option<String>,
    shm: impl FnOnce(&str) -> Shm,
) -> Result<Option<Arc<Shm>>, Error> {
    if choice == Choice::Flight {
        return Ok(None);
    }
    let why = match near {
        None => "the store keeps its bytes where no other process can map them".to_owned(),
        Some(address) => {
            let shm = shm(&address);
            match shm.connect() {
                Ok(()) => return Ok(Some(Arc::new(shm))),
                Err(Otherwise::Lost(why) | Otherwise::Elsewhere(why)) => why,
                Err(Otherwise::Refused(error)) => error.to_string(),
            }
        }
    };
    without(url, choice, Choice::Shm, &why)
}

/// UCX, if it is to be taken: where the choice says so, and where it may be and shared memory does not reach.
///
/// # Errors
/// As [`near_memory`].
fn through_ucx(client: &Inner, offer: Option<&Offer>) -> Result<Option<Ucx>, Error> {
    let (url, choice) = (client.channels.url(), client.channels.options().transport);
    let wanted = match choice {
        Choice::Ucx => true,
        Choice::Auto => Choice::Ucx.is_built() && offer.is_some() && client.shm.is_none(),
        Choice::Flight | Choice::Shm => false,
    };
    if !wanted {
        return Ok(None);
    }
    if !Choice::Ucx.is_built() {
        return without(url, choice, Choice::Ucx, crate::ucx::Ucx::MISSING);
    }
    let none = || "the store gives nothing away through UCX; serve it with `ucx` options".to_owned();
    let why = match offer.ok_or_else(none).and_then(Ucx::new) {
        Err(why) => why,
        Ok(ucx) => match ucx.connect(client) {
            Ok(()) => return Ok(Some(ucx)),
            Err(Otherwise::Lost(why) | Otherwise::Elsewhere(why)) => why,
            Err(Otherwise::Refused(error)) => error.to_string(),
        },
    };
    without(url, choice, Choice::Ucx, &why)
}

/// Goes on without a way, unless it is the only one allowed.
fn without<T>(url: &str, choice: Choice, way: Choice, why: &str) -> Result<Option<T>, Error> {
    let name = way.way();
    if choice == way {
        let why = format!("{name} is the only path allowed and cannot be had: {why}; use `auto` to take others");
        return Err(Error::Server { url: url.to_owned(), why });
    }
    tracing::debug!(url, why, "bytes do not come through {name}");
    Ok(None)
}

impl Inner {
    /// A question that may be asked twice.
    fn asked(&self, action: &'static str, body: Bytes) -> Result<Bytes, Error> {
        let until = Instant::now() + self.channels.options().patience;
        runtime::block_on(self.channels.question(action, body, until))
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store at {} (incarnation {:#x})", self.url(), self.incarnation())
    }
}
