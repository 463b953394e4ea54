//! The ports of a run, where its workers come in.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tq_schedule::plan::Listen;
use transferqueue::{
    Store,
    catalog::State,
    client::Choice,
    server::{self, Program, Ucx, UcxTransport},
};

use crate::{recorder::Record, reports::Desk};

/// Between two looks at the sessions that are left.
const TICK: Duration = Duration::from_millis(10);
/// How long workers have to leave when the phase is over. One that is stopped or stuck is not waited for longer.
pub(crate) const FAREWELL: Duration = Duration::from_secs(5);

/// The served store. Dropping it closes the ports.
pub(crate) struct Office {
    store: Store,
    /// For the runner's own workers, on loopback.
    near: Door,
    /// For those of other hosts.
    _far: Option<Door>,
}

/// A port with its files: whoever may read `url` and `token` may come in.
struct Door {
    server: server::Server,
    files: DoorFiles,
}

/// Where a port's address and token are written.
#[derive(Clone, Debug)]
pub(crate) struct DoorFiles {
    pub(crate) url: PathBuf,
    pub(crate) token: PathBuf,
}

impl DoorFiles {
    /// The runner's own door of a run in this folder.
    pub(crate) fn near(folder: &Path) -> Self {
        Self::named(folder, "")
    }

    fn named(folder: &Path, name: &str) -> Self {
        Self { url: folder.join(format!("{name}url")), token: folder.join(format!("{name}token")) }
    }

    /// The address that a killed life was served at: its workers look for the next one there.
    fn left(&self) -> Option<SocketAddr> {
        let url = fs::read_to_string(&self.url).ok()?;
        url.rsplit_once("//")?.1.parse().ok()
    }
}

impl Door {
    fn open(store: &Store, files: DoorFiles, options: server::Options, program: Program) -> Result<Self> {
        // A port that is free to choose stays what it was.
        let listen = files.left().filter(|left| options.listen.port() == 0 && left.ip() == options.listen.ip());
        let listen = listen.unwrap_or(options.listen);
        let options = server::Options { token_file: Some(files.token.clone()), listen, ..options };
        let server = server::serve_program(store, &options, Some(program))?;
        let draft = files.url.with_extension("writing");
        let written = fs::write(&draft, server.url()).and_then(|()| fs::rename(&draft, &files.url));
        written.with_context(|| format!("cannot write `{}`", files.url.display()))?;
        Ok(Self { server, files })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.files.url));
    }
}

impl Office {
    /// Serves the store on loopback (`url` and `token` in `folder`), and where the pipeline says (`listen.url`,
    /// `listen.token`).
    ///
    /// # Errors
    /// When there is no port, or the files cannot be written.
    pub(crate) fn open<R: Record>(
        store: &Store,
        folder: &Path,
        desk: &Arc<Desk<R>>,
        (listen, transport): (Option<&Listen>, Choice),
    ) -> Result<Self> {
        let through_ucx = |ucx| (transport == Choice::Ucx).then_some(ucx);
        let far = listen.map(|listen| {
            let Listen { address, insecure, tls } = listen.clone();
            let devices = if address.ip().is_loopback() { vec!["lo".to_owned()] } else { Vec::new() };
            let transports = vec![UcxTransport::Tcp, UcxTransport::Shm];
            let ucx = through_ucx(Ucx { transports, devices, insecure, ..Ucx::default() });
            let options = server::Options { listen: address, insecure, tls, ucx, ..server::Options::default() };
            Door::open(store, DoorFiles::named(folder, "listen."), options, desk.clone().program())
        });
        let options = server::Options { ucx: through_ucx(Ucx::default()), ..server::Options::default() };
        let near = Door::open(store, DoorFiles::near(folder), options, desk.clone().program())?;
        Ok(Self { store: store.clone(), near, _far: far.transpose()? })
    }

    /// Where the runner's own workers come in.
    pub(crate) fn near(&self) -> (&str, &Path) {
        (self.near.server.url(), &self.near.files.token)
    }

    /// Closes the ports once workers have heard that the phase is over and left.
    pub(crate) fn close(self) {
        let until = Instant::now() + FAREWELL;
        let stay = |state: &State, now| !state.sessions(now).is_empty();
        while Instant::now() < until && self.store.with_state(stay).unwrap_or(false) {
            thread::park_timeout(TICK);
        }
    }
}
