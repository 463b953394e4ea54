//! Workers as processes: the runner's own program, started again, over the runner's store on loopback. One that is killed
//! is started again: it holds nothing that the store does not have.

use std::{
    collections::VecDeque,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use tq_schedule::plan::Listen;
use transferqueue::{
    Error, Store,
    catalog::State,
    server::{self, Program},
};

use crate::{assignment::Assignment, exit, process, recorder::Record, reports::Desk, worker::is};

/// Lines of a worker's standard error that are kept for the message about its end.
const LAST_WORDS: usize = 20;
/// How often in a row a worker is started again while the run does not get on.
const RESTARTS: u32 = 5;
/// How often in a row it is started again after a short life, with growing pauses.
const SHORT_LIVES: u32 = 20;
const SHORT_LIFE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between two looks at a process, which are cheap.
const TICK: Duration = Duration::from_millis(10);
/// Between two looks at the store, which take its lock.
const LOOK: Duration = Duration::from_millis(250);
/// How long a worker has to leave when the phase is over. One that is stopped or stuck is not waited for longer.
const FAREWELL: Duration = Duration::from_secs(5);

/// The served store, and what its worker processes are started with. Dropping it closes the ports.
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
    token_file: PathBuf,
    url_file: PathBuf,
}

impl Door {
    fn open(store: &Store, folder: &Path, name: &str, options: server::Options, program: Program) -> Result<Self> {
        let (token_file, url_file) = (folder.join(format!("{name}token")), folder.join(format!("{name}url")));
        let options = server::Options { token_file: Some(token_file.clone()), ..options };
        let server = server::serve_program(store, &options, Some(program))?;
        fs::write(&url_file, server.url()).with_context(|| format!("cannot write `{}`", url_file.display()))?;
        Ok(Self { server, token_file, url_file })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.url_file));
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
        listen: Option<&Listen>,
    ) -> Result<Self> {
        let far = listen.map(|listen| {
            let Listen { address, insecure, tls } = listen.clone();
            let options = server::Options { listen: address, insecure, tls, ..server::Options::default() };
            Door::open(store, folder, "listen.", options, desk.clone().program())
        });
        let near = Door::open(store, folder, "", server::Options::default(), desk.clone().program())?;
        Ok(Self { store: store.clone(), near, _far: far.transpose()? })
    }

    /// Runs a worker to its end. A process that is killed, or that was asked to leave, is started again; what it held
    /// goes back when its next life begins. One that fails by itself stops the store, so that nothing waits for it.
    ///
    /// # Errors
    /// How it ended, and its last words; that the store was stopped before, if it was.
    pub(crate) fn keep(&self, assignment: &Assignment) -> Result<()> {
        self.lives(assignment).inspect_err(|error| {
            if !is(error, Error::is_stopped) {
                self.store.stop(format!("{error:#}"));
            }
        })
    }

    fn lives(&self, assignment: &Assignment) -> Result<()> {
        let name = assignment.name();
        let (mut in_vain, mut short, mut seen) = (0, 0, self.progress()?);
        loop {
            let (process, begun) = (self.spawn(assignment)?, Instant::now());
            let pid = process.child.id();
            let Some((status, words)) = process.end(self, &name)? else { return self.over() };
            if status.success() {
                return Ok(());
            }
            // Nothing of its own stopped the store.
            if let Some(reason) = self.store.stopped() {
                return Err(Error::Stopped { reason }.into());
            }
            let mut how = format!("worker process {name} (pid {pid}) ended with {status}");
            let now = self.progress()?;
            in_vain = if now == seen { in_vain + 1 } else { 1 };
            short = if begun.elapsed() < SHORT_LIFE { short + 1 } else { 0 };
            seen = now;
            if is_killed(status) && in_vain <= RESTARTS && short <= SHORT_LIVES {
                tracing::warn!("{how} and is started again");
                self.pause(SHORT_LIFE / 2 * short);
                continue;
            }
            if is_killed(status) {
                let often = if in_vain > RESTARTS { in_vain } else { short };
                how.push_str(&format!(", {often} times in a row"));
            }
            return Err(anyhow!("{how}; its last words:\n{words}"));
        }
    }

    /// Waits, or until the run is over.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time.min(LONGEST_PAUSE);
        while Instant::now() < until && !self.is_over() {
            thread::park_timeout(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether nobody needs workers any more.
    fn is_over(&self) -> bool {
        let over = |state: &State, _| state.schedule().is_some_and(|schedule| schedule.over);
        self.store.stopped().is_some() || self.store.with_state(over).unwrap_or(true)
    }

    /// How a run that is over ended.
    fn over(&self) -> Result<()> {
        self.store.stopped().map_or(Ok(()), |reason| Err(Error::Stopped { reason }.into()))
    }

    /// Whether a worker is connected.
    fn is_there(&self, name: &str) -> bool {
        let named = |state: &State, now| state.sessions(now).iter().any(|session| session.name == name);
        self.store.with_state(named).unwrap_or(false)
    }

    /// Closes the ports once workers that joined have heard that the phase is over and left.
    pub(crate) fn close(self) {
        let until = Instant::now() + FAREWELL;
        let stay = |state: &State, now| !state.sessions(now).is_empty();
        while Instant::now() < until && self.store.with_state(stay).unwrap_or(false) {
            thread::park_timeout(TICK);
        }
    }

    fn spawn(&self, assignment: &Assignment) -> Result<Process> {
        let name = assignment.name();
        // This very program, also when its file has been replaced since.
        let mut child = Command::new("/proc/self/exe")
            .arg0(process::name())
            .args(["worker", "--follow", "--connect", self.near.server.url(), "--stage", &assignment.stage])
            .args(["--index", &assignment.index.to_string(), "--token-file"])
            .arg(&self.near.token_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C is the runner's: it lets its workers finish what they hold.
            .process_group(0)
            .spawn()
            .with_context(|| format!("worker process {name}"))?;
        // Taken out, since waiting for a child closes the standard input that it still has.
        let alive = child.stdin.take();
        let stderr = child.stderr.take().context("standard error of a worker process")?;
        let listening = thread::Builder::new().name(format!("{name}-stderr")).spawn(move || listen(&name, stderr))?;
        Ok(Process { child, listening, _alive: alive })
    }

    /// What shows that the run gets on: rows consumed so far, and publications.
    fn progress(&self) -> Result<(u64, u64)> {
        let look = |state: &State, _| {
            let consumed = state.ledger().iter().map(|entry| entry.consumed).sum();
            (consumed, state.schedule().map_or(0, |schedule| schedule.version))
        };
        Ok(self.store.with_state(look)?)
    }
}

/// Whether a process was ended from outside, rather than by what it did.
fn is_killed(status: ExitStatus) -> bool {
    status.code().is_none_or(|code| code == i32::from(exit::INTERRUPTED))
}

/// A started process.
struct Process {
    child: Child,
    listening: JoinHandle<VecDeque<String>>,
    /// Its end tells the worker that the runner is gone.
    _alive: Option<ChildStdin>,
}

impl Process {
    /// Waits for its end: how it ended, and its last words. `None`: the run is over without it, and it was killed, since
    /// it neither works nor leaves.
    fn end(mut self, office: &Office, name: &str) -> Result<Option<(ExitStatus, String)>> {
        let failed = || format!("worker process {name}");
        let (mut over, mut looked): (Option<Instant>, _) = (None, Instant::now());
        let status = loop {
            if let Some(status) = self.child.try_wait().with_context(failed)? {
                break status;
            }
            thread::park_timeout(TICK);
            if looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            if office.is_over() && !office.is_there(name) {
                if over.get_or_insert_with(Instant::now).elapsed() > FAREWELL {
                    tracing::warn!("worker process {name} does not end with the run, and is killed");
                    self.child.kill().and_then(|()| self.child.wait()).with_context(failed)?;
                    return Ok(None);
                }
            } else {
                over = None;
            }
        };
        let words = Vec::from(self.listening.join().unwrap_or_default()).join("\n");
        Ok(Some((status, if words.is_empty() { "it said nothing".to_owned() } else { words })))
    }
}

/// Passes on what a worker says, and keeps the last of it.
fn listen(name: &str, stderr: ChildStderr) -> VecDeque<String> {
    let (mut stderr, mut bytes) = (BufReader::new(stderr), Vec::new());
    let mut last = VecDeque::with_capacity(LAST_WORDS);
    while stderr.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        // Whoever read the runner's standard error may be gone; the worker must not feel it.
        drop(writeln!(io::stderr(), "{name}: {line}"));
        if last.len() == LAST_WORDS {
            last.pop_front();
        }
        last.push_back(line);
        bytes.clear();
    }
    last
}
