//! A store that other processes share, over gRPC: Arrow Flight for bytes, `tq.v1` actions for control.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use transferqueue::{catalog::definition::{Birth, Partition}, client::{self, Remote}, server};
//! use transferqueue::{Column, Definition, Dtype, Kind, NewRow, Outputs, Store};
//! let number = Column::new("number", Kind::Dense { dtype: Dtype::F32, shape: vec![] });
//! let jobs = Partition { name: "jobs".into(), columns: vec![number], birth: Birth::Put { capacity: None } };
//! let store = Store::create(Definition { partitions: vec![jobs], ..Default::default() }, Default::default())?;
//! let server = server::serve(&store, &server::Options::default())?;
//!
//! // In any other process that has the URL and the token:
//! let remote = Remote::connect(server.url(), server.token(), client::Options::default())?;
//! let session = remote.session("feeder")?;
//! let jobs = session.partition("jobs")?;
//! let deadline = Instant::now() + Duration::from_secs(5);
//! session.put(jobs, vec![NewRow::default()], Outputs::new().dense::<f32>("number", [2.5]), deadline)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! *Who may.* It listens on loopback, and wants the token in `authorization: Bearer …` before it reads a request.
//! Whoever may read the token file (0600) may do everything. Another address needs [`Options::tls`], or `insecure`.
//!
//! *What it keeps.* Nothing of its own: sessions, replies and holds are the store's. A call that waits is a listener,
//! not a thread. A connection that breaks ends no session; a session that is silent for 30 s ends, and what it held
//! goes back.
//!
//! *Copies.* A get: pieces of 1 MiB or more are sent from where they lie; smaller ones, and several columns of one ticket,
//! are gathered first (one copy); what is below 4 KiB is copied beside the headers. A put of cells
//! is copied out of HTTP/2's frames to where it is to lie (one copy, `receiving`); rows of a stock client are assembled by
//! gRPC, moved to 64 bytes unless they lie there by chance, and taken out into buffers that hold nothing else (three). Readers of the same host, and those through UCX
//! ([`Options::ucx`]), are told where cells lie: nothing is copied here.

pub(crate) mod control;
mod error;
mod gang;
pub(crate) mod gate;
mod granting;
pub mod limits;
pub(crate) mod listing;
pub(crate) mod reading;
pub(crate) mod receiving;
pub(crate) mod sending;
mod service;
pub(crate) mod shm;
mod socket;
#[cfg(test)]
mod tests;
#[cfg_attr(not(feature = "ucx"), path = "without_ucx.rs")]
pub(crate) mod ucx;
pub(crate) mod writing;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    net::{TcpListener, UnixListener},
    runtime::Runtime,
    sync::oneshot,
};

pub use self::error::ServerError;
pub(crate) use self::service::Service;
use crate::{store::Store, wire};
pub use crate::{
    ucx::{Ucx, UcxReads, UcxTransport},
    wire::tls::ServerTls,
};

/// How a server is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Listen beyond loopback although nothing is encrypted.
    pub insecure: bool,
    /// Encrypt, and show this certificate.
    pub tls: Option<ServerTls>,
    /// Where to write the token, for this user alone (0600). `None`: it is only in [`Server::token`]. A token that a killed
    /// server has left there is used again, so that its clients come in again.
    pub token_file: Option<PathBuf>,
    /// Largest message in bytes.
    pub message_bytes: usize,
    /// Connections at once.
    pub connections: usize,
    /// Give bytes away through UCX as well. Refused in a build without the feature `ucx`.
    pub ucx: Option<Ucx>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            insecure: false,
            tls: None,
            token_file: None,
            message_bytes: limits::MESSAGE_BYTES,
            connections: limits::CONNECTIONS,
            ucx: None,
        }
    }
}

/// Answers messages between the program's own processes (`tq.program`): bytes in, bytes or a reason out. It may block.
pub type Program = Arc<dyn Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// A served store. Dropping it closes the port and every connection, and removes the token file; the store stays.
pub struct Server {
    url: String,
    token: String,
    token_file: Option<PathBuf>,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<Runtime>,
    /// After the runtime, in the order of drops: it ends when nobody asks any more.
    #[allow(dead_code, reason = "it is kept to be dropped here; tests of UCX look at it")]
    pub(crate) ucx: Option<Arc<ucx::Ucx>>,
}

/// Serves a store.
///
/// # Errors
/// [`ServerError`] when the address is taken, or not loopback without `tls` or `insecure`; when the certificates cannot be
/// used, or the token file cannot be written; when nothing can be given away through UCX and it is asked for.
pub fn serve(store: &Store, options: &Options) -> Result<Server, ServerError> {
    serve_program(store, options, None)
}

/// Serves a store, and the program's own messages beside it.
///
/// # Errors
/// As [`serve`].
pub fn serve_program(store: &Store, options: &Options, program: Option<Program>) -> Result<Server, ServerError> {
    let incarnation = store.with_state(|state, _| state.incarnation())?;
    start(Service { program, ..Service::over(store, incarnation, options.message_bytes) }, options)
}

pub(crate) fn start(mut service: Service, options: &Options) -> Result<Server, ServerError> {
    if !options.listen.ip().is_loopback() && options.tls.is_none() && !options.insecure {
        return Err(ServerError::Insecure { address: options.listen });
    }
    let failed = |what| move |error| ServerError::Io { address: options.listen, what, error };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tq-server")
        .enable_all()
        .build()
        .map_err(failed("start threads"))?;
    let listener = runtime.block_on(TcpListener::bind(options.listen)).map_err(failed("listen"))?;
    let address = listener.local_addr().map_err(failed("listen"))?;
    let mut builder = tonic::transport::Server::builder();
    if let Some(tls) = &options.tls {
        let refused = |why| ServerError::Tls { address, why };
        let config = tls.config().map_err(refused)?;
        builder = builder.tls_config(config).map_err(|error| refused(wire::tls::causes(&error)))?;
    }
    let token = match options.token_file.as_deref().and_then(gate::left) {
        Some(token) => token,
        None => gate::token().map_err(failed("draw a token"))?,
    };
    if let Some(path) = &options.token_file {
        gate::write(path, &token)?;
    }
    if let Some(chosen) = &options.ucx {
        let refused = |why| ServerError::Ucx { address, why };
        if !service.store.units().can_be_mapped() {
            let why = "the store's bytes lie on the heap, expected shared memory (`shared`) or files (`durability`)";
            return Err(refused(why.to_owned()));
        }
        service.ucx = Some(ucx::Ucx::start(chosen).map_err(refused)?);
    }
    if let Some(listener) = near(&runtime, &mut service, address.port()) {
        runtime.spawn(shm::serve(listener, service.clone(), token.clone(), options.connections));
    }
    let ucx = service.ucx.clone();
    let gate = gate::Gate::new(&token, service.incarnation, options.connections);
    let guarded = tonic::service::interceptor::InterceptedService::new(sending::Sending::new(service), gate);
    let (stop, stopping) = oneshot::channel::<()>();
    let incoming = socket::incoming(listener, options.connections);
    let serving = builder
        .initial_stream_window_size(limits::WINDOW)
        .initial_connection_window_size(2 * limits::WINDOW)
        .max_concurrent_streams(limits::STREAMS)
        .max_frame_size(limits::FRAME)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .add_service(guarded)
        .serve_with_incoming_shutdown(incoming, async {
            // The sender is gone: that says the same.
            let _ = stopping.await;
        });
    runtime.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the server has ended");
        }
    });
    let token_file = options.token_file.clone();
    let scheme = if options.tls.is_some() { "grpc+tls" } else { "grpc" };
    let url = format!("{scheme}://{address}");
    Ok(Server { url, token, token_file, stop: Some(stop), runtime: Some(runtime), ucx })
}

/// Where readers on this host come in, if the store's bytes lie where they can be mapped.
fn near(runtime: &Runtime, service: &mut Service, port: u16) -> Option<UnixListener> {
    if !service.store.units().can_be_mapped() {
        return None;
    }
    let name = shm::address(service.incarnation, port);
    let _entered = runtime.enter();
    match shm::listen(&name) {
        Ok(listener) => {
            service.shm = Some(name);
            Some(listener)
        }
        Err(error) => {
            tracing::warn!(name, %error, "no memory for readers on this host: their bytes come over Flight");
            None
        }
    }
}

impl Server {
    /// `grpc://ADDRESS:PORT` (encrypted: `grpc+tls://…`), as clients take it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What clients must send.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(runtime) = self.runtime.take() {
            // Waiting calls are only listeners: nothing of them is worth waiting for.
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
        if let Some(path) = &self.token_file {
            drop(std::fs::remove_file(path));
        }
    }
}
