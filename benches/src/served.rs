//! A store in another process, and cells of one size to put there: what benchmarks between two processes have in common.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, FixedSizeListArray, UInt64Array},
    datatypes::DataType,
};
use transferqueue::{
    Column, Definition, Dtype, Kind, Options, Session, Store, arrow_map,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Choice, Remote},
    server,
};

/// The argument that makes a program the store.
pub const SERVE: &str = "serve";

/// A cell of so many bytes.
pub fn kind(bytes: usize) -> Kind {
    Kind::Dense { dtype: Dtype::U64, shape: vec![bytes / 8] }
}

/// One cell of these numbers, for a column of this kind.
pub fn cell(values: Vec<u64>) -> ArrayRef {
    let DataType::FixedSizeList(item, len) = arrow_map::storage(&kind(8 * values.len())) else {
        unreachable!("a tensor")
    };
    Arc::new(FixedSizeListArray::new(item, len, Arc::new(UInt64Array::from(values)), None))
}

/// A partition for cells of each size, called by its bytes, and a task `read-BYTES` that reads them.
pub fn definition(sizes: &[usize]) -> Definition {
    let partition = |bytes: &usize| Partition {
        name: format!("{bytes}"),
        columns: vec![Column::new("x", kind(*bytes))],
        birth: Birth::Put { capacity: None },
    };
    let task =
        |bytes: &usize| Task { reads: vec!["x".into()], ..Task::new(format!("read-{bytes}"), format!("{bytes}")) };
    Definition {
        partitions: sizes.iter().map(partition).collect(),
        tasks: sizes.iter().map(task).collect(),
        ..Definition::default()
    }
}

/// A store in shared memory.
pub fn store(definition: Definition) -> Store {
    let options = Options { shared: true, arena_segment_bytes: 64 << 20, ..Options::default() };
    Store::create(definition, options).expect("a store")
}

/// Serves such a store until the standard input ends, and answers what comes there, line by line.
pub fn serve(definition: Definition, answer: impl Fn(&Store, &str) -> String) {
    let store = store(definition);
    let server = server::serve(&store, &server::Options::default()).expect("a server");
    let say = |text: String| {
        let mut said = std::io::stdout();
        writeln!(said, "{text}").and_then(|()| said.flush()).expect("someone listens");
    };
    say(server.url().to_owned());
    say(server.token().to_owned());
    std::io::stdin().lines().map_while(Result::ok).for_each(|line| say(answer(&store, &line)));
}

/// The store's process; it ends with its standard input.
pub struct Served {
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
    url: String,
    token: String,
}

impl Served {
    /// Starts this program once more, as the store.
    pub fn start() -> Self {
        Self::start_under(&[])
    }

    /// The same under a tool: its command, to which the program's own is added.
    pub fn start_under(tool: &[&str]) -> Self {
        let program = env::current_exe().expect("this program");
        let mut words = tool.iter().map(OsStr::new).chain([program.as_os_str(), OsStr::new(SERVE)]);
        let mut command = Command::new(words.next().expect("a program"));
        let mut process = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut said = BufReader::new(process.stdout.take().expect("its output")).lines();
        let [url, token] = [0, 1].map(|_| said.next().expect("a line").expect("text"));
        Self { process, said, url, token }
    }

    /// What the store's process answers.
    pub fn ask(&mut self, line: &str) -> String {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("it listens");
        self.said.next().expect("a line").expect("text")
    }

    /// Where the store is, and the token that opens it.
    pub fn address(&self) -> [&str; 2] {
        [&self.url, &self.token]
    }

    /// A session whose bytes come this way.
    pub fn connect(&self, transport: Choice) -> Session {
        connect(self.address(), transport)
    }
}

/// A session with the store at this address, with a connection of its own, whose bytes come this way.
pub fn connect([url, token]: [&str; 2], transport: Choice) -> Session {
    let options = client::Options { transport, ..client::Options::default() };
    Remote::connect(url, token, options).and_then(|remote| remote.session("bench")).expect("a session")
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}
