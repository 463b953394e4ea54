//! Workers as processes over the wire: the same bits as threads, also when they are killed, join late, or fail.

use std::{
    fs,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

use tq_tests::{Workplace, until, workers};
use transferqueue::{RowId, inspect::history};

const APART: &str = "workers={all: {stages: \"*\", kind: processes}}";
/// Long enough for what a test does meanwhile, also where a step takes no time.
const STEPS: &str = "trainer.total_training_steps=40";

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

/// Step and loss of every step that trained.
fn losses(place: &Workplace) -> Vec<(u64, String)> {
    let lines = place.lines("small", "metrics.jsonl");
    lines.iter().filter_map(|line| Some((line["step"].as_u64()?, line.get("actor/pg_loss")?.to_string()))).collect()
}

fn assert_same(threads: &Workplace, processes: &Workplace) {
    assert_eq!(threads.trained("small"), processes.trained("small"));
    assert_eq!(losses(threads), losses(processes), "metrics of the processes are not those of the threads");
    assert!(
        threads.weights("small", "policy") == processes.weights("small", "policy"),
        "processes end in other weights than threads"
    );
    processes.assert_ledger_balances("small");
    for left in ["token", "url"] {
        assert!(!processes.run_file("small", left).exists(), "`{left}` is left behind");
    }
}

/// Every way that bytes go between processes in this build.
const TRANSPORTS: [&str; 2] = ["+store={transport: shm}", "+store={transport: flight}"];

#[test]
fn every_stage_in_a_process_of_its_own_trains_the_same_bits_as_threads_whichever_way_bytes_go() {
    for schedule in ["schedule=on_policy", "schedule=one_step_off"] {
        let threads = workplace();
        threads.succeed("quickstart.yaml", &[schedule]);
        for transport in TRANSPORTS {
            let processes = workplace();
            processes.succeed("quickstart.yaml", &[schedule, transport, APART]);
            assert_same(&threads, &processes);
            assert_eq!(losses(&processes).len(), 4, "{schedule} {transport}");
        }
    }
}

#[test]
fn fully_asynchronous_training_runs_in_processes_whichever_way_bytes_go() {
    for transport in TRANSPORTS {
        let place = workplace();
        let lag = ["schedule.use=fully_async", "schedule.lag=1", "schedule.max_lag=2"];
        place.succeed("quickstart.yaml", &[lag[0], lag[1], lag[2], transport, APART]);
        assert_eq!(place.trained("small").len(), 4 * 8 * 4);
        assert!(place.trained("small").values().all(|(_, lag)| *lag <= 2), "{transport}");
        place.assert_ledger_balances("small");
    }
}

/// A run with every stage in a process of its own.
struct Run(Child);

impl Run {
    fn start(place: &Workplace, more: &[&str]) -> Self {
        let arguments: Vec<&str> = [APART, STEPS].iter().chain(more).copied().collect();
        let mut command = place.small("quickstart.yaml", &arguments);
        Self(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test"))
    }

    /// Kills the worker of a stage once it has lived for a while.
    fn kill(&self, stage: &str, after: Duration) {
        let pid = until(|| workers(self.0.id()).into_iter().find(|(_, of)| of == stage)).0;
        std::thread::park_timeout(after);
        let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill");
        assert!(killed.success(), "worker {pid} of `{stage}` had ended before it was killed");
    }

    /// Waits for its end; what it said.
    fn end(mut self) -> (bool, String) {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.0.stderr.take().expect("its standard error"), &mut said).expect("text");
        (self.0.wait().expect("its end").success(), said)
    }
}

#[test]
fn workers_that_are_killed_are_started_again_and_train_the_same_bits() {
    let (threads, processes) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[STEPS]);
    let run = Run::start(&processes, &[]);
    until(|| processes.run_file("small", "audit.jsonl").exists().then_some(()));
    for stage in ["rollout", "actor", "reward", "actor"] {
        run.kill(stage, Duration::from_millis(700));
    }
    let (well, said) = run.end();
    assert!(well, "{said}");
    for worker in ["rollout-0", "actor-0", "reward-0"] {
        assert!(said.contains(&format!("worker process {worker} (pid")), "{said}");
    }
    assert!(said.contains("signal: 9") && said.contains("is started again"), "{said}");
    assert_same(&threads, &processes);
}

/// Two steps of eight responses of 200 tokens each.
const LONG: [&str; 8] = [
    "data.train_batch_size=4",
    "data.max_response_length=200",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.ignore_eos=true",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "phases.warmup.parameters.data.train_batch_size=4",
    "trainer.total_training_steps=2",
    "trainer.test_freq=-1",
];

#[test]
fn the_tokens_of_a_rollout_worker_that_is_killed_are_resumed_and_end_in_the_same_bits() {
    let (threads, processes) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &LONG);
    let resumed = [&LONG[..], &[APART, "+stages.rollout.on_lost=resume"]].concat();
    let mut command = processes.small("quickstart.yaml", &resumed);
    // A response takes eight seconds: it is saved on its way.
    command.env("TQ_SLOW_AT", "rollout::step:40").stdout(Stdio::null()).stderr(Stdio::piped());
    let run = Run(command.spawn().expect("program under test"));
    let events = processes.run_file("small", "events");
    until(|| read_all(&events).contains("rows_saved").then_some(()));
    run.kill("rollout", Duration::ZERO);
    let (well, said) = run.end();
    assert!(well, "{said}");
    assert!(said.contains("worker process rollout-0 (pid") && said.contains("is started again"), "{said}");
    assert_same(&threads, &processes);
    let sum = |name: &str| -> f64 {
        let lines = processes.lines("small", "metrics.jsonl");
        lines.iter().filter_map(|line| line.get(name)?.as_f64()).sum()
    };
    // The first save comes after five seconds; until then a row grew by a hundred tokens or so.
    assert!(sum("rollout/resumed_tokens") > 50.0, "{} tokens were resumed", sum("rollout/resumed_tokens"));
    assert_eq!(sum("rollout/discarded_tokens"), 0.0);
    let told = (0..8).map(|row| history::read(&events, "samples", RowId(row)).expect("the log").happenings);
    let resumed =
        told.flatten().find(|told| told.kind == "leased" && told.what.contains("tokens that worker rollout-0"));
    assert!(resumed.is_some(), "the history of no row says that it was resumed");
}

/// The text of all files of a folder.
fn read_all(folder: &Path) -> String {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect()
}

#[test]
fn a_worker_may_join_a_run_and_leave_it() {
    let (threads, processes) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[STEPS]);
    let run = Run::start(&processes, &[]);
    let url = until(|| fs::read_to_string(processes.run_file("small", "url")).ok().filter(|url| !url.is_empty()));
    let token = processes.run_file("small", "token");
    let token = token.to_str().expect("a path in UTF-8");
    let join = |stage: &str, index: &str| {
        let arguments = ["worker", "--connect", &url, "--token-file", token, "--stage", stage, "--index", index];
        processes.command(&arguments).stderr(Stdio::piped()).spawn().expect("program under test")
    };
    let mut joined = Run(join("rollout", "1"));
    let leaving = join("rollout", "2");
    let (well, said) = Run(join("rollout", "0")).end();
    assert!(!well && said.contains("worker rollout-0 is the runner's own"), "{said}");
    // A host without the model's folder: its failure is its own.
    let elsewhere = tempfile::tempdir().expect("temporary folder");
    let url_token = ["worker", "--connect", &url, "--token-file", token];
    let mut lost = processes.command(&[&url_token[..], &["--stage", "rollout", "--index", "3"]].concat());
    let lost = lost.current_dir(elsewhere.path()).stderr(Stdio::piped()).spawn().expect("program under test");
    let (well, said) = Run(lost).end();
    assert!(!well && said.contains("config.json"), "{said}");
    let (well, said) = Run(join("actor", "1")).end();
    assert!(!well && said.contains("stage `actor` has one worker, actor-0; found a request for actor-1"), "{said}");
    let left = std::process::Command::new("kill").args(["-TERM", &leaving.id().to_string()]).status().expect("kill");
    assert!(left.success());
    let (well, said) = run.end();
    assert!(well, "{said}");
    let status = until(|| joined.0.try_wait().expect("its status"));
    assert!(status.success(), "a worker that joined ends with the run: {status}");
    drop(Run(leaving).end());
    assert_same(&threads, &processes);
}

#[test]
fn a_worker_of_another_host_joins_over_an_encrypted_connection() {
    let place = workplace();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let key = rcgen::KeyPair::generate().expect("a key");
    fs::write(place.path().join("cert.pem"), params.self_signed(&key).expect("a certificate").pem()).expect("a file");
    fs::write(place.path().join("key.pem"), key.serialize_pem()).expect("a file");
    // Threads alone, but for the one that joins.
    let store = "+store={listen: '127.0.0.1:0', tls: {cert: cert.pem, key: key.pem}}";
    let mut command = place.small("quickstart.yaml", &[STEPS, store]);
    let run = Run(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test"));
    let read = |file| fs::read_to_string(place.run_file("small", file)).ok().filter(|url| !url.is_empty());
    let url = until(|| read("listen.url"));
    assert!(url.starts_with("grpc+tls://"), "{url}");
    let token = place.run_file("small", "listen.token");
    let token = token.to_str().expect("a path in UTF-8");
    let arguments = ["worker", "--connect", &url, "--token-file", token, "--stage", "rollout", "--index", "1"];
    let join = |more: &[&str]| {
        let mut command = place.command(&arguments);
        Run(command.args(more).stderr(Stdio::piped()).spawn().expect("program under test"))
    };
    let (well, said) = join(&[]).end();
    assert!(!well && said.contains("needs the roots to trust"), "{said}");
    let (well, said) = join(&["--ca", "cert.pem"]).end();
    assert!(well, "{said}");
    let (well, said) = run.end();
    assert!(well, "{said}");
    place.assert_ledger_balances("small");
}

#[test]
fn a_worker_that_is_killed_whenever_it_works_ends_the_run_with_its_name() {
    let place = workplace();
    let mut command = place.small("quickstart.yaml", &[APART]);
    let output = command.env("TQ_KILL_AT", "map::commit:1").output().expect("program under test");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("is started again") && said.contains("failed: "), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("reward") && last.contains("attempt 3"), "{last}");
}

#[test]
fn a_worker_that_fails_ends_the_run_in_its_own_words() {
    let place = workplace();
    let output = place.run("quickstart.yaml", &[APART, "actor_rollout_ref.rollout.top_p=7"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("top_p"), "{said}");
}
