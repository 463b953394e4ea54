//! Numbers for Prometheus, in its text format.

mod serve;
#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeMap, fmt::Write};

pub(crate) use serve::{listen, serve};

use crate::views::Views;

/// One family: name, kind, help, and a value for each set of labels.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    values: BTreeMap<String, f64>,
}

/// Families in the order they were begun.
#[derive(Default)]
struct Page {
    families: Vec<Family>,
}

impl Page {
    fn gauge(&mut self, name: &'static str, help: &'static str, values: impl IntoIterator<Item = (String, f64)>) {
        self.add(name, "gauge", help, values);
    }

    fn counter(&mut self, name: &'static str, help: &'static str, values: impl IntoIterator<Item = (String, f64)>) {
        self.add(name, "counter", help, values);
    }

    /// Values with equal labels are added up.
    fn add(
        &mut self,
        name: &'static str,
        kind: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) {
        let mut sums = BTreeMap::new();
        for (labels, value) in values {
            *sums.entry(labels).or_insert(0.0) += value;
        }
        self.families.push(Family { name, kind, help, values: sums });
    }
}

/// `{task="reward",state="ready"}`.
fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn one(value: f64) -> [(String, f64); 1] {
    [(String::new(), value)]
}

/// Partitions that are added while a run goes on (`weights/policy/0.12`) share a name: each would be a series of its own
/// for ever.
fn family(partition: &str) -> &str {
    partition.rsplit_once('/').map_or(partition, |(family, _)| family)
}

/// The page.
pub(crate) fn exposition(views: &Views) -> String {
    let mut page = Page::default();
    run(&mut page, views);
    rows(&mut page, views);
    bytes(&mut page, views);
    weights(&mut page, views);
    people(&mut page, views);
    let mut text = String::new();
    for Family { name, kind, help, values } in page.families {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    }
    text
}

/// The schedule.
fn run(page: &mut Page, views: &Views) {
    let status = &views.status;
    page.gauge("tq_up_seconds", "Store time since the store was created or restored.", one(status.up_ms as f64 / 1e3));
    page.counter("tq_events_total", "Records of the event log.", one(status.seq as f64));
    page.gauge("tq_version", "Publications so far: the newest weight version.", one(status.version as f64));
    page.gauge("tq_lineage", "How often the run was restored.", one(status.lineage as f64));
    page.gauge("tq_stopping", "1 while the run is being stopped.", one(f64::from(u8::from(status.stopped.is_some()))));
    let Some(schedule) = &status.schedule else { return };
    page.gauge("tq_cycle", "Cycles ended: the number of the current one.", one(schedule.cycle as f64));
    page.gauge("tq_cycles", "Length of the run in cycles.", one(schedule.total_cycles as f64));
    page.gauge("tq_lag", "The newest version minus that of the oldest group in flight.", one(schedule.lag as f64));
    let state = |state: &str, n: u64| (labels(&[("state", state)]), n as f64);
    let groups = [
        state("in_flight", schedule.in_flight),
        state("allowed", schedule.allowed),
        state("complete", schedule.complete),
        state("cut", schedule.cut),
    ];
    page.gauge("tq_groups", "Groups of samples by state, and how many may be in flight.", groups);
    let fate = |fate: &str, n: u64| (labels(&[("fate", fate)]), n as f64);
    let groups =
        [fate("admitted", schedule.admitted), fate("dropped", schedule.dropped), fate("retired", schedule.retired)];
    page.counter("tq_groups_total", "Groups ever admitted, dropped, and retired with their cycle.", groups);
}

/// Rows, by partition and by task.
fn rows(page: &mut Page, views: &Views) {
    let partitions = || views.partitions.iter().map(|p| (labels(&[("partition", family(&p.name))]), p));
    page.gauge("tq_rows", "Live rows.", partitions().map(|(labels, p)| (labels, p.live as f64)));
    let tasks = |of: fn(&transferqueue::catalog::views::TaskView) -> Vec<(&'static str, u64)>| {
        views.tasks.iter().flat_map(move |task| {
            of(task).into_iter().map(|(state, n)| (labels(&[("task", &task.task), ("state", state)]), n as f64))
        })
    };
    let states = tasks(|task| {
        vec![("backlog", task.backlog), ("ready", task.ready), ("leased", task.leased), ("done", task.done)]
    });
    page.gauge("tq_task_rows", "Rows that a task owes (backlog), and of these those in a state.", states);
    let ledger = |value: fn(&transferqueue::catalog::views::LedgerEntry) -> u64| {
        views.ledger.iter().map(move |entry| (labels(&[("task", &entry.task)]), value(entry) as f64))
    };
    page.counter("tq_task_owed_total", "Rows ever owed to a task.", ledger(|entry| entry.owed));
    page.counter("tq_task_consumed_total", "Rows that a task consumed.", ledger(|entry| entry.consumed));
    let dropped = views.ledger.iter().flat_map(|entry| {
        entry.dropped.iter().map(|(reason, n)| (labels(&[("task", &entry.task), ("reason", reason)]), *n as f64))
    });
    page.counter("tq_task_dropped_total", "Rows that left before a task read them.", dropped);
    let flag = |of: fn(&transferqueue::catalog::views::TaskView) -> bool| {
        views.tasks.iter().map(move |task| (labels(&[("task", &task.task)]), f64::from(u8::from(of(task)))))
    };
    page.gauge("tq_task_waits", "1 while a claim of the task would have to wait.", flag(|task| task.wait.is_some()));
    page.gauge("tq_task_ended", "1 once nothing will come for the task again.", flag(|task| task.ended));
}

/// Bytes, by column and by unit.
fn bytes(page: &mut Page, views: &Views) {
    let columns = views.columns.iter().flat_map(|column| {
        let account = &column.account;
        let states = [
            ("live", account.bytes_live),
            ("dead_in_chunk", account.bytes_dead_in_chunk),
            ("pinned", column.unit.pinned),
            ("open", column.unit.open),
        ];
        states.map(|(state, n)| {
            let labels =
                labels(&[("partition", family(&account.partition)), ("column", &account.column), ("state", state)]);
            (labels, n as f64)
        })
    });
    page.gauge(
        "tq_column_bytes",
        "Bytes of a column: cells that are read still, dead ones in live chunks, held by views, open.",
        columns,
    );
    // A counter must not go back, as one does whose partitions are deleted.
    let lasting =
        || views.columns.iter().map(|column| &column.account).filter(|account| !account.partition.contains('/'));
    let by_column = |account: &transferqueue::catalog::views::ColumnView| {
        labels(&[("partition", &account.partition), ("column", &account.column)])
    };
    let written = lasting().map(|account| (by_column(account), account.bytes_written_total as f64));
    page.counter("tq_column_written_bytes_total", "Bytes ever written to a column.", written);
    let freed = lasting().map(|account| (by_column(account), account.bytes_freed_total as f64));
    page.counter("tq_column_freed_bytes_total", "Bytes of a column's chunks that are gone.", freed);
    let units = views.units.iter().flat_map(|unit| {
        let states = [
            ("live", unit.live),
            ("pinned", unit.pinned),
            ("lingering", unit.lingering),
            ("unsettled", unit.unsettled),
            ("open", unit.open),
        ];
        states.map(|(state, n)| (labels(&[("state", state)]), n as f64))
    });
    page.gauge("tq_unit_bytes", "Bytes of buffers by state.", units);
    let chunks = views.units.iter().map(|unit| (String::new(), unit.chunks as f64));
    page.gauge("tq_unit_chunks", "Chunks.", chunks);
    let memory = views.units.iter().filter_map(|unit| unit.memory).flat_map(|memory| {
        let states = [("used", memory.used), ("free", memory.reserved.saturating_sub(memory.used))];
        states.map(|(state, n)| (labels(&[("state", state)]), n as f64))
    });
    page.gauge("tq_unit_memory_bytes", "Shared memory in segments.", memory);
    if let Some(budget) = &views.health.budget {
        page.gauge("tq_budget_bytes", "The limit of bytes of admitted rows.", one(budget.bytes as f64));
        page.gauge("tq_budget_used_bytes", "Bytes that count against the limit.", one(budget.used as f64));
    }
}

/// Weights and trainers' states, by model.
fn weights(page: &mut Page, views: &Views) {
    let of = || views.status.weights.iter();
    let bytes = of().flat_map(|view| {
        let publishing = view.publishing.iter().map(|part| part.bytes).sum();
        let states =
            [("live", view.bytes - publishing), ("publishing", publishing), ("trainer_state", view.state_bytes)];
        states.map(|(state, n)| (labels(&[("model", &view.model), ("state", state)]), n as f64))
    });
    page.gauge(
        "tq_weights_bytes",
        "Bytes of weights: live versions, those being published, and trainers' states.",
        bytes,
    );
    let versions = of().map(|view| (labels(&[("model", &view.model)]), view.versions.len() as f64));
    page.gauge("tq_weight_versions", "Weight versions alive.", versions);
}

/// Workers and what is wrong with their rows.
fn people(page: &mut Page, views: &Views) {
    page.gauge("tq_sessions", "Workers that are connected.", one(views.status.sessions as f64));
    let silence = views.health.sessions.iter().map(|session| session.seen_ms_ago).max().unwrap_or(0);
    page.gauge(
        "tq_session_silence_seconds",
        "Time since the most silent worker showed life.",
        one(silence as f64 / 1e3),
    );
    let quiet = views.health.leases.iter().map(|held| held.quiet_ms).max().unwrap_or(0);
    page.gauge(
        "tq_lease_quiet_seconds",
        "Longest time that a worker has held rows without progress.",
        one(quiet as f64 / 1e3),
    );
    let failed = views.health.failed.iter().map(|row| row.failed).max().unwrap_or(0);
    page.gauge("tq_row_attempts", "Failed attempts of the live row that failed most.", one(f64::from(failed)));
    page.gauge(
        "tq_poisoned",
        "1 once a row failed too often.",
        one(f64::from(u8::from(views.health.poisoned.is_some()))),
    );
}

/// The same numbers as one JSON object: sample to value.
pub(crate) fn json(page: &str) -> serde_json::Value {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse::<f64>().ok()?.into()))
    });
    serde_json::Value::Object(samples.collect())
}
