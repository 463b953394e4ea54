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
use transferqueue::Store;

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

/// The recorder of one phase.
pub(crate) struct Recorder {
    board: Arc<Board>,
    journal: Option<thread::JoinHandle<Result<u64>>>,
    folder: PhaseFolder,
}

impl Recorder {
    /// Starts the journal and hooks it to the store's publications. `begun_at`: steps in the state the run goes on from.
    pub(crate) fn start(
        store: &Store,
        plan: &Plan,
        phase: &Phase,
        folder: &PhaseFolder,
        begun_at: u64,
        resumed: bool,
        progress: bool,
    ) -> Result<Self> {
        let board = Arc::new(Board::default());
        let journal =
            Journal::open(store.clone(), board.clone(), plan, phase, folder.clone(), begun_at, resumed, progress)?;
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
