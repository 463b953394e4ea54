//! `doctor`: one verdict a line, and what to do about it.

mod files;
mod live;
mod log;
mod paths;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;
use transferqueue::{
    catalog::views::HealthView,
    inspect::{Client, InspectError, Reply, Request, Status},
};

use crate::{Cli, Format, find, folder, views::another_version, why::first_life};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Warning,
    Failed,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    check: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    fn failed(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Failed, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Round trips that the socket's is the median of.
const ROUNDS: usize = 5;

/// Checks, shows, and returns whether nothing failed.
pub(crate) fn run(
    cli: &Cli,
    patience: Duration,
    deep: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<bool> {
    let socket = find::socket(cli, notes)?;
    let folder = find::folder(cli, &socket);
    let mut checks = Vec::new();
    let asked = ask(&socket, &mut checks)?;
    let mut log = None;
    match &folder {
        Some(folder) => {
            checks.extend(files::checks(folder, deep));
            let phase = match &asked {
                Some((status, _)) => folder::phase_of(folder, first_life(status)),
                None => folder::phases(folder).into_iter().find(|phase| phase.events().is_dir()),
            };
            match phase {
                Some(phase) => {
                    let (check, found) = log::check(&phase.events(), deep, asked.is_some());
                    checks.push(check);
                    log = found;
                }
                None if asked.is_some() => checks.push(Check::warning(
                    "events",
                    "no event log of this job is in the folder",
                    "give the folder that the job was started with (--run)",
                )),
                None => checks.push(Check::ok("events", "no event log yet")),
            }
        }
        None => checks.push(Check::warning(
            "folder",
            format!("no run lies beside {}", socket.display()),
            "give the run's folder with --run to have its files checked",
        )),
    }
    if let (Some(folder), Some(_)) = (&folder, &asked) {
        checks.extend(paths::checks(folder));
    }
    if let Some((status, health)) = &asked {
        checks.extend(live::checks(status, health, log.as_ref(), patience.as_millis() as u64));
    }
    show(cli.format, &checks, out)?;
    Ok(checks.iter().all(|check| check.verdict != Verdict::Failed))
}

/// Asks the job; a check says how that went.
fn ask(socket: &Path, checks: &mut Vec<Check>) -> Result<Option<(Status, HealthView)>> {
    let asked = || -> Result<(Vec<Duration>, Reply, Reply), InspectError> {
        let mut client = Client::connect(socket)?;
        let mut times = Vec::with_capacity(ROUNDS);
        let mut status = client.get(&Request::Status)?;
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            status = client.get(&Request::Status)?;
            times.push(begun.elapsed());
        }
        times.sort();
        Ok((times, status, client.get(&Request::Health)?))
    };
    match asked() {
        Ok((times, Reply::Status(status), Reply::Health(health))) => {
            let median = times[ROUNDS / 2].as_micros();
            checks.push(Check::ok(
                "socket",
                format!("process {} answers in {median} µs (median of {ROUNDS})", status.pid),
            ));
            Ok(Some((*status, *health)))
        }
        Ok(_) => Err(another_version()),
        Err(error) => {
            checks.push(unanswered(socket, &error));
            Ok(None)
        }
    }
}

/// Nobody answered: no job, a killed one, or one that hangs.
fn unanswered(socket: &Path, error: &InspectError) -> Check {
    let connected = UnixStream::connect(socket);
    match connected.map_err(|error| error.kind()) {
        Err(io::ErrorKind::NotFound) => Check::warning(
            "socket",
            format!("{} is not there: no job runs, or it has ended", socket.display()),
            "start it (tq-run --resume goes on with one that was interrupted)",
        ),
        Err(io::ErrorKind::ConnectionRefused) => Check::failed(
            "socket",
            format!("{} is left over: the job was killed", socket.display()),
            "go on with tq-run --resume and the arguments it was started with",
        ),
        _ => Check::failed(
            "socket",
            error.to_string(),
            "the job is stopped, hangs, or has too many clients: look at its process and its log",
        ),
    }
}

fn show(format: Format, checks: &[Check], out: &mut dyn Write) -> Result<()> {
    if format == Format::Json {
        writeln!(out, "{}", serde_json::to_string(checks)?)?;
        return Ok(());
    }
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "failed",
        };
        writeln!(out, "{verdict:<8} {:<9} {}", check.check, check.found)?;
        if let Some(advice) = &check.advice {
            writeln!(out, "{:<8} {:<9} do: {advice}", "", "")?;
        }
    }
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let (failed, warnings) = (count(Verdict::Failed), count(Verdict::Warning));
    match (failed, warnings) {
        (0, 0) => writeln!(out, "all {} checks are fine", checks.len())?,
        _ => writeln!(out, "{} checks: {failed} failed, {warnings} warnings", checks.len())?,
    }
    Ok(())
}
