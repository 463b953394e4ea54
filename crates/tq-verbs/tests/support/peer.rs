//! The other process, which shares memory: this program again, told on its standard input what to do.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Lines, Write},
    net::{IpAddr, SocketAddr},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use tq_verbs::{Connection, Error, Guest, Key, Listener, Ticket};

/// The addresses of two devices with a link between them: of whoever shares, and of whoever reads.
const ADDRESSES: &str = "TQ_RDMA_ADDRESSES";
/// The other process is told so.
const SERVES: &str = "TQ_VERBS_SERVES";
/// Before each answer: the test harness writes to standard output as well.
const ANSWER: &str = "answer: ";

/// Far enough away that only a defect reaches it.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// Of the other process, and of this one.
pub(crate) fn addresses() -> [IpAddr; 2] {
    let both = env::var(ADDRESSES).expect("`make rdma` runs this, where there are devices");
    let (there, here) = both.split_once(' ').unwrap();
    [there.parse().unwrap(), here.parse().unwrap()]
}

/// Bytes that differ from their neighbours, at any distance that a mistake would shift them by.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// What a process holds of the system: descriptors, and KiB of memory that devices may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) descriptors: usize,
    pub(crate) pinned: usize,
}

/// What this process holds.
pub(crate) fn held() -> Held {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    let pinned = pinned.trim().trim_end_matches(" kB").parse().unwrap();
    Held { descriptors: fs::read_dir("/proc/self/fd").unwrap().count(), pinned }
}

/// A ticket that is not another's.
fn ticket(number: usize) -> Ticket {
    let mut ticket = [0x5a; 16];
    ticket[..8].copy_from_slice(&number.to_le_bytes());
    ticket
}

/// Not a test: the other process.
#[test]
#[ignore = "started by the other tests"]
fn serve() {
    if env::var(SERVES).is_err() {
        return;
    }
    let listener = Listener::start(SocketAddr::new(addresses()[0], 0)).unwrap();
    answer(listener.address());
    let mut guests: Vec<Option<Guest>> = Vec::new();
    let guest = |guests: &Vec<Option<Guest>>, i: usize| guests[i].as_ref().map(Guest::is_here).unwrap_or_default();
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<usize>().unwrap();
        match words[0] {
            "invite" => {
                guests.push(Some(listener.invite(ticket(guests.len())).unwrap()));
                answer(guests.len() - 1);
            }
            "share" => {
                let key = guests[number(1)].as_ref().unwrap().share(Arc::new(pattern(number(2)))).unwrap();
                answer(hex(&key.to_bytes()));
            }
            "revoke" => {
                let key = Key::from_bytes(&unhex(words[2])).unwrap();
                answer(guests[number(1)].as_ref().unwrap().revoke(&key));
            }
            "dismiss" => {
                guests[number(1)] = None;
                answer("dismissed");
            }
            "is_here" => answer(guest(&guests, number(1))),
            "held" => {
                let held = held();
                answer(format!("{} {}", held.descriptors, held.pinned));
            }
            other => panic!("told to {other}"),
        }
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
    address: SocketAddr,
}

impl Peer {
    pub(crate) fn start() -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["peer::serve", "--exact", "--ignored", "--nocapture"])
            .env(SERVES, "yes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = answered(&mut output).parse().unwrap();
        Self { child, input, output, address }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").unwrap();
        answered(&mut self.output)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of somebody who may come in.
    pub(crate) fn invite(&mut self) -> usize {
        self.ask("invite").parse().unwrap()
    }

    /// Comes in, from the other end of the link.
    pub(crate) fn enter(&self, guest: usize, until: Instant) -> Result<Connection, Error> {
        Connection::connect(self.address, Some(addresses()[1]), &ticket(guest), until)
    }

    /// Somebody who has come in.
    pub(crate) fn guest(&mut self) -> (usize, Connection) {
        let guest = self.invite();
        (guest, self.enter(guest, soon()).unwrap())
    }

    /// Shares a pattern with a guest.
    pub(crate) fn share(&mut self, guest: usize, len: usize) -> Key {
        Key::from_bytes(&unhex(&self.ask(&format!("share {guest} {len}")))).unwrap()
    }

    pub(crate) fn revoke(&mut self, guest: usize, key: &Key) -> bool {
        self.ask(&format!("revoke {guest} {}", hex(&key.to_bytes()))) == "true"
    }

    pub(crate) fn dismiss(&mut self, guest: usize) {
        assert_eq!(self.ask(&format!("dismiss {guest}")), "dismissed");
    }

    pub(crate) fn is_here(&mut self, guest: usize) -> bool {
        self.ask(&format!("is_here {guest}")) == "true"
    }

    pub(crate) fn held(&mut self) -> Held {
        let said = self.ask("held");
        let (descriptors, pinned) = said.split_once(' ').unwrap();
        Held { descriptors: descriptors.parse().unwrap(), pinned: pinned.parse().unwrap() }
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
