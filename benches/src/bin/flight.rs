//! Gets over Flight beside what one TCP stream can carry.
//!
//! A server in a process of its own holds one cell for each size, 1 to 64 MiB: a message each. This process gets them over
//! Flight, and beside that has the same bytes of the same memory sent over a bare TCP connection into an aligned buffer that is
//! there already. Each is repeated until 512 MiB have passed, seven times in turns behind a turn that warms both up; medians are
//! compared. Every byte is summed within the timed part, on both sides.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use arrow::buffer::MutableBuffer;
use tq_benches::{GIB, Report, Row, median, sum, timed};
use transferqueue::{
    Column, Definition, Dtype, Kind, NewRow, Options, Outputs, PartitionId, Session, Store,
    catalog::definition::{Birth, Partition},
    client::{self, Choice, Remote},
    server,
};

/// As `tq-run` has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 7;
const EACH: usize = 512 << 20;
const SIZES: [usize; 5] = [1 << 20, 4 << 20, 8 << 20, 32 << 20, 64 << 20];
/// The argument that makes this program the server.
const SERVE: &str = "serve";

/// A partition with one cell of each size.
fn store() -> Store {
    let partition = |bytes: &usize| Partition {
        name: format!("{bytes}"),
        columns: vec![Column::new("x", Kind::Dense { dtype: Dtype::U64, shape: vec![bytes / 8] })],
        birth: Birth::Put { capacity: None },
    };
    let definition = Definition { partitions: SIZES.iter().map(partition).collect(), ..Definition::default() };
    let store = Store::create(definition, Options { shared: true, ..Options::default() }).expect("a store");
    let session = store.session("feeder").expect("a session");
    for (id, bytes) in (0..).zip(SIZES) {
        let cell: Vec<u64> = (0..bytes as u64 / 8).collect();
        let until = Instant::now() + Duration::from_secs(60);
        session
            .put(PartitionId(id), vec![NewRow::default()], Outputs::new().dense("x", cell), until)
            .expect("there is room");
    }
    store
}

/// The server's process: says where it is, and ends when nobody is left who could ask.
fn serve() -> io::Result<()> {
    let store = store();
    let server = server::serve(&store, &server::Options::default()).map_err(io::Error::other)?;
    let bare = TcpListener::bind("127.0.0.1:0")?;
    let mut out = io::stdout();
    writeln!(out, "{} {} {}", server.url(), server.token(), bare.local_addr()?)?;
    out.flush()?;
    thread::spawn(move || bare.accept().and_then(|(stream, _)| serve_bare(&store, stream)));
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

/// Sends the cell whose number is asked for, again and again.
fn serve_bare(store: &Store, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut asked = [0];
    loop {
        stream.read_exact(&mut asked)?;
        let batch = store.read(PartitionId(asked[0].into()), None, &["x"]).map_err(io::Error::other)?;
        let cells = batch.dense::<u64>("x").map_err(io::Error::other)?;
        stream.write_all(bytemuck::cast_slice(cells.row(0)))?;
    }
}

/// The server, and the ways to its bytes.
struct Ways {
    server: Child,
    flight: Session,
    bare: TcpStream,
    /// What the bare connection is read into: pages that are there, as those of the client's pool are.
    buffer: MutableBuffer,
}

impl Ways {
    fn open() -> io::Result<Self> {
        let mut server =
            Command::new(env::current_exe()?).arg(SERVE).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let [url, token, bare] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(io::Error::other(format!("the server said `{line}`")));
        };
        let options = client::Options { transport: Choice::Flight, ..Default::default() };
        let remote = Remote::connect(url, token, options).map_err(io::Error::other)?;
        let flight = remote.session("reader").map_err(io::Error::other)?;
        let bare = TcpStream::connect(bare)?;
        bare.set_nodelay(true)?;
        let largest = SIZES.into_iter().max().unwrap_or_default();
        Ok(Self { server, flight, bare, buffer: MutableBuffer::from_len_zeroed(largest) })
    }

    fn over_flight(&self, at: u8) -> u64 {
        let batch = self.flight.read(PartitionId(at.into()), None, &["x"]).expect("the cell comes");
        sum(batch.dense::<u64>("x").expect("it is dense").row(0))
    }

    fn over_bare_tcp(&mut self, at: u8) -> u64 {
        let into = &mut self.buffer.as_slice_mut()[..SIZES[usize::from(at)]];
        self.bare.write_all(&[at]).and_then(|()| self.bare.read_exact(into)).expect("the cell comes");
        sum(bytemuck::cast_slice(into))
    }
}

impl Drop for Ways {
    fn drop(&mut self) {
        // Its standard input ends, and so does it.
        drop(self.server.stdin.take());
        drop(self.server.wait());
    }
}

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(SERVE) {
        serve().expect("a server");
        return ExitCode::SUCCESS;
    }
    let mut report = Report::new("flight");
    let mut ways = Ways::open().expect("a server");
    for (at, bytes) in (0..).zip(SIZES) {
        assert_eq!(ways.over_flight(at), ways.over_bare_tcp(at), "both bring the same bytes");
        let times = EACH / bytes;
        let (mut flights, mut bares) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let bare = timed(times, || ways.over_bare_tcp(at));
            let flight = timed(times, || ways.over_flight(at));
            if round > 0 {
                bares.push(bare);
                flights.push(flight);
            }
        }
        let speed = |seconds: f64| (times * bytes) as f64 / GIB / seconds;
        let (ours, theirs) = (speed(median(flights)), speed(median(bares)));
        let case = format!("get and read, flight, {} MiB", bytes >> 20);
        let budget = (bytes >= 8 << 20).then_some(0.8);
        report.push(Row::speeds(case, ours, ("bare TCP and read", theirs), budget));
    }
    report.conclude()
}
