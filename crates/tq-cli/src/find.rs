//! Which job is meant.

use std::{
    fs,
    io::Write,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail};
use transferqueue::inspect::Client;

use crate::Cli;

/// Name of the socket in a run's folder.
const SOCKET: &str = "control.sock";

pub(crate) fn socket(cli: &Cli, notes: &mut dyn Write) -> Result<PathBuf> {
    match (&cli.socket, &cli.run) {
        (Some(socket), _) => Ok(socket.clone()),
        (None, Some(run)) => Ok(run.join(SOCKET)),
        (None, None) => newest(Path::new("runs"), notes),
    }
}

/// The folder of the run that a socket belongs to: where it lies, if a run is there.
pub(crate) fn folder(cli: &Cli, socket: &Path) -> Option<PathBuf> {
    cli.run.clone().or_else(|| {
        let beside = socket.parent()?;
        ["plan.yaml", "events", "phases"].iter().any(|name| beside.join(name).exists()).then(|| beside.to_owned())
    })
}

pub(crate) fn connect(socket: &Path) -> Result<Client> {
    Client::connect(socket).with_context(|| format!("no job answers at {}; is it still running?", socket.display()))
}

/// The newest socket in a sub-folder of `runs` that someone answers at; those of killed processes are skipped.
pub(crate) fn newest(runs: &Path, notes: &mut dyn Write) -> Result<PathBuf> {
    let sockets = fs::read_dir(runs).into_iter().flatten().flatten().map(|entry| entry.path().join(SOCKET));
    let age = |path: &PathBuf| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let mut found: Vec<(SystemTime, PathBuf)> = sockets.filter_map(|path| Some((age(&path)?, path))).collect();
    found.sort();
    let (mut live, mut stale) = (Vec::new(), 0);
    for (_, path) in found {
        match UnixStream::connect(&path) {
            Ok(_) => live.push(path),
            Err(_) => stale += 1,
        }
    }
    let Some(newest) = live.pop() else {
        let skipped = if stale > 0 { format!(" ({stale} of runs that were killed)") } else { String::new() };
        bail!(
            "no live run under {}{skipped}; start one, go to the folder it was started in, or give --run or --socket",
            runs.display()
        );
    };
    if !live.is_empty() {
        writeln!(notes, "{} more live runs; this is {}", live.len(), newest.display())?;
    }
    Ok(newest)
}
