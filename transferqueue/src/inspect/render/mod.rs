//! The system tables as text: columns padded, one line a row, no colour.

mod row;

use super::{Cell, Discard, Peek, Reply, Status};
use crate::{
    catalog::{
        views::{FailedRow, HealthView, LedgerEntry, PoisonedRow, TaskView},
        weights::WeightsView,
    },
    unit::MemoryStats,
};

impl Reply {
    /// The answer as a table for people.
    pub fn table(&self) -> String {
        match self {
            Self::Status(status) => self::status(status),
            Self::Tasks(tasks) => self::tasks(tasks),
            Self::Columns(columns) => {
                let head = ["partition", "column", "kind", "cells", "live", "dead", "freed", "pinned", "owed to"];
                grid(
                    &head,
                    columns.iter().map(|column| {
                        let account = &column.account;
                        let owed: Vec<_> =
                            account.readers_owing.iter().map(|(task, rows)| format!("{task} {rows}")).collect();
                        [
                            account.partition.clone(),
                            account.column.clone(),
                            account.kind.clone(),
                            account.cells.to_string(),
                            bytes(account.bytes_live),
                            bytes(account.bytes_dead_in_chunk),
                            bytes(account.bytes_freed_total),
                            bytes(column.unit.pinned),
                            owed.join(", "),
                        ]
                    }),
                )
            }
            Self::Ledger(entries) => ledger(entries),
            Self::Partitions(partitions) => {
                let head = ["id", "partition", "live", "born", "groups", "closed", "reserved"];
                grid(
                    &head,
                    partitions.iter().map(|p| {
                        [
                            p.id.to_string(),
                            p.name.clone(),
                            p.live.to_string(),
                            p.born.to_string(),
                            p.groups.to_string(),
                            yes(p.closed),
                            bytes(p.reserved),
                        ]
                    }),
                )
            }
            Self::Sessions(sessions) => grid(
                &["id", "session", "seen", "leases", "rows"],
                sessions.iter().map(|session| {
                    let mut leases: Vec<_> = session.leases.iter().map(ToString::to_string).collect();
                    leases.extend(more(session.more_leases));
                    [
                        session.session.to_string(),
                        session.name.clone(),
                        format!("{} ago", seconds(session.seen_ms_ago)),
                        leases.join(", "),
                        session.rows.to_string(),
                    ]
                }),
            ),
            Self::Versions(versions) => {
                let head = ["model", "version", "lineage", "partition", "bytes", "alive because"];
                grid(
                    &head,
                    versions.iter().map(|v| {
                        [
                            v.model.clone(),
                            v.version.to_string(),
                            v.lineage.to_string(),
                            v.partition.clone(),
                            bytes(v.bytes),
                            v.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
                        ]
                    }),
                )
            }
            Self::Peek(peek) => self::peek(peek),
            Self::Units(units) => {
                let head = [
                    "unit",
                    "process",
                    "transport",
                    "chunks",
                    "cells",
                    "live",
                    "spilled",
                    "dead in chunk",
                    "pinned",
                    "lingering",
                    "unsettled",
                    "open",
                    "freed",
                    "shared memory",
                ];
                grid(
                    &head,
                    units.iter().map(|unit| {
                        [
                            unit.unit.to_string(),
                            unit.pid.to_string(),
                            unit.transport.clone(),
                            unit.chunks.to_string(),
                            unit.cells.to_string(),
                            bytes(unit.live),
                            bytes(unit.spilled),
                            unit.dead_in_chunk.map_or_else(|| "–".to_owned(), bytes),
                            bytes(unit.pinned),
                            bytes(unit.lingering),
                            bytes(unit.unsettled),
                            bytes(unit.open),
                            unit.freed.map_or_else(|| "–".to_owned(), bytes),
                            unit.memory.as_ref().map_or_else(|| "–".to_owned(), memory),
                        ]
                    }),
                )
            }
            Self::Health(health) => self::health(health),
            Self::Why(why) => row::why(why),
            Self::Drop(discard) => self::discard(discard),
            Self::Error(what) => format!("{what}\n"),
        }
    }
}

/// How much of the segments is given out, and whether what is free lies together.
fn memory(memory: &MemoryStats) -> String {
    let (used, reserved, longest) = (bytes(memory.used), bytes(memory.reserved), bytes(memory.longest));
    format!("{used} of {reserved} in {} segments, {longest} free together", memory.segments)
}

fn status(status: &Status) -> String {
    let mut lines = vec![
        ("pid", status.pid.to_string()),
        ("up", seconds(status.up_ms)),
        ("version", format!("{} (lineage {})", status.version, status.lineage)),
    ];
    if let Some(schedule) = &status.schedule {
        let over = if schedule.over { ", over" } else { "" };
        lines.push(("cycle", format!("{} of {}{over}", schedule.cycle, schedule.total_cycles)));
        lines.push(("lag", format!("{}, of the oldest group in flight", schedule.lag)));
        lines.push((
            "groups",
            format!(
                "{} admitted, {} dropped, {} retired; {} in flight of {} allowed; {} complete, {} cut",
                schedule.admitted,
                schedule.dropped,
                schedule.retired,
                schedule.in_flight,
                schedule.allowed,
                schedule.complete,
                schedule.cut
            ),
        ));
        if !schedule.batches.is_empty() {
            let batch = |(index, groups, left): &(u64, u64, u64)| format!("{index}: {groups} groups, {left} rows left");
            lines.push(("batches", schedule.batches.iter().map(batch).collect::<Vec<_>>().join("; ")));
        }
    }
    let total = &status.bytes;
    lines.extend([
        ("rows", format!("{} live, {} leased", status.rows, status.leased)),
        ("sessions", status.sessions.to_string()),
        (
            "bytes",
            format!(
                "{} live, {} pinned, {} open, in {} chunks",
                bytes(total.live),
                bytes(total.pinned),
                bytes(total.open),
                total.chunks
            ),
        ),
        ("events", status.seq.to_string()),
        ("transport", status.transport.clone()),
    ]);
    lines.extend(status.weights.iter().map(|view| ("weights", weights(view))));
    if let Some(reason) = &status.stopped {
        lines.push(("stopping", reason.clone()));
    }
    lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}

/// A model's weights in short: `tq-cli versions` has them one by one.
fn weights(view: &WeightsView) -> String {
    let alive: Vec<String> = view.versions.iter().map(|version| version.version.to_string()).collect();
    let publishing: u64 = view.publishing.iter().map(|part| part.bytes).sum();
    let (model, held, state) = (&view.model, bytes(view.bytes), bytes(view.state_bytes));
    let publishing =
        if publishing > 0 { format!(", {} of it being published", bytes(publishing)) } else { String::new() };
    format!("{model} {held} (versions {}){publishing}, and {state} of trainer states", alive.join(", "))
}

fn tasks(tasks: &[TaskView]) -> String {
    let head = ["task", "partition", "backlog", "ready", "done", "leased", "held by", "waits for"];
    grid(
        &head,
        tasks.iter().map(|task| {
            let held = task.leases.iter().map(|lease| {
                let progress = lease.progress.map_or_else(String::new, |progress| format!(", progress {progress}"));
                let (id, holder, time) = (lease.lease, &lease.holder, seconds(lease.for_ms));
                format!("{holder}: {} rows, lease {id}, {time}{progress}", lease.rows)
            });
            let held = held.chain(more(task.more_leases));
            let waits = match (&task.wait, task.ended) {
                (_, true) => "ended".to_owned(),
                (Some(wait), _) => wait.to_string(),
                (None, _) => String::new(),
            };
            [
                task.task.clone(),
                task.partition.clone(),
                match task.uses {
                    Some(uses) => {
                        format!("{}, used {} of {} times", task.backlog, uses.live, u64::from(uses.each) * task.backlog)
                    }
                    None => task.backlog.to_string(),
                },
                task.ready.to_string(),
                task.done.to_string(),
                task.leased.to_string(),
                held.collect::<Vec<_>>().join("; "),
                waits,
            ]
        }),
    )
}

fn ledger(entries: &[LedgerEntry]) -> String {
    let head = ["partition", "task", "owed", "consumed", "live", "dropped", "balanced"];
    grid(
        &head,
        entries.iter().map(|entry| {
            let dropped: Vec<_> = entry.dropped.iter().map(|(reason, rows)| format!("{reason} {rows}")).collect();
            [
                entry.partition.clone(),
                entry.task.clone(),
                entry.owed.to_string(),
                match entry.uses {
                    Some(uses) => format!("{} of {} uses, {} each", entry.consumed, uses.committed, uses.each),
                    None => entry.consumed.to_string(),
                },
                entry.live.to_string(),
                dropped.join(", "),
                yes(entry.balanced()),
            ]
        }),
    )
}

fn peek(peek: &Peek) -> String {
    let head: Vec<&str> =
        ["row", "group", "version", "tags"].into_iter().chain(peek.columns.iter().map(String::as_str)).collect();
    let mut text = grid(
        &head,
        peek.rows.iter().map(|row| {
            let tag = |(name, tag): (&String, &crate::catalog::command::Tag)| {
                format!("{name}={}", serde_json::to_string(tag).unwrap_or_default())
            };
            let version = match row.head.span {
                Some(span) if span.first != span.last => format!("{}-{}", span.first, span.last),
                Some(span) => span.first.to_string(),
                None => format!("{} (admitted)", row.head.version),
            };
            let mut line = vec![
                row.head.row.to_string(),
                row.head.group.to_string(),
                version,
                row.head.tags.iter().map(tag).collect::<Vec<_>>().join(" "),
            ];
            line.extend(peek.columns.iter().map(|column| row.cells.get(column).map_or("absent".to_owned(), cell)));
            line
        }),
    );
    if peek.more > 0 {
        text.push_str(&format!("and {} rows more; ask for them with --rows\n", peek.more));
    }
    text
}

/// Facts alone: what of them is wrong, `tq-cli doctor` says.
fn health(health: &HealthView) -> String {
    let leases = health.leases.iter().map(|held| {
        let (lease, task, holder) = (&held.lease, &held.task, &held.lease.holder);
        format!(
            "`{task}`: {holder} holds {} rows under lease {}, quiet for {}",
            lease.rows,
            lease.lease,
            seconds(held.quiet_ms)
        )
    });
    let sessions = health.sessions.iter().map(|s| format!("{}: seen {} ago", s.name, seconds(s.seen_ms_ago)));
    let failed = health.failed.iter().map(|found| {
        let FailedRow { task, partition, row, failed, attempts } = found;
        format!("`{task}`: row {row} of `{partition}` failed {failed} of {attempts} attempts")
    });
    let poisoned = health.poisoned.iter().map(|found| {
        let PoisonedRow { task, partition, row, error } = found;
        format!("`{task}`: row {row} of `{partition}`: {error}")
    });
    let waits = health.waits.iter().map(|wait| wait.wait.to_string());
    let budget = health.budget.iter().map(|budget| {
        let blocks = if budget.blocks { ", keeps the next group out" } else { "" };
        let spilled = match budget.spilled {
            0 => String::new(),
            spilled => format!(", {} in spill files", bytes(spilled)),
        };
        format!("{} of {}{blocks}{spilled}", bytes(budget.used), bytes(budget.bytes))
    });
    let lines = |name: &'static str, lines: Vec<String>| lines.into_iter().map(move |line| [name.to_owned(), line]);
    let all = lines("lease", leases.collect())
        .chain(lines("session", sessions.collect()))
        .chain(lines("failed", failed.collect()))
        .chain(lines("poisoned", poisoned.collect()))
        .chain(lines("wait", waits.collect()))
        .chain(lines("budget", budget.collect()));
    grid(&["what", "found"], all)
}

fn discard(discard: &Discard) -> String {
    let Discard { partition, rows, gone, reason, losses, done, between } = discard;
    let verb = if *done { "dropped" } else { "would drop" };
    let mut text = match rows.is_empty() {
        true => format!("no row to drop in `{partition}`\n"),
        false => format!("{verb} {} rows of `{partition}` as `{reason}`: {rows}\n", rows.len()),
    };
    if !gone.is_empty() {
        text.push_str(&format!("{} rows are gone already: {gone}\n", gone.len()));
    }
    for loss in losses {
        let held = if loss.leased > 0 { format!(", {} of them held by a worker", loss.leased) } else { String::new() };
        let verb = if *done { "lost" } else { "would lose" };
        text.push_str(&format!("`{}` {verb} {}{held}\n", loss.task, loss.rows));
    }
    if *between > 0 && !rows.is_empty() {
        text.push_str(&format!(
            "{between} events of others came in between: some of these rows may have left by themselves; \
             tq-cli why {partition} ROW tells\n"
        ));
    }
    text
}

/// What a shortened list leaves out.
fn more(left_out: u64) -> Option<String> {
    (left_out > 0).then(|| format!("{left_out} more"))
}

fn cell(cell: &Cell) -> String {
    let (text, shown) = match &cell.value {
        serde_json::Value::String(text) => (text.clone(), text.chars().count()),
        serde_json::Value::Array(elements) => (cell.value.to_string(), elements.len()),
        value => (value.to_string(), 1),
    };
    let width: String = text.chars().take(60).collect();
    if width.len() < text.len() || (shown as u64) < cell.len { format!("{width}… ({})", cell.len) } else { text }
}

/// Left-aligned columns, two spaces apart; numbers right-aligned.
pub fn grid<R: AsRef<[String]>>(head: &[&str], rows: impl Iterator<Item = R>) -> String {
    let rows: Vec<R> = rows.collect();
    let numeric = |i: usize| {
        let cells = rows.iter().map(|row| row.as_ref()[i].as_str());
        !rows.is_empty()
            && cells.clone().all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()) && !cell.contains([' ', ',']))
    };
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row.as_ref()[i].chars().count());
        cells.chain([head[i].len()]).max().unwrap_or(0)
    };
    let (right, widths): (Vec<_>, Vec<_>) = (0..head.len()).map(|i| (numeric(i), width(i))).unzip();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().enumerate().map(|(i, cell)| match right[i] {
            true => format!("{cell:>width$}", width = widths[i]),
            false => format!("{cell:<width$}", width = widths[i]),
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let body = rows.iter().map(|row| line(row.as_ref().iter().map(String::as_str).collect()));
    std::iter::once(line(head.to_vec())).chain(body).collect()
}

/// A number of bytes, with a unit.
pub fn bytes(n: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| n >= *unit) {
        Some((name, unit)) => format!("{:.1}{name}", n as f64 / unit as f64),
        None => format!("{n}B"),
    }
}

/// Milliseconds as seconds.
pub fn seconds(ms: u64) -> String {
    format!("{:.1}s", ms as f64 / 1000.0)
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}
