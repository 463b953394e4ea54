//! Small calls between processes of one host: one-row put, one-row get, tag update, claim + commit, by 1 and by 16
//! clients at a time.
//!
//! The store is in a process of its own; the clients are threads of this one, each with a connection of its own, over
//! the socket of the host with shared memory and over TCP. 2,000 calls of each kind are timed one by one, behind some
//! that warm up.

use std::process::ExitCode;

use tq_benches::{
    Better, Report, Row,
    pair::{Way, role},
    served::Served,
    small,
};

/// As `tq-run` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Microseconds that half of the calls of one client through shared memory may take.
fn budget(kind: &str) -> Option<f64> {
    match kind {
        "put" => Some(100.0),
        "get" => Some(50.0),
        _ => None,
    }
}

fn main() -> ExitCode {
    if role() {
        return ExitCode::SUCCESS;
    }
    let (served, mut report) = (Served::start(), Report::new("small"));
    for clients in [1, 16] {
        for way in Way::ALL {
            let sessions = (0..clients).map(|_| served.connect(way.choice())).collect();
            for calls in small::measure(sessions) {
                let case = |share: &str| format!("{}, {}, {clients} clients, {share}", calls.kind, way.name());
                let budget = budget(calls.kind).filter(|_| clients == 1 && way == Way::Shm);
                report.push(Row::alone(case("p50"), "us", calls.p50, budget, Better::Less));
                report.push(Row::alone(case("p99"), "us", calls.p99, None, Better::Less));
            }
        }
    }
    report.conclude()
}
