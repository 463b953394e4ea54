//! The runner of a run whose store is a process of its own: it starts that process and the workers, and starts again
//! whichever of them is killed. It holds nothing itself.
//!
//! ```text
//!   keeper ──┬── tq-run store …     the store, the record, the named states; killed: started again with --resume
//!            ├── tq-run worker …    over the store's port; they wait for a store that was killed, and go on
//!            └── …
//! ```

use std::{
    fs,
    path::Path,
    process::{Child, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use transferqueue::client::{self, Choice, Remote};

use crate::{
    children::{self, Kept, Patience, TICK},
    cli::Cli,
    exit,
    ground::{Distant, Ground},
    interrupt,
    office::DoorFiles,
    reports,
};

/// How long a first answer of a port may take that is there.
const ANSWER: Duration = Duration::from_secs(2);
/// Between two looks at a port that is not there yet.
const LOOK: Duration = Duration::from_millis(50);

/// Keeps a run until its store process has ended by itself; the exit code that it ended with, unless it finished. `transport`:
/// which way bytes come to its workers.
///
/// # Errors
/// When a process cannot be started, or is killed again and again.
pub(crate) fn keep(root: &Path, cli: &Cli, transport: Choice) -> Result<Option<u8>> {
    let mut store = StoreProcess::start(cli, root)?;
    let over = Arc::new(AtomicBool::new(false));
    let pid = store.pid.clone();
    // The first asks it to stop after the step in progress; this process waits for it.
    interrupt::watch(move || pid.signal());
    let outcome = thread::scope(|scope| {
        let crews = {
            let over = over.clone();
            scope.spawn(move || crews(root, transport, &over))
        };
        let outcome = store.end();
        over.store(true, Ordering::SeqCst);
        // Why workers failed is what the store's process has been told, and tells.
        crews.join().map_err(|_| anyhow!("a keeper of workers panicked"))?;
        outcome
    });
    let status = outcome?;
    Ok(if status.success() {
        None
    } else {
        Some(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED))
    })
}

/// Starts the workers of each phase in turn.
fn crews(root: &Path, transport: Choice, over: &Arc<AtomicBool>) {
    let files = DoorFiles::near(root);
    let mut before = None;
    while let Some(remote) = door(&files, before, over) {
        let url = remote.url().to_owned();
        let roster = match reports::roster(&remote) {
            Ok(roster) => roster,
            // It was killed meanwhile: the next one is looked for, unless it has ended for good.
            Err(error) => {
                tracing::debug!("the store does not say who works: {error:#}");
                continue;
            }
        };
        before = Some(remote.incarnation());
        tracing::info!(phase = roster.phase, workers = roster.workers.len(), "starting workers");
        let ground = Distant::new(remote, over.clone());
        let outcomes: Vec<Result<()>> = thread::scope(|scope| {
            let keepers: Vec<_> = roster
                .workers
                .iter()
                .map(|(stage, index)| {
                    let (ground, door) = (&ground as &dyn Ground, (url.as_str(), files.token.as_path()));
                    let kept = Kept { ground, door, stage, index: *index, transport };
                    scope.spawn(move || kept.keep())
                })
                .collect();
            let join = |keeper: thread::ScopedJoinHandle<'_, Result<()>>| {
                keeper.join().unwrap_or_else(|_| bail!("a keeper of a worker panicked"))
            };
            keepers.into_iter().map(join).collect()
        });
        // A store that is stopped is told of by its own process.
        for error in outcomes.into_iter().filter_map(Result::err) {
            tracing::debug!("a worker ended: {error:#}");
        }
    }
}

/// The store of the next phase, once it is served; `None` when the run is over.
fn door(files: &DoorFiles, before: Option<u64>, over: &AtomicBool) -> Option<Remote> {
    while !over.load(Ordering::SeqCst) {
        thread::park_timeout(LOOK);
        let (Ok(url), Ok(token)) = (fs::read_to_string(&files.url), fs::read_to_string(&files.token)) else { continue };
        // The address of a process that was killed may stand there until the next one serves.
        let options = client::Options { patience: ANSWER, ..client::Options::default() };
        match Remote::connect(&url, &token, options) {
            Ok(remote) if Some(remote.incarnation()) != before => return Some(remote),
            Ok(_) => {}
            Err(error) => tracing::debug!("no store at {url} yet: {error}"),
        }
    }
    None
}

/// The store's process, life after life.
struct StoreProcess<'a> {
    cli: &'a Cli,
    root: &'a Path,
    child: Child,
    begun: Instant,
    pid: Arc<Running>,
}

/// Which process is to hear of Ctrl-C.
#[derive(Default)]
struct Running(std::sync::Mutex<Option<Pid>>);

impl Running {
    fn set(&self, child: &Child) {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        *self.0.lock().unwrap_or_else(|error| error.into_inner()) = pid;
    }

    fn signal(&self) {
        let pid = *self.0.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(Err(error)) = pid.map(|pid| kill_process(pid, Signal::INT)) {
            tracing::warn!("the store's process does not hear of it: {error}");
        }
    }
}

impl<'a> StoreProcess<'a> {
    fn start(cli: &'a Cli, root: &'a Path) -> Result<Self> {
        let child = spawn(cli, cli.resume)?;
        let pid = Arc::new(Running::default());
        pid.set(&child);
        Ok(Self { cli, root, child, begun: Instant::now(), pid })
    }

    /// Waits until it ends by itself.
    fn end(&mut self) -> Result<ExitStatus> {
        let mut patience = Patience::new((0, 0));
        loop {
            let status = loop {
                if let Some(status) = self.child.try_wait().context("the store's process")? {
                    break status;
                }
                thread::park_timeout(TICK);
            };
            let killed = status.code().is_none();
            if !killed || interrupt::requested() {
                return Ok(status);
            }
            let how = format!("the store's process (pid {}) ended with {status}", self.child.id());
            // A store that comes far enough to write events gets on.
            let progress = (events(self.root), 0);
            let pause = match patience.next(self.begun.elapsed(), progress) {
                Ok(pause) => pause,
                Err(often) => bail!("{how}, {often} times in a row"),
            };
            tracing::warn!("{how} and is started again");
            thread::park_timeout(pause);
            // Killed before it had written the plan, it begins as it was asked to.
            let begun = self.root.join("plan.yaml").exists();
            self.child = spawn(self.cli, begun || self.cli.resume)?;
            self.pid.set(&self.child);
            self.begun = Instant::now();
        }
    }
}

/// Bytes of events that the run's phases have written.
fn events(root: &Path) -> u64 {
    let size = |folder: &Path| -> u64 {
        let files = fs::read_dir(folder.join("events")).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    };
    let phases = fs::read_dir(root.join("phases")).into_iter().flatten().flatten();
    size(root) + phases.map(|phase| size(&phase.path())).sum::<u64>()
}

fn spawn(cli: &Cli, resume: bool) -> Result<Child> {
    let mut command = children::program();
    command.args(["store", "--kept"]);
    command.args(resume.then_some("--resume"));
    command.args((cli.overwrite && !resume).then_some("--overwrite"));
    command.args(cli.quiet.then_some("--quiet"));
    command.arg("--").args(&cli.arguments).stdin(Stdio::piped());
    command.spawn().context("the store's process")
}
