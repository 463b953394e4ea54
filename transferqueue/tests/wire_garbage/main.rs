//! `make garbage`: a whole run over TCP and TLS, with people looking in through the control socket, while ten kinds of
//! garbage come to all three ports. It ends as the same run ends without. Alone in its process, since it counts descriptors
//! and memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]
#![allow(dead_code, reason = "helpers are shared with other test binaries")]

#[path = "../catalog_support/mod.rs"]
mod catalog_support;
mod kinds;
#[path = "../wire_support/office.rs"]
mod office;
mod run;

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use kinds::{Kinds, Port};
use office::Office;
use run::{Ports, Run, Signs};

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes in memory, as the kernel counts them.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Both ends of every connection are in this process.
fn half_open() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: usize = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    (soft.saturating_sub(500) / 6).min(1_000)
}

#[test]
fn a_run_does_not_notice_garbage_on_every_port() {
    let office = Office::new();
    let quiet = Run::new(&office).work(|_, signs| signs.enough.store(true, Ordering::SeqCst));
    let (before, memory) = (descriptors(), resident());
    // All of them, and ports that heard every kind.
    let (rounds, once) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let run = Run::new(&office);
    let loud = run.work(|ports: &Ports, signs: &Signs| {
        thread::scope(|scope| {
            let [plain, other] = ports.token.clone();
            let tcp = Port::Net { address: ports.tcp.clone(), token: plain, ca: None };
            let tls = Port::Net { address: ports.tls.clone(), token: other, ca: Some(office.ca()) };
            for port in [tcp, tls, Port::Control(ports.control.clone())] {
                let (rounds, once) = (&rounds, &once);
                scope.spawn(move || {
                    let kinds = Kinds::new(port, half_open());
                    for seed in 1.. {
                        kinds.round(seed, &signs.over);
                        rounds.fetch_add(1, Ordering::SeqCst);
                        if seed == 1 && once.fetch_add(1, Ordering::SeqCst) == 2 {
                            signs.enough.store(true, Ordering::SeqCst);
                        }
                        if signs.over.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                });
            }
        });
    });
    println!(
        "{} rounds of ten kinds, {} connections half open at once; probes: {} without, slowest {:?}; {} with, slowest {:?}",
        rounds.load(Ordering::SeqCst),
        half_open(),
        quiet.probes,
        quiet.slowest,
        loud.probes,
        loud.slowest
    );
    assert!(once.load(Ordering::SeqCst) == 3, "every port heard every kind while the run went on");
    assert_eq!(loud.result, quiet.result);
    let begun = Instant::now();
    while descriptors() > before + 3 && begun.elapsed() < Duration::from_secs(60) {
        thread::park_timeout(Duration::from_millis(50));
    }
    assert!(descriptors() <= before + 3, "{} descriptors are open, {before} were", descriptors());
    let grown = resident().saturating_sub(memory);
    println!("memory grew by {} KiB", grown >> 10);
    assert!(grown < 256 << 20, "memory grew by {grown} bytes");
}
