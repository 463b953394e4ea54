//! The other process: this program again, told on its standard input what to do.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tq_ucx::{Address, Context, Endpoint, Key, Memory, Options, Space, Transport, Worker};

const OVER: &str = "TQ_UCX_OVER";
/// The device of the other process, where a network card is needed: `make rdma` has two, and a link between them. This process
/// is at the other, by `UCX_NET_DEVICES`.
const DEVICE: &str = "TQ_RDMA_STORE";
/// Before each answer: the test harness writes to standard output as well.
const ANSWER: &str = "answer: ";

/// Far enough away that only a defect reaches it.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// The peers of a test are its own processes, so that one-sided access may be tried over TCP as well.
pub(crate) fn options(transport: Transport) -> Options {
    Options { keepalive: Duration::from_millis(100), one_sided: true, insecure: true, ..Options::over([transport]) }
}

/// Descriptors of this process.
pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes that differ from their neighbours, at any distance that a mistake would shift them by.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Not a test: the other process.
#[test]
#[ignore = "started by the other tests"]
fn serve() {
    let Ok(over) = env::var(OVER) else { return };
    let all = [Transport::Shm, Transport::Tcp, Transport::Rc];
    let transport = all.into_iter().find(|transport| transport.to_string() == over).unwrap();
    let devices = match transport {
        Transport::Rc => vec![env::var(DEVICE).expect("`make rdma` runs this, where there is a device")],
        _ => Vec::new(),
    };
    let context = Context::new(&Options { devices, ..options(transport) }).unwrap();
    let worker = Worker::start(&context).unwrap();
    answer(hex(&worker.address().to_bytes()));
    let mut served = Served { context, worker, endpoint: None, memory: Vec::new() };
    for line in io::stdin().lines() {
        let line = line.unwrap();
        served.heed(&line.split(' ').collect::<Vec<_>>());
    }
}

struct Served {
    context: Context,
    worker: Worker,
    endpoint: Option<Endpoint>,
    memory: Vec<Memory>,
}

impl Served {
    fn heed(&mut self, words: &[&str]) {
        let number = |i: usize| words[i].parse::<usize>().unwrap();
        match words[0] {
            "connect" => {
                let address = Address::from_bytes(&unhex(words[1])).unwrap();
                self.endpoint = Some(self.worker.connect(&address).wait(soon()).unwrap());
                answer("connected");
            }
            "disconnect" => self.endpoint = None,
            "share" => {
                let memory = Memory::share(&self.context, pattern(number(1))).unwrap();
                answer(hex(&memory.key().to_bytes()));
                self.memory.push(memory);
            }
            "send" => self.endpoint().send(number(1) as u64, pattern(number(2))).wait(soon()).unwrap(),
            // It is not waited for.
            "send_slowly" => drop(self.endpoint().send(number(1) as u64, vec![0; number(2)])),
            "receive" => {
                let came = self.endpoint().receive(number(1) as u64, Space::new(number(2))).wait(soon()).unwrap();
                assert!(came[..] == pattern(came.len())[..]);
                answer(came.len());
            }
            "descriptors" => answer(descriptors()),
            other => panic!("told to {other}"),
        }
    }

    fn endpoint(&self) -> &Endpoint {
        self.endpoint.as_ref().unwrap()
    }
}

#[allow(clippy::print_stdout, reason = "this is how it answers")]
fn answer(what: impl ToString) {
    println!("\n{ANSWER}{}", what.to_string());
}

/// The other process, as this one sees it.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    address: Address,
}

impl Peer {
    pub(crate) fn start(transport: Transport) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["peer::serve", "--exact", "--ignored", "--nocapture"])
            .env(OVER, transport.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = Address::from_bytes(&unhex(&answered(&mut output))).unwrap();
        Self { child, input, output, address }
    }

    pub(crate) fn address(&self) -> Address {
        self.address.clone()
    }

    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        answered(&mut self.output)
    }

    pub(crate) fn connect(&mut self, address: &Address) {
        assert_eq!(self.ask(&format!("connect {}", hex(&address.to_bytes()))), "connected");
    }

    /// Shares a pattern.
    pub(crate) fn share(&mut self, len: usize) -> Key {
        Key::from_bytes(&unhex(&self.ask(&format!("share {len}")))).unwrap()
    }

    /// Has it receive a pattern; its length.
    pub(crate) fn receive(&mut self, tag: u64, room: usize) -> usize {
        self.ask(&format!("receive {tag} {room}")).parse().unwrap()
    }

    pub(crate) fn descriptors(&mut self) -> usize {
        self.ask("descriptors").parse().unwrap()
    }

    /// SIGSTOP: it does nothing until it is killed.
    pub(crate) fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
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

fn answered(output: &mut Lines<BufReader<ChildStdout>>) -> String {
    let is = |line: io::Result<String>| line.unwrap().strip_prefix(ANSWER).map(str::to_owned);
    output.find_map(is).expect("the other process has ended")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}
