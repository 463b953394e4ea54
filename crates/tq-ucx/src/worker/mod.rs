//! A worker: a thread that moves bytes, and what it is asked through.
//!
//! UCX's handles never leave the thread (`core`). Whoever wants something puts a command on the worker's `line`, with the
//! buffers it is about; the thread is woken by it, or by UCX when bytes come (`progress`). UCX's callbacks note a number and
//! a status (`events`), and the thread answers.

mod core;
mod endpoint;
mod events;
mod line;
mod progress;

use std::{
    fmt,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

pub use endpoint::{Endpoint, RemoteKey};

use self::{
    core::Core,
    line::{Command, Line, Work},
};
use crate::{Address, Context, Error, Pending};

/// A thread that moves bytes between this process and others. Dropping it ends its endpoints, and waits for the thread: at
/// most a few seconds, when peers do not answer.
pub struct Worker {
    line: Arc<Line>,
    address: Address,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker.
    ///
    /// # Errors
    /// [`Error::Ucx`] when none of the context's transports can be had; [`Error::System`] when there is no room for a thread.
    pub fn start(context: &Context) -> Result<Self, Error> {
        let what = "a UCX worker";
        let line = Arc::new(Line::new().map_err(|error| Error::system(what, error))?);
        let (tell, told) = mpsc::sync_channel(1);
        let (context, hears) = (context.handle.clone(), line.clone());
        let work = move || match Core::new(context) {
            Ok((core, address)) => {
                drop(tell.send(Ok(address)));
                progress::run(core, &hears);
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let spawned = thread::Builder::new().name("ucx".into()).spawn(work);
        let thread = Some(spawned.map_err(|error| Error::system(what, error))?);
        let address = told.recv().map_err(|_| Error::Ended { what: what.into() })??;
        Ok(Self { line, address, thread })
    }

    /// Where others connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Connects to another worker: the endpoint comes once it is known to be there.
    ///
    /// Errors of the answer: [`Error::PeerGone`] when nobody is there, [`Error::Ucx`] when no transport leads there.
    pub fn connect(&self, address: &Address) -> Pending<Endpoint> {
        let endpoint = Endpoint::new(&self.line);
        let number = endpoint.number();
        let address = address.clone();
        self.line.request(number, "connecting to a peer".into(), |promise| Work::Connect { endpoint, address, promise })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.line.ask(Command::Stop);
        let Some(thread) = self.thread.take() else { return };
        // It may be dropped by the thread itself, with a buffer that holds it.
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            tracing::error!("a UCX worker's thread has panicked");
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker at {:?}", self.address)
    }
}
