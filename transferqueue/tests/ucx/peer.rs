//! A store with one large cell, a reader of it, and either of them as the other process: this program again.

use std::{
    env,
    io::{self, BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdout, Command, Stdio},
    str::FromStr,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use transferqueue::{
    Claim, Column, Definition, Dtype, Error, Kind, Lease, NewRow, Options, Outputs, Store,
    catalog::definition::{Birth, Partition, Task},
    client::{self, Choice, Remote, Ways},
    server::{self, Server, Ucx, UcxReads, UcxTransport},
};

const OVER: &str = "TQ_UCX_OVER";
const DOOR: &str = "TQ_UCX_DOOR";
/// Before each word: the test harness writes to standard output as well.
const SAYS: &str = "says: ";
/// Devices that stores are at: an end of the link that the tests may cut. (Readers are at the other, by `UCX_NET_DEVICES`.)
const STORE_DEVICE: &str = "TQ_RDMA_STORE";

/// Far enough away that only a defect reaches it.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    ShmFetched,
    TcpSent,
    /// In the guest of `make rdma`.
    RcFetched,
    /// Likewise.
    RcSent,
}

impl FromStr for Over {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::ShmFetched, Self::TcpSent, Self::RcFetched, Self::RcSent];
        all.into_iter().find(|over| format!("{over:?}") == text).ok_or(text.to_owned())
    }
}

impl Over {
    fn ucx(self) -> Ucx {
        let device = || vec![env::var(STORE_DEVICE).expect("`make rdma` runs this, where there is a device")];
        let (transport, reads, devices, insecure) = match self {
            Self::ShmFetched => (UcxTransport::Shm, UcxReads::Fetched, vec![], false),
            Self::TcpSent => (UcxTransport::Tcp, UcxReads::Sent, vec!["lo".to_owned()], false),
            Self::RcFetched => (UcxTransport::Rc, UcxReads::Fetched, device(), true),
            Self::RcSent => (UcxTransport::Rc, UcxReads::Sent, device(), true),
        };
        Ucx { transports: vec![transport], devices, reads: Some(reads), insecure }
    }

    fn is_emulated(self) -> bool {
        matches!(self, Self::RcFetched | Self::RcSent)
    }

    /// Elements of the cell: 64 MiB, or 2 MiB where the processor and the device are emulated.
    fn elements(self) -> u64 {
        if self.is_emulated() { 256 << 10 } else { 8 << 20 }
    }

    /// How long an answer may travel.
    pub(crate) fn travel(self) -> Duration {
        Duration::from_secs(if self.is_emulated() { 5 } else { 1 })
    }
}

fn element(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) struct Served {
    store: Store,
    server: Server,
}

impl Served {
    pub(crate) fn new(over: Over) -> Self {
        let column = Column::new("x", Kind::Ragged { dtype: Dtype::U64, inner: vec![] });
        let jobs = Partition { name: "jobs".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
        let take = Task { reads: vec!["x".into()], ..Task::new("take", "jobs") };
        let definition = Definition { partitions: vec![jobs], tasks: vec![take], ..Definition::default() };
        let store = Store::create(definition, Options { shared: true, ..Options::default() }).unwrap();
        let server = server::serve(&store, &server::Options { ucx: Some(over.ucx()), ..Default::default() }).unwrap();
        let session = store.session("feeder").unwrap();
        // One for each reader.
        for _ in 0..2 {
            let cell = Outputs::new().ragged("x", [(0..over.elements()).map(element).collect::<Vec<u64>>()]);
            session.put(session.partition("jobs").unwrap(), vec![NewRow::default()], cell, soon()).unwrap();
        }
        Self { store, server }
    }

    pub(crate) fn url(&self) -> &str {
        self.server.url()
    }

    pub(crate) fn token(&self) -> &str {
        self.server.token()
    }

    /// Bytes that somebody holds.
    pub(crate) fn pinned(&self) -> u64 {
        self.store.units().stats().total().pinned
    }
}

pub(crate) struct Reader {
    over: Over,
    remote: Remote,
    lease: Lease,
}

impl Reader {
    /// It reads through UCX, or not at all.
    pub(crate) fn connect(over: Over, url: &str, token: &str) -> Self {
        Self::try_connect(over, url, token).unwrap()
    }

    pub(crate) fn try_connect(over: Over, url: &str, token: &str) -> Result<Self, Error> {
        let options = client::Options {
            transport: Choice::Ucx,
            patience: Duration::from_secs(3),
            travel: over.travel(),
            ..client::Options::default()
        };
        let remote = Remote::connect(url, token, options)?;
        let Claim::Lease(lease) = remote.session("reader").unwrap().claim("take", 1, soon()).unwrap() else {
            panic!("no row");
        };
        Ok(Self { over, remote, lease })
    }

    /// Reads the cell, and looks at every element.
    pub(crate) fn read(&self) -> Result<(), Error> {
        let batch = self.lease.batch()?;
        let cells = batch.ragged::<u64>("x").unwrap();
        assert_eq!((cells.len(), cells.row(0).len()), (1, self.over.elements() as usize));
        let wrong = cells.row(0).iter().zip(0..).position(|(found, i)| *found != element(i));
        assert_eq!(wrong, None, "an element is another one");
        Ok(())
    }

    pub(crate) fn gets(&self) -> Ways {
        self.remote.traffic().gets
    }
}

/// Not a test: the other process.
#[test]
#[ignore = "started by the other tests"]
fn other() {
    let Ok(over) = env::var(OVER) else { return };
    let over = over.parse().unwrap();
    match env::var(DOOR) {
        Ok(door) => {
            let (url, token) = door.split_once(' ').unwrap();
            let reader = Reader::connect(over, url, token);
            loop {
                reader.read().unwrap();
                say("read");
            }
        }
        Err(_) => {
            let served = Served::new(over);
            say(&format!("{} {}", served.url(), served.token()));
            io::stdin().lines().for_each(drop);
        }
    }
}

#[allow(clippy::print_stdout, reason = "this is how it is heard")]
fn say(what: &str) {
    println!("\n{SAYS}{what}");
    io::stdout().flush().unwrap();
}

/// The other process, as this one sees it.
pub(crate) struct Peer {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    pub(crate) fn store(over: Over) -> Self {
        Self::start(over, None)
    }

    pub(crate) fn reader(over: Over, url: &str, token: &str) -> Self {
        Self::start(over, Some(format!("{url} {token}")))
    }

    fn start(over: Over, door: Option<String>) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["peer::other", "--exact", "--ignored", "--nocapture"])
            .env(OVER, format!("{over:?}"))
            .envs(door.map(|door| (DOOR, door)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
    }

    fn heard(&mut self) -> String {
        let is = |line: io::Result<String>| line.unwrap().strip_prefix(SAYS).map(str::to_owned);
        self.output.find_map(is).expect("the other process has ended")
    }

    /// Waits for a word.
    pub(crate) fn hear(&mut self, word: &str) {
        assert_eq!(self.heard(), word);
    }

    /// URL and token of a store.
    pub(crate) fn door(&mut self) -> (String, String) {
        let heard = self.heard();
        let (url, token) = heard.split_once(' ').unwrap();
        (url.to_owned(), token.to_owned())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGKILL: it says nothing any more.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}
