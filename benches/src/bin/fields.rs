//! Whether it costs to cut the same bytes into more columns: 256 MiB in 256 rows, in 1, 8 and 32 columns.
//!
//! A writer puts them, a reader in another process gets them and looks at every byte, a store in a third one holds
//! them; through shared memory and over Flight, five times in turns behind a turn that brings the pages. Medians of
//! put + get are compared with those of one column.

use std::process::ExitCode;

use tq_benches::{
    GIB, Report, Row, median,
    pair::{Pair, Round, Way, role},
    shapes::{FIELDS, Shape},
};

/// As `tq-run` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 5;
/// The slowest beside the fastest, at least.
const BUDGET: f64 = 0.8;

fn main() -> ExitCode {
    if role() {
        return ExitCode::SUCCESS;
    }
    let (mut pair, mut report) = (Pair::start(), Report::new("fields"));
    let shapes = FIELDS.map(|n| Shape::named(&format!("fields-{n}")).expect("it is one of them"));
    let mut rounds: [[Vec<Round>; FIELDS.len()]; 2] = Default::default();
    // One shape after the other within a round: what they share of the machine's load is nearly the same.
    for round in 0..=ROUNDS {
        for (at, shape) in shapes.iter().enumerate() {
            for (way, rounds) in Way::ALL.into_iter().zip(&mut rounds) {
                let took = pair.round(shape, way);
                if round > 0 {
                    rounds[at].push(took);
                }
            }
        }
    }
    for (way, rounds) in Way::ALL.into_iter().zip(&rounds) {
        let speeds = [0, 1, 2].map(|at: usize| {
            let took = rounds[at].iter().map(|round| std::time::Duration::from_secs_f64(round.put + round.get));
            rounds[at][0].bytes as f64 / GIB / median(took.collect())
        });
        for (n, speed) in FIELDS.into_iter().zip(speeds) {
            let case = format!("put + get, {}, {n} columns", way.name());
            report.push(Row::alone(case, "GiB/s", speed, None, tq_benches::Better::More));
        }
        let [slowest, fastest] = [speeds.into_iter().fold(f64::MAX, f64::min), speeds.into_iter().fold(0.0, f64::max)];
        let case = format!("put + get, {}, slowest of 1, 8, 32 columns", way.name());
        report.push(Row::speeds(case, slowest, ("fastest", fastest), Some(BUDGET)));
    }
    report.conclude()
}
