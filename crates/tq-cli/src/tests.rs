use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
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

/// Jobs that `score` has half done: two rows scored, two held, one dropped.
pub(crate) struct Job {
    dir: tempfile::TempDir,
    pub(crate) store: Store,
    server: Option<Server>,
    _session: Session,
    _held: Lease,
}

pub(crate) fn job() -> Job {
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
    let options = Options { incarnation: Some(1), ..Options::at(dir.path().join("runs/a")) };
    let store = Store::create(definition, options).unwrap();
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
    Job { dir, store, server: Some(server), _session: session, _held: held }
}

impl Job {
    fn run(&self, arguments: &[&str]) -> Result<(String, String)> {
        self.raw(arguments).map(|(out, notes, _)| (stable(&out), notes))
    }

    /// Data, notes, and how it ended.
    pub(crate) fn raw(&self, arguments: &[&str]) -> Result<(String, String, Outcome)> {
        let folder = self.folder();
        let cli = Cli::parse_from(["tq-cli", "--run", folder.to_str().unwrap()].iter().chain(arguments));
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let outcome = run(&cli, &mut out, &mut notes)?;
        Ok((String::from_utf8(out)?, String::from_utf8(notes)?, outcome))
    }

    /// The run's folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("runs/a")
    }

    /// Ends as a killed process does: nobody answers, the socket's file stays.
    pub(crate) fn kill(&mut self) {
        drop(self.server.take());
        drop(UnixListener::bind(self.folder().join("control.sock")).unwrap());
    }

    /// Waits until the lease has been held for that long.
    pub(crate) fn age(&self, ms: u64) {
        let held = || self.store.with_state(|state, now| state.health(now).leases[0].quiet_ms).unwrap();
        while held() < ms {
            std::thread::yield_now();
        }
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
    let pid = std::process::id();
    insta::assert_snapshot!("units", job.shows(&["units"]).replace(&format!("{pid:>7}"), "      #"));
    insta::assert_snapshot!("peek", job.shows(&["peek", "jobs"]));
    insta::assert_snapshot!("peek_some", job.shows(&["peek", "jobs", "--rows", "2-3", "--columns", "score,text"]));
}

#[test]
fn json_for_programs() {
    let job = job();
    for look in ["status", "tasks", "columns", "ledger", "units"] {
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
        run(&cli, &mut Seen(shown), &mut notes).map(|_| String::from_utf8(notes).unwrap())
    });
    seen.recv().unwrap();
    drop(job);
    assert_eq!(watching.join().unwrap().unwrap(), "the run has ended\n");
}

/// Serves a store's answers at a socket, hangs up after so many a connection, as the job does with a client that asks nothing
/// for long; ends after the last connection, and takes its socket with it.
fn forgetful(job: &Job, each: &'static [usize]) -> (PathBuf, JoinHandle<()>) {
    let (socket, store) = (job.folder().join("forgetful.sock"), job.store.clone());
    let (path, listener) = (socket.clone(), UnixListener::bind(&socket).unwrap());
    let serving = std::thread::spawn(move || {
        for (at, answers) in each.iter().enumerate() {
            let mut reader = BufReader::new(listener.accept().unwrap().0);
            for _ in 0..*answers {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let reply = inspect::answer(&store, &serde_json::from_str(&line).unwrap());
                writeln!(reader.get_mut(), "{}", serde_json::to_string(&reply).unwrap()).unwrap();
            }
            if at + 1 == each.len() {
                fs::remove_file(&path).unwrap();
            }
        }
    });
    (socket, serving)
}

/// A command line about a socket: how it ended, data, notes.
fn at(socket: &Path, arguments: &[&str]) -> (Result<Outcome>, String, String) {
    let cli = Cli::parse_from(["tq-cli", "--socket", socket.to_str().unwrap()].iter().chain(arguments));
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let outcome = run(&cli, &mut out, &mut notes);
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
}

#[test]
fn watching_goes_on_when_the_job_lets_the_client_go() {
    let job = job();
    let (socket, serving) = forgetful(&job, &[1, 2, 1]);
    let (outcome, out, notes) = at(&socket, &["watch", "--every", "0.1", "ledger"]);
    outcome.unwrap();
    assert_eq!((out.matches("partition  task").count(), notes.as_str()), (4, "the run has ended\n"));
    serving.join().unwrap();
}

#[test]
fn watching_passes_on_what_is_no_end_of_the_run() {
    let job = job();
    // It hangs up twice without an answer, and still serves.
    let (socket, serving) = forgetful(&job, &[1, 0, 0, 1]);
    let (outcome, _, notes) = at(&socket, &["watch", "--every", "0.1", "ledger"]);
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("forgetful.sock") && notes.is_empty(), "{error}; {notes}");
    drop(at(&socket, &["status"]));
    serving.join().unwrap();
    let refused = job.raw(&["watch", "--every", "0.1", "peek", "job"]).unwrap_err().to_string();
    assert!(refused.contains("`jobs`"), "{refused}");
}

#[test]
fn the_screen_goes_on_when_the_job_lets_the_client_go() {
    let job = job();
    // All views of a look take eight answers.
    let (socket, serving) = forgetful(&job, &[8, 8]);
    let mut watched = Watched::connect(&socket).unwrap();
    for _ in 0..2 {
        assert_eq!(watched.ask(views::Views::get).unwrap().unwrap().ledger.len(), 2);
    }
    assert!(watched.ask(views::Views::get).unwrap().is_none(), "the run has ended");
    serving.join().unwrap();
}

#[test]
fn serving_metrics_asks_nothing_before_it_is_asked() {
    let job = job();
    let (socket, serving) = forgetful(&job, &[0, 0]);
    let (outcome, _, _) = at(&socket, &["metrics", "--listen", "0.0.0.0:0"]);
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("--insecure"), "{error}");
    drop(at(&socket, &["status"]));
    serving.join().unwrap();
}

#[test]
fn the_phase_that_was_written_last_comes_first() {
    let dir = tempfile::tempdir().unwrap();
    let written = |phase: &str, at: u64| {
        let events = dir.path().join(phase).join("events");
        fs::create_dir_all(&events).unwrap();
        let segment = fs::File::create(events.join("000000.jsonl")).unwrap();
        segment.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(at)).unwrap();
    };
    fs::create_dir_all(dir.path().join("phases/empty")).unwrap();
    written("phases/alpha", 10);
    written("phases/beta", 30);
    written("phases/gamma", 20);
    let order = || -> Vec<PathBuf> {
        let phases = folder::phases(dir.path());
        phases.iter().map(|phase| phase.events().strip_prefix(dir.path()).unwrap().to_owned()).collect()
    };
    let named =
        |phases: &[&str]| -> Vec<PathBuf> { phases.iter().map(|phase| Path::new(phase).join("events")).collect() };
    assert_eq!(order()[..3], named(&["phases/beta", "phases/gamma", "phases/alpha"]));
    written("", 40);
    assert_eq!(order()[..2], named(&["", "phases/beta"]));
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

#[test]
fn why_tells_a_rows_columns_tasks_and_history() {
    let job = job();
    let text = job.raw(&["why", "jobs", "2"]).unwrap().0;
    let line =
        |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"));
    assert!(line("tags").contains("level=3"), "{text}");
    assert!(line("text").contains("held, 5B") && line("text").contains("three"), "{text}");
    assert!(
        line("score").contains("missing") && line("score").contains("`score`: held by scorer-0 under lease 2"),
        "{text}"
    );
    assert!(line("collect").contains("waits for `score`"), "{text}");
    assert!(text.contains("put by worker scorer-0: `text`, `tokens`"), "{text}");
    assert!(text.contains("`score`: claimed by worker scorer-0 under lease 2"), "{text}");
    let scored = job.raw(&["why", "jobs", "0"]).unwrap().0;
    assert!(
        scored.contains("consumed by `score`") && scored.contains("`score` (worker scorer-0) wrote `score`"),
        "{scored}"
    );
    let wrong = |arguments: &[&str]| job.raw(arguments).unwrap_err().to_string();
    assert!(wrong(&["why", "jobs", "two"]).contains("`two` is no row"));
    assert!(wrong(&["why", "2"]).contains("name one"), "no partition here is born from another");
    assert!(wrong(&["why", "jobs", "77"]).contains("row 77 of `jobs`"));
}

#[test]
fn why_tells_what_became_of_a_row_that_is_gone_also_when_the_job_is() {
    let mut job = job();
    let text = job.raw(&["why", "jobs", "4"]).unwrap().0;
    assert!(text.contains("row 4 of `jobs` is gone") && text.contains("dropped: stale"), "{text}");
    let json: Value = serde_json::from_str(&job.raw(&["why", "jobs", "4", "--format", "json"]).unwrap().0).unwrap();
    assert_eq!(json["history"]["dropped"], "stale");
    assert_eq!(json["live"]["live"], Value::Null);
    job.kill();
    let (text, notes, _) = job.raw(&["why", "jobs", "4"]).unwrap();
    assert!(text.contains("dropped: stale") && notes.contains("from its files"), "{text}{notes}");
    let unknown = job.raw(&["why", "jobs", "77"]).unwrap_err().to_string();
    assert!(unknown.contains("knows no row 77"), "{unknown}");
}

#[test]
fn rows_are_dropped_only_with_yes() {
    let job = job();
    let (out, notes, outcome) = job.raw(&["drop", "jobs", "0,2-4", "--reason", "broken"]).unwrap();
    assert_eq!(outcome, Outcome::Unconfirmed);
    assert!(
        out.contains("would drop 3 rows of `jobs` as `broken`: 0,2-3") && out.contains("1 rows are gone already: 4"),
        "{out}"
    );
    assert!(
        out.contains("`score` would lose 2, 2 of them held by a worker") && notes.contains("--yes"),
        "{out}{notes}"
    );
    assert!(!job.shows(&["ledger"]).contains("broken"));
    let (out, _, outcome) = job.raw(&["drop", "jobs", "0,2-4", "--reason", "broken", "--yes"]).unwrap();
    assert_eq!(outcome, Outcome::Done);
    assert!(out.contains("dropped 3 rows"), "{out}");
    assert!(job.shows(&["ledger"]).contains("broken 2, stale 1"), "{}", job.shows(&["ledger"]));
    let json: Value =
        serde_json::from_str(&job.raw(&["drop", "jobs", "1", "--reason", "x", "--format", "json"]).unwrap().0).unwrap();
    assert_eq!(json["done"], false);
    assert!(Cli::try_parse_from(["tq-cli", "drop", "jobs", "1"]).is_err(), "without a reason");
}

#[test]
fn the_help_names_every_command() {
    use clap::CommandFactory;
    let help = Cli::command().render_long_help().to_string();
    for command in ["status", "sessions", "units", "why", "doctor", "top", "drop", "metrics", "watch", "peek"] {
        assert!(help.contains(&format!("\n  {command}")), "{command}: {help}");
    }
}
