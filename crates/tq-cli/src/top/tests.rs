use ratatui::{Terminal, backend::TestBackend};
use transferqueue::inspect::Client;

use super::*;
use crate::{
    metrics::tests::schedule,
    tests::{Job, job},
};

/// What the job shows, with everything that differs from run to run set.
fn views(job: &Job, up_ms: u64) -> Views {
    let mut views = Views::get(&mut Client::connect(&job.folder().join("control.sock")).unwrap()).unwrap();
    (views.status.pid, views.status.up_ms, views.status.seq) = (4242, up_ms, 7);
    views.status.schedule = Some(schedule());
    views.tasks.iter_mut().flat_map(|task| &mut task.leases).for_each(|lease| lease.for_ms = 31_000);
    views.sessions.iter_mut().for_each(|session| session.seen_ms_ago = 1_200);
    views.health.waits.iter_mut().flat_map(|wait| &mut wait.wait.causes).for_each(|cause| cause.for_ms = 31_000);
    views
}

#[test]
fn the_screen_shows_schedule_tasks_columns_sessions_and_waits() {
    let job = job();
    let mut before = views(&job, 10_000);
    before.ledger[0].consumed = 0;
    let before = Screen::next("runs/a".to_owned(), before, None);
    let screen = Screen::next("runs/a".to_owned(), views(&job, 12_000), Some(&before));
    assert_eq!((screen.rates["score"], screen.rates["collect"]), (1.0, 0.0), "two rows in two seconds");
    let mut terminal = Terminal::new(TestBackend::new(110, 26)).unwrap();
    terminal.draw(|frame| draw(&screen, frame.area(), frame.buffer_mut())).unwrap();
    insta::assert_snapshot!("top", terminal.backend());
}

#[test]
fn a_small_window_is_drawn_as_far_as_it_goes() {
    let job = job();
    let screen = Screen::next("runs/a".to_owned(), views(&job, 1), None);
    for (width, height) in [(1, 1), (20, 5), (40, 10)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(&screen, frame.area(), frame.buffer_mut())).unwrap();
    }
}

#[test]
fn q_escape_and_interrupt_end_it() {
    let key = |code, modifiers| KeyEvent::new(code, modifiers);
    assert!(ends(&key(KeyCode::Char('q'), KeyModifiers::NONE)) && ends(&key(KeyCode::Esc, KeyModifiers::NONE)));
    assert!(ends(&key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert!(!ends(&key(KeyCode::Char('c'), KeyModifiers::NONE)));
}

#[test]
fn without_a_terminal_watch_is_named() {
    // Started from a terminal, this would draw on it.
    if stdout().is_terminal() {
        return;
    }
    let error = job().raw(&["top"]).unwrap_err().to_string();
    assert!(error.contains("tq-cli watch"), "{error}");
}
