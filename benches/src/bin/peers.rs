//! This repository's side of the comparison with peers: `scripts/peers-store.sh` and `benches/peers` play rounds of
//! all sides in turns.
//!
//! Without an argument it starts a store, a writer and a reader, reads lines and answers each with a line of JSON.
//! `round SHAPE WAY` puts, lists, gets and clears one table (`tq_benches::shapes`): seconds and bytes. `small WAY
//! CLIENTS` makes small calls: their times. `report` reads figures as JSON, an array of rows, prints them, writes
//! `target/bench/peers.json` and judges them like those of any benchmark.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use tq_benches::{
    Report, Row,
    pair::{Pair, Way, role},
    shapes::Shape,
};

/// As `tq-run` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if role() {
        return ExitCode::SUCCESS;
    }
    let done = match env::args().nth(1).as_deref() {
        None => rounds().map(|()| ExitCode::SUCCESS),
        Some("report") => report(),
        Some(other) => Err(format!("argument `{other}`: expected none or `report`")),
    };
    done.unwrap_or_else(|why| {
        #[allow(clippy::print_stderr, reason = "a command says why it fails")]
        {
            eprintln!("peers: {why}");
        }
        ExitCode::FAILURE
    })
}

fn rounds() -> Result<(), String> {
    let mut pair = Pair::start();
    for line in io::stdin().lines() {
        let line = line.map_err(|error| format!("standard input: {error}"))?;
        let wrong = || format!("line `{line}`: expected `round SHAPE WAY` or `small WAY CLIENTS`");
        let text = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["round", shape, way] => serde_json::to_string(&pair.round(&Shape::named(shape)?, Way::named(way)?)),
            ["small", way, clients] => {
                let clients = clients.parse().ok().filter(|clients| (1..=64).contains(clients)).ok_or_else(wrong)?;
                serde_json::to_string(&pair.small(Way::named(way)?, clients))
            }
            _ => return Err(wrong()),
        };
        let text = text.map_err(|error| format!("an answer: {error}"))?;
        let mut said = io::stdout();
        writeln!(said, "{text}").and_then(|()| said.flush()).map_err(|error| format!("standard output: {error}"))?;
    }
    Ok(())
}

fn report() -> Result<ExitCode, String> {
    let wrong = |error| format!("standard input: {error}; expected an array of rows as target/bench/*.json have them");
    let rows: Vec<Row> = serde_json::from_reader(io::stdin().lock()).map_err(wrong)?;
    if rows.is_empty() {
        return Err("standard input: no rows; nothing was measured".into());
    }
    let mut report = Report::new("peers");
    rows.into_iter().for_each(|row| report.push(row));
    Ok(report.conclude())
}
