//! `make soak`: a run in processes goes on for TQ_SOAK_SECONDS (3600); memory, descriptors, threads, sessions, leases, live
//! rows and files of its processes are then what they were after its first sixth.

use std::{
    env, fmt, fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tq_tests::{Workplace, store_process, until, workers};
use transferqueue::{
    Claim, Error, Outputs,
    client::{self, Remote},
    inspect::{Client, Reply, Request},
};

/// Everything at once: processes, an archive, and a reader outside the run that pauses.
const SETUP: [&str; 6] = [
    "schedule={use: fully_async, lag: 1}",
    "+store={kind: process, budget: 200KiB, spill: true}",
    "+partitions.samples.keep=archive",
    "+stages.exporter={use: external, with: {columns: [responses]}, serve: [samples]}",
    "trainer.total_training_steps=1000000",
    "trainer.test_freq=50",
];

const EVERY: Duration = Duration::from_secs(5);

fn seconds() -> u64 {
    let seconds = env::var("TQ_SOAK_SECONDS").map_or(3_600, |text| text.parse().expect("TQ_SOAK_SECONDS is a number"));
    assert!(
        seconds >= 600,
        "TQ_SOAK_SECONDS={seconds}: a sixth of it must outlast the reader's pauses; give it 600 or more"
    );
    seconds
}

/// One look at the run.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    /// Anonymous memory of all processes, in KiB: what no file backs.
    memory: u64,
    /// The same of the store's process.
    store_memory: u64,
    descriptors: u64,
    threads: u64,
    processes: u64,
    sessions: u64,
    leases: u64,
    rows: u64,
    /// Bytes that the store's chunks hold.
    bytes: u64,
    /// Of these, bytes in spill files.
    spilled: u64,
    /// Files of the arena and of spilled cells.
    files: u64,
    steps: u64,
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "step {}: {} MiB ({} MiB the store's), {} descriptors, {} threads of {} processes, {} sessions, {} leases, {} rows, {} KiB in {} files",
            self.steps,
            self.memory >> 10,
            self.store_memory >> 10,
            self.descriptors,
            self.threads,
            self.processes,
            self.sessions,
            self.leases,
            self.rows,
            self.bytes >> 10,
            self.files
        )
    }
}

fn field(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn entries(folder: &Path) -> u64 {
    fs::read_dir(folder).map_or(0, |entries| entries.count() as u64)
}

fn look(place: &Workplace, runner: u32) -> Option<Look> {
    let mut client = Client::connect(&place.run_file("small", "control.sock")).ok()?;
    let mut ask = |request: &Request| client.get(request).ok();
    let Reply::Status(status) = ask(&Request::Status)? else { return None };
    let Reply::Sessions(sessions) = ask(&Request::Sessions)? else { return None };
    let Reply::Units(units) = ask(&Request::Units)? else { return None };
    let store = store_process(runner);
    let mut pids: Vec<u32> = workers(runner).into_iter().map(|(pid, _)| pid).collect();
    pids.extend([runner, store]);
    let sum = |of: &dyn Fn(u32) -> u64| pids.iter().map(|pid| of(*pid)).sum();
    Some(Look {
        memory: sum(&|pid| field(pid, "RssAnon")),
        store_memory: field(store, "RssAnon"),
        descriptors: sum(&|pid| entries(Path::new(&format!("/proc/{pid}/fd")))),
        threads: sum(&|pid| field(pid, "Threads")),
        processes: pids.len() as u64,
        sessions: sessions.len() as u64,
        leases: sessions.iter().map(|session| session.leases.len() as u64).sum(),
        rows: status.rows,
        spilled: units.iter().map(|unit| unit.spilled).sum(),
        bytes: units.iter().map(|unit| unit.live + unit.lingering + unit.unsettled).sum(),
        files: entries(&place.run_file("small", "arena")) + entries(&place.run_file("small", "spill")),
        steps: status.schedule?.cycle,
    })
}

/// Consumes what the exporter is owed, with a pause of ten seconds in every minute, until the run ends.
fn export(url: &str, token: &str) -> u64 {
    let remote = Remote::connect(url, token, client::Options::default()).expect("the run's door");
    let session = remote.session("exporter-0").expect("a session");
    let (mut rows, mut paused) = (0, Instant::now());
    loop {
        match session.claim("exporter", 64, Instant::now() + Duration::from_secs(600)) {
            Ok(Claim::Lease(lease)) => {
                rows += lease.batch().expect("leased rows can be read").len() as u64;
                lease.commit(Outputs::new()).expect("the lease lives");
            }
            Ok(Claim::Ended) | Err(Error::Stopped { .. } | Error::Unreachable { .. }) => return rows,
            Err(error) => panic!("{error}"),
        }
        if paused.elapsed() > Duration::from_secs(60) {
            thread::park_timeout(Duration::from_secs(10));
            paused = Instant::now();
        }
    }
}

/// The median of one number over several looks.
fn median(looks: &[Look], of: impl Fn(&Look) -> u64) -> u64 {
    let mut numbers: Vec<u64> = looks.iter().map(of).collect();
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

#[test]
#[ignore = "an hour: make soak"]
fn a_run_of_an_hour_grows_in_nothing() {
    let length = Duration::from_secs(seconds());
    let place = Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"));
    let mut command = place.small("quickstart.yaml", &SETUP);
    let said = fs::File::create(place.path().join("stderr")).expect("file for what it says");
    let mut run = command.stdout(Stdio::null()).stderr(said).spawn().expect("program under test");
    let told = || fs::read_to_string(place.path().join("stderr")).unwrap_or_default();
    until(|| look(&place, run.id()).filter(|look| look.steps > 2));

    let read = |name: &str| fs::read_to_string(place.run_file("small", name)).ok().map(|text| text.trim().to_owned());
    let (url, token) = until(|| Some((read("url")?, read("token")?)));
    let exporter = thread::spawn(move || export(&url, &token));
    let begun = Instant::now();
    let (mut looks, mut shown) = (Vec::new(), Duration::ZERO);
    while begun.elapsed() < length {
        thread::park_timeout(EVERY);
        if let Some(status) = run.try_wait().expect("its status") {
            panic!("the run ended ({status}):\n{}", told());
        }
        let Some(look) = look(&place, run.id()) else { continue };
        if begun.elapsed() >= shown {
            println!("{:>5} s, {look}", begun.elapsed().as_secs());
            shown += length / 12;
        }
        looks.push(look);
    }
    let asked = Command::new("kill").args(["-INT", &run.id().to_string()]).status().expect("kill");
    assert!(asked.success());
    let status = run.wait().expect("its end");
    let exported = exporter.join().expect("a reader that reads to the end");

    assert!(looks.len() >= 12, "{} looks", looks.len());
    let sixth = looks.len() / 6;
    // The second sixth, when everything is warm, and the last one.
    let (first, last) = (&looks[sixth..2 * sixth], &looks[looks.len() - sixth..]);
    println!("after {} steps; second and last sixth:", looks[looks.len() - 1].steps);
    let mut grown = Vec::new();
    let mut compare = |name: &str, of: &dyn Fn(&Look) -> u64, slack: u64| {
        let (before, after) = (median(first, of), median(last, of));
        println!("{name:>14}: {before} → {after}");
        if after > before + before / 10 + slack {
            grown.push(format!("{name}: {before} → {after}"));
        }
    };
    compare("memory (KiB)", &|look| look.memory, 8 << 10);
    compare("of the store", &|look| look.store_memory, 4 << 10);
    compare("descriptors", &|look| look.descriptors, 4);
    compare("threads", &|look| look.threads, 2);
    compare("processes", &|look| look.processes, 0);
    compare("sessions", &|look| look.sessions, 0);
    compare("leases", &|look| look.leases, 4);
    compare("rows", &|look| look.rows, 64);
    compare("bytes", &|look| look.bytes, 1 << 20);
    compare("files", &|look| look.files, 4);
    assert!(grown.is_empty(), "grown: {}\n{}", grown.join("; "), told());
    assert!(last[0].steps > first[0].steps + 10, "the run hardly got on");
    assert!(exported > 0, "the reader outside the run read nothing");
    let spilled = looks.iter().map(|look| look.spilled).max().unwrap_or_default();
    println!("{exported} rows exported; at most {spilled} bytes seen in spill files; ended with {status}");
}
