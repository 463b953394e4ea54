//! Cells to a CUDA device and back, beside bare copies from and to memory that CUDA has allocated pinned.
//!
//! *To the device*: a cell that lies in a store is got (`Lease::batch`) and uploaded to memory that is there. *From the device*:
//! room is reserved, filled by the device and put. The store is in a process of its own, which this one shares memory with, and
//! then in this one. Beside them a bare asynchronous copy between the device and pinned memory, and one between the device and memory
//! of the allocator. Nine turns of 512 MiB (of one cell where that is larger), in turns behind one that brings the pages; medians are
//! compared. Claims, commits and what fills the store are not timed. Then the same with four threads at a time, as often, where claims and
//! commits count.
//!
//! Before a size is timed every byte of it is looked at once each way: what came to the device is compared with what was put, and
//! what came to the store is summed up there (in the store's process, where it is another one) by a sum that knows the order.
//!
//! Without a device the program says what is missing and exits with 77.

use std::{
    env,
    process::ExitCode,
    time::{Duration, Instant},
};

use tq_benches::{
    Better, GIB, Report, Row, median,
    served::{SERVE, Served, cell, definition, serve, store},
    skipped,
};
use tq_cuda::{Device, Memory, Pinned};
use transferqueue::{Lease, NewRow, Outputs, Session, client::Choice, transport::Lens};

const TURNS: usize = 9;
const EACH: usize = 512 << 20;
const SIZES: [usize; 5] = [1 << 20, 8 << 20, 64 << 20, 256 << 20, 1 << 30];
/// Threads that are at it together.
const AT_ONCE: usize = 4;
/// From here on a copy through the store is to be as fast as a bare one.
const JUDGED: usize = 64 << 20;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// Numbers that no other call gives (splitmix64).
fn numbers(seed: u64, count: usize) -> Vec<u64> {
    let mixed = |at: u64| {
        let z = seed.wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    (0..count as u64).map(mixed).collect()
}

/// A sum of numbers that knows their order.
fn digest(values: &[u64]) -> u64 {
    values.iter().fold(7, |sum, value| (sum ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// Takes the cell of a partition out of a store, and says its digest.
fn take(session: &Session, bytes: usize) -> u64 {
    let lease = Way::claim(session, bytes);
    let found = digest(lease.batch().expect("it is there").dense::<u64>("x").expect("numbers").row(0));
    lease.commit(Outputs::new()).expect("a commit");
    found
}

/// A store, and what finds out what lies in it without the session that put it there.
struct Way<'a> {
    name: &'static str,
    session: Session,
    take: Box<dyn FnMut(usize) -> u64 + 'a>,
}

impl Way<'_> {
    fn put(&self, bytes: usize, cells: Outputs) {
        let partition = self.session.partition(&bytes.to_string()).expect("a partition");
        self.session.put(partition, vec![NewRow::default()], cells, soon()).expect("there is room");
    }

    fn claim(session: &Session, bytes: usize) -> Lease {
        session.claim(&format!("read-{bytes}"), 1, soon()).expect("a claim").lease().expect("a row")
    }

    /// The time of a get and an upload.
    fn up(&self, device: &Device, lease: &Lease, target: Memory) -> (Duration, Memory) {
        let begun = Instant::now();
        let batch = lease.batch().expect("it is there");
        let mut copy = device.upload_into(batch.views("x").expect("a column"), target).expect("a copy");
        let target = copy.wait(soon()).expect("it is done");
        (begun.elapsed(), target)
    }

    /// The times of asking for room, of the copy, and of the put; the row is let go again.
    fn down(&self, device: &Device, bytes: usize, source: Memory) -> ([Duration; 3], Memory) {
        let partition = self.session.partition(&bytes.to_string()).expect("a partition");
        let begun = Instant::now();
        let room = self.session.reserve(partition, "x", Lens::Equal(1)).expect("room");
        assert!(room.is_in_place(), "the store can be written to in place");
        let reserved = begun.elapsed();
        let (source, room) = device.download(source, room).and_then(|mut copy| copy.wait(soon())).expect("a copy");
        let copied = begun.elapsed();
        let cells = Outputs::new().room("x", room);
        self.session.put(partition, vec![NewRow::default()], cells, soon()).expect("it is put");
        ([reserved, copied - reserved, begun.elapsed() - copied], source)
    }

    fn let_go(&self, bytes: usize) {
        Self::claim(&self.session, bytes).commit(Outputs::new()).expect("a commit");
    }

    /// Compares every byte, there and back. Returns how long the first copies took, each with whatever is registered for it.
    fn check(&mut self, device: &Device, bytes: usize, mut memory: Memory, seed: u64) -> ([Duration; 2], Memory) {
        let (values, mut seen) = (numbers(seed, bytes / 8), vec![0; bytes / 8]);
        self.put(bytes, Outputs::new().array("x", cell(values.clone())));
        device.copy_in(bytemuck::cast_slice(&seen), &mut memory).expect("zeros");
        let lease = Self::claim(&self.session, bytes);
        let (up, mut memory) = self.up(device, &lease, memory);
        lease.commit(Outputs::new()).expect("a commit");
        device.copy_out(&memory, bytemuck::cast_slice_mut(&mut seen)).expect("a copy");
        assert!(seen == values, "{}: {bytes} bytes came to the device as others", self.name);

        let values = numbers(!seed, bytes / 8);
        device.copy_in(bytemuck::cast_slice(&values), &mut memory).expect("a copy");
        let (down, memory) = self.down(device, bytes, memory);
        assert_eq!((self.take)(bytes), digest(&values), "{}: {bytes} bytes came to the store as others", self.name);
        ([up, down.iter().sum()], memory)
    }
}

/// The bare copies that others are compared with.
struct Bare {
    pinned: Pinned,
    pageable: Vec<u8>,
}

impl Bare {
    fn timed(copy: impl FnOnce() -> Result<(), tq_cuda::Error>) -> Duration {
        let begun = Instant::now();
        copy().expect("a copy");
        begun.elapsed()
    }

    /// Times from pinned memory, from other memory, to pinned memory, to other memory.
    fn all(&mut self, device: &Device, memory: &mut Memory) -> [Duration; 4] {
        [
            Self::timed(|| device.copy_in(&self.pinned, memory)),
            Self::timed(|| device.copy_in(&self.pageable, memory)),
            Self::timed(|| device.copy_out(memory, &mut self.pinned)),
            Self::timed(|| device.copy_out(memory, &mut self.pageable)),
        ]
    }
}

/// Speeds to the device and from it while several threads are at it, each with a session's clone and memory of its own: everything that
/// a row costs is in them, claims and commits too, beside the copies of the others.
fn together(device: &Device, way: &Way<'_>, lease: &Lease, bytes: usize) -> [f64; 2] {
    let passes = (EACH / bytes).max(2);
    let batch = || lease.batch().expect("it is there");
    let mut memory: Vec<Memory> = (0..AT_ONCE).map(|_| device.allocate(bytes).expect("device memory")).collect();
    let session = &way.session;
    let timed = |memory: &mut Vec<Memory>, each: &(dyn Fn(Memory) -> Memory + Sync)| {
        let begun = Instant::now();
        *memory = std::thread::scope(|scope| {
            let threads =
                memory.drain(..).map(|memory| scope.spawn(move || (0..passes).fold(memory, |memory, _| each(memory))));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends well")).collect()
        });
        (AT_ONCE * passes * bytes) as f64 / GIB / begun.elapsed().as_secs_f64()
    };
    let up = |target: Memory| {
        device
            .upload_into(batch().views("x").expect("a column"), target)
            .and_then(|mut copy| copy.wait(soon()))
            .expect("a copy")
    };
    let down = |source: Memory| {
        let partition = session.partition(&bytes.to_string()).expect("a partition");
        let room = session.reserve(partition, "x", Lens::Equal(1)).expect("room");
        let (source, room) = device.download(source, room).and_then(|mut copy| copy.wait(soon())).expect("a copy");
        session.put(partition, vec![NewRow::default()], Outputs::new().room("x", room), soon()).expect("it is put");
        Way::claim(session, bytes).commit(Outputs::new()).expect("a commit");
        source
    };
    [timed(&mut memory, &up), timed(&mut memory, &down)]
}

/// All ways with cells of one size.
fn measure(report: &mut Report, device: &Device, ways: &mut [Way<'_>; 2], bytes: usize) {
    let mut memory = device.allocate(bytes).expect("device memory");
    let mut bare = Bare { pinned: device.pinned(bytes).expect("pinned memory"), pageable: vec![1; bytes] };
    bare.pinned.copy_from_slice(bytemuck::cast_slice(&numbers(1, bytes / 8)));
    let mib = bytes >> 20;
    for (way, seed) in ways.iter_mut().zip([2, 3]) {
        let (first, back) = way.check(device, bytes, memory, seed);
        memory = back;
        for (what, first) in ["to", "from"].into_iter().zip(first) {
            let case = format!("{what} the device, {}, {mib} MiB, the first", way.name);
            report.push(Row::alone(case, "ms", first.as_secs_f64() * 1e3, None, Better::Less));
        }
        way.put(bytes, Outputs::new().array("x", cell(numbers(4, bytes / 8))));
    }
    let leases = ways.each_ref().map(|way| Way::claim(&way.session, bytes));
    let passes = (EACH / bytes).max(1);
    // Bare to the device and back as `Bare::all`, then up and the three parts of down for each way.
    let mut turns: Vec<[Duration; 12]> = Vec::new();
    for turn in 0..=TURNS {
        let mut sums = [Duration::ZERO; 12];
        for _ in 0..passes {
            let mut times = bare.all(device, &mut memory).to_vec();
            for (way, lease) in ways.iter().zip(&leases) {
                let (up, back) = way.up(device, lease, memory);
                let (down, back) = way.down(device, bytes, back);
                way.let_go(bytes);
                memory = back;
                times.push(up);
                times.extend(down);
            }
            sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        }
        if turn > 0 {
            turns.push(sums);
        }
    }
    let mut speeds: [[Vec<f64>; 2]; 2] = Default::default();
    for turn in 0..=TURNS {
        for ((way, lease), speeds) in ways.iter().zip(&leases).zip(&mut speeds) {
            let both = together(device, way, lease, bytes);
            speeds.iter_mut().zip(both).for_each(|(all, speed)| {
                if turn > 0 {
                    all.push(speed)
                }
            });
        }
    }
    leases.into_iter().for_each(|lease| lease.commit(Outputs::new()).expect("a commit"));

    let seconds = |of: &[usize]| median(turns.iter().map(|turn| of.iter().map(|at| turn[*at]).sum()).collect());
    let speed = |seconds: f64| (passes * bytes) as f64 / GIB / seconds;
    let budget = (bytes >= JUDGED).then_some(0.9);
    let each = |of: &[usize]| seconds(of) * 1e6 / passes as f64;
    for (what, pinned, other) in [("to", 0, 1), ("from", 2, 3)] {
        let pinned = ("pinned", speed(seconds(&[pinned])));
        let case = format!("{what} the device, pageable, {mib} MiB");
        report.push(Row::speeds(case, speed(seconds(&[other])), pinned, None));
        for (at, way) in ways.iter().enumerate() {
            let first = 4 + 4 * at;
            let all: Vec<usize> = if what == "to" { vec![first] } else { (first + 1..first + 4).collect() };
            let case = format!("{what} the device, {}, {mib} MiB", way.name);
            report.push(Row::speeds(case.clone(), speed(seconds(&all)), pinned, budget));
            let speeds = &mut speeds[at][usize::from(what == "from")];
            speeds.sort_by(f64::total_cmp);
            report.push(Row::speeds(format!("{case}, {AT_ONCE} at a time"), speeds[speeds.len() / 2], pinned, budget));
        }
    }
    for (at, way) in ways.iter().enumerate() {
        for (part, name) in ["reserve", "copy", "put"].into_iter().enumerate() {
            let case = format!("from the device, {}, {mib} MiB, of it {name}", way.name);
            report.push(Row::alone(case, "us", each(&[5 + 4 * at + part]), None, Better::Less));
        }
    }
}

#[allow(clippy::print_stdout, reason = "a command says what it works on")]
fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(SERVE) {
        serve(definition(&SIZES), |store, bytes| {
            take(&store.session("witness").expect("a session"), bytes.parse().expect("a size")).to_string()
        });
        return ExitCode::SUCCESS;
    }
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => return skipped(error),
    };
    println!("{device:?}; registers read-only mappings: {:?}", device.registers_read_only());
    let (mut served, own) = (Served::start(), store(definition(&SIZES)));
    let (near, here) = (served.connect(Choice::Shm), own.session("bench").expect("a session"));
    let witness = own.session("witness").expect("a session");
    let there = |bytes: usize| served.ask(&bytes.to_string()).parse().expect("a sum");
    let mut ways = [
        Way { name: "store of another process", session: near, take: Box::new(there) },
        Way { name: "store of this process", session: here, take: Box::new(move |bytes| take(&witness, bytes)) },
    ];
    let mut report = Report::new("gpu");
    SIZES.into_iter().for_each(|bytes| measure(&mut report, &device, &mut ways, bytes));
    println!("{:?}", device.traffic());
    let traffic = device.traffic();
    for (what, ways) in [("to", traffic.uploads), ("from", traffic.downloads)] {
        let case = format!("{what} the device, bytes that went through the driver's memory");
        report.push(Row::alone(case, "bytes", ways.pageable as f64, Some(0.0), Better::Less));
    }
    report.conclude()
}
