//! `top`: a live screen.

mod draw;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write, stdout},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

pub(crate) use draw::draw;

use crate::{Cli, find, views::Views, watched::Watched};

/// What is drawn.
pub(crate) struct Screen {
    /// Which job.
    pub(crate) job: String,
    pub(crate) views: Views,
    /// Rows a second by task, since the look before.
    pub(crate) rates: BTreeMap<String, f64>,
}

impl Screen {
    /// The next look; rates follow from the one before.
    pub(crate) fn next(job: String, views: Views, before: Option<&Self>) -> Self {
        let mut rates = BTreeMap::new();
        if let Some(before) = before
            && let Some(ms) = views.status.up_ms.checked_sub(before.views.status.up_ms).filter(|ms| *ms > 0)
        {
            for entry in &views.ledger {
                let earlier = before.views.ledger.iter().find(|earlier| earlier.task == entry.task);
                let rows = earlier.map_or(0, |earlier| entry.consumed.saturating_sub(earlier.consumed));
                rates.insert(entry.task.clone(), rows as f64 * 1e3 / ms as f64);
            }
        }
        Self { job, views, rates }
    }
}

pub(crate) fn run(cli: &Cli, every: Duration, notes: &mut dyn Write) -> Result<()> {
    if !stdout().is_terminal() {
        bail!("top draws on a terminal, and this is none; use tq-cli watch status, or tq-cli watch tasks");
    }
    let socket = find::socket(cli, notes)?;
    let mut job = Watched::connect(&socket)?;
    let name = socket.parent().unwrap_or(&socket).display().to_string();
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal; use tq-cli watch tasks")?;
    let mut screen: Option<Screen> = None;
    let ended = loop {
        match job.ask(Views::get) {
            Ok(Some(views)) => screen = Some(Screen::next(name.clone(), views, screen.as_ref())),
            Ok(None) => break Ok(true),
            Err(error) => break Err(error),
        }
        match shown(&mut terminal, screen.as_ref(), every) {
            Ok(true) => {}
            Ok(false) => break Ok(false),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    if ended? {
        writeln!(notes, "the run has ended")?;
    }
    Ok(())
}

/// Shows a screen until the next look is due. Returns whether to go on.
fn shown(terminal: &mut ratatui::DefaultTerminal, screen: Option<&Screen>, every: Duration) -> Result<bool> {
    let until = Instant::now() + every;
    loop {
        if let Some(screen) = screen {
            terminal.draw(|frame| draw(screen, frame.area(), frame.buffer_mut()))?;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || !event::poll(left)? {
            return Ok(true);
        }
        // Anything else, a new size of the window among it, is drawn again.
        if let Event::Key(key) = event::read()?
            && ends(&key)
        {
            return Ok(false);
        }
    }
}

fn ends(key: &KeyEvent) -> bool {
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
