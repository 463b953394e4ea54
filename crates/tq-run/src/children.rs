//! Workers as processes: the runner's own program, started again, over the run's store. One that is killed is started
//! again: it holds nothing that the store does not have.

use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use transferqueue::{Error, client::Choice};

use crate::{assignment, exit, ground::Ground, office::FAREWELL, process, worker::is};

/// Lines of a worker's standard error that are kept for the message about its end.
const LAST_WORDS: usize = 20;
const SHORT_LIFE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Between two looks at a process, which are cheap.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// Between two looks at the store, which take its lock.
const LOOK: Duration = Duration::from_millis(250);

/// How often a process may be started again.
pub(crate) struct Patience {
    in_vain: u32,
    short: u32,
    seen: (u64, u64),
}

impl Patience {
    /// How often in a row while the run does not get on.
    const RESTARTS: u32 = 5;
    /// How often in a row after a short life, with growing pauses.
    const SHORT_LIVES: u32 = 20;

    pub(crate) fn new(progress: (u64, u64)) -> Self {
        Self { in_vain: 0, short: 0, seen: progress }
    }

    /// A life of that length has ended, the run has come that far: the pause before the next life, or how often in a row
    /// there was none worth it.
    pub(crate) fn next(&mut self, lived: Duration, progress: (u64, u64)) -> Result<Duration, u32> {
        self.in_vain = if progress == self.seen { self.in_vain + 1 } else { 1 };
        self.short = if lived < SHORT_LIFE { self.short + 1 } else { 0 };
        self.seen = progress;
        match () {
            () if self.in_vain > Self::RESTARTS => Err(self.in_vain),
            () if self.short > Self::SHORT_LIVES => Err(self.short),
            () => Ok((SHORT_LIFE / 2 * self.short).min(LONGEST_PAUSE)),
        }
    }
}

/// Which worker process is kept, over which run.
pub(crate) struct Kept<'a> {
    pub(crate) ground: &'a dyn Ground,
    /// Where the store is served, and the file with its token.
    pub(crate) door: (&'a str, &'a Path),
    pub(crate) stage: &'a str,
    pub(crate) index: u64,
    /// Which way bytes come to it.
    pub(crate) transport: Choice,
}

impl Kept<'_> {
    /// Runs a worker to its end. A process that is killed, or that was asked to leave, is started again; what it held
    /// goes back when its next life begins. One that fails by itself stops the store, so that nothing waits for it.
    ///
    /// # Errors
    /// How it ended, and its last words; that the store was stopped before, if it was.
    pub(crate) fn keep(&self) -> Result<()> {
        self.lives().inspect_err(|error| {
            if !is(error, Error::is_stopped) {
                self.ground.stop(format!("{error:#}"));
            }
        })
    }

    fn name(&self) -> String {
        assignment::name(self.stage, self.index)
    }

    fn lives(&self) -> Result<()> {
        let name = self.name();
        let mut patience = Patience::new(self.ground.standing(&name)?.progress);
        loop {
            let (process, begun) = (self.spawn()?, Instant::now());
            let pid = process.child.id();
            let Some((status, words)) = process.end(self, &name)? else { return self.over() };
            if status.success() {
                return Ok(());
            }
            let standing = self.ground.standing(&name)?;
            // Nothing of its own stopped the store.
            if let Some(reason) = standing.stopped {
                return Err(Error::Stopped { reason }.into());
            }
            let mut how = format!("worker process {name} (pid {pid}) ended with {status}");
            if is_killed(status) {
                match patience.next(begun.elapsed(), standing.progress) {
                    Ok(pause) => {
                        tracing::warn!("{how} and is started again");
                        self.pause(pause);
                        continue;
                    }
                    Err(often) => how.push_str(&format!(", {often} times in a row")),
                }
            }
            return Err(anyhow!("{how}; its last words:\n{words}"));
        }
    }

    /// Waits, or until the run is over.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_over() {
            thread::park_timeout(LOOK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether nobody needs workers any more.
    fn is_over(&self) -> bool {
        self.ground.standing(&self.name()).is_ok_and(|standing| standing.over)
    }

    /// How a run that is over ended.
    fn over(&self) -> Result<()> {
        match self.ground.standing(&self.name())?.stopped {
            Some(reason) => Err(Error::Stopped { reason }.into()),
            None => Ok(()),
        }
    }

    fn spawn(&self) -> Result<Process> {
        let (name, (url, token_file)) = (self.name(), self.door);
        let mut child = program()
            .args(["worker", "--follow", "--connect", url, "--stage", self.stage])
            .args(["--index", &self.index.to_string(), "--transport", &self.transport.to_string(), "--token-file"])
            .arg(token_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("worker process {name}"))?;
        // Taken out, since waiting for a child closes the standard input that it still has.
        let alive = child.stdin.take();
        let stderr = child.stderr.take().context("standard error of a worker process")?;
        let listening = thread::Builder::new().name(format!("{name}-stderr")).spawn(move || listen(&name, stderr))?;
        Ok(Process { child, listening, _alive: alive })
    }
}

/// This very program, also when its file has been replaced since; out of reach of Ctrl-C, which is the runner's: it lets
/// its processes finish what they hold.
pub(crate) fn program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(process::name()).process_group(0);
    command
}

/// Whether a process was ended from outside, rather than by what it did.
pub(crate) fn is_killed(status: ExitStatus) -> bool {
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
    fn end(mut self, kept: &Kept<'_>, name: &str) -> Result<Option<(ExitStatus, String)>> {
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
            let gone = kept.ground.standing(name).map_or(true, |standing| standing.over && !standing.there);
            if gone {
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
