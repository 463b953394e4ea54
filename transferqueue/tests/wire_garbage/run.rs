//! A whole on-policy run of workers in other processes (as far as the store can tell), its result, and a client that probes
//! all the while how long a put, a claim and a commit take together.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use transferqueue::{
    Claim, Column, Error, Kind, NewRow, Options, Outputs, Session, Span, Store,
    catalog::{
        Trained,
        definition::{Birth, Partition, Task},
        views::LedgerEntry,
    },
    client::{self, ClientTls, Remote},
    inspect,
    server::{self, Server, ServerTls},
};

use crate::{
    catalog_support::{grpo, schedule},
    office::Office,
};

const CYCLES: u64 = 6;
const GROUPS: u64 = 4;
const SAMPLES: u32 = 2;

/// Between two prompts, while garbage comes.
const PACE: Duration = Duration::from_millis(200);

/// What a run and what goes on beside it tell each other.
#[derive(Default)]
pub struct Signs {
    pub enough: AtomicBool,
    pub over: AtomicBool,
}

/// Where garbage can go.
pub struct Ports {
    pub tcp: String,
    pub tls: String,
    pub token: [String; 2],
    pub control: PathBuf,
}

pub struct Run {
    store: Store,
    tcp: Server,
    tls: Server,
    control: inspect::Server,
    _folder: tempfile::TempDir,
    ca: PathBuf,
}

#[derive(Debug, PartialEq)]
pub struct Outcome {
    ledger: Vec<LedgerEntry>,
    /// Rows that were trained, in the order of their cuts.
    trained: Vec<Trained>,
    /// What the trainer made of them, version by version.
    weights: Vec<Vec<u8>>,
}

pub struct Worked {
    pub result: Outcome,
    pub probes: u64,
    pub slowest: Duration,
}

/// A call that takes longer than this was noticed.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

impl Run {
    pub fn new(office: &Office) -> Self {
        let mut definition = grpo(SAMPLES, schedule(GROUPS, 2, 0, CYCLES));
        let probes = vec![Column::new("text", Kind::Binary)];
        definition.partitions.push(Partition {
            name: "probes".into(),
            columns: probes,
            birth: Birth::Put { capacity: None },
        });
        definition.tasks.push(Task { reads: vec!["text".into()], ..Task::new("probe", "probes") });
        let store = Store::create(definition, Options::default()).unwrap();
        let (cert, key) = office.issue("127.0.0.1", 4000);
        let tls = Some(ServerTls { cert, key, client_ca: None });
        let folder = tempfile::tempdir().unwrap();
        Self {
            tcp: server::serve(&store, &server::Options::default()).unwrap(),
            tls: server::serve(&store, &server::Options { tls, ..server::Options::default() }).unwrap(),
            control: inspect::serve(&store, &folder.path().join("control.sock")).unwrap(),
            ca: office.ca(),
            store,
            _folder: folder,
        }
    }

    fn connect(&self, encrypted: bool) -> Remote {
        let tls = ClientTls { ca: self.ca.clone(), identity: None, domain: None };
        let (server, tls) = if encrypted { (&self.tls, Some(tls)) } else { (&self.tcp, None) };
        let options = client::Options { tls, connections: 1, ..client::Options::default() };
        Remote::connect(server.url(), server.token(), options).unwrap()
    }

    /// Runs from beginning to end. `beside` is told when the run is over, and says when it has done enough for the run to end:
    /// until then prompts come slowly, and the last ones not at all.
    pub fn work(self, beside: impl FnOnce(&Ports, &Signs) + Send) -> Worked {
        let trained: Arc<Mutex<Vec<Trained>>> = Arc::default();
        let hears = trained.clone();
        self.store
            .on_publication(move |publication| hears.lock().unwrap().extend(publication.consumed.rows.iter().cloned()))
            .unwrap();
        let ports = Ports {
            tcp: self.tcp.url().strip_prefix("grpc://").unwrap().to_owned(),
            tls: self.tls.url().strip_prefix("grpc+tls://").unwrap().to_owned(),
            token: [&self.tcp, &self.tls].map(|server| server.token().to_owned()),
            control: self.control.path().to_owned(),
        };
        let remotes = [false, true].map(|encrypted| self.connect(encrypted));
        let open = |i: usize, name: &str| remotes[i % 2].session(name).unwrap();
        let weights = Mutex::new(Vec::new());
        let (signs, stop) = (Signs::default(), AtomicBool::new(false));
        let probed = thread::scope(|scope| {
            let trainer = open(0, "trainer");
            publish(&trainer, None, &weights, 0);
            for (i, stage) in ["rollout", "rollout", "reward", "advantage"].into_iter().enumerate() {
                let session = open(i, &format!("{stage}-{i}"));
                scope.spawn(move || while step(&session, stage) {});
            }
            let (weights, signs, stop, ports) = (&weights, &signs, &stop, &ports);
            let training = scope.spawn(move || train(&trainer, weights));
            let source = open(1, "source");
            let feeding = scope.spawn(move || feed(&source, &signs.enough));
            let prober = open(1, "prober");
            let probing = scope.spawn(move || probe(&prober, &ports.control, stop));
            scope.spawn(move || {
                training.join().unwrap();
                feeding.join().unwrap();
                signs.over.store(true, Ordering::SeqCst);
            });
            beside(ports, signs);
            while !signs.over.load(Ordering::SeqCst) {
                thread::park_timeout(Duration::from_millis(5));
            }
            stop.store(true, Ordering::SeqCst);
            probing.join().unwrap()
        });
        drop(remotes);
        let mut ledger = self.store.with_state(|state, _| state.ledger()).unwrap();
        assert!(ledger.iter().all(|entry| entry.balanced() && entry.live == 0), "{ledger:?}");
        // How often was probed is a matter of time.
        ledger.retain(|entry| entry.task != "probe");
        let total = self.store.units().stats().total();
        assert_eq!((total.unsettled, total.pinned), (0, 0), "nothing of garbage is held");
        let trained = std::mem::take(&mut *trained.lock().unwrap());
        let result = Outcome { ledger, trained, weights: weights.into_inner().unwrap() };
        Worked { result, probes: probed.0, slowest: probed.1 }
    }
}

fn feed(session: &Session, enough: &AtomicBool) {
    let prompts = session.partition("prompts").unwrap();
    let last = (CYCLES * GROUPS) as i64 - 1;
    for i in 0..=last {
        let begun = Instant::now();
        while !enough.load(Ordering::SeqCst) && (i == last || begun.elapsed() < PACE) {
            thread::park_timeout(Duration::from_millis(20));
        }
        let cells = Outputs::new().ragged("prompt", [[i, i + 1]]);
        session.put(prompts, vec![NewRow::default()], cells, soon()).unwrap();
    }
    session.close_partition(prompts).unwrap();
}

fn claim(session: &Session, task: &str) -> Option<transferqueue::Lease> {
    loop {
        match session.claim(task, 3, soon()) {
            Ok(Claim::Lease(lease)) => return Some(lease),
            Ok(Claim::Ended) => return None,
            Err(Error::Deadline(_)) => {}
            Err(error) => panic!("{task}: {error}"),
        }
    }
}

fn step(session: &Session, stage: &str) -> bool {
    let Some(lease) = claim(session, stage) else { return false };
    let batch = lease.batch().unwrap();
    let mapped = |column: &str, f: &dyn Fn(i64) -> i64| -> Vec<Vec<i64>> {
        batch.ragged::<i64>(column).unwrap().iter().map(|row| row.iter().map(|x| f(*x)).collect()).collect()
    };
    let outputs = match stage {
        "rollout" => {
            let mut outputs = Outputs::new().ragged("responses", mapped("prompt", &|x| 2 * x));
            for head in lease.heads() {
                let span = Span { first: head.version, last: head.version };
                outputs = outputs.note(head.row, BTreeMap::new(), Some(span));
            }
            outputs
        }
        "reward" => Outputs::new().ragged("scores", mapped("responses", &|x| x + 1)),
        _ => Outputs::new().ragged("advantages", mapped("scores", &|x| 3 * x)),
    };
    lease.commit(outputs).unwrap();
    true
}

/// Trains: the weights are a sum over all that was read, so that one wrong value shows.
fn train(session: &Session, weights: &Mutex<Vec<Vec<u8>>>) {
    let mut sum = 0_i64;
    while let Some(lease) = claim(session, "actor") {
        let batch = lease.batch().unwrap();
        for column in ["prompt", "responses", "advantages"] {
            let cells = batch.ragged::<i64>(column).unwrap();
            sum = cells.iter().flatten().fold(sum, |sum, x| sum.wrapping_mul(31).wrapping_add(*x));
        }
        let cut = lease.cut().unwrap().clone();
        drop(batch);
        lease.commit(Outputs::new()).unwrap();
        if cut.last {
            publish(session, Some(cut.cycle), weights, sum);
        }
    }
}

fn publish(session: &Session, cycle: Option<u64>, weights: &Mutex<Vec<Vec<u8>>>, sum: i64) {
    let name = format!("weights/policy/{}", cycle.map_or(0, |cycle| cycle + 1));
    let columns = vec![Column::new("data", Kind::Binary)];
    let made = session.create_partition(Partition { name, columns, birth: Birth::Put { capacity: None } }).unwrap();
    let data = sum.to_le_bytes().to_vec();
    session.put(made, vec![NewRow::default()], Outputs::new().binary("data", [&data]), soon()).unwrap();
    session.close_partition(made).unwrap();
    session.offer("policy", cycle, Some(made), None).unwrap();
    weights.lock().unwrap().push(data);
}

/// One row in, out and away, and a look through the control socket, again and again: how often, and the longest.
fn probe(session: &Session, control: &Path, stop: &AtomicBool) -> (u64, Duration) {
    let probes = session.partition("probes").unwrap();
    let (mut count, mut slowest) = (0, Duration::ZERO);
    while !stop.load(Ordering::SeqCst) {
        let begun = Instant::now();
        session.put(probes, vec![NewRow::default()], Outputs::new().binary("text", [b"x"]), soon()).unwrap();
        let lease = session.claim("probe", 1, soon()).unwrap().lease().unwrap();
        assert_eq!(lease.batch().unwrap().binary("text").unwrap().row(0), b"x");
        lease.commit(Outputs::new()).unwrap();
        slowest = slowest.max(begun.elapsed());
        count += 1;
        // All places may be taken by garbage for a moment; then it says so.
        match inspect::Client::connect(control).and_then(|mut client| client.get(&inspect::Request::Ledger)) {
            Ok(_) | Err(inspect::InspectError::Refused { .. } | inspect::InspectError::Io { .. }) => {}
            Err(inspect::InspectError::Protocol { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        thread::park_timeout(Duration::from_millis(10));
    }
    (count, slowest)
}
