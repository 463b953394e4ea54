//! A store, a writer and a reader, each in a process of its own, and rounds of one table through them.
//!
//! A program with this has three roles, told apart by its first argument: [`SERVE`] is the store, [`CLIENT`] the
//! writer or the reader, and without one of them it is the program itself ([`role`]). A client is asked line by line
//! and answers with a line: it takes the time of what it does by itself, so that asking is not in any figure.

use std::{
    env,
    hint::black_box,
    io::{BufRead, BufReader, Lines, StdinLock, Write},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use arrow::array::{Array, ArrayRef};
use serde::Serialize;
use transferqueue::{NewRow, Outputs, PartitionId, Rows, Session, client::Choice};

use crate::{
    served::{SERVE, Served, connect, serve},
    shapes::{Shape, definition, sum, words},
    small,
};

/// The argument that makes a program a client.
pub const CLIENT: &str = "client";
/// How long one put may wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// How the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through shared memory, commands on the socket of the host.
    Shm,
    /// Over Flight, TCP on the loopback interface.
    Flight,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Shm, Self::Flight];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Flight => "flight",
        }
    }

    /// The way of that name.
    ///
    /// # Errors
    /// Which ones there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|way| way.name() == name);
        found.ok_or_else(|| format!("way `{name}`: expected shm or flight"))
    }

    /// What a client is told.
    pub fn choice(self) -> Choice {
        match self {
            Self::Shm => Choice::Shm,
            Self::Flight => Choice::Flight,
        }
    }
}

/// Seconds of one round.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// The writer puts the table.
    pub put: f64,
    /// The reader looks which rows there are, and at their tags.
    pub list: f64,
    /// The reader gets all cells and looks at every byte.
    pub get: f64,
    /// The writer drops the rows.
    pub clear: f64,
    /// Bytes of the cells.
    pub bytes: usize,
}

/// The store's process, the writer's and the reader's.
pub struct Pair {
    // In this order: clients go before their store.
    writer: Peer,
    reader: Peer,
    store: Served,
}

impl Pair {
    /// Starts this program three times.
    pub fn start() -> Self {
        let store = Served::start();
        let [writer, reader] = [0, 1].map(|_| Peer::start(store.address()));
        Self { writer, reader, store }
    }

    /// Puts a table, lists it, gets it and clears it.
    ///
    /// # Panics
    /// When the reader does not see the bytes that the writer put.
    pub fn round(&mut self, shape: &Shape, way: Way) -> Round {
        let ask = |verb: &str| format!("{verb} {} {}", shape.name, way.name());
        let [(put, written), (list, rows)] = [self.writer.ask(&ask("put")), self.reader.ask(&ask("list"))];
        assert_eq!(rows as usize, shape.rows, "the reader sees the rows");
        let (get, read) = self.reader.ask(&ask("get"));
        assert_eq!(read, written, "the words that were got add up to those that were put");
        let (clear, _) = self.writer.ask(&ask("clear"));
        Round { put, list, get, clear, bytes: shape.bytes() }
    }

    /// Small calls of so many clients at a time, from this process.
    pub fn small(&self, way: Way, clients: usize) -> Vec<small::Calls> {
        small::measure((0..clients).map(|_| self.store.connect(way.choice())).collect())
    }
}

/// Plays the role that the first argument says, if it says one; then the program has nothing else to do.
pub fn role() -> bool {
    match env::args().nth(1).as_deref() {
        Some(SERVE) => serve(small::with(definition(&Shape::all())), |_, _| String::new()),
        Some(CLIENT) => client(std::io::stdin().lock().lines()),
        _ => return false,
    }
    true
}

/// A client's process; it ends with its standard input.
struct Peer {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    fn start(address: [&str; 2]) -> Self {
        let program = env::current_exe().expect("this program");
        let (input, output) = (Stdio::piped(), Stdio::piped());
        let mut process = Command::new(program).arg(CLIENT).stdin(input).stdout(output).spawn().expect("a process");
        let said = BufReader::new(process.stdout.take().expect("its output")).lines();
        let mut peer = Self { process, said };
        address.into_iter().for_each(|line| peer.tell(line));
        peer
    }

    fn tell(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("it listens");
    }

    /// Seconds, and a number to compare.
    fn ask(&mut self, line: &str) -> (f64, u32) {
        self.tell(line);
        let said = self.said.next().expect("an answer").expect("text");
        let (seconds, number) = said.split_once(' ').expect("two numbers");
        (seconds.parse().expect("seconds"), number.parse().expect("a number"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}

/// The writer or the reader: does what the lines say, until they end.
fn client(mut lines: Lines<StdinLock<'_>>) {
    let [url, token] = [0, 1].map(|_| lines.next().expect("a line").expect("text"));
    let sessions = Way::ALL.map(|way| (way, connect([&url, &token], way.choice())));
    let mut source = None;
    for line in lines.map_while(Result::ok) {
        let [verb, shape, way] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("`{line}`") };
        let (shape, way) = (Shape::named(shape).expect("a shape"), Way::named(way).expect("a way"));
        let (_, session) = sessions.iter().find(|(known, _)| *known == way).expect("both ways are open");
        let (took, number) = match verb {
            "put" => Source::of(&mut source, shape, session).put(session),
            "clear" => Source::of(&mut source, shape, session).clear(session),
            "list" => list(session, &shape),
            "get" => get(session, &shape),
            other => panic!("`{other}`: expected put, list, get or clear"),
        };
        let mut said = std::io::stdout();
        writeln!(said, "{} {number}", took.as_secs_f64()).and_then(|()| said.flush()).expect("someone listens");
    }
}

/// A table that is put again and again.
struct Source {
    shape: Shape,
    partition: PartitionId,
    arrays: Vec<ArrayRef>,
    sum: u32,
    rows: Rows,
}

impl Source {
    /// The source of this shape; the one before goes first.
    fn of<'a>(slot: &'a mut Option<Self>, shape: Shape, session: &Session) -> &'a mut Self {
        if slot.as_ref().is_none_or(|source| source.shape != shape) {
            *slot = None;
            let partition = session.partition(&shape.name).expect("a partition");
            let arrays = shape.arrays();
            let sum = arrays.iter().map(cells).fold(0, u32::wrapping_add);
            *slot = Some(Self { shape, partition, arrays, sum, rows: Rows::default() });
        }
        slot.as_mut().expect("it has just been made")
    }

    fn put(&mut self, session: &Session) -> (Duration, u32) {
        let begun = Instant::now();
        let columns = (0..).zip(&self.arrays);
        let outputs = columns.fold(Outputs::new(), |all, (at, array)| all.array(format!("c{at}"), array.clone()));
        let rows = vec![NewRow::default(); self.shape.rows];
        self.rows = session.put(self.partition, rows, outputs, begun + PATIENCE).expect("there is room");
        (begun.elapsed(), self.sum)
    }

    fn clear(&mut self, session: &Session) -> (Duration, u32) {
        let begun = Instant::now();
        session.drop_rows(self.partition, &self.rows, "cleared").expect("they are there");
        (begun.elapsed(), 0)
    }
}

/// The sum of the words of an array's cells.
fn cells(array: &ArrayRef) -> u32 {
    let data = array.to_data();
    match data.child_data() {
        [child] => words(child.buffers()[0].as_slice()),
        _ => words(data.buffers()[1].as_slice()),
    }
}

fn list(session: &Session, shape: &Shape) -> (Duration, u32) {
    let begun = Instant::now();
    let partition = session.partition(&shape.name).expect("a partition");
    let rows = session.read(partition, None, &[]).expect("it is read");
    let tags: usize = black_box(rows.heads()).iter().map(|head| head.tags.len()).sum();
    (begun.elapsed(), (rows.len() + tags) as u32)
}

fn get(session: &Session, shape: &Shape) -> (Duration, u32) {
    let columns = shape.columns();
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let begun = Instant::now();
    let partition = session.partition(&shape.name).expect("a partition");
    let batch = session.read(partition, None, &names).expect("it is there");
    let sum = sum(&batch).expect("it is what it says");
    (begun.elapsed(), sum)
}
