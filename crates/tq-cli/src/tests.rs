use std::{
    fs,
    os::unix::net::UnixListener,
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::Value;
use transferqueue::{
    Column, Definition, Dtype, Kind, Lease, NewRow, Options, Outputs, PartitionId, RowId, Rows, Session, Store, Tag,
    Tags,
    catalog::definition::{Birth, Partition, Task},
    inspect::{self, Server},
};

use super::*;

/// Jobs that `score` has half done: two rows scored, one held, one dropped, one untouched.
struct Job {
    dir: tempfile::TempDir,
    store: Store,
    _server: Server,
    _session: Session,
    _held: Lease,
}

fn job() -> Job {
    let column = |name: &str, kind| Column::new(name, kind);
    let definition = Definition {
        partitions: vec![Partition {
            name: "jobs".into(),
            columns: vec![
                column("text", Kind::Utf8),
                column("tokens", Kind::Ragged { dtype: Dtype::I32, inner: vec![] }),
                column("score", Kind::Dense { dtype: Dtype::F32, shape: vec![] }),
            ],
            birth: Birth::Put { capacity: None },
        }],
        tasks: vec![
            Task {
                reads: vec!["text".into(), "tokens".into()],
                writes: vec!["score".into()],
                ..Task::new("score", "jobs")
            },
            Task { reads: vec!["score".into()], ..Task::new("collect", "jobs") },
        ],
        ..Definition::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(definition, Options { incarnation: Some(1), ..Options::default() }).unwrap();
    let session = store.session("scorer-0").unwrap();
    let soon = Instant::now() + Duration::from_secs(60);
    let row = |level| NewRow { key: None, tags: Tags::from([("level".into(), Tag::Int(level))]) };
    let cells = Outputs::new()
        .utf8("text", ["one", "two", "three", "four", "five"])
        .ragged("tokens", (0..5).map(|i| (0..20 * i).collect::<Vec<i32>>()));
    session.put(PartitionId(0), (1..=5).map(row).collect(), cells, soon).unwrap();
    let first = session.claim("score", 2, soon).unwrap().lease().unwrap();
    first.commit(Outputs::new().dense("score", [0.5f32, 1.0])).unwrap();
    let held = session.claim("score", 2, soon).unwrap().lease().unwrap();
    session.drop_rows(PartitionId(0), &Rows::run(RowId(4), 1), "stale").unwrap();
    // Let the lease be a little old: a wait of 0 ms is worded differently.
    let now = || store.with_state(|_, now| now.0).unwrap();
    let leased = now();
    while now() < leased + 2 {
        std::thread::yield_now();
    }
    fs::create_dir_all(dir.path().join("runs/a")).unwrap();
    let server = inspect::serve(&store, &dir.path().join("runs/a/control.sock")).unwrap();
    Job { dir, store, _server: server, _session: session, _held: held }
}

impl Job {
    fn run(&self, arguments: &[&str]) -> Result<(String, String)> {
        let run = self.dir.path().join("runs/a");
        let cli = Cli::parse_from(["tq-cli", "--run", run.to_str().unwrap()].iter().chain(arguments));
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        super::run(&cli, &mut out, &mut notes)?;
        Ok((stable(&String::from_utf8(out)?), String::from_utf8(notes)?))
    }

    fn shows(&self, arguments: &[&str]) -> String {
        self.run(arguments).unwrap().0
    }
}

/// Seconds and process ids differ from run to run.
fn stable(text: &str) -> String {
    let mut out = String::new();
    for (i, part) in text.split_inclusive(|c: char| !c.is_ascii_digit() && c != '.').enumerate() {
        let number = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        let seconds = number.contains('.') && (part.ends_with('s') || part.ends_with(' '));
        match seconds && i > 0 {
            true => out.push_str(&part.replacen(number, "#", 1)),
            false => out.push_str(part),
        }
    }
    let pid = format!("{}", std::process::id());
    out.replace(&format!("pid        {pid}"), "pid        #")
}

fn stable_json(text: &str) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(walk),
            Value::Object(fields) => {
                for (key, value) in fields {
                    match key.as_str() {
                        "pid" | "up_ms" | "for_ms" | "left_ms" | "seen_ms_ago" => *value = Value::from("#"),
                        _ => walk(value),
                    }
                }
            }
            _ => {}
        }
    }
    let mut value = serde_json::from_str(text).unwrap();
    walk(&mut value);
    value
}

#[test]
fn tables_for_people() {
    let job = job();
    for look in ["status", "tasks", "columns", "ledger", "partitions", "sessions", "versions"] {
        insta::assert_snapshot!(look, job.shows(&[look]));
    }
    insta::assert_snapshot!("peek", job.shows(&["peek", "jobs"]));
    insta::assert_snapshot!("peek_some", job.shows(&["peek", "jobs", "--rows", "2-3", "--columns", "score,text"]));
}

#[test]
fn json_for_programs() {
    let job = job();
    for look in ["status", "tasks", "columns", "ledger"] {
        insta::assert_json_snapshot!(format!("{look}_json"), stable_json(&job.shows(&[look, "--format", "json"])));
    }
}

#[test]
fn watching_looks_again_as_often_as_asked() {
    let job = job();
    let (out, notes) = job.run(&["watch", "--every", "0.1", "--times", "2", "ledger"]).unwrap();
    assert_eq!(out.matches("partition  task").count(), 2);
    assert_eq!(notes, "");
    let json = job.shows(&["--format", "json", "watch", "--every", "0.1", "--times", "3", "ledger"]);
    assert_eq!(json.lines().count(), 3);
    assert!(json.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
}

#[test]
fn watching_ends_with_the_run_and_says_so() {
    /// Tells the test that something was shown.
    struct Seen(std::sync::mpsc::SyncSender<()>);
    impl Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            let _already_told = self.0.try_send(());
            Ok(())
        }
    }
    let job = job();
    let run_dir = job.dir.path().join("runs/a");
    let (shown, seen) = std::sync::mpsc::sync_channel(1);
    let watching = std::thread::spawn(move || {
        let cli = Cli::parse_from(["tq-cli", "watch", "--every", "0.1", "tasks", "--run", run_dir.to_str().unwrap()]);
        let mut notes = Vec::new();
        run(&cli, &mut Seen(shown), &mut notes).map(|()| String::from_utf8(notes).unwrap())
    });
    seen.recv().unwrap();
    drop(job);
    assert_eq!(watching.join().unwrap().unwrap(), "the run has ended\n");
}

#[test]
fn what_cannot_be_shown_is_said() {
    let job = job();
    let error = job.run(&["peek", "job"]).unwrap_err().to_string();
    assert!(error.contains("`job`") && error.contains("`jobs`"), "{error}");
    let socket = job.dir.path().join("nowhere.sock");
    let cli = Cli::parse_from(["tq-cli", "status", "--socket", socket.to_str().unwrap()]);
    let error = run(&cli, &mut Vec::new(), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("no job answers at"), "{error}");
    assert!(Cli::try_parse_from(["tq-cli", "watch", "--every", "0", "tasks"]).is_err());
    assert!(Cli::try_parse_from(["tq-cli", "status", "--run", "a", "--socket", "b"]).is_err());
}

#[test]
fn the_newest_live_run_is_found_and_killed_ones_are_skipped() {
    let job = job();
    let runs = job.dir.path().join("runs");
    let mut notes = Vec::new();
    assert_eq!(find::newest(&runs, &mut notes).unwrap(), runs.join("a/control.sock"));
    assert!(notes.is_empty());
    for run in ["b", "z"] {
        fs::create_dir_all(runs.join(run)).unwrap();
    }
    drop(UnixListener::bind(runs.join("z/control.sock")).unwrap());
    assert_eq!(find::newest(&runs, &mut notes).unwrap(), runs.join("a/control.sock"));
    let _second = inspect::serve(&job.store, &runs.join("b/control.sock")).unwrap();
    let found = find::newest(&runs, &mut notes).unwrap();
    let said = String::from_utf8(notes).unwrap();
    assert!(found.starts_with(&runs) && said.contains("1 more live runs"), "{said}");
    let nothing = find::newest(&job.dir.path().join("elsewhere"), &mut Vec::new()).unwrap_err().to_string();
    assert!(nothing.contains("no live run under"), "{nothing}");
}
