//! Puts and gets between two processes of one host, beside what the memory can do and beside Flight.
//!
//! The store is in a process of its own. This one puts one cell of 64 KiB to 256 MiB, claims it, reads it and lets it go:
//! through shared memory, and over Flight; beside each put it copies the same bytes between warm buffers, beside each get it
//! reads such a buffer. Each is repeated until 512 MiB have passed (four times as much in small cells), five times in turns
//! behind a turn that brings the pages; medians are compared. Every byte that is got is summed within the timed part, on both
//! sides. Small puts and gets are timed one by one.

use std::{
    env,
    hint::black_box,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use arrow::{
    array::{ArrayRef, FixedSizeListArray, UInt64Array},
    datatypes::DataType,
};
use tq_benches::{Better, GIB, Report, Row, median, sum};
use transferqueue::{
    Column, Definition, Dtype, Kind, NewRow, Options, Outputs, Session, Store, arrow_map,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Choice, Remote},
    server,
};

const ROUNDS: usize = 5;
const EACH: usize = 512 << 20;
const SIZES: [usize; 5] = [64 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20];
/// Small puts and gets that are timed one by one.
const SMALL: usize = 2_000;
/// The argument that makes this program the store.
const SERVE: &str = "serve";

fn kind(bytes: usize) -> Kind {
    Kind::Dense { dtype: Dtype::U64, shape: vec![bytes / 8] }
}

/// A partition for cells of each size, and a task that reads them.
fn definition() -> Definition {
    let sizes = || [8].into_iter().chain(SIZES);
    let partition = |bytes: usize| Partition {
        name: format!("{bytes}"),
        columns: vec![Column::new("x", kind(bytes))],
        birth: Birth::Put { capacity: None },
    };
    let task =
        |bytes: usize| Task { reads: vec!["x".into()], ..Task::new(format!("read-{bytes}"), format!("{bytes}")) };
    Definition {
        partitions: sizes().map(partition).collect(),
        tasks: sizes().map(task).collect(),
        ..Definition::default()
    }
}

/// Serves until its standard input ends.
fn serve() {
    let options = Options { shared: true, arena_segment_bytes: 64 << 20, ..Options::default() };
    let store = Store::create(definition(), options).expect("a store");
    let server = server::serve(&store, &server::Options::default()).expect("a server");
    let mut said = std::io::stdout();
    writeln!(said, "{}\n{}", server.url(), server.token()).and_then(|()| said.flush()).expect("someone listens");
    std::io::stdin().lines().for_each(drop);
}

/// The store's process; it ends with its standard input.
struct Served {
    process: Child,
    url: String,
    token: String,
}

impl Served {
    fn start() -> Self {
        let program = env::current_exe().expect("this program");
        let (input, output) = (Stdio::piped(), Stdio::piped());
        let mut process = Command::new(program).arg(SERVE).stdin(input).stdout(output).spawn().expect("a process");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let [url, token] = [0, 1].map(|_| lines.next().expect("a line").expect("text"));
        Self { process, url, token }
    }

    fn connect(&self, transport: Choice) -> Session {
        let options = client::Options { transport, ..client::Options::default() };
        Remote::connect(&self.url, &self.token, options).and_then(|remote| remote.session("bench")).expect("a session")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}

/// One cell, put and read again and again.
struct Cell {
    bytes: usize,
    values: Vec<u64>,
    array: ArrayRef,
}

impl Cell {
    fn new(bytes: usize) -> Self {
        let values: Vec<u64> = (0..bytes as u64 / 8).collect();
        let DataType::FixedSizeList(item, len) = arrow_map::storage(&kind(bytes)) else { unreachable!("a tensor") };
        let array = Arc::new(FixedSizeListArray::new(item, len, Arc::new(UInt64Array::from(values.clone())), None));
        Self { bytes, values, array }
    }

    /// Times of a put and of a get with a look at every byte.
    fn pass(&self, session: &Session) -> [Duration; 2] {
        let (partition, task) = (self.bytes.to_string(), format!("read-{}", self.bytes));
        let partition = session.partition(&partition).expect("a partition");
        let soon = Instant::now() + Duration::from_secs(60);
        let (rows, outputs) = (vec![NewRow::default()], Outputs::new().array("x", self.array.clone()));
        let begun = Instant::now();
        session.put(partition, rows, outputs, soon).expect("there is room");
        let put = begun.elapsed();
        let lease = session.claim(&task, 1, soon).expect("a claim").lease().expect("a row");
        let begun = Instant::now();
        let batch = lease.batch().expect("it is there");
        black_box(sum(batch.dense::<u64>("x").expect("numbers").row(0)));
        let got = begun.elapsed();
        drop(batch);
        lease.commit(Outputs::new()).expect("a commit");
        [put, got]
    }

    /// Times of a copy between warm buffers and of a look at every byte of one.
    fn limits(&self, target: &mut [u64]) -> [Duration; 2] {
        let begun = Instant::now();
        target.copy_from_slice(black_box(&self.values));
        let copied = begun.elapsed();
        let begun = Instant::now();
        black_box(sum(black_box(target)));
        [copied, begun.elapsed()]
    }
}

/// Medians over the rounds of the times of all passes of a round.
fn large(report: &mut Report, near: &Session, far: &Session, bytes: usize) {
    let cell = Cell::new(bytes);
    let mut target = vec![0; cell.values.len()];
    let times = (EACH / bytes).clamp(2, 512);
    let mut rounds: [Vec<[Duration; 2]>; 3] = Default::default();
    for round in 0..=ROUNDS {
        let mut sums = [[Duration::ZERO; 2]; 3];
        for _ in 0..times {
            let passed = [cell.pass(near), cell.pass(far), cell.limits(&mut target)];
            for (sum, passed) in sums.iter_mut().flatten().zip(passed.iter().flatten()) {
                *sum += *passed;
            }
        }
        if round > 0 {
            rounds.iter_mut().zip(sums).for_each(|(all, sum)| all.push(sum));
        }
    }
    for (at, what, limit) in [(0, "put", "memcpy"), (1, "get and read", "read")] {
        let [near, far, limits] =
            [0, 1, 2].map(|way: usize| median(rounds[way].iter().map(|times| times[at]).collect()));
        let speed = |seconds: f64| (times * bytes) as f64 / GIB / seconds;
        let budget = (at == 0 && bytes >= 64 << 20).then_some(0.9);
        for (against, seconds, budget) in [(limit, limits, budget), ("flight", far, None)] {
            let case = format!("{what}, shm, {} KiB, beside {against}", bytes >> 10);
            report.push(Row::speeds(case, speed(near), (against, speed(seconds)), budget));
        }
    }
}

/// Small cells, one by one: the middle one, and the one of a hundred that takes longest.
fn small(report: &mut Report, near: &Session, far: &Session) {
    let cell = Cell::new(8);
    let mut all: [[Vec<Duration>; 2]; 2] = Default::default();
    for _ in 0..SMALL {
        for (way, session) in [near, far].into_iter().enumerate() {
            all[way].iter_mut().zip(cell.pass(session)).for_each(|(all, passed)| all.push(passed));
        }
    }
    let [near, far] = all;
    for (what, budget, near, far) in near
        .into_iter()
        .zip(far)
        .zip([("put of one row", 100.0), ("get of one row", 50.0)])
        .map(|((near, far), (what, budget))| (what, budget, near, far))
    {
        for (name, share, budget) in [("p50", 0.5, Some(budget)), ("p99", 0.99, None)] {
            let [ours, theirs] = [&near, &far].map(|all| {
                let mut all = all.clone();
                all.sort();
                all[(all.len() as f64 * share) as usize].as_secs_f64() * 1e6
            });
            report.push(Row::alone(format!("{what}, shm, {name}"), "us", ours, budget, Better::Less));
            report.push(Row::alone(format!("{what}, flight, {name}"), "us", theirs, None, Better::Less));
        }
    }
}

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(SERVE) {
        serve();
        return ExitCode::SUCCESS;
    }
    let served = Served::start();
    let [near, far] = [Choice::Shm, Choice::Flight].map(|transport| served.connect(transport));
    let mut report = Report::new("near");
    small(&mut report, &near, &far);
    SIZES.into_iter().for_each(|bytes| large(&mut report, &near, &far, bytes));
    report.conclude()
}
