//! Seeded simulation of a served store: workers as little state machines behind a network that loses, repeats, delays and
//! reorders, crashes and pauses beyond every timeout, a clock that only the simulation moves, and a disk that fails. The
//! store's own process is killed, too, and goes on from its files; with `durability: host` its machine as well, and then of
//! what was not flushed any part may be gone. One thread, no socket, no sleep: one seed is one story, told twice in the
//! same words. Log and arena are real files in a folder of memory (`/dev/shm`), written through a disk of the story's own.
//!
//! Neither request nor answer outlives its connection: when the store ends, what is on its way is lost.
//!
//! After every step: the ledger balances and all that the state keeps twice agrees; a row is consumed once by each task; a
//! numbered call has one effect; the unit holds what the catalog names and what is put and not named yet, and nothing else.
//! A new life knows whatever was answered, and holds every put that its session may still name. At the end the log, through its file form, leads to the state; what a crash of the machine leaves of it leads to a former
//! one.
//!
//! `TQ_SIM_SCHEDULES=10000 cargo test -p transferqueue --lib simulation` runs many; `TQ_SIM_SEED=n` one of them (or, with
//! both, as many from that one on).

mod disk;
mod guest;
mod network;
mod oracle;
#[path = "../../../tests/catalog_simulation/random.rs"]
mod random;
mod run;
#[path = "../../../tests/catalog_simulation/seeds.rs"]
mod seeds;
mod worker;

use std::sync::Arc;

use self::{
    disk::{Drive, Fault},
    run::{Ended, Simulation},
};
use crate::{
    Options, Store,
    store::{Durability, clock::Clock, options::Ground},
    testing,
};

const USUAL: u64 = 120;

fn simulate(seed: u64) -> Ended {
    Simulation::new(seed).run()
}

#[test]
fn a_simulation_of_workers_network_and_disk_keeps_every_promise() {
    let mut all = Ended::default();
    seeds::each(USUAL, simulate).into_iter().for_each(|ended| all += ended);
    let count = seeds::count(USUAL);
    println!("{count} seeds: {all}");
    assert!(count < 50 || all.reached_everything(), "the simulation must reach the hard parts: {all}");
}

/// A record that nobody has flushed may get to the disk by itself.
#[test]
fn where_calls_wait_for_the_disk_no_record_names_cells_that_are_not_there() {
    let drive = Drive::new();
    let options = Options { durability: Durability::Host, incarnation: Some(7), ..Options::at(drive.folder()) };
    let ground = Ground { clock: Clock::Set(Arc::default()), disk: Arc::new(drive.clone()) };
    let store = Store::begin(testing::training(1), &options, ground).unwrap();
    let session = store.session("source").unwrap();
    testing::try_feed(&session, 0).unwrap();
    let puts = || String::from_utf8(drive.from(0)).unwrap().matches("rows_put").count();
    assert_eq!(puts(), 1);
    drive.fail(Some(Fault::Flush));
    testing::try_feed(&session, 1).unwrap_err();
    assert_eq!(puts(), 1, "a put whose cells could not be flushed is in the log");
    // Of another process: the machine went down between a record and the flush of what it names.
    seeds::one(2738, simulate);
}

#[test]
fn two_simulations_of_one_seed_tell_the_same_story() {
    for seed in 0..seeds::count(USUAL).min(40) {
        let [a, b] = [0, 1].map(|_| seeds::one(seed, simulate));
        assert_eq!(a, b, "seed {seed}");
    }
}
