//! The control socket: one JSON request a line, one JSON reply a line.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::OwnedFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{InspectError, Reply, Request, answer};
use crate::store::Store;

/// A request longer than this is garbage.
const MAX_LINE: u64 = 64 << 10;
/// Clients served at once; one more is told so and closed.
const MAX_CLIENTS: usize = 16;
/// A client that asks nothing for this long after it came is let go: it may keep the place of one that would.
const FIRST: Duration = Duration::from_secs(5);
/// A client that asks nothing more for this long is let go.
const IDLE: Duration = Duration::from_secs(120);
/// A client that does not end its request, or does not take its reply, for this long is let go.
const SLOW: Duration = Duration::from_secs(5);

/// After an accept that failed (no file descriptors left) the next one waits this long.
const PAUSE: Duration = Duration::from_millis(200);

/// A served control socket. Dropping it closes every connection and removes the file.
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    /// The listening socket seen as a stream: shutting it down ends the waiting accept.
    listening: UnixStream,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ending: AtomicBool,
    clients: Mutex<HashMap<u64, Client>>,
}

struct Client {
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// Serves `status`, `tasks`, … of a store at a Unix socket that only this user may open. A file left by a process that
/// was killed is replaced.
///
/// # Errors
/// [`InspectError`] when another process serves there, or the socket cannot be made.
pub fn serve(store: &Store, path: &Path) -> Result<Server, InspectError> {
    if UnixStream::connect(path).is_ok() {
        return Err(InspectError::Taken { path: path.to_owned() });
    }
    let failed = |what| InspectError::io(path, what);
    // Made under another name and renamed once it is private: nobody else can connect in between.
    let draft = path.with_extension(format!("{}.sock", std::process::id()));
    drop(fs::remove_file(&draft));
    let listener = UnixListener::bind(&draft).map_err(failed("make the socket"))?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).map_err(failed("make the socket private"))?;
    fs::rename(&draft, path).map_err(failed("name the socket"))?;
    let listening = UnixStream::from(OwnedFd::from(listener.try_clone().map_err(failed("share the socket"))?));
    let shared = Arc::new(Shared::default());
    let (store, accepting) = (store.clone(), shared.clone());
    let run = move || accept(&listener, &store, &accepting);
    let acceptor = Builder::new().name("tq-inspect".to_owned()).spawn(run).map_err(failed("start a thread"))?;
    Ok(Server { path: path.to_owned(), shared, listening, acceptor: Some(acceptor) })
}

impl Server {
    /// Where it is served.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        drop(fs::remove_file(&self.path));
        drop(self.listening.shutdown(std::net::Shutdown::Both));
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
        let clients: Vec<Client> = self.shared.clients().drain().map(|(_, client)| client).collect();
        for mut client in clients {
            drop(client.stream.shutdown(std::net::Shutdown::Both));
            if let Some(thread) = client.thread.take() {
                drop(thread.join());
            }
        }
    }
}

impl Shared {
    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Client>> {
        self.clients.lock().expect("invariant: nothing panics under this lock")
    }
}

fn accept(listener: &UnixListener, store: &Store, shared: &Arc<Shared>) {
    for number in 0.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) if shared.ending.load(Ordering::SeqCst) => return,
            Err(error) => {
                tracing::warn!(%error, "control socket");
                std::thread::park_timeout(PAUSE);
                continue;
            }
        };
        if shared.ending.load(Ordering::SeqCst) {
            return;
        }
        if let Err(error) = admit(number, stream, store, shared) {
            tracing::debug!(%error, "control client not served");
        }
    }
}

fn admit(number: u64, stream: UnixStream, store: &Store, shared: &Arc<Shared>) -> io::Result<()> {
    stream.set_write_timeout(Some(SLOW))?;
    let mut clients = shared.clients();
    if clients.len() >= MAX_CLIENTS {
        return reply(&stream, &Reply::Error(format!("{MAX_CLIENTS} clients are connected already; close one")));
    }
    clients.insert(number, Client { stream: stream.try_clone()?, thread: None });
    let (store, finished) = (store.clone(), shared.clone());
    let run = move || {
        let _place = Place { number, shared: finished };
        if let Err(error) = converse(&stream, &store) {
            tracing::debug!(%error, "control client left");
        }
    };
    let thread = Builder::new().name("tq-inspect-client".to_owned()).spawn(run);
    match thread {
        Ok(thread) => {
            // The thread takes itself out only once this lock is free.
            if let Some(client) = clients.get_mut(&number) {
                client.thread = Some(thread);
            }
            Ok(())
        }
        Err(error) => {
            clients.remove(&number);
            Err(error)
        }
    }
}

/// A client's place, free again however its thread ends.
struct Place {
    number: u64,
    shared: Arc<Shared>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.clients().remove(&self.number);
    }
}

/// Serves one client until it leaves or sends what is no request.
fn converse(stream: &UnixStream, store: &Store) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    for patience in std::iter::once(FIRST).chain(std::iter::repeat(IDLE)) {
        let mut line = line(&mut reader, patience)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.pop_if(|last| *last == b'\n').is_none() {
            let what = if line.len() as u64 == MAX_LINE { "is longer than 64 KiB" } else { "does not end" };
            return reply(stream, &Reply::Error(format!("the request {what}; send one JSON object a line")));
        }
        let request = match parse(&line) {
            Ok(request) => request,
            Err(error) => {
                let hint = r#"send {"get":"status"}, or tasks, columns, ledger, partitions, sessions, versions, units, health, peek, why, drop"#;
                return reply(stream, &Reply::Error(format!("no request: {error}; {hint}")));
            }
        };
        // The store's lock is held while the answer is made, not while it is sent.
        reply(stream, &answer(store, &request))?;
    }
    Ok(())
}

/// The next line with its newline, as far as it came: nothing at the end, at most [`MAX_LINE`] bytes. Its first byte may take
/// `patience`, all of it [`SLOW`] more: timeouts of single reads would let a client stay that sends a byte now and then.
fn line(reader: &mut BufReader<&UnixStream>, patience: Duration) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        reader.get_ref().set_read_timeout(Some(left))?;
        let found = reader.fill_buf()?;
        let end = found.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let room = MAX_LINE as usize - line.len();
        let taken = end.unwrap_or(found.len()).min(room);
        line.extend_from_slice(&found[..taken]);
        let finished = taken == 0 || end == Some(taken) || line.len() as u64 == MAX_LINE;
        reader.consume(taken);
        if finished {
            return Ok(line);
        }
        if line.len() == taken {
            until = Instant::now() + SLOW;
        }
    }
}

/// A request with nothing in it that it does not have.
pub(crate) fn parse(line: &[u8]) -> Result<Request, String> {
    let sent: serde_json::Map<String, Value> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let request: Request = serde_json::from_value(Value::Object(sent.clone())).map_err(|error| error.to_string())?;
    // Serde takes anything beside the tag of a variant without fields: what is not there afterwards was not asked for.
    let known = serde_json::to_value(&request).map_err(|error| error.to_string())?;
    match sent.iter().find(|(key, value)| known.get(key).is_none() && !is_nothing(value)) {
        Some((key, _)) => Err(format!("unknown field `{key}`")),
        None => Ok(request),
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn reply(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_request_makes_the_server_panic(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..100)) {
            let _ = parse(&noise);
        }

        #[test]
        fn every_request_is_understood(
            partition in ".{0,9}",
            rows in proptest::option::of("[0-9,-]{0,9}"),
            columns in proptest::collection::vec("[a-z]{1,5}", 0..3),
        ) {
            let request = Request::Peek { partition, rows, columns };
            proptest::prop_assert_eq!(parse(&serde_json::to_vec(&request).unwrap()), Ok(request));
        }
    }
}
