//! `make faults`: a run whose processes are killed and stopped at random moments (workers, the store's process, the runner)
//! ends; and every row of the surviving history was trained exactly once. TQ_FAULT_SEED,
//! TQ_FAULT_KILLS and TQ_FAULT_RANKS choose.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tq_tests::{Workplace, living_store, workers};
use transferqueue::{catalog::Event, log};

/// The store and every stage in a process of its own.
const APART: &str = "+store={kind: process}";
const GROUP: usize = 4;
/// A worker that is killed six times in a row while the run does not get on ends it: after so many kills it is let get on, however slow
/// the machine is.
const IN_VAIN: u64 = 4;
/// Longest wait for that.
const PATIENCE: Duration = Duration::from_secs(120);
/// Sessions are lost after 30 s of silence.
const LONG_STOP: Duration = Duration::from_secs(33);

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Sends a signal; whether the process was there.
fn signal(name: &str, pid: u32) -> bool {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status().expect("kill").success()
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

struct Harness {
    place: Workplace,
    steps: String,
    lives: u32,
}

impl Harness {
    fn start(&mut self) -> Child {
        let attempts = ["sft", "rollout", "reward", "advantage", "actor"].map(|s| format!("stages.{s}.attempts=1000"));
        let ranks = format!("stages.actor.ranks={}", number("TQ_FAULT_RANKS", 1));
        let mut arguments = vec![APART, "schedule=one_step_off", &self.steps, &ranks];
        arguments.extend(attempts.iter().map(String::as_str));
        if self.lives > 0 {
            arguments.push("--resume");
        }
        self.lives += 1;
        let said = File::options().create(true).append(true).open(self.said_at()).expect("file for what it says");
        let mut command = self.place.small("quickstart.yaml", &arguments);
        command.stdout(Stdio::null()).stderr(said).spawn().expect("program under test")
    }

    fn said_at(&self) -> std::path::PathBuf {
        self.place.path().join("stderr")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.said_at()).unwrap_or_default()
    }

    /// Bytes of what the phases have trained.
    fn trained(&self) -> u64 {
        let audit = |phase: &str| fs::metadata(self.place.run_file("small", phase)).map_or(0, |file| file.len());
        audit("audit.jsonl") + audit("phases/warmup/audit.jsonl")
    }

    /// What lives of this run, the runner included.
    fn alive(&self) -> usize {
        let here = self.place.path().as_os_str().as_encoded_bytes();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let of_run = |entry: &fs::DirEntry| {
            fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.as_os_str().as_encoded_bytes() == here)
        };
        processes.filter(of_run).count()
    }
}

#[test]
#[ignore = "minutes: make faults"]
fn a_run_survives_kills_and_stops_of_all_its_processes() {
    let (seed, wanted) = (number("TQ_FAULT_SEED", 1), number("TQ_FAULT_KILLS", 200));
    // A rank takes all of its gang back with it: with more of them the run needs as much longer to get on between kills.
    let ranks = number("TQ_FAULT_RANKS", 1);
    let steps = wanted.max(20) * 2 * ranks;
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let mut harness = Harness { place, steps: format!("trainer.total_training_steps={steps}"), lives: 0 };
    let mut dice = Dice(seed);
    let mut run = harness.start();
    let (mut kills, mut store_kills, mut runner_kills, mut stops, mut long_stops) = (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    let mut most_descriptors = 0;
    // What was trained when it was looked last, and kills by then.
    let mut got_on = (0, 0);
    let begun = Instant::now();
    while kills < wanted {
        std::thread::park_timeout(Duration::from_millis((300 + dice.below(900)) * ranks));
        let looking = Instant::now();
        let store = loop {
            let trained = harness.trained();
            if trained != got_on.0 {
                got_on = (trained, kills);
            }
            let in_vain = kills - got_on.1 >= IN_VAIN;
            if let Some(status) = run.try_wait().expect("its status") {
                panic!("seed {seed}: after {kills} kills the run ended ({status}):\n{}", harness.said());
            }
            if let Some(store) = living_store(run.id()).filter(|_| !in_vain) {
                break store;
            }
            let what = if in_vain { "the run does not get on" } else { "the store is not started again" };
            let said = || format!("seed {seed}: after {kills} kills {what}:\n{}", harness.said());
            assert!(looking.elapsed() < PATIENCE, "{}", said());
            std::thread::park_timeout(Duration::from_millis(10));
        };
        most_descriptors = most_descriptors.max(descriptors(store));
        let living = workers(run.id());
        let pick = dice.below(1 << 32) as usize;
        let of = |stage: &str| living.iter().filter(|(_, of)| of == stage).map(|(pid, _)| *pid).collect::<Vec<_>>();
        let targets = [of("rollout"), of("reward"), of("actor"), of("sft")].concat();
        match dice.below(40) {
            // The store's process alone: it comes back under its workers.
            0..=2 => {
                let killed = u64::from(signal("KILL", store));
                kills += killed;
                store_kills += killed;
            }
            // The runner: everything follows, and is started again.
            3 => {
                assert!(signal("KILL", run.id()));
                run.wait().expect("its end");
                kills += 1;
                runner_kills += 1;
                let dying = Instant::now();
                while harness.alive() > 0 {
                    assert!(dying.elapsed() < Duration::from_secs(30), "workers outlive their runner");
                    std::thread::park_timeout(Duration::from_millis(20));
                }
                run = harness.start();
            }
            // The third process that is stopped for long is the store's.
            stop @ 4..=6 if !targets.is_empty() => {
                let long = stop == 4 && long_stops < 3;
                let pid = if long && long_stops == 2 { store } else { targets[pick % targets.len()] };
                if signal("STOP", pid) {
                    std::thread::park_timeout(if long { LONG_STOP } else { Duration::from_millis(dice.below(2_000)) });
                    signal("CONT", pid);
                    stops += 1;
                    long_stops += u64::from(long);
                }
            }
            _ if !targets.is_empty() => kills += u64::from(signal("KILL", targets[pick % targets.len()])),
            _ => {}
        }
    }
    let dealt = begun.elapsed();
    let status = run.wait().expect("its end");
    assert!(status.success(), "seed {seed}: {status}:\n{}", harness.said());
    println!(
        "seed {seed}: {kills} kills ({store_kills} of the store, {runner_kills} of the runner), {stops} stops \
         ({long_stops} of {LONG_STOP:?}) in \
         {dealt:?}; {steps} steps ended after {:?}; at most {most_descriptors} descriptors of the store",
        begun.elapsed()
    );
    assert_eq!(harness.alive(), 0, "processes are left behind");
    assert!(most_descriptors < 200, "{most_descriptors} descriptors of the store");
    check(&harness.place, steps, store_kills + runner_kills);
    assert!(!harness.place.run_file("small", "arena").exists(), "bytes are left behind");
}

#[test]
#[ignore = "a minute: make faults"]
fn a_worker_that_is_stopped_for_good_delays_its_own_leases_alone() {
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let two = "workers={two: {stages: [rollout], count: 2, kind: processes}, rest: {stages: \"*\"}}";
    let mut command = place.small("quickstart.yaml", &[two, "trainer.total_training_steps=12"]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test");
    let begun = Instant::now();
    while !place.run_file("small", "audit.jsonl").exists() || workers(run.id()).len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "two workers, and a first step");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    assert!(signal("STOP", workers(run.id())[1].0));
    let status = run.wait().expect("its end");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut run.stderr.take().expect("its standard error"), &mut said).expect("text");
    assert!(status.success(), "{said}");
    assert!(said.contains("does not end with the run, and is killed"), "{said}");
    assert_eq!(place.trained("small").len(), 12 * 8 * GROUP);
    place.assert_ledger_balances("small");
}

#[test]
#[ignore = "a minute: make faults"]
fn a_rank_that_is_stopped_takes_its_fellow_back_and_both_go_on_when_it_wakes() {
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let mut command =
        place.small("quickstart.yaml", &[APART, "stages.actor.ranks=2", "trainer.total_training_steps=12"]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test");
    let ranks =
        || workers(run.id()).into_iter().filter(|(_, of)| of == "actor").map(|(pid, _)| pid).collect::<Vec<_>>();
    let begun = Instant::now();
    let audit = || fs::read_to_string(place.run_file("small", "audit.jsonl")).unwrap_or_default();
    while audit().lines().count() < 8 * GROUP || ranks().len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "two ranks, and a first step");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let stopped = ranks()[1];
    assert!(signal("STOP", stopped));
    std::thread::park_timeout(LONG_STOP);
    assert!(signal("CONT", stopped));
    let status = run.wait().expect("its end");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut run.stderr.take().expect("its standard error"), &mut said).expect("text");
    assert!(status.success(), "{said}");
    assert!(said.contains("lost a fellow rank and begins again") && said.contains("was taken for lost"), "{said}");
    assert_eq!(place.trained("small").len(), 12 * 8 * GROUP);
    place.assert_ledger_balances("small");
}

/// Reads births and drops from the event log and training from the audit, and nothing else.
fn check(place: &Workplace, steps: u64, store_kills: u64) {
    let (mut born, mut dropped, mut samples) = (BTreeSet::new(), BTreeSet::new(), None);
    for entry in log::surviving(&place.run_file("small", "events")).expect("event log") {
        for event in entry.expect("a whole record").record.events {
            match event {
                Event::Defined { definition, .. } => {
                    samples = definition.partitions.iter().position(|partition| partition.name == "samples");
                }
                Event::GroupsAdmitted { partition, groups, .. } if samples == Some(partition.0 as usize) => {
                    born.extend(groups.iter().flat_map(|group| group.first.0..group.first.0 + u64::from(group.n)));
                }
                Event::RowsDropped { partition, drop } if samples == Some(partition.0 as usize) => {
                    dropped.extend(drop.rows.iter().map(|row| row.0));
                }
                _ => {}
            }
        }
    }
    // `trained` fails when a row is trained twice in one lineage.
    let trained: BTreeSet<u64> = place.trained("small").into_keys().map(|(_, row)| row).collect();
    assert_eq!(trained.len(), steps as usize * 8 * GROUP);
    assert_eq!(born.difference(&dropped).copied().collect::<BTreeSet<_>>(), trained);
    place.assert_ledger_balances("small");
    let lines = place.lines("small", "metrics.jsonl");
    let seen: Vec<u64> = lines.iter().filter_map(|line| line["step"].as_u64()).filter(|step| *step > 0).collect();
    assert_eq!(seen, (1..=steps).collect::<Vec<_>>(), "each step has one line");
    // What was reported of the step in flight goes with the process that collects it.
    let told = lines.iter().filter(|line| line.get("actor/pg_loss").is_some()).count() as u64;
    assert!(told + 2 * store_kills >= steps, "{told} of {steps} steps have their loss, {store_kills} kills");
}
