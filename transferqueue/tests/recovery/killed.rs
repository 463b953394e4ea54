//! The store's process is killed again and again while clients of other processes work; a log and an arena on a full
//! disk.

use std::{
    collections::BTreeMap,
    env,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use transferqueue::{
    Claim, NewRow, Outputs, Store,
    catalog::event::Event,
    client::{self, Remote},
    log, server,
};

use crate::{definition, soon, two};

const DIR: &str = "TQ_RECOVERY_DIR";
const PORT: &str = "TQ_RECOVERY_PORT";
const ROWS: i64 = 6_000;
const KILLS: u64 = 12;

/// Not a test: the process that is killed. It serves the store of a folder until then.
#[test]
#[ignore = "started by the other tests"]
fn serve_a_store() {
    let (Some(dir), Some(port)) = (env::var_os(DIR), env::var(PORT).ok()) else { return };
    let dir = PathBuf::from(dir);
    let store = match dir.join("events").exists() {
        true => Store::recover(&two(&dir), |_, _, _| {}).unwrap().0,
        false => Store::create(definition(), two(&dir)).unwrap(),
    };
    let options = server::Options {
        listen: format!("127.0.0.1:{port}").parse().unwrap(),
        token_file: Some(dir.join("token")),
        ..server::Options::default()
    };
    let _server = server::serve(&store, &options).unwrap();
    loop {
        thread::park();
    }
}

struct Killed(Child);

impl Killed {
    fn start(dir: &Path, port: u16) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["killed::serve_a_store", "--exact", "--ignored", "--nocapture"])
            .env(DIR, dir)
            .env(PORT, port.to_string())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL: nothing is written any more.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn connect(dir: &Path, port: u16) -> Remote {
    let until = Instant::now() + Duration::from_secs(30);
    let token = loop {
        match std::fs::read_to_string(dir.join("token")) {
            Ok(token) => break token,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::park_timeout(Duration::from_millis(10));
    };
    Remote::connect(&format!("grpc://127.0.0.1:{port}"), &token, client::Options::default()).unwrap()
}

#[test]
fn clients_do_not_notice_that_the_store_is_killed_twelve_times() {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = dir.path();
    let mut host = Some(Killed::start(path, port));
    let (done, summed) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
    let mut sums = BTreeMap::new();
    thread::scope(|scope| {
        let feeder = scope.spawn(move || {
            let remote = connect(path, port);
            let session = remote.session("feeder").unwrap();
            let jobs = session.partition("jobs").unwrap();
            for from in (0..ROWS).step_by(20) {
                let numbers: Vec<i64> = (from..from + 20).collect();
                let texts: Vec<String> = numbers.iter().map(|number| format!("{number:0>50}")).collect();
                let outputs = Outputs::new().dense("number", numbers).utf8("text", texts);
                session.put(jobs, vec![NewRow::default(); 20], outputs, soon()).unwrap();
                thread::park_timeout(Duration::from_millis(10));
            }
            session.close_partition(jobs).unwrap();
        });
        for index in 0..2 {
            scope.spawn(move || {
                let session = connect(path, port).session(format!("square-{index}")).unwrap();
                while let Claim::Lease(lease) = session.claim("square", 16, soon()).unwrap() {
                    let numbers = lease.batch().unwrap().dense::<i64>("number").unwrap().to_vec();
                    let squares: Vec<i64> = numbers.iter().map(|n| n * n).collect();
                    lease.commit(Outputs::new().dense("square", squares)).unwrap();
                }
            });
        }
        let counted = summed.clone();
        let reader = scope.spawn(move || {
            let session = connect(path, port).session("sum").unwrap();
            let mut sums = BTreeMap::new();
            while let Claim::Lease(lease) = session.claim("sum", 16, soon()).unwrap() {
                let batch = lease.batch().unwrap();
                let squares = batch.dense::<i64>("square").unwrap().to_vec();
                let texts: Vec<i64> = batch.utf8("text").unwrap().iter().map(|text| text.parse().unwrap()).collect();
                lease.commit(Outputs::new()).unwrap();
                for (text, square) in texts.into_iter().zip(squares) {
                    assert_eq!(sums.insert(text, square), None, "{text} came twice");
                }
                counted.store(sums.len() as u64, Ordering::Relaxed);
            }
            sums
        });
        // Each kill after some more rows have gone all the way: no life is in vain.
        for kill in 1..=KILLS {
            let until = Instant::now() + Duration::from_secs(60);
            while summed.load(Ordering::Relaxed) < kill * 300 {
                assert!(Instant::now() < until, "kill {kill}: {} rows", summed.load(Ordering::Relaxed));
                thread::park_timeout(Duration::from_millis(7 * kill));
            }
            drop(host.take());
            host = Some(Killed::start(path, port));
        }
        feeder.join().unwrap();
        sums = reader.join().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    drop(host);
    assert_eq!(sums, (0..ROWS).map(|n| (n, n * n)).collect::<BTreeMap<_, _>>());
    // By the log alone: every row was consumed once by each task.
    let mut consumed = BTreeMap::new();
    for entry in log::surviving(&path.join("events")).unwrap() {
        for event in entry.unwrap().record.events {
            if let Event::RowsCommitted { task, rows, .. } = event {
                rows.iter().for_each(|row| *consumed.entry((task, row)).or_insert(0) += 1);
            }
        }
    }
    assert_eq!(consumed.len() as i64, 2 * ROWS);
    assert!(consumed.values().all(|times| *times == 1));
    let (store, recovered) = Store::recover(&two(path), |_, _, _| {}).unwrap();
    assert_eq!(recovered.bytes, 0);
    assert!(store.with_state(|state, _| state.ledger().iter().all(|entry| entry.balanced())).unwrap());
}
