//! Keeps a run's record: metrics, audit, named states, ledger, curve; and shows progress.
//!
//! The store's publication hook posts each publication with a capture of that very position; the journal, a thread of its
//! own, writes it down. Order of writing: audit, metrics, named state. A state is named by the rename of its folder, so
//! what stands in the audit beyond the last named state is what a resumed run takes back.

mod board;
pub(crate) mod curve;
mod journal;
mod lines;

use std::{sync::Arc, thread};

use anyhow::{Context, Result, anyhow};
use tq_schedule::{Plan, plan::Phase};
use tq_stage::SharedReporter;
use transferqueue::{Store, audit, catalog::Publication};

use crate::{folder::PhaseFolder, interrupt};

use board::Board;
pub(crate) use board::PACE;
use journal::{Journal, Message, Step};

/// The record as workers see it.
pub(crate) trait Record: Send + Sync + 'static {
    /// Where one worker reports to.
    fn reporter(&self, worker: &str) -> SharedReporter;

    /// Takes back what a lost worker reported of `first` and later cycles: whoever does its work again reports it again.
    fn forget(&self, worker: &str, first: u64);
}

/// Where a record goes on from.
pub(crate) enum Origin {
    /// The phase begins.
    Beginning,
    /// A named state after so many steps: what was written down beyond it is taken back.
    State(u64),
    /// Exactly where the store's process ended.
    There(Gap),
}

impl Origin {
    /// Steps that are done.
    fn steps(&self) -> u64 {
        match self {
            Self::Beginning => 0,
            Self::State(steps) => *steps,
            Self::There(gap) => gap.steps,
        }
    }
}

/// What a killed process may not have written down any more: its journal was behind the store.
pub(crate) struct Gap {
    /// Steps whose publications are in the log.
    steps: u64,
    /// Steps of the last named state.
    named: u64,
    /// The last step in the audit; its lines may not be all there.
    audited: u64,
    /// Publications from that step on.
    publications: Vec<Publication>,
}

impl Gap {
    /// A gap after what the audit holds.
    ///
    /// # Errors
    /// When the audit cannot be read.
    pub(crate) fn after(folder: &PhaseFolder, named: u64) -> Result<Self> {
        let path = folder.file("audit.jsonl");
        let lines = if path.exists() { audit::surviving(&path)? } else { Vec::new() };
        let audited = lines.iter().map(|line| line.step).max().unwrap_or(0);
        Ok(Self { steps: 0, named, audited, publications: Vec::new() })
    }

    /// Hears of a publication in the log.
    pub(crate) fn hear(&mut self, publication: &Publication) {
        let Some(cycle) = publication.cycle else { return };
        self.steps = cycle + 1;
        // A life that was rolled back has published this step before.
        self.publications.retain(|known| known.cycle < publication.cycle);
        if self.steps >= self.audited {
            self.publications.push(publication.clone());
        }
    }
}

/// The recorder of one phase.
pub(crate) struct Recorder {
    board: Arc<Board>,
    journal: Option<thread::JoinHandle<Result<u64>>>,
    folder: PhaseFolder,
}

impl Recorder {
    /// Starts the journal and hooks it to the store's publications.
    pub(crate) fn start(
        store: &Store,
        plan: &Plan,
        phase: &Phase,
        folder: &PhaseFolder,
        origin: &Origin,
        progress: bool,
    ) -> Result<Self> {
        let board = Arc::new(Board::default());
        let journal = Journal::open(store.clone(), board.clone(), plan, phase, folder.clone(), origin, progress)?;
        let (posted, every) = (board.clone(), phase.schedule.state_every.max(1));
        store.on_publication(move |publication| {
            let published = publication.consumed;
            let steps = published.cycle.map_or(0, |cycle| cycle + 1);
            let over = publication.state.schedule().is_some_and(|schedule| schedule.over);
            let named = steps % every == 0 || over || interrupt::requested();
            posted.post(Message::Published(Step {
                published: published.clone(),
                over,
                capture: named.then(|| publication.capture()),
            }));
        })?;
        let handle =
            thread::Builder::new().name("journal".to_owned()).spawn(move || journal.run()).context("journal thread")?;
        Ok(Self { board, journal: Some(handle), folder: folder.clone() })
    }

    /// The part of it that workers need.
    pub(crate) fn record(&self) -> impl Record + use<> {
        self.board.clone()
    }

    /// What Ctrl-C calls: nothing but a note, since the next publication looks at the request itself.
    pub(crate) fn interrupted(&self) -> impl Fn() + Send + 'static {
        let board = self.board.clone();
        move || board.post(Message::Interrupted)
    }

    /// Ends the journal, writes the ledger, and returns the steps of the last named state.
    pub(crate) fn finish(mut self, store: &Store) -> Result<u64> {
        self.board.close();
        let journal = self.journal.take().context("the journal is joined once")?;
        let steps = journal.join().map_err(|_| anyhow!("the journal panicked"))??;
        let ledger = store.with_state(|state, _| state.ledger())?;
        let path = self.folder.file("ledger.json");
        std::fs::write(&path, serde_json::to_string_pretty(&ledger)?)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(steps)
    }
}
