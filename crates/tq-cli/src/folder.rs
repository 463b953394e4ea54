//! What lies in a run's folder: the last phase at the top, earlier ones in `phases/<phase>/` with the same layout.

use std::{
    cmp::Reverse,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use transferqueue::{Definition, inspect::history};

/// Folders of one phase.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    root: PathBuf,
}

/// The phases, the one whose event log was written last first; those without a log come last.
pub(crate) fn phases(run: &Path) -> Vec<Phase> {
    let earlier = fs::read_dir(run.join("phases")).into_iter().flatten().flatten().map(|entry| entry.path());
    let roots = std::iter::once(run.to_owned()).chain(earlier.filter(|path| path.is_dir()));
    let mut phases: Vec<Phase> = roots.map(|root| Phase { root }).collect();
    phases.sort_by_cached_key(|phase| Reverse(phase.written()));
    phases
}

/// The phase whose log was begun by the catalog with this incarnation (that of its first life).
pub(crate) fn phase_of(run: &Path, incarnation: u64) -> Option<Phase> {
    phases(run).into_iter().find(|phase| phase.definition().is_some_and(|(found, _)| found == incarnation))
}

impl Phase {
    pub(crate) fn events(&self) -> PathBuf {
        self.root.join("events")
    }

    /// When something was last written to its event log; `None` without one.
    fn written(&self) -> Option<SystemTime> {
        let segments = fs::read_dir(self.events()).ok()?.flatten();
        segments.filter_map(|segment| segment.metadata().and_then(|found| found.modified()).ok()).max()
    }

    pub(crate) fn audit(&self) -> PathBuf {
        self.root.join("audit.jsonl")
    }

    /// What its log says the run was made of; `None` without a log that begins there.
    pub(crate) fn definition(&self) -> Option<(u64, Definition)> {
        history::definition(&self.events()).ok().flatten()
    }

    /// Its named states, oldest first.
    pub(crate) fn states(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.join("checkpoints")).into_iter().flatten().flatten();
        let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step_"));
        let mut states: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(named).collect();
        states.sort();
        states
    }
}
