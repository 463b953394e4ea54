//! Seeded simulation of a served store: workers as little state machines behind a network that loses, repeats, delays and
//! reorders, crashes and pauses beyond every timeout, a clock that only the simulation moves, and a disk that fails. One
//! thread, no socket, no sleep: one seed is one story, told twice in the same words.
//!
//! After every step: the ledger balances and all that the state keeps twice agrees; a row is consumed once by each task; a
//! numbered call has one effect; the unit holds what the catalog names and what is put and not named yet, and nothing else.
//! At the end the log, through its file form, leads to the state; what a crash of the machine leaves of it leads to a former
//! one.
//!
//! `TQ_SIM_SCHEDULES=10000 cargo test -p transferqueue --lib simulation` runs many; `TQ_SIM_SEED=n` one of them (or, with
//! both, as many from that one on).

mod disk;
mod network;
mod oracle;
mod random;
mod run;
mod worker;

use std::{
    env,
    panic::{catch_unwind, resume_unwind},
    thread,
};

use self::run::{Ended, Simulation};

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn simulate(seed: u64) -> Ended {
    let run = || Simulation::new(seed).run();
    catch_unwind(run).unwrap_or_else(|_| panic!("seed {seed} failed; TQ_SIM_SEED={seed} runs it alone"))
}

#[test]
fn a_simulation_of_workers_network_and_disk_keeps_every_promise() {
    let first = number("TQ_SIM_SEED", 0);
    let count = number("TQ_SIM_SCHEDULES", if env::var("TQ_SIM_SEED").is_ok() { 1 } else { 120 });
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64).min(count);
    let share = |n: u64| {
        let mut sum = Ended::default();
        (first + n..first + count).step_by(threads as usize).for_each(|seed| sum += simulate(seed));
        sum
    };
    let shares: Vec<Ended> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|n| scope.spawn(move || share(n))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|why| resume_unwind(why))).collect()
    });
    let mut all = Ended::default();
    shares.into_iter().for_each(|share| all += share);
    println!("{count} seeds: {all}");
    assert!(count < 50 || all.reached_everything(), "the simulation must reach the hard parts: {all}");
}

#[test]
fn two_simulations_of_one_seed_tell_the_same_story() {
    for seed in 0..number("TQ_SIM_SCHEDULES", 120).min(40) {
        let [a, b] = [0, 1].map(|_| simulate(seed));
        assert_eq!(a, b, "seed {seed}");
    }
}
