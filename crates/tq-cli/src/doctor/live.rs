//! What a running job says of itself, judged.

use transferqueue::{
    catalog::{
        limits::SESSION_TIMEOUT_MS,
        views::{FailedRow, HealthView},
    },
    inspect::{Status, bytes, seconds},
};

use super::{Check, log::Activity};

/// Sessions show life every five seconds; two missed signs are worth a word.
const SILENT_MS: u64 = 12_000;

pub(super) fn checks(status: &Status, health: &HealthView, log: Option<&Activity>, patience: u64) -> Vec<Check> {
    let mut checks = vec![run(status)];
    checks.extend(rows(health));
    checks.extend(leases(health, patience));
    checks.extend(sessions(status, health));
    checks.extend(budget(health));
    checks.extend(waits(status, health, log, patience));
    checks
}

fn run(status: &Status) -> Check {
    let at = match &status.schedule {
        Some(schedule) => format!("cycle {} of {}, version {}", schedule.cycle, schedule.total_cycles, status.version),
        None => format!("version {}", status.version),
    };
    match &status.stopped {
        Some(reason) => {
            Check::warning("run", format!("{at}; it is being stopped: {reason}"), "wait until it has ended")
        }
        None => Check::ok("run", format!("{at}; up for {}", seconds(status.up_ms))),
    }
}

fn rows(health: &HealthView) -> Vec<Check> {
    if let Some(row) = &health.poisoned {
        let found = format!(
            "row {} of `{}` stops the run: it failed too often for `{}`: {}",
            row.row, row.partition, row.task, row.error
        );
        return vec![Check::failed(
            "rows",
            found,
            format!("see tq-cli why {} {}; mend the cause, then tq-run --resume", row.partition, row.row),
        )];
    }
    let last = health.failed.iter().filter(|row| row.failed + 1 >= row.attempts && row.attempts > 1);
    let close: Vec<Check> = last
        .map(|row| {
            let FailedRow { task, partition, row, failed, attempts } = row;
            let found = format!("row {row} of `{partition}` failed {failed} of {attempts} attempts for `{task}`");
            let advice = format!("see tq-cli why {partition} {row} for its errors before the last attempt");
            Check::warning("rows", found, advice)
        })
        .collect();
    match (close.is_empty(), health.failed.is_empty()) {
        (false, _) => close,
        (true, false) => vec![Check::ok("rows", "some rows failed before; none is close to its last attempt")],
        (true, true) => vec![Check::ok("rows", "no live row has failed")],
    }
}

fn leases(health: &HealthView, patience: u64) -> Vec<Check> {
    let quiet: Vec<Check> = health
        .leases
        .iter()
        .filter(|held| held.quiet_ms >= patience)
        .map(|held| {
            let lease = &held.lease;
            Check::warning(
                "leases",
                format!(
                    "`{}`: {} holds {} rows under lease {} for {}, without progress for {}; it ends in {}",
                    held.task,
                    lease.holder,
                    lease.rows,
                    lease.lease,
                    seconds(lease.for_ms),
                    seconds(held.quiet_ms),
                    seconds(lease.left_ms),
                ),
                "see what that worker does; when the lease ends, its rows go to another one and count an attempt",
            )
        })
        .collect();
    if !quiet.is_empty() {
        return quiet;
    }
    let found = match health.leases.first() {
        Some(held) => {
            format!("every worker that holds rows showed progress in the last {}", seconds(held.quiet_ms.max(100)))
        }
        None => "nobody holds rows".to_owned(),
    };
    vec![Check::ok("leases", found)]
}

fn sessions(status: &Status, health: &HealthView) -> Vec<Check> {
    let silent: Vec<Check> = health
        .sessions
        .iter()
        .filter(|session| session.seen_ms_ago >= SILENT_MS)
        .map(|session| {
            let found = format!(
                "{} is silent for {} and holds {} rows; it counts as lost after {}",
                session.name,
                seconds(session.seen_ms_ago),
                session.rows,
                seconds(SESSION_TIMEOUT_MS)
            );
            Check::warning("sessions", found, "see whether that process is stopped, or its machine out of reach")
        })
        .collect();
    match silent.is_empty() {
        false => silent,
        true => vec![Check::ok("sessions", format!("{} sessions, all heard of lately", status.sessions))],
    }
}

fn budget(health: &HealthView) -> Option<Check> {
    let budget = health.budget.as_ref()?;
    let found = format!("{} of {} are reserved or held", bytes(budget.used), bytes(budget.bytes));
    Some(match budget.blocks {
        true => Check::warning(
            "budget",
            format!("{found}; that alone keeps the next group out"),
            "raise `store.budget`, or see in tq-cli columns whose reader is behind",
        ),
        false => Check::ok("budget", found),
    })
}

/// Tasks that wait. Waiting is what most stages do most of the time: it is worth a warning when whoever is waited for
/// does not move.
fn waits(status: &Status, health: &HealthView, log: Option<&Activity>, patience: u64) -> Vec<Check> {
    let still = log.map(|log| status.up_ms.saturating_sub(log.last)).filter(|ms| *ms >= patience);
    let quiet = |lease| health.leases.iter().any(|held| Some(held.lease.lease) == lease && held.quiet_ms >= patience);
    let waiting = health.waits.iter().filter(|wait| wait.leased == 0).map(|waiting| {
        let since = log.and_then(|log| log.tasks.get(&waiting.task)).map(|at| status.up_ms.saturating_sub(*at));
        let since = since.map_or_else(|| "now".to_owned(), |ms| format!("for {}", seconds(ms)));
        let found = format!("waits {since}: {}", waiting.wait);
        let held_up = waiting.wait.causes.iter().any(|cause| cause.lease.is_some() && quiet(cause.lease));
        match (held_up, still) {
            (true, _) => Check::warning("tasks", found, "see the lease it names above"),
            (false, Some(ms)) => {
                let advice = format!("nothing has moved for {}: see what the last cause named is doing", seconds(ms));
                Check::warning("tasks", found, advice)
            }
            (false, None) => Check::ok("tasks", found),
        }
    });
    let waiting: Vec<Check> = waiting.collect();
    match waiting.is_empty() {
        true => vec![Check::ok("tasks", "none waits")],
        false => waiting,
    }
}
