//! What must hold before libtorch does its first work: OpenMP threads that sleep instead of spinning, logging.

use std::{
    env,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{self, Command},
    thread,
};

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::exit;

const WAIT_POLICY: &str = "OMP_WAIT_POLICY";
/// Tensors of a training pass come back from the allocator's own pool instead of fresh, zeroed pages.
const ALLOCATOR: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "8589934592")];

/// Sets up logging; starts the program again with `OMP_WAIT_POLICY=PASSIVE` when it is not set.
///
/// OpenMP reads the variable when libtorch is loaded, before `main`: spinning threads slow every other stage several
/// times.
pub(crate) fn prepare() {
    let filter = EnvFilter::try_from_env("TQ_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second call (in tests) finds a subscriber in place; that one stays.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).try_init();
    if env::var_os(WAIT_POLICY).is_none()
        && let Ok(program) = env::current_exe()
    {
        let error =
            Command::new(program).args(env::args_os().skip(1)).env(WAIT_POLICY, "PASSIVE").envs(ALLOCATOR).exec();
        tracing::warn!("cannot start again with {WAIT_POLICY}=PASSIVE ({error}); stages may slow each other down");
    }
}

/// The program's name as it was started: a program with stages of its own is not called `tq-run`.
pub(crate) fn name() -> String {
    let path = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    path.file_name().map_or_else(|| "tq-run".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Ends this process when standard input ends: the runner, which holds the other end, is gone.
pub(crate) fn end_with_the_runner() -> Result<()> {
    let watch = || {
        // Nothing is ever sent: this returns when the other end is closed.
        drop(io::stdin().read(&mut [0]));
        process::exit(i32::from(exit::FAILED));
    };
    thread::Builder::new().name("follow".to_owned()).spawn(watch).context("a thread that follows the runner")?;
    Ok(())
}
