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
mod worker;

use std::{
    env,
    hash::Hasher,
    panic::{catch_unwind, resume_unwind},
    thread,
};

use run::{Ended, Simulation};

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn simulate(seed: u64) -> Ended {
    let run = || Simulation::new(seed).run();
    catch_unwind(run).unwrap_or_else(|_| panic!("seed {seed} failed; TQ_SIM_SEED={seed} runs it alone"))
}

#[test]
fn a_simulation_of_every_schedule_ends_with_an_exact_ledger() {
    let first = number("TQ_SIM_SEED", 0);
    let count = number("TQ_SIM_SCHEDULES", if env::var("TQ_SIM_SEED").is_ok() { 1 } else { 150 });
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64).min(count);
    let share = |n: u64| {
        let mut sums = [0; 4];
        for seed in (first + n..first + count).step_by(threads as usize) {
            let ended = simulate(seed);
            let one = [u64::from(!ended.stopped), ended.trained, ended.restores, ended.lost_sessions];
            sums.iter_mut().zip(one).for_each(|(sum, n)| *sum += n);
        }
        sums
    };
    let shares: Vec<[u64; 4]> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|n| scope.spawn(move || share(n))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|why| resume_unwind(why))).collect()
    });
    let [finished, rows, restores, lost] = [0, 1, 2, 3].map(|i| shares.iter().map(|sums| sums[i]).sum::<u64>());
    println!("{count} schedules: {finished} finished, {rows} rows trained, {restores} restores, {lost} sessions lost");
    assert!(count < 50 || (rows > 0 && restores > 0 && lost > 0), "the simulation must reach the hard parts");
}

#[test]
fn two_runs_of_one_seed_write_equal_logs() {
    for seed in 0..number("TQ_SIM_SCHEDULES", 150).min(40) {
        let [a, b] = [0, 1].map(|_| {
            let ended = simulate(seed);
            let mut hash = rustc_hash::FxHasher::default();
            for record in &ended.log {
                hash.write(serde_json::to_string(record).unwrap().as_bytes());
            }
            (ended.log.len(), hash.finish())
        });
        assert_eq!(a, b, "seed {seed}");
    }
}
