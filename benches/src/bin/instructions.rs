//! What one small request costs the store's process: instructions in user space, counted by callgrind.
//!
//! The store is served under `valgrind --tool=callgrind`, once for few and once for many of the same request; the difference of
//! the two, divided by the requests more, is the cost of one, without start and end. The kernel's part is not counted, nor what
//! the client does. Exits with 77 where there is no valgrind.

use std::{
    env, fs,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use tq_benches::{
    Better, Report, Row,
    served::{SERVE, Served, cell, definition, serve},
    skipped, sum,
};
use transferqueue::{NewRow, Outputs, Session, client::Choice};

const FEW: usize = 100;
const MANY: usize = 600;
/// Under callgrind everything takes some fifty times as long.
const PATIENCE: Duration = Duration::from_secs(600);

/// One kind of request, so many times.
type Work = fn(&Session, usize);

fn put(session: &Session, times: usize) {
    let partition = session.partition("8").expect("a partition");
    for _ in 0..times {
        let outputs = Outputs::new().array("x", cell(vec![7]));
        session.put(partition, vec![NewRow::default()], outputs, Instant::now() + PATIENCE).expect("there is room");
    }
}

/// Puts, and claims of each row with a commit.
fn claim(session: &Session, times: usize) {
    put(session, times);
    for _ in 0..times {
        let lease = session.claim("read-8", 1, Instant::now() + PATIENCE).expect("a claim").lease().expect("a row");
        lease.commit(Outputs::new()).expect("a commit");
    }
}

/// Puts, and claims of each row with a look at its bytes and a commit.
fn get(session: &Session, times: usize) {
    put(session, times);
    for _ in 0..times {
        let lease = session.claim("read-8", 1, Instant::now() + PATIENCE).expect("a claim").lease().expect("a row");
        let batch = lease.batch().expect("it is there");
        assert_eq!(sum(batch.dense::<u64>("x").expect("numbers").row(0)), 7);
        drop(batch);
        lease.commit(Outputs::new()).expect("a commit");
    }
}

/// Instructions of the store's process.
fn counted(transport: Choice, work: Work, times: usize) -> f64 {
    let out = env::temp_dir().join(format!("tq-instructions-{}", std::process::id()));
    let tool = ["valgrind", "--tool=callgrind", "--quiet", &format!("--callgrind-out-file={}", out.display())];
    let served = Served::start_under(&tool);
    work(&served.connect(transport), times);
    drop(served);
    let profile = fs::read_to_string(&out).expect("callgrind writes a profile when the store ends");
    fs::remove_file(&out).expect("it was just read");
    let total = profile.lines().find_map(|line| line.strip_prefix("totals: ")).expect("callgrind sums up");
    total.trim().parse().expect("a number")
}

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(SERVE) {
        serve(definition(&[8]), |_, _| String::new());
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skipped("there is no valgrind here (Debian: apt-get install valgrind)");
    }
    let mut report = Report::new("instructions");
    for (way, transport) in [("shm", Choice::Shm), ("flight", Choice::Flight)] {
        let one = |work| (counted(transport, work, MANY) - counted(transport, work, FEW)) / (MANY - FEW) as f64;
        let [put, claim, get] = [put as Work, claim, get].map(one);
        for (what, cost) in [("put of one row", put), ("claim and commit", claim - put), ("get", get - claim)] {
            report.push(Row::alone(format!("{what}, {way}"), "instructions", cost, None, Better::Less));
        }
    }
    report.conclude()
}
