//! Puts and gets between two processes of one host, beside what the memory can do and beside Flight.
//!
//! The store is in a process of its own. This one puts one cell of 64 KiB to 256 MiB, claims it, reads it and lets it go:
//! through shared memory, and over Flight; beside each put it copies the same bytes between warm buffers, beside each get it
//! reads such a buffer. Each is repeated until 512 MiB have passed (four times as much in small cells), five times in turns
//! behind a turn that brings the pages; medians are compared. Every byte that is got is summed within the timed part, on both
//! sides. (Small puts and gets: `small.rs`.)

use std::{
    env,
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

use arrow::array::ArrayRef;
use tq_benches::{
    GIB, Report, Row, median,
    served::{SERVE, Served, cell, definition, serve},
    sum,
};
use transferqueue::{NewRow, Outputs, Session, client::Choice};

const ROUNDS: usize = 5;
const EACH: usize = 512 << 20;
const SIZES: [usize; 5] = [64 << 10, 1 << 20, 8 << 20, 64 << 20, 256 << 20];

/// One cell, put and read again and again.
struct Cell {
    bytes: usize,
    values: Vec<u64>,
    array: ArrayRef,
}

impl Cell {
    fn new(bytes: usize) -> Self {
        let values: Vec<u64> = (0..bytes as u64 / 8).collect();
        let array = cell(values.clone());
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

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(SERVE) {
        serve(definition(&SIZES), |_, _| String::new());
        return ExitCode::SUCCESS;
    }
    let served = Served::start();
    let [near, far] = [Choice::Shm, Choice::Flight].map(|transport| served.connect(transport));
    let mut report = Report::new("near");
    SIZES.into_iter().for_each(|bytes| large(&mut report, &near, &far, bytes));
    report.conclude()
}
