//! The screen, drawn into a buffer: nothing here asks or waits.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::Line,
    widgets::{Block, Borders, Cell, Paragraph, Row, Table, Widget, Wrap},
};
use transferqueue::inspect::{bytes, seconds};

use super::Screen;

/// Columns and sessions listed; the rest is counted.
const LISTED: usize = 8;

/// Draws the screen.
pub(crate) fn draw(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let views = &screen.views;
    let tasks = views.tasks.len() as u16 + 3;
    let listed = views.columns.len().max(views.sessions.len()).min(LISTED) as u16 + 3;
    let heights = [Constraint::Length(5), Constraint::Length(tasks), Constraint::Length(listed), Constraint::Min(3)];
    let [top, middle, both, bottom] = Layout::vertical(heights).areas(area);
    let [left, right] = Layout::horizontal([Constraint::Percentage(55), Constraint::Percentage(45)]).areas(both);
    schedule(screen, top, buffer);
    self::tasks(screen, middle, buffer);
    columns(screen, left, buffer);
    sessions(screen, right, buffer);
    waits(screen, bottom, buffer);
}

fn boxed(title: String) -> Block<'static> {
    Block::new().borders(Borders::ALL).title(title)
}

fn head<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    Row::new(names).style(Style::new().add_modifier(Modifier::BOLD))
}

fn schedule(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let status = &screen.views.status;
    let schedule = match &status.schedule {
        Some(s) => {
            let over = if s.over { ", over" } else { "" };
            format!(
                "cycle {} of {}{over}   version {}   lag {}   groups: {} in flight of {} allowed, {} complete, {} cut, {} dropped",
                s.cycle, s.total_cycles, status.version, s.lag, s.in_flight, s.allowed, s.complete, s.cut, s.dropped
            )
        }
        None => format!("version {}   nothing is trained", status.version),
    };
    let total = &status.bytes;
    let held = format!(
        "rows {} live, {} leased   bytes {} live, {} pinned, {} open in {} chunks",
        status.rows,
        status.leased,
        bytes(total.live),
        bytes(total.pinned),
        bytes(total.open),
        total.chunks
    );
    let run = match &status.stopped {
        Some(reason) => format!("stopping: {reason}"),
        None => format!(
            "process {}   up {}   {} events   {}",
            status.pid,
            seconds(status.up_ms),
            status.seq,
            status.transport
        ),
    };
    let lines = [schedule, held, run].map(Line::from);
    Paragraph::new(lines.to_vec()).block(boxed(format!(" {} — q ends ", screen.job))).render(area, buffer);
}

fn tasks(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let rows = screen.views.tasks.iter().map(|task| {
        let rate = screen.rates.get(&task.task).map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}"));
        let longest = task.leases.iter().max_by_key(|lease| lease.for_ms);
        let held = longest.map_or_else(String::new, |lease| format!("{} for {}", lease.holder, seconds(lease.for_ms)));
        let state = match (task.ended, &task.wait) {
            (true, _) => "ended",
            (false, Some(_)) => "waits",
            (false, None) => "",
        };
        let numbers = [task.backlog, task.ready, task.leased].map(|n| Cell::from(n.to_string()));
        Row::new([Cell::from(task.task.clone())].into_iter().chain(numbers).chain([
            Cell::from(rate),
            Cell::from(state),
            Cell::from(held),
        ]))
    });
    let widths = [
        Constraint::Length(14),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Min(10),
    ];
    let head = head(["task", "backlog", "ready", "leased", "rows/s", "", "held longest by"]);
    Widget::render(Table::new(rows, widths).header(head).block(boxed(" tasks ".to_owned())), area, buffer);
}

fn columns(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let mut columns: Vec<_> = screen.views.columns.iter().collect();
    columns.sort_by_key(|column| std::cmp::Reverse(column.account.bytes_live));
    let rows = columns.iter().take(LISTED).map(|column| {
        let account = &column.account;
        Row::new([
            format!("{}.{}", account.partition, account.column),
            bytes(account.bytes_live),
            bytes(column.unit.pinned),
            account.cells.to_string(),
        ])
    });
    let widths = [Constraint::Min(12), Constraint::Length(9), Constraint::Length(9), Constraint::Length(7)];
    let block = boxed(titled("columns by bytes", columns.len()));
    let head = head(["column", "live", "pinned", "cells"]);
    Widget::render(Table::new(rows, widths).header(head).block(block), area, buffer);
}

fn sessions(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let mut sessions: Vec<_> = screen.views.sessions.iter().collect();
    sessions.sort_by_key(|session| (std::cmp::Reverse(session.rows), session.session));
    let rows = sessions.iter().take(LISTED).map(|session| {
        Row::new([session.name.clone(), session.rows.to_string(), format!("{} ago", seconds(session.seen_ms_ago))])
    });
    let widths = [Constraint::Min(10), Constraint::Length(6), Constraint::Length(10)];
    let block = boxed(titled("sessions", screen.views.status.sessions as usize));
    Widget::render(Table::new(rows, widths).header(head(["session", "rows", "seen"])).block(block), area, buffer);
}

fn titled(what: &str, all: usize) -> String {
    if all > LISTED { format!(" {what}: {LISTED} of {all} ") } else { format!(" {what} ") }
}

fn waits(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let waits = screen.views.health.waits.iter().map(|wait| Line::from(wait.wait.to_string()));
    let poisoned = screen
        .views
        .health
        .poisoned
        .iter()
        .map(|row| Line::from(format!("row {} failed too often for `{}`: {}", row.row, row.task, row.error)));
    let lines: Vec<Line> = poisoned.chain(waits).take(usize::from(area.height)).collect();
    // Who holds a wait up stands at its end.
    Paragraph::new(lines).wrap(Wrap { trim: true }).block(boxed(" waits ".to_owned())).render(area, buffer);
}
