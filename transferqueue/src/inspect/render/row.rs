//! One row as text.

use super::{super::Why, cell, grid, seconds};
use crate::catalog::views::{CellState, RowColumn, RowTask, RowTaskState, RowView, SavedView};

pub(super) fn why(why: &Why) -> String {
    let Some(view) = &why.live else {
        return format!("row {} of `{}` is gone: consumed by every reader, or dropped\n", why.row, why.partition);
    };
    let lines = head(why, view);
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect();
    let columns = view.columns.iter().map(|column| {
        let value = why.cells.get(&column.column).map_or_else(String::new, cell);
        [column.column.clone(), state(column), source(view, column), value]
    });
    text.push('\n');
    text.push_str(&grid(&["column", "state", "written by", "value"], columns));
    text.push('\n');
    let tasks = view.tasks.iter().map(|task| [task.task.clone(), standing(task)]);
    text.push_str(&grid(&["task", "how far"], tasks));
    text
}

fn head(why: &Why, view: &RowView) -> Vec<(&'static str, String)> {
    let head = &view.head;
    let mut lines = vec![("row", format!("{} of `{}`", why.row, why.partition))];
    match &view.parent {
        Some((parent, row)) => lines.push((
            "group",
            format!(
                "{}, sample {}; born from row {row} of `{parent}` at version {}",
                head.group, head.sample, head.version
            ),
        )),
        None => lines.push(("group", head.group.to_string())),
    }
    if let Some(key) = &view.key {
        lines.push(("key", key.clone()));
    }
    if !head.tags.is_empty() {
        let tag = |(name, tag)| format!("{name}={}", serde_json::to_string(tag).unwrap_or_default());
        lines.push(("tags", head.tags.iter().map(tag).collect::<Vec<_>>().join(" ")));
    }
    lines.push((
        "versions",
        match head.span {
            Some(span) if span.first != span.last => format!("first token {}, last token {}", span.first, span.last),
            Some(span) => format!("all tokens {}", span.first),
            None => "no token is sampled yet".to_owned(),
        },
    ));
    if let Some((cycle, index)) = view.batch {
        lines.push(("batch", format!("{index} of cycle {cycle}")));
    }
    lines
}

fn state(column: &RowColumn) -> String {
    match column.state {
        CellState::Held => format!("held, {}", super::bytes(column.bytes)),
        CellState::Freed => "freed: read by all".to_owned(),
        CellState::Open => format!("open, {} so far", super::bytes(column.bytes)),
        CellState::Missing => "missing".to_owned(),
        CellState::Never => "will never be written".to_owned(),
    }
}

/// Who wrote a cell, or who still has to and how far that is.
fn source(view: &RowView, column: &RowColumn) -> String {
    if let Some((partition, row)) = &column.from {
        return format!("linked: row {row} of `{partition}`");
    }
    if column.writers.is_empty() {
        return "a client".to_owned();
    }
    let waiting = matches!(column.state, CellState::Missing | CellState::Open);
    let writers = column.writers.iter().map(|writer| {
        let task = view.tasks.iter().find(|task| waiting && task.task == *writer);
        task.map_or_else(|| format!("`{writer}`"), |task| format!("`{writer}`: {}", standing(task)))
    });
    writers.collect::<Vec<_>>().join("; ")
}

/// How far a task is with the row, in words.
fn standing(task: &RowTask) -> String {
    let missing: Vec<String> = task.missing.iter().map(|column| format!("`{column}`")).collect();
    let missing = missing.join(", ");
    let words = match (task.state, &task.lease) {
        (RowTaskState::Leased, Some(lease)) => {
            let progress = lease.progress.map_or_else(String::new, |progress| format!(", progress {progress}"));
            let (holder, id, held, left) = (&lease.holder, lease.lease, seconds(lease.for_ms), seconds(lease.left_ms));
            format!("held by {holder} under lease {id} for {held}, {left} left{progress}")
        }
        (RowTaskState::Undecided, _) if !missing.is_empty() => format!("waits for {missing}; {}", task.note),
        (RowTaskState::Undecided, _) => task.note.clone(),
        (RowTaskState::Waiting, _) => format!("waits for {missing}"),
        (RowTaskState::Ready, _) => format!("ready: {}", task.note),
        (RowTaskState::Done, _) => format!("done: {}", task.note),
        (RowTaskState::Consumed, _) => "consumed".to_owned(),
        (RowTaskState::NotOwed, _) => format!("not owed: {}", task.note),
        (RowTaskState::Leased, None) => "held".to_owned(),
    };
    let failed = (task.failed > 0).then(|| format!("failed {} of {} attempts", task.failed, task.attempts));
    let saved = task.saved.as_ref().map(|saved| {
        let SavedView { worker, tokens, bytes } = saved;
        format!("{tokens} tokens ({}) saved by {worker} for whoever resumes it", super::bytes(*bytes))
    });
    let used = task.uses.map(|(used, each)| format!("used {used} of {each} times"));
    [Some(words), used, failed, saved].into_iter().flatten().collect::<Vec<_>>().join("; ")
}
