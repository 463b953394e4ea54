//! Seeded simulation of whole runs: random plans, workers as little state machines, and everything that goes wrong —
//! workers that die, stall, fail or give back rows, replies that are lost, clocks that jump, stores that restart. Every
//! run must end, with an exact ledger, within the lag its plan promises, each row trained once.
//!
//! `TQ_SIM_SCHEDULES=10000 cargo test -p transferqueue --test catalog_simulation` runs many; `TQ_SIM_SEED=n` one of them
//! (or, with both, as many from that one on).

#![allow(unreachable_pub, reason = "a test binary exports nothing")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../catalog_support/mod.rs"]
mod catalog_support;
mod plan;
mod random;
mod run;
mod seeds;
mod worker;

use std::hash::Hasher;

use run::{Ended, Simulation};

const USUAL: u64 = 150;

fn simulate(seed: u64) -> Ended {
    Simulation::new(seed).run()
}

#[test]
fn a_simulation_of_every_schedule_ends_with_an_exact_ledger() {
    let sums = seeds::each(USUAL, |seed| {
        let ended = simulate(seed);
        let Ended { trained, restores, lost_sessions, spilled_chunks, resumed_rows, uses_again, .. } = ended;
        [u64::from(!ended.stopped), trained, restores, lost_sessions, spilled_chunks, resumed_rows, uses_again]
    });
    let [finished, rows, restores, lost, spilled, resumed, again] =
        [0, 1, 2, 3, 4, 5, 6].map(|i| sums.iter().map(|sums| sums[i]).sum::<u64>());
    let count = seeds::count(USUAL);
    println!(
        "{count} schedules: {finished} finished, {rows} rows trained, {restores} restores, {lost} sessions lost, {spilled} chunks spilled, {resumed} rows resumed, {again} rows used again"
    );
    let reached = rows > 0 && restores > 0 && lost > 0 && spilled > 0 && resumed > 0 && again > 0;
    assert!(count < 50 || reached, "the simulation must reach the hard parts");
}

#[test]
fn two_runs_of_one_seed_write_equal_logs() {
    for seed in 0..seeds::count(USUAL).min(40) {
        let [a, b] = [0, 1].map(|_| {
            let ended = seeds::one(seed, simulate);
            let mut hash = rustc_hash::FxHasher::default();
            for record in &ended.log {
                hash.write(serde_json::to_string(record).unwrap().as_bytes());
            }
            (ended.log.len(), hash.finish())
        });
        assert_eq!(a, b, "seed {seed}");
    }
}
