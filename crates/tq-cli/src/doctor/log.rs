//! The event log: whether it can be read, and when each task last moved.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use transferqueue::{
    catalog::{Event, Record},
    log,
};

use super::Check;

/// A log is read for this long at most, unless all of it is asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// When things last moved, in milliseconds of store time of the newest life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// By name of the task: its rows were claimed, committed or given back.
    pub(super) tasks: BTreeMap<String, u64>,
    /// Rows or versions moved at all.
    pub(super) last: u64,
}

/// Reads the log. Activity is known when it was read to its end. `live`: someone may be writing there.
pub(super) fn check(events: &Path, deep: bool, live: bool) -> (Check, Option<Activity>) {
    let failed = |error: log::LogError| {
        let advice = "go on from a named state: tq-run --resume, after the damaged folder `events` was moved away";
        (Check::failed("events", error.to_string(), advice), None)
    };
    let mut reader = match log::read(events) {
        Ok(reader) => reader,
        Err(error) => return failed(error),
    };
    let begun = Instant::now();
    let (mut records, mut story) = (0_u64, Story::default());
    for entry in reader.by_ref() {
        match entry {
            Ok(entry) => story.tell(&entry.record),
            Err(error) => return failed(error),
        }
        records += 1;
        if !deep && begun.elapsed() > PATIENCE {
            let found = format!("the first {records} records are whole; the rest was not read (--deep reads all)");
            return (Check::ok("events", found), None);
        }
    }
    let found = format!("{records} records, every checksum holds");
    let check = match reader.torn() {
        Some(torn) if !live => Check::warning(
            "events",
            format!("{found}; line {} of {} is unfinished", torn.line, torn.path.display()),
            "nothing: a killed process leaves that, and --resume cuts it off",
        ),
        _ => Check::ok("events", found),
    };
    (check, Some(story.activity))
}

#[derive(Default)]
struct Story {
    activity: Activity,
    tasks: Vec<String>,
}

impl Story {
    fn tell(&mut self, record: &Record) {
        for event in &record.events {
            let task = match event {
                Event::Defined { definition, .. } => {
                    self.tasks = definition.tasks.iter().map(|task| task.name.clone()).collect();
                    continue;
                }
                // The clock starts anew.
                Event::Restored { .. } => {
                    self.activity = Activity::default();
                    continue;
                }
                Event::SessionSeen { .. } | Event::SessionOpened { .. } | Event::LeaseRenewed { .. } => continue,
                Event::Leased { task, .. }
                | Event::SharesCut { task, .. }
                | Event::RowsCommitted { task, .. }
                | Event::RowsReturned { task, .. } => Some(*task),
                _ => None,
            };
            self.activity.last = record.at.0;
            if let Some(name) = task.and_then(|task| self.tasks.get(task.0 as usize)) {
                self.activity.tasks.insert(name.clone(), record.at.0);
            }
        }
    }
}
