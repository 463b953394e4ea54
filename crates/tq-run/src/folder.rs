//! Where a run keeps what: `runs/<name>/`. The last phase lies at the top, earlier ones in `phases/<phase>/` with the same
//! layout.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use tq_schedule::Plan;

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

/// A run's folder.
#[derive(Clone, Debug)]
pub(crate) struct RunFolder {
    root: PathBuf,
}

impl RunFolder {
    /// Prepares the folder for `plan` and writes `plan.yaml`.
    ///
    /// # Errors
    /// When it holds a run and `existing` does not allow that, or the run to resume was made from another plan.
    pub(crate) fn open(root: &Path, plan: &Plan, existing: Existing) -> Result<Self> {
        let folder = Self { root: root.to_owned() };
        let path = folder.root.join("plan.yaml");
        let text = plan.to_yaml().context("plan.yaml")?;
        match (fs::read_to_string(&path), existing) {
            (Err(e), Existing::Resume) if e.kind() == io::ErrorKind::NotFound => {
                bail!("nothing to resume in `{}`: there is no plan.yaml; start without --resume", root.display())
            }
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
            (Ok(_), Existing::Overwrite) => {
                fs::remove_dir_all(root).with_context(|| format!("cannot delete `{}`", root.display()))?
            }
            (Err(e), _) if e.kind() == io::ErrorKind::NotFound => {}
            (Err(e), _) => return Err(e).with_context(|| format!("cannot read `{}`", path.display())),
        }
        fs::create_dir_all(root).with_context(|| format!("cannot create `{}`", root.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(folder)
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
    /// The folder itself; the event log is in `events/` below it.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
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

    /// Takes away the events of a life that named no state: nothing of it survives, the phase begins anew.
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

fn first_difference(old: &str, new: &str) -> String {
    let mut lines = old.lines().zip(new.lines()).enumerate().filter(|(_, (a, b))| a != b);
    match lines.next() {
        Some((n, (a, b))) => format!("plan.yaml line {}: `{}` then, `{}` now", n + 1, a.trim(), b.trim()),
        None => "one is longer than the other".to_owned(),
    }
}
