//! One worker: a stage run to its end, in a thread of the runner or in a process of its own.
//!
//! One that was silent for so long that the store took it for lost (a stopped process, a sleeping machine) begins again.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use tq_stage::{Setup, Stage, StageContext};
use transferqueue::{
    Error, Store,
    client::{ClientTls, Options, Remote},
};

use crate::{
    assignment::{Assignment, name},
    cli, exit, interrupt,
    recorder::Record,
    registry::Registry,
    reports::{self, Desk, Errand, Reports},
};

/// A worker that is found lost again before it has lived this long does not begin again: another one has taken its name.
const LEAST_LIFE: Duration = Duration::from_secs(5);

/// Runs a worker of a run elsewhere: `tq-run worker`. Its failure is no other's: whoever started it decides what follows.
///
/// # Errors
/// What the stage says, or why the runner cannot be reached.
pub(crate) fn run(registry: &Registry, worker: &cli::Worker) -> Result<()> {
    if worker.follow {
        crate::process::end_with_the_runner()?;
    }
    let path = &worker.token_file;
    let token = fs::read_to_string(path).with_context(|| format!("token file `{}`", path.display()))?;
    let tls = worker.ca.clone().map(|ca| ClientTls {
        ca,
        identity: worker.cert.clone().zip(worker.key.clone()),
        domain: worker.domain.clone(),
    });
    let remote =
        Remote::connect(&worker.connect, &token, Options { tls, transport: worker.transport, ..Options::default() })?;
    let name = name(&worker.stage, worker.index);
    let outcome = live(&name, || {
        let Errand { life, assignment } = reports::assignment(&remote, &worker.stage, worker.index, worker.follow)?;
        let stage = assignment.make(registry)?;
        let session = remote.session(&name)?;
        let leaving = session.clone();
        interrupt::watch(move || {
            // What it held goes back at once, and counts no attempt. Refused when the session has ended: all the better.
            drop(leaving.clone().close());
            process::exit(i32::from(exit::INTERRUPTED));
        });
        let reporter = Arc::new(Reports::new(remote.clone(), name.clone(), life));
        Ok((stage, assignment.setup(session, reporter)))
    });
    // The watcher held the session, which says goodbye when its last holder goes.
    interrupt::watch(|| process::exit(i32::from(exit::INTERRUPTED)));
    outcome.or_else(|error| match () {
        () if is(&error, Error::is_stopped) => Ok(()), // the runner knows why
        () if interrupt::requested() => process::exit(i32::from(exit::INTERRUPTED)),
        () => Err(error),
    })
}

/// Runs a worker in this thread. An error stops the store, so that nothing waits for a worker that is gone.
///
/// # Errors
/// What the stage says.
pub(crate) fn here<R: Record>(
    registry: &Registry,
    store: &Store,
    desk: &Desk<R>,
    assignment: &Assignment,
) -> Result<()> {
    let name = assignment.name();
    live(&name, || {
        let Errand { assignment, .. } = desk.begin(&assignment.stage, assignment.index)?;
        let stage = assignment.make(registry)?;
        Ok((stage, assignment.setup(store.session(&name)?, desk.reporter(&name))))
    })
    .inspect_err(|error| {
        if !is(error, Error::is_stopped) {
            store.stop(format!("worker {name} failed: {error:#}"));
        }
    })
}

/// Lives as often as it is taken for lost.
fn live(name: &str, mut begin: impl FnMut() -> Result<(Box<dyn Stage>, Setup)>) -> Result<()> {
    loop {
        let begun = Instant::now();
        let (mut stage, setup) = begin()?;
        match run_caught(stage.as_mut(), setup) {
            // It leaves: its session has ended, and the libraries' static data may be gone already.
            Err(error) if interrupt::requested() => return Err(error),
            // With its gang ends what a rank did, however young it is; the one that was lost has its own limits.
            Err(error) if is(&error, Error::is_gang_ended) => {
                tracing::warn!("worker {name} lost a fellow rank and begins again: {error:#}");
            }
            Err(error) if is(&error, Error::is_lost) && begun.elapsed() > LEAST_LIFE => {
                tracing::warn!("worker {name} was taken for lost and begins again: {error:#}");
            }
            outcome => return outcome,
        }
    }
}

/// Runs a stage; a panic is an error like others.
fn run_caught(stage: &mut dyn Stage, setup: Setup) -> Result<()> {
    let name = setup.stage.clone();
    let mut cx = StageContext::new(setup);
    let outcome = catch_unwind(AssertUnwindSafe(|| stage.run(&mut cx))).unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(anyhow!("panicked: {}", text.unwrap_or_else(|| "without a message".to_owned())))
    });
    outcome.with_context(|| format!("stage `{name}`"))
}

/// Whether what the store said is behind an error.
pub(crate) fn is(error: &anyhow::Error, what: fn(&Error) -> bool) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<Error>()).any(what)
}
