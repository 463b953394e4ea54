//! Gets through UCX between two processes, beside a bare transfer by UCX of as many bytes into the same kind of memory.
//!
//! The other process has a store with one cell of 1 to 256 MiB each, served through UCX, and beside it a worker of its own with
//! memory of 256 MiB. This one reads the cells, and the same number of bytes from the bare worker: fetched one-sidedly, or sent by
//! tag when asked for on the other's standard input. Both go into warm, aligned memory that is used again, and every byte is summed
//! within the timed part. Each is repeated until 512 MiB have passed, five times in turns behind a turn that brings the pages;
//! medians are compared. Over shared memory and over TCP (the devices that UCX finds fastest).

use std::{
    env,
    hint::black_box,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use tq_benches::{GIB, Report, Row, median, sum, timed};
use tq_ucx::{Address, Context, Endpoint, Filled, Key, Memory, RemoteKey, Space, Transport, Worker};
use transferqueue::{
    Column, Definition, Dtype, Kind, Lease, NewRow, Options, Outputs, Session, Store,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Choice, Remote},
    server::{self, Ucx, UcxReads, UcxTransport},
};

const ROUNDS: usize = 5;
const EACH: usize = 512 << 20;
const SIZES: [usize; 5] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];
/// The argument that makes this program the other process; the way follows.
const SERVE: &str = "serve";

#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    transport: UcxTransport,
    reads: UcxReads,
    /// Of a bare transfer, for large cells. (Reads over TCP are not what a store would choose.)
    budget: Option<f64>,
}

const WAYS: [Way; 4] = [
    Way { name: "shm-fetched", transport: UcxTransport::Shm, reads: UcxReads::Fetched, budget: Some(0.8) },
    Way { name: "shm-sent", transport: UcxTransport::Shm, reads: UcxReads::Sent, budget: Some(0.8) },
    Way { name: "tcp-fetched", transport: UcxTransport::Tcp, reads: UcxReads::Fetched, budget: None },
    Way { name: "tcp-sent", transport: UcxTransport::Tcp, reads: UcxReads::Sent, budget: Some(0.8) },
];

impl Way {
    /// Both processes are this program's.
    fn ucx(self) -> Ucx {
        Ucx { transports: vec![self.transport], reads: Some(self.reads), insecure: true, ..Ucx::default() }
    }

    fn context(self) -> Context {
        let transport = match self.transport {
            UcxTransport::Shm => Transport::Shm,
            UcxTransport::Tcp => Transport::Tcp,
            UcxTransport::Rc => Transport::Rc,
        };
        let one_sided = self.reads == UcxReads::Fetched;
        let options = tq_ucx::Options { one_sided, insecure: true, ..tq_ucx::Options::over([transport]) };
        Context::new(&options).expect("UCX")
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn definition() -> Definition {
    let partition = |bytes: usize| Partition {
        name: format!("{bytes}"),
        columns: vec![Column::new("x", Kind::Dense { dtype: Dtype::U64, shape: vec![bytes / 8] })],
        birth: Birth::Put { capacity: None },
    };
    let task =
        |bytes: usize| Task { reads: vec!["x".into()], ..Task::new(format!("read-{bytes}"), format!("{bytes}")) };
    Definition {
        partitions: SIZES.into_iter().map(partition).collect(),
        tasks: SIZES.into_iter().map(task).collect(),
        ..Definition::default()
    }
}

fn values(bytes: usize) -> Vec<u64> {
    (0..bytes as u64 / 8).collect()
}

/// Serves until its standard input ends.
fn serve(way: Way) {
    let options = Options { shared: true, arena_segment_bytes: 256 << 20, ..Options::default() };
    let store = Store::create(definition(), options).expect("a store");
    let session = store.session("feeder").expect("a session");
    for bytes in SIZES {
        let partition = session.partition(&bytes.to_string()).expect("a partition");
        let cell = Outputs::new().dense("x", values(bytes));
        session.put(partition, vec![NewRow::default()], cell, soon()).expect("there is room");
    }
    let options = server::Options { ucx: Some(way.ucx()), ..server::Options::default() };
    let server = server::serve(&store, &options).expect("a server");
    let context = way.context();
    let worker = Worker::start(&context).expect("a worker");
    let numbers = values(SIZES[SIZES.len() - 1]);
    let bytes: &'static [u8] = bytemuck::cast_slice(numbers.leak());
    let memory = (way.reads == UcxReads::Fetched).then(|| Memory::share(&context, bytes).expect("memory"));
    let key = memory.as_ref().map_or_else(String::new, |memory| hex(&memory.key().to_bytes()));
    let mut said = std::io::stdout();
    let door = format!("{}\n{}\n{}\n{key}", server.url(), server.token(), hex(&worker.address().to_bytes()));
    writeln!(said, "{door}").and_then(|()| said.flush()).expect("someone listens");
    let mut lines = std::io::stdin().lines().map(|line| line.expect("text"));
    let Some(address) = lines.next() else { return };
    let address = Address::from_bytes(&unhex(&address)).expect("an address");
    let endpoint = worker.connect(&address).wait(soon()).expect("a connection");
    for line in lines {
        let (tag, len) = line.split_once(' ').expect("a tag and a length");
        let [tag, len] = [tag, len].map(|number| number.parse::<usize>().expect("a number"));
        endpoint.send(tag as u64, &bytes[..len]).wait(soon()).expect("it is sent");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// The other process; it ends with its standard input.
struct Served {
    process: Child,
    input: Option<ChildStdin>,
    session: Session,
    bare: Bare,
}

/// A way to the other process's worker.
struct Bare {
    endpoint: Endpoint,
    key: Option<RemoteKey>,
    tag: u64,
    warm: Option<Filled>,
    _worker: Worker,
}

impl Served {
    fn start(way: Way) -> Self {
        let program = env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args([SERVE, way.name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        let mut input = process.stdin.take().expect("its input");
        let mut lines: Lines<BufReader<ChildStdout>> =
            BufReader::new(process.stdout.take().expect("its output")).lines();
        let [url, token, address, key] = [(); 4].map(|()| lines.next().expect("a line").expect("text"));
        let options = client::Options { transport: Choice::Ucx, ..client::Options::default() };
        let remote = Remote::connect(&url, &token, options).expect("a store");
        let session = remote.session("bench").expect("a session");
        let worker = Worker::start(&way.context()).expect("a worker");
        writeln!(input, "{}", hex(&worker.address().to_bytes())).expect("it listens");
        let address = Address::from_bytes(&unhex(&address)).expect("an address");
        let endpoint = worker.connect(&address).wait(soon()).expect("a connection");
        let key = (!key.is_empty()).then(|| Key::from_bytes(&unhex(&key)).expect("a key"));
        let key = key.map(|key| endpoint.open(&key).wait(soon()).expect("it opens"));
        let bare = Bare { endpoint, key, tag: 0, warm: None, _worker: worker };
        Self { process, input: Some(input), session, bare }
    }

    fn claim(&self, bytes: usize) -> Lease {
        let claim = self.session.claim(&format!("read-{bytes}"), 1, soon()).expect("a claim");
        claim.lease().expect("a row")
    }

    /// A bare transfer, and a look at every byte.
    fn bare(&mut self, bytes: usize) -> u64 {
        let bare = &mut self.bare;
        let space = bare.warm.take().map_or_else(|| Space::new(bytes), |warm| warm.into_space(bytes));
        let filled = match &bare.key {
            Some(key) => key.get(0, space).wait(soon()),
            None => {
                bare.tag += 1;
                let waiting = bare.endpoint.receive(bare.tag, space);
                writeln!(self.input.as_ref().expect("it listens"), "{} {bytes}", bare.tag).expect("it listens");
                waiting.wait(soon())
            }
        };
        let filled = filled.expect("it comes");
        let summed = sum(bytemuck::cast_slice(&filled));
        bare.warm = Some(filled);
        summed
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.input.take());
        drop(self.process.wait());
    }
}

/// A get, and a look at every byte.
fn get(lease: &Lease) -> u64 {
    let batch = lease.batch().expect("it is there");
    sum(batch.dense::<u64>("x").expect("numbers").row(0))
}

fn measure(report: &mut Report, way: Way) {
    let mut served = Served::start(way);
    for bytes in SIZES {
        let lease = served.claim(bytes);
        let expected = sum(&values(bytes));
        assert_eq!((get(&lease), served.bare(bytes)), (expected, expected));
        let times = (EACH / bytes).clamp(2, 256);
        let mut rounds: [Vec<Duration>; 2] = Default::default();
        for round in 0..=ROUNDS {
            let ours = timed(times, || black_box(get(&lease)));
            let bare = timed(times, || black_box(served.bare(bytes)));
            if round > 0 {
                rounds.iter_mut().zip([ours, bare]).for_each(|(all, took)| all.push(took));
            }
        }
        let [ours, bare] = rounds.map(|all| (times * bytes) as f64 / GIB / median(all));
        let budget = way.budget.filter(|_| bytes >= 16 << 20);
        let case = format!("get and read, {}, {} MiB", way.name, bytes >> 20);
        report.push(Row::speeds(case, ours, ("bare UCX", bare), budget));
    }
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() == Some(SERVE) {
        let name = arguments.next().unwrap_or_default();
        serve(WAYS.into_iter().find(|way| way.name == name).expect("one of the ways"));
        return ExitCode::SUCCESS;
    }
    let mut report = Report::new("ucx");
    WAYS.into_iter().for_each(|way| measure(&mut report, way));
    report.conclude()
}
