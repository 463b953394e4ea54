//! Looks inside a running job and changes nothing.
//!
//! ```text
//! tq-cli status                              the run at a glance
//! tq-cli tasks                               backlog, leases, holders, and what each task waits for
//! tq-cli columns | ledger | partitions | sessions | versions
//! tq-cli peek samples --rows 0-3 --columns reward,response
//! tq-cli watch tasks --every 2               again and again, until the run ends
//! ```
//!
//! Data goes to stdout (`--format json`: one JSON value a line), all else to stderr. The job is the one whose socket or
//! folder is given, or the newest live one in `runs/` under the current folder.

mod args;
mod find;
#[cfg(test)]
mod tests;

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use anyhow::{Context, Result};
use transferqueue::inspect::{Client, InspectError, Reply, Request};

pub use args::{Cli, Format, Look, What};

/// Carries a command line out.
///
/// # Errors
/// When no job is found, the job refuses, or the output cannot be written.
pub fn run(cli: &Cli, out: &mut dyn Write, notes: &mut dyn Write) -> Result<()> {
    let socket = find::socket(cli, notes)?;
    let mut client = Client::connect(&socket)
        .with_context(|| format!("no job answers at {}; is it still running?", socket.display()))?;
    match &cli.what {
        What::Look(look) => {
            let reply = client.get(&look.request())?;
            show(&reply, cli.format, out)
        }
        What::Watch { every, times, look } => watch(cli, &mut client, &look.request(), *every, *times, out, notes),
    }
}

fn watch(
    cli: &Cli,
    client: &mut Client,
    request: &Request,
    every: f64,
    times: Option<u64>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<()> {
    let clear = cli.format == Format::Table && std::io::stdout().is_terminal() && times.is_none();
    let mut shown = 0;
    loop {
        let reply = match client.get(request) {
            Err(InspectError::Io { .. } | InspectError::Protocol { .. }) if shown > 0 => {
                writeln!(notes, "the run has ended")?;
                return Ok(());
            }
            reply => reply?,
        };
        if clear {
            write!(out, "\x1b[2J\x1b[H")?;
        } else if shown > 0 && cli.format == Format::Table {
            writeln!(out)?;
        }
        show(&reply, cli.format, out)?;
        out.flush()?;
        shown += 1;
        if times.is_some_and(|times| shown >= times) {
            return Ok(());
        }
        #[allow(clippy::disallowed_methods, reason = "how often a person wants to look; nothing in the store waits")]
        std::thread::sleep(Duration::from_secs_f64(every));
    }
}

fn show(reply: &Reply, format: Format, out: &mut dyn Write) -> Result<()> {
    match format {
        Format::Table => write!(out, "{}", reply.table())?,
        Format::Json => {
            // The tag only says which request this answers; the caller knows.
            let tagged = serde_json::to_value(reply)?;
            let bare = tagged.as_object().and_then(|object| object.values().next().cloned());
            writeln!(out, "{}", bare.unwrap_or(tagged))?;
        }
    }
    Ok(())
}
