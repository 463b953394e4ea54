//! What became of one row, told by the event log: also of rows, and of stores, that are gone.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    catalog::{
        command::{CellWrite, RowNote},
        definition::{Birth, Definition},
        event::{Event, Record, Returned},
    },
    ids::{ColumnId, GroupId, LeaseId, PartitionId, RowId, SessionId, TaskId},
    log::{self, LogError},
};

/// Happenings kept; a row that is tried again and again has more.
const KEPT: usize = 256;

/// What the log knows of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// In order.
    pub happenings: Vec<Happening>,
    /// Happenings after these that are not listed.
    pub more: u64,
    /// Why it was dropped, if it was.
    pub dropped: Option<String>,
}

/// Something that happened to a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// Position in the log.
    pub seq: u64,
    /// How often the run had been restored.
    pub lineage: u64,
    /// Milliseconds of store time since the store was created or restored.
    pub at_ms: u64,
    /// `born`, `leased`, `written`, `saved`, `committed`, `returned`, `cut`, `published`, `dropped`, `poisoned`.
    pub kind: String,
    /// In words.
    pub what: String,
}

/// Reads the history of a row from the folder of an event log. A store may be writing there meanwhile.
///
/// # Errors
/// [`LogError`] when there is no log, or it is damaged.
pub fn read(events: &Path, partition: &str, row: RowId) -> Result<History, LogError> {
    let mut story = Story::new(row, partition);
    for entry in log::surviving(events)? {
        story.tell(&entry?.record);
    }
    Ok(story.history)
}

/// The definition that a log begins with; `None` when it begins with a restored state.
///
/// # Errors
/// [`LogError`] when there is no log, or its first record is damaged.
pub fn definition(events: &Path) -> Result<Option<(u64, Definition)>, LogError> {
    let Some(first) = log::read(events)?.next() else { return Ok(None) };
    Ok(first?.record.events.into_iter().find_map(|event| match event {
        Event::Defined { definition, incarnation } => Some((incarnation, *definition)),
        _ => None,
    }))
}

/// What is known so far of the row and of those who work on it.
#[derive(Default)]
pub(crate) struct Story<'a> {
    row: RowId,
    wanted: &'a str,
    history: History,
    /// The partition of that name, and its columns.
    partition: Option<PartitionId>,
    columns: Vec<String>,
    parent: String,
    /// Tasks by id.
    tasks: Vec<Consumer>,
    sessions: BTreeMap<SessionId, String>,
    /// Leases that hold the row, with their holders.
    leases: BTreeMap<LeaseId, SessionId>,
    /// What is saved of it by task, in words.
    saved: BTreeMap<TaskId, String>,
    group: Option<GroupId>,
    cut: Option<u64>,
    trained: bool,
    lineage: u64,
}

/// A task, and what it has done with the row.
struct Consumer {
    name: String,
    /// Of the row's partition.
    here: bool,
    trains: bool,
    reuse: u32,
    used: u32,
}

impl<'a> Story<'a> {
    pub(crate) fn new(row: RowId, partition: &'a str) -> Self {
        Self { row, wanted: partition, ..Self::default() }
    }

    pub(crate) fn tell(&mut self, record: &Record) {
        for event in &record.events {
            match event {
                Event::Defined { definition, .. } => self.define(definition),
                Event::Restored { lineage } => {
                    self.lineage = *lineage;
                    self.sessions.clear();
                    for (lease, _) in std::mem::take(&mut self.leases) {
                        self.add(record, "returned", format!("lease {lease} ended: the run was restored"));
                    }
                }
                Event::SessionOpened { session, name, .. } => drop(self.sessions.insert(*session, name.clone())),
                Event::PartitionCreated { id, partition, .. } if partition.name == self.wanted => {
                    self.partition = Some(*id);
                    self.columns = partition.columns.iter().map(|column| column.name.clone()).collect();
                }
                _ => self.happen(record, event),
            }
            if let Event::SessionEnded { session, .. } = event {
                self.sessions.remove(session);
            }
        }
    }

    fn define(&mut self, definition: &Definition) {
        let of = |task: &crate::catalog::definition::Task| Consumer {
            name: task.name.clone(),
            here: task.partition == self.wanted,
            trains: task.trains.is_some(),
            reuse: task.reuse,
            used: 0,
        };
        self.tasks = definition.tasks.iter().map(of).collect();
        let found = (0..).map(PartitionId).zip(&definition.partitions).find(|(_, p)| p.name == self.wanted);
        if let Some((id, partition)) = found {
            self.partition = Some(id);
            self.columns = partition.columns.iter().map(|column| column.name.clone()).collect();
            if let Birth::Expand { from, .. } = &partition.birth {
                self.parent.clone_from(from);
            }
        }
    }

    /// An event that concerns the row, or does not.
    fn happen(&mut self, record: &Record, event: &Event) {
        let row = self.row;
        match event {
            Event::RowsPut { partition, first, rows, cells } if self.is(*partition) => {
                let Some(put) = row.0.checked_sub(first.0).and_then(|at| rows.get(at as usize)) else { return };
                let who = record.call.map_or_else(|| "the store".to_owned(), |(session, _)| self.worker(session));
                let key = put.key.as_ref().map_or_else(String::new, |key| format!(" with key `{key}`"));
                let columns = self.written(cells);
                self.add(record, "born", format!("put by {who}{key}: {columns}"));
            }
            Event::GroupsAdmitted { partition, groups, .. } if self.is(*partition) => {
                let born =
                    groups.iter().find(|group| row.0.checked_sub(group.first.0).is_some_and(|at| at < group.n.into()));
                let Some(born) = born else { return };
                self.group = Some(born.group);
                let (parent, version) = (&self.parent, born.version);
                let what = format!(
                    "born in group {} from row {} of `{parent}`, at version {version}",
                    born.group, born.parent
                );
                self.add(record, "born", what);
            }
            Event::Leased { lease, task, session, rows, .. } if self.holds(*task, rows) => {
                self.leases.insert(*lease, *session);
                let (name, worker) = (self.task(*task), self.worker(*session));
                let saved = self.saved.get(task).map_or_else(String::new, |saved| format!(", with {saved}"));
                let what = format!("`{name}`: claimed by {worker} under lease {lease}{saved}");
                self.add(record, "leased", what);
            }
            Event::SharesCut { task, cycle, shares, .. } if self.of(*task) => {
                let holds = |rows: &crate::ids::Rows| rows.contains(row);
                let Some(rank) = shares.iter().position(|share| share.minis.iter().any(holds)) else { return };
                let (lease, session) = (shares[rank].lease, shares[rank].session);
                self.leases.insert(lease, session);
                let (task, worker) = (self.task(*task), self.worker(session));
                let what = format!("`{task}`: rank {rank}'s share of cycle {cycle}, for {worker} under lease {lease}");
                self.add(record, "leased", what);
            }
            Event::CellsWritten { partition, task, cells, notes } if self.is(*partition) => {
                let columns = self.written(cells);
                let note = notes.iter().find(|note| note.row == row).map_or_else(String::new, said);
                if columns.is_empty() && note.is_empty() {
                    return;
                }
                let who = task.map_or_else(|| "the store".to_owned(), |task| format!("`{}`", self.task(task)));
                let worker =
                    record.call.map_or_else(String::new, |(session, _)| format!(" ({})", self.worker(session)));
                let columns = if columns.is_empty() { "tags alone".to_owned() } else { columns };
                self.add(record, "written", format!("{who}{worker} wrote {columns}{note}"));
            }
            Event::RowsSaved { lease, task, rows, .. } if self.of(*task) => {
                let Some(saved) = rows.iter().find(|saved| saved.row == row) else { return };
                let tokens: u64 = saved.sampled.iter().map(|stretch| stretch.tokens).sum();
                let worker = self.leases.get(lease).map_or_else(|| "?".to_owned(), |session| self.worker(*session));
                let what = format!("`{}` ({worker}) saved {tokens} tokens of it, unfinished", self.task(*task));
                self.saved.insert(*task, format!("{tokens} tokens that {worker} had saved"));
                self.add(record, "saved", what);
            }
            Event::SavedForgotten { partition, rows } if self.is(*partition) && rows.contains(row) => {
                self.saved.clear();
                self.add(record, "saved", "what was saved of it cannot be had any more".to_owned());
            }
            Event::RowsCommitted { lease, task, rows, lost } if self.holds(*task, rows) || self.holds(*task, lost) => {
                self.leases.remove(lease);
                let (kept, task) = (rows.contains(row), &mut self.tasks[task.0 as usize]);
                task.used += u32::from(kept);
                let Consumer { name, trains, reuse, used, .. } = &*task;
                let what = match kept {
                    false => format!("`{name}` finished it after it had been dropped: ignored"),
                    true if *trains => format!("`{name}` trained it; a publication consumes it"),
                    true if used < reuse => format!("used by `{name}`: {used} of {reuse} times"),
                    true => format!("consumed by `{name}`"),
                };
                self.trained |= *trains && kept;
                self.add(record, "committed", what);
            }
            Event::RowsReturned { lease, task, rows, lost, why }
                if self.holds(*task, rows) || self.holds(*task, lost) =>
            {
                let holder = self
                    .leases
                    .remove(lease)
                    .map_or_else(String::new, |session| format!(" of {}", self.worker(session)));
                let why = match why {
                    Returned::Released => "given back".to_owned(),
                    Returned::Expired => "its lease expired (counts an attempt)".to_owned(),
                    Returned::SessionEnded => "its worker was lost (counts an attempt)".to_owned(),
                    Returned::GangEnded => "given back with those of the other ranks".to_owned(),
                    Returned::Failed(error) => format!("failed (counts an attempt): {}", short(error)),
                };
                let what = format!("`{}`: lease {lease}{holder} let it go: {why}", self.task(*task));
                self.add(record, "returned", what);
            }
            Event::RowsDropped { partition, drop } if self.is(*partition) && drop.rows.contains(row) => {
                self.history.dropped = Some(drop.reason.clone());
                self.add(record, "dropped", format!("dropped: {}", drop.reason));
            }
            Event::PartitionDeleted { partition } if self.is(*partition) && !self.history.happenings.is_empty() => {
                self.add(record, "dropped", "its partition was deleted".to_owned());
            }
            Event::Poisoned { task, row: poisoned, error } if *poisoned == row && self.of(*task) => {
                self.add(record, "poisoned", format!("`{}` failed too often: {}", self.task(*task), short(error)));
            }
            Event::BatchCut { partition, cycle, index, groups, .. }
                if self.is(*partition) && self.group.is_some_and(|group| groups.contains(&group)) =>
            {
                self.cut = Some(*cycle);
                self.add(record, "cut", format!("its group was cut into batch {index} of cycle {cycle}"));
            }
            Event::CyclePublished { cycle: Some(cycle), version, .. } if self.trained && self.cut == Some(*cycle) => {
                self.trained = false;
                self.add(record, "published", format!("version {version} ended cycle {cycle} and consumed it"));
            }
            _ => {}
        }
    }

    fn add(&mut self, record: &Record, kind: &str, what: String) {
        if self.history.happenings.len() >= KEPT {
            self.history.more += 1;
            return;
        }
        let (seq, lineage, at_ms) = (record.seq, self.lineage, record.at.0);
        self.history.happenings.push(Happening { seq, lineage, at_ms, kind: kind.to_owned(), what });
    }

    fn is(&self, partition: PartitionId) -> bool {
        self.partition == Some(partition)
    }

    /// Whether a task consumes the row's partition.
    fn of(&self, task: TaskId) -> bool {
        self.tasks.get(task.0 as usize).is_some_and(|task| task.here)
    }

    fn holds(&self, task: TaskId, rows: &crate::ids::Rows) -> bool {
        self.of(task) && rows.contains(self.row)
    }

    fn task(&self, task: TaskId) -> &str {
        self.tasks.get(task.0 as usize).map_or("?", |task| &task.name)
    }

    fn worker(&self, session: SessionId) -> String {
        self.sessions.get(&session).map_or_else(|| format!("session {session}"), |name| format!("worker {name}"))
    }

    /// Names of the columns whose cell of this row was written.
    fn written(&self, cells: &[CellWrite]) -> String {
        let name = |column: ColumnId| self.columns.get(usize::from(column.0)).map_or("?", String::as_str);
        let names = cells.iter().filter(|write| write.rows.contains(self.row)).map(|write| {
            let open = if write.seal { "" } else { " (open)" };
            format!("`{}`{open}", name(write.column))
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

/// What a writer said about a row.
fn said(note: &RowNote) -> String {
    let versions = match note.span {
        Some(span) if span.first != span.last => format!(", sampled with versions {} to {}", span.first, span.last),
        Some(span) => format!(", sampled with version {}", span.first),
        None => String::new(),
    };
    let tags: Vec<&str> = note.tags.keys().take(16).map(String::as_str).collect();
    let tags = if tags.is_empty() { String::new() } else { format!(", tags {}", tags.join(" ")) };
    versions + &tags
}

fn short(error: &str) -> String {
    error.chars().take(500).collect()
}
