//! Looks inside a running job. One command changes something: `drop`, with `--yes`.
//!
//! ```text
//! tq-cli status                              the run at a glance
//! tq-cli tasks                               backlog, leases, holders, and what each task waits for
//! tq-cli columns | units                     bytes by column, by state
//! tq-cli ledger | partitions | sessions | versions
//! tq-cli peek samples --rows 0-3 --columns reward,response
//! tq-cli why samples 17                      everything about one row, also when it is gone
//! tq-cli doctor                              checks with a verdict each; exit code 1 when one failed
//! tq-cli watch tasks --every 2               again and again, until the run ends
//! tq-cli top                                 a live screen
//! tq-cli metrics --listen 127.0.0.1:9464     numbers for Prometheus
//! tq-cli drop samples 5,7-9 --reason broken --yes
//! ```
//!
//! Data goes to stdout (`--format json`: one JSON value a line), all else to stderr. The job is the one whose socket or
//! folder is given, or the newest live one in `runs/` under the current folder.

mod args;
mod doctor;
mod find;
mod folder;
mod metrics;
#[cfg(test)]
mod tests;
mod top;
mod views;
mod watched;
mod why;

use std::{
    io::{IsTerminal, Write},
    net::SocketAddr,
    time::Duration,
};

use anyhow::Result;
use transferqueue::inspect::{Reply, Request};

pub use args::{Cli, Format, Look, What};
use watched::Watched;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// A check failed: exit code 1.
    Unwell,
    /// Nothing was changed, since nobody confirmed it: exit code 2.
    Unconfirmed,
}

/// Carries a command line out.
///
/// # Errors
/// When no job is found, the job refuses, or the output cannot be written.
pub fn run(cli: &Cli, out: &mut dyn Write, notes: &mut dyn Write) -> Result<Outcome> {
    match &cli.what {
        What::Look(look) => {
            let mut client = find::connect(&find::socket(cli, notes)?)?;
            show(&client.get(&look.request())?, cli.format, out)?;
        }
        What::Watch { every, times, look } => {
            let mut job = Watched::connect(&find::socket(cli, notes)?)?;
            watch(cli, &mut job, &look.request(), *every, *times, out, notes)?;
        }
        What::Top { every } => top::run(cli, Duration::from_secs_f64(*every), notes)?,
        What::Why { row } => why::run(cli, row, out, notes)?,
        What::Doctor { patience, deep } => {
            if !doctor::run(cli, Duration::from_secs_f64(*patience), *deep, out, notes)? {
                return Ok(Outcome::Unwell);
            }
        }
        What::Drop { partition, rows, reason, yes } => {
            let mut client = find::connect(&find::socket(cli, notes)?)?;
            let (partition, rows, reason) = (partition.clone(), rows.clone(), reason.clone());
            let reply = client.get(&Request::Drop { partition, rows, reason, confirmed: *yes })?;
            show(&reply, cli.format, out)?;
            if !yes {
                writeln!(notes, "nothing was dropped; add --yes to do it")?;
                return Ok(Outcome::Unconfirmed);
            }
        }
        What::Metrics { listen, insecure } => metrics(cli, *listen, *insecure, out, notes)?,
    }
    Ok(Outcome::Done)
}

fn metrics(
    cli: &Cli,
    address: Option<SocketAddr>,
    insecure: bool,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<()> {
    let socket = find::socket(cli, notes)?;
    let mut client = find::connect(&socket)?;
    let Some(address) = address else {
        let page = metrics::exposition(&views::Views::get(&mut client)?);
        match cli.format {
            Format::Table => write!(out, "{page}")?,
            Format::Json => writeln!(out, "{}", metrics::json(&page))?,
        }
        return Ok(());
    };
    // Each scrape connects anew.
    drop(client);
    let listener = metrics::listen(address, insecure)?;
    writeln!(notes, "http://{}/metrics, until this program is ended", listener.local_addr()?)?;
    metrics::serve(&listener, &socket, None);
    Ok(())
}

fn watch(
    cli: &Cli,
    job: &mut Watched,
    request: &Request,
    every: f64,
    times: Option<u64>,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<()> {
    let clear = cli.format == Format::Table && std::io::stdout().is_terminal() && times.is_none();
    let mut shown = 0;
    loop {
        let Some(reply) = job.ask(|client| Ok(client.get(request)?))? else {
            writeln!(notes, "the run has ended")?;
            return Ok(());
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
