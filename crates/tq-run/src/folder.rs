//! Where a run keeps what: `runs/<name>/`. The last phase lies at the top, earlier ones in `phases/<phase>/` with the same
//! layout.

use std::{
    env,
    fs::{self, File, TryLockError},
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use tq_schedule::{
    Plan,
    plan::{Spill, Store},
};

/// What to do when the folder holds a run already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Refuse.
    Refuse,
    /// Go on from its last named state.
    Resume,
    /// Delete it.
    Overwrite,
}

impl Existing {
    /// What the flags say.
    pub(crate) fn of(resume: bool, overwrite: bool) -> Self {
        match (resume, overwrite) {
            (true, _) => Self::Resume,
            (_, true) => Self::Overwrite,
            _ => Self::Refuse,
        }
    }
}

/// What a run writes into its folder: all that `--overwrite` deletes.
const WRITTEN: [&str; 19] = [
    "plan.yaml",
    "archive",
    "events",
    "arena",
    "spill",
    "held_metrics.json",
    "url",
    "token",
    "listen.url",
    "listen.token",
    "checkpoints",
    "phases",
    "final",
    "audit.jsonl",
    "metrics.jsonl",
    "ledger.json",
    "tensorboard",
    "curve.svg",
    "control.sock",
];
const LOCK: &str = "run.lock";
const WRITING: &str = "writing";
/// The longest path of a folder that leaves room for the control socket in it (a Unix socket's path has 107 bytes).
const LONGEST_PATH: usize = 82;

/// A run's folder, locked for this process.
#[derive(Clone, Debug)]
pub(crate) struct RunFolder {
    root: PathBuf,
    _lock: Arc<File>,
}

impl RunFolder {
    /// Locks the folder, prepares it for `plan` and writes `plan.yaml`.
    ///
    /// # Errors
    /// When another process runs in it, when it holds a run and `existing` does not allow that, when the run to resume was
    /// made from another plan, or when a name does not suit as a folder's.
    pub(crate) fn open(root: &Path, plan: &Plan, existing: Existing) -> Result<Self> {
        check_names(root, plan)?;
        let path = root.join("plan.yaml");
        if existing == Existing::Resume && !path.exists() {
            bail!("nothing to resume in `{}`: there is no plan.yaml; start without --resume", root.display());
        }
        fs::create_dir_all(root).with_context(|| format!("cannot create `{}`", root.display()))?;
        let folder = Self { root: root.to_owned(), _lock: Arc::new(lock(root)?) };
        let text = plan.to_yaml().context("plan.yaml")?;
        match (fs::read_to_string(&path), existing) {
            (Ok(old), Existing::Resume) if old == text => return Ok(folder),
            (Ok(old), Existing::Resume) => bail!(
                "`{}` was made from another plan ({}); resume with the arguments it was started with, or start a new run with trainer.experiment_name=…",
                root.display(),
                first_difference(&old, &text)
            ),
            (Ok(_), Existing::Refuse) => bail!(
                "`{}` holds a run already; go on with --resume, replace it with --overwrite, or name another with trainer.experiment_name=…",
                root.display()
            ),
            (Ok(_), Existing::Overwrite) => folder.clear()?,
            (Err(e), _) if e.kind() == io::ErrorKind::NotFound => {}
            (Err(e), _) => return Err(e).with_context(|| format!("cannot read `{}`", path.display())),
        }
        let draft = root.join("plan.yaml.writing");
        fs::write(&draft, text).with_context(|| format!("cannot write `{}`", draft.display()))?;
        fs::rename(&draft, &path).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(folder)
    }

    /// Deletes what a run wrote; other files stay.
    fn clear(&self) -> Result<()> {
        for name in WRITTEN {
            let path = self.root.join(name);
            let deleted = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            match deleted {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("cannot delete `{}`", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The folder of one phase.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(crate) fn phase(&self, plan: &Plan, name: &str) -> Result<PhaseFolder> {
        let last = plan.phases.last().is_some_and(|phase| phase.name == name);
        let root = if last { self.root.clone() } else { self.root.join("phases").join(name) };
        fs::create_dir_all(root.join("checkpoints")).with_context(|| format!("cannot create `{}`", root.display()))?;
        Ok(PhaseFolder { root, control: self.root.join("control.sock") })
    }
}

/// The folder of one phase.
#[derive(Clone, Debug)]
pub(crate) struct PhaseFolder {
    root: PathBuf,
    control: PathBuf,
}

impl PhaseFolder {
    /// Somewhere.
    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), control: root.join("control.sock") }
    }

    /// The folder itself; the event log is in `events/` below it.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Where cells of the phase go that leave memory: a part of the folder for spilled cells that is its own, or `spill/`.
    pub(crate) fn spill(&self, spill: &Spill) -> PathBuf {
        match spill {
            Spill::Folder(folder) => self.own_part(folder),
            Spill::Run(_) => self.root.join("spill"),
        }
    }

    /// Where the phase's bytes lie that outlive a process: a part of the folder for arenas that is its own, or `arena/`.
    pub(crate) fn arena(&self, arenas: Option<&Path>) -> PathBuf {
        arenas.map_or_else(|| self.root.join("arena"), |arenas| self.own_part(arenas))
    }

    /// The phase's own part of a folder that runs share.
    fn own_part(&self, shared: &Path) -> PathBuf {
        let name = |path: &Path| path.file_name().map(PathBuf::from).unwrap_or_default();
        shared.join(name(self.doors())).join(name(&self.root))
    }

    /// Takes the bytes of a phase away that is done, kept and spilled ones: nothing goes on from them any more.
    ///
    /// # Errors
    /// When they cannot be deleted.
    pub(crate) fn forget_bytes(&self, store: &Store) -> Result<()> {
        let folders = [Some(self.arena(store.arena.as_deref())), store.spill.as_ref().map(|spill| self.spill(spill))];
        folders.iter().flatten().try_for_each(|folder| forget(folder))
    }

    /// Where the ports of a store process are found: one place for all phases.
    pub(crate) fn doors(&self) -> &Path {
        self.control.parent().unwrap_or(&self.root)
    }

    /// The control socket of the run, one for all phases.
    pub(crate) fn control(&self) -> &Path {
        &self.control
    }

    /// Where named states lie, as `step_<n>`.
    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// The named state after `steps` cycles.
    pub(crate) fn checkpoint(&self, steps: u64) -> PathBuf {
        self.checkpoints().join(format!("step_{steps:06}"))
    }

    /// Where the final weights of `model` go, as a model folder. It exists once the phase has ended.
    pub(crate) fn final_model(&self, model: &str) -> PathBuf {
        self.root.join("final").join(model)
    }

    /// Where columns with `keep: archive` are written, a folder a partition.
    pub(crate) fn archive(&self) -> PathBuf {
        self.root.join("archive")
    }

    /// Whether the final weights of `model` are there.
    pub(crate) fn is_final(&self, model: &str) -> bool {
        let folder = self.final_model(model);
        folder.join("config.json").exists()
            && ["model.safetensors", "model.safetensors.index.json"].iter().any(|file| folder.join(file).exists())
    }

    /// Takes away half-written states of lives that were killed.
    ///
    /// # Errors
    /// When they cannot be deleted.
    pub(crate) fn sweep(&self) -> Result<()> {
        let folder = self.checkpoints();
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read `{}`", folder.display()))? {
            let entry = entry.with_context(|| format!("cannot read `{}`", folder.display()))?;
            if entry.file_name().to_string_lossy().starts_with(WRITING) {
                let path = entry.path();
                fs::remove_dir_all(&path).with_context(|| format!("cannot delete `{}`", path.display()))?;
            }
        }
        Ok(())
    }

    /// Where a state is written before it is named.
    pub(crate) fn writing(&self) -> PathBuf {
        self.checkpoints().join(WRITING)
    }

    /// Takes away the events of a life that nothing can go on from: the phase begins anew.
    ///
    /// # Errors
    /// When they cannot be deleted.
    pub(crate) fn forget_events(&self) -> Result<()> {
        let events = self.root.join("events");
        match fs::remove_dir_all(&events) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("cannot delete `{}`", events.display()))
            }
            _ => Ok(()),
        }
    }

    /// The named states, oldest first.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn named_states(&self) -> Result<Vec<(u64, PathBuf)>> {
        let folder = self.checkpoints();
        let mut states: Vec<(u64, PathBuf)> = fs::read_dir(&folder)
            .with_context(|| format!("cannot read `{}`", folder.display()))?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .filter_map(|path| Some((path.file_name()?.to_str()?.strip_prefix("step_")?.parse().ok()?, path)))
            .collect();
        states.sort_unstable();
        Ok(states)
    }
}

/// Holds the folder until the process ends, however it ends.
fn lock(root: &Path) -> Result<File> {
    let path = root.join(LOCK);
    let file = File::create(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "another process runs in `{}`; wait until it ends, stop it, or name another run with trainer.experiment_name=…",
            root.display()
        ),
        Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("cannot lock `{}`", path.display())),
    }
}

/// Names that become folders: of the run and of its phases.
fn check_names(root: &Path, plan: &Plan) -> Result<()> {
    let name = plan.parameters.pointer("/trainer/experiment_name").and_then(serde_json::Value::as_str);
    let plain = |name: &str| Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !name.is_some_and(|name| !name.is_empty() && plain(name)) {
        bail!(
            "trainer.experiment_name: found {}; expected a name for the run's folder, without `..`",
            name.map_or_else(|| "none".to_owned(), |name| format!("`{name}`"))
        );
    }
    let here = env::current_dir().context("the current folder")?;
    if root.canonicalize().is_ok_and(|root| here.starts_with(root)) {
        bail!(
            "trainer.default_local_dir: `{}` is the folder this program was started in, or holds it; expected a folder of the run's own",
            root.display()
        );
    }
    let length = root.as_os_str().len();
    if length > LONGEST_PATH {
        bail!(
            "trainer.default_local_dir: `{}` has {length} bytes; expected at most {LONGEST_PATH}, for the control socket in it; choose a shorter one",
            root.display()
        );
    }
    let suits = |name: &str| name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
    if let Some(phase) = plan.phases.iter().find(|phase| !suits(&phase.name)) {
        bail!("phases: found the name `{}`; expected letters, digits, `_` and `-`: it becomes a folder", phase.name);
    }
    Ok(())
}

fn first_difference(old: &str, new: &str) -> String {
    let mut lines = old.lines().zip(new.lines()).enumerate().filter(|(_, (a, b))| a != b);
    match lines.next() {
        Some((n, (a, b))) => format!("plan.yaml line {}: `{}` then, `{}` now", n + 1, a.trim(), b.trim()),
        None => "one is longer than the other".to_owned(),
    }
}
/// Deletes a folder that may not be there.
fn forget(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot delete `{}`", folder.display()))
        }
        _ => Ok(()),
    }
}
