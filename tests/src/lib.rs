//! What the end-to-end tests share: a folder with data, and running the program under test in it.

pub mod thin_out;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// A small run: a few cycles of a few prompts, so that a test takes seconds.
pub const SMALL: [&str; 10] = [
    "data.train_batch_size=8",
    "data.max_response_length=12",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.max_num_seqs=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "trainer.total_training_steps=4",
    "trainer.test_freq=2",
    "data.val_max_samples=16",
    "trainer.logger=[file]",
    "trainer.experiment_name=small",
];

/// The same for the warm-up of the quick start.
pub const SMALL_WARMUP: [&str; 2] = ["phases.warmup.until.steps=2", "phases.warmup.parameters.data.train_batch_size=8"];

/// A folder to run in, with `data/digits`.
pub struct Workplace {
    folder: TempDir,
    program: PathBuf,
}

impl Workplace {
    /// Makes the folder; the data are written by the program under test itself, once a test binary.
    pub fn new(program: &str) -> Self {
        static DATA: OnceLock<TempDir> = OnceLock::new();
        let program = PathBuf::from(program);
        let data = DATA.get_or_init(|| {
            let folder = tempfile::tempdir().expect("temporary folder");
            let output = Command::new(&program)
                .args(["data", "digits"])
                .current_dir(folder.path())
                .output()
                .expect("program under test");
            assert!(output.status.success(), "tq-run data digits: {}", String::from_utf8_lossy(&output.stderr));
            folder
        });
        let folder = tempfile::tempdir().expect("temporary folder");
        std::os::unix::fs::symlink(data.path().join("data"), folder.path().join("data")).expect("link to the data");
        Self { folder, program }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A file of the run called `small`, or of another.
    pub fn run_file(&self, run: &str, file: &str) -> PathBuf {
        self.path().join("runs").join(run).join(file)
    }

    /// The program with these arguments, not started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(self.path())
            .env("OMP_WAIT_POLICY", "PASSIVE")
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null());
        command
    }

    /// Runs a pipeline of the repository with [`SMALL`] and further arguments.
    pub fn run(&self, pipeline: &str, arguments: &[&str]) -> Output {
        self.small(pipeline, arguments).output().expect("program under test")
    }

    /// The same, not started.
    pub fn small(&self, pipeline: &str, arguments: &[&str]) -> Command {
        let pipeline = repository().join("pipelines").join(pipeline);
        let pipeline = pipeline.to_str().expect("a path in UTF-8");
        let mut all = vec![pipeline, "--quiet"];
        all.extend(SMALL);
        if pipeline.ends_with("quickstart.yaml") {
            all.extend(SMALL_WARMUP);
        }
        all.extend(arguments);
        self.command(&all)
    }

    /// Runs and expects success.
    pub fn succeed(&self, pipeline: &str, arguments: &[&str]) {
        let output = self.run(pipeline, arguments);
        assert!(output.status.success(), "{pipeline} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts a run in the background.
    pub fn spawn(&self, pipeline: &str, arguments: &[&str]) -> Child {
        self.small(pipeline, arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("program under test")
    }

    /// The final weights of a run, as bytes.
    pub fn weights(&self, run: &str, model: &str) -> Vec<u8> {
        let path = self.run_file(run, &format!("final/{model}/model.safetensors"));
        fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Objects of a file with one JSON object a line.
    pub fn lines(&self, run: &str, file: &str) -> Vec<Value> {
        let path = self.run_file(run, file);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e} in {line}", path.display())))
            .collect()
    }

    /// Steps that the audit takes back: trained, lost with a kill, and trained again.
    pub fn repeated_steps(&self, run: &str) -> Vec<u64> {
        let (mut trained, mut repeated) = (BTreeSet::new(), Vec::new());
        for line in self.lines(run, "audit.jsonl") {
            match (line.get("to_step").and_then(Value::as_u64), line.get("step").and_then(Value::as_u64)) {
                (Some(to), _) => repeated.extend(trained.split_off(&(to + 1))),
                (None, Some(step)) => _ = trained.insert(step),
                (None, None) => panic!("neither a row nor a rollback: {line}"),
            }
        }
        repeated
    }

    /// Rows of the surviving lineage in the audit, by task: (step, lag), rolled-back ones taken out.
    pub fn trained(&self, run: &str) -> BTreeMap<(String, u64), (u64, u64)> {
        let mut trained = BTreeMap::new();
        for line in self.lines(run, "audit.jsonl") {
            if let Some(to_step) = line.get("to_step").and_then(Value::as_u64) {
                trained.retain(|_, (step, _): &mut (u64, u64)| *step <= to_step);
                continue;
            }
            let number = |key: &str| line[key].as_u64().unwrap_or_else(|| panic!("`{key}` in {line}"));
            let first =
                line["versions"]["first"].as_u64().or_else(|| line["admitted"].as_u64()).expect("versions of a row");
            let key = (line["task"].as_str().expect("task").to_owned(), number("row"));
            let before = trained.insert(key.clone(), (number("step"), number("step") - 1 - first));
            assert!(before.is_none(), "{key:?} is trained twice in one lineage: {line}");
        }
        trained
    }

    /// The files of a run's archive of `samples`, in order.
    pub fn archive(&self, run: &str) -> Vec<PathBuf> {
        let files = stage_archive::list(&self.run_file(run, "archive/samples")).expect("the archive");
        files.into_iter().map(|(_, path)| path).collect()
    }

    /// Rows of a run's archive by step, every file verified.
    pub fn archived(&self, run: &str) -> BTreeSet<(u64, u64)> {
        let mut rows = BTreeSet::new();
        for path in self.archive(run) {
            let recorded = stage_archive::Recorded::open(&path).unwrap_or_else(|e| panic!("{e}"));
            recorded.verify().unwrap_or_else(|e| panic!("{e}"));
            let step = recorded.facts().cycle + 1;
            for head in recorded.read(&[]).unwrap_or_else(|e| panic!("{e}")).heads {
                assert!(rows.insert((step, head.row)), "row {} is archived twice in step {step}", head.row);
            }
        }
        rows
    }

    /// Checks `ledger.json`: owed = consumed + live + dropped for every task.
    pub fn assert_ledger_balances(&self, run: &str) {
        let text = fs::read_to_string(self.run_file(run, "ledger.json")).expect("ledger.json");
        let entries: Vec<Value> = serde_json::from_str(&text).expect("a list of entries");
        assert!(!entries.is_empty(), "the ledger names no task");
        for entry in entries {
            let number = |key: &str| entry[key].as_u64().unwrap_or_else(|| panic!("`{key}` in {entry}"));
            let dropped: u64 = entry["dropped"].as_object().expect("dropped").values().filter_map(Value::as_u64).sum();
            assert_eq!(number("owed"), number("consumed") + number("live") + dropped, "{entry}");
        }
    }
}

/// The worker processes of a runner that live now, with their stages.
pub fn workers(runner: u32) -> Vec<(u32, String)> {
    let threads = fs::read_dir(format!("/proc/{runner}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids: Vec<u32> = children.flat_map(|text| text.split(' ').flat_map(str::parse).collect::<Vec<_>>()).collect();
    let stage = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0).skip_while(|word| *word != b"--stage");
        Some((*pid, String::from_utf8(words.nth(1)?.to_vec()).ok()?))
    };
    pids.iter().filter_map(stage).collect()
}

/// The store process of a runner, once it lives.
#[track_caller]
pub fn store_process(runner: u32) -> u32 {
    until(|| living_store(runner))
}

/// The store process of a runner, if it lives.
pub fn living_store(runner: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{runner}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids: Vec<u32> = children.flat_map(|text| text.split(' ').flat_map(str::parse).collect::<Vec<_>>()).collect();
    pids.into_iter().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"store")
    })
}

/// Waits until `look` finds something, two minutes at most.
#[track_caller]
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "waited for two minutes");
        thread::park_timeout(Duration::from_millis(10));
    }
}

/// The repository's root.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}
