//! What is refused before the first row: names that do not resolve, two producers, plans that would wait for ever.

use std::collections::BTreeSet;

use super::{
    definition::{Birth, Definition, Gate, Grain, OnLost, Order, Partition, Schedule, Task},
    limits::{MAX_COLUMNS, MAX_RANKS, MAX_TASKS},
    predicate::Predicate,
    refusal::Refusal,
};
use crate::schema::Kind;

type Checked = Result<(), Refusal>;

fn refuse(message: String) -> Checked {
    Err(Refusal::Definition(message))
}

/// Checks a whole definition; the first fault found is named.
pub(crate) fn definition(def: &Definition) -> Checked {
    unique("partition", def.partitions.iter().map(|p| p.name.as_str()))?;
    unique("task", def.tasks.iter().map(|t| t.name.as_str()))?;
    unique("model", def.models.iter().map(|m| m.name.as_str()))?;
    for (i, partition) in def.partitions.iter().enumerate() {
        columns(partition)?;
        birth(def, partition)?;
        consumers(def, i, partition)?;
    }
    for task in &def.tasks {
        reads_and_writes(def, task)?;
        claims(def, task)?;
        reuse(task)?;
        models(def, task)?;
    }
    for partition in &def.partitions {
        producers(def, partition)?;
        acyclic(def, partition)?;
    }
    match &def.schedule {
        Some(plan) => schedule(def, plan),
        None => match def.partitions.iter().find(|p| gate(p) == Some(Gate::Schedule)) {
            Some(p) => refuse(format!("partition `{}` is admitted by the schedule, but none is given", p.name)),
            None => Ok(()),
        },
    }
}

/// Checks the columns of a partition, declared or added while running.
pub(crate) fn columns(partition: &Partition) -> Checked {
    let name = &partition.name;
    if name.is_empty() {
        return refuse("a partition has no name".into());
    }
    if partition.columns.len() > MAX_COLUMNS {
        let found = partition.columns.len();
        return refuse(format!("partition `{name}` has {found} columns; at most {MAX_COLUMNS} are possible"));
    }
    if let Some(column) = partition.columns.iter().find(|column| column.kind.unit_bytes().is_none()) {
        let (column, kind) = (&column.name, &column.kind);
        return refuse(format!(
            "column `{column}` of `{name}` is {kind}, and a cell of that shape has more than 2^31 bytes; make its axes smaller"
        ));
    }
    unique(&format!("column of `{name}`"), partition.columns.iter().map(|c| c.name.as_str()))
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Checked {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return refuse(format!("a {what} has no name"));
        }
        if !seen.insert(name) {
            return refuse(format!("{what} `{name}` is declared twice; names are unique"));
        }
    }
    Ok(())
}

fn gate(partition: &Partition) -> Option<Gate> {
    match &partition.birth {
        Birth::Expand { gate, .. } => Some(*gate),
        Birth::Put { .. } => None,
    }
}

pub(crate) fn find<'a>(def: &'a Definition, name: &str) -> Option<&'a Partition> {
    def.partitions.iter().find(|p| p.name == name)
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

fn birth(def: &Definition, partition: &Partition) -> Checked {
    let Birth::Expand { from, n, link, gate } = &partition.birth else { return Ok(()) };
    let name = &partition.name;
    let Some(parent) = find(def, from) else {
        let known = names(def.partitions.iter().map(|p| p.name.as_str()));
        return refuse(format!("partition `{name}` expands `{from}`, which does not exist; there are: {known}"));
    };
    let Birth::Put { capacity } = parent.birth else {
        return refuse(format!(
            "partition `{name}` expands `{from}`, which is itself an expansion; expand a partition that takes rows by put"
        ));
    };
    if *n == 0 {
        return refuse(format!("partition `{name}` expands each row of `{from}` into 0 rows; n is at least 1"));
    }
    for column in link {
        if !parent.columns.iter().any(|c| &c.name == column) {
            let known = names(parent.columns.iter().map(|c| c.name.as_str()));
            return refuse(format!(
                "partition `{name}` links column `{column}`, which `{from}` does not have; it has: {known}"
            ));
        }
        if partition.columns.iter().any(|c| &c.name == column) {
            return refuse(format!(
                "partition `{name}` has a column `{column}` and links one of that name from `{from}`; rename one"
            ));
        }
    }
    unique(&format!("link of `{name}`"), link.iter().map(String::as_str))?;
    if let (Gate::Every { .. }, Some(rows)) = (gate, capacity) {
        return refuse(format!(
            "partition `{name}` expands all rows of `{from}` at once, but puts into `{from}` wait at {rows} rows; give `{from}` no capacity"
        ));
    }
    Ok(())
}

fn consumers(def: &Definition, index: usize, partition: &Partition) -> Checked {
    let name = &partition.name;
    let tasks = def.tasks.iter().filter(|t| &t.partition == name).count();
    if tasks > MAX_TASKS {
        return refuse(format!("partition `{name}` has {tasks} tasks; at most {MAX_TASKS} are possible"));
    }
    if tasks == 0 && matches!(partition.birth, Birth::Expand { .. }) {
        return refuse(format!(
            "partition `{name}` (position {index}) has no task: its rows would be born and never used"
        ));
    }
    Ok(())
}

fn reads_and_writes(def: &Definition, task: &Task) -> Checked {
    let Task { name, partition, .. } = task;
    let Some(table) = find(def, partition) else {
        let known = names(def.partitions.iter().map(|p| p.name.as_str()));
        return refuse(format!(
            "task `{name}` consumes partition `{partition}`, which does not exist; there are: {known}"
        ));
    };
    let links: &[String] = match &table.birth {
        Birth::Expand { link, .. } => link,
        Birth::Put { .. } => &[],
    };
    unique(&format!("read of task `{name}`:"), task.reads.iter().map(String::as_str))?;
    unique(&format!("write of task `{name}`:"), task.writes.iter().map(String::as_str))?;
    for column in &task.reads {
        if !table.columns.iter().any(|c| &c.name == column) && !links.contains(column) {
            let known = names(table.columns.iter().map(|c| &*c.name).chain(links.iter().map(|l| &**l)));
            return refuse(format!(
                "task `{name}` reads column `{column}`, which `{partition}` does not have; it has: {known}"
            ));
        }
    }
    for column in &task.writes {
        if links.contains(column) {
            return refuse(format!(
                "task `{name}` writes column `{column}`, which `{partition}` only links; linked columns are read-only"
            ));
        }
        if !table.columns.iter().any(|c| &c.name == column) {
            let known = names(table.columns.iter().map(|c| &*c.name));
            return refuse(format!(
                "task `{name}` writes column `{column}`, which `{partition}` does not have; it has: {known}"
            ));
        }
        if task.reads.contains(column) {
            return refuse(format!("task `{name}` reads and writes column `{column}`: it would wait for itself"));
        }
    }
    Ok(())
}

fn claims(def: &Definition, task: &Task) -> Checked {
    let name = &task.name;
    if task.attempts == 0 {
        return refuse(format!("task `{name}` allows 0 attempts; at least 1 is needed"));
    }
    if task.lease_ms == 0 {
        return refuse(format!("task `{name}` has leases of 0 ms; rows could never be held"));
    }
    if matches!(task.per, Grain::Mini | Grain::Cycle)
        && let Some(table) = find(def, &task.partition)
        && gate(table).is_none()
    {
        let partition = &task.partition;
        return refuse(format!(
            "task `{name}` claims cut batches of `{partition}`, whose rows come by put and are never cut; claim rows, or expand a partition from `{partition}`"
        ));
    }
    Ok(())
}

/// Whoever draws rows several times reads alone: what it wrote would be there already, and training has its own way.
fn reuse(task: &Task) -> Checked {
    let Task { name, reuse, .. } = task;
    let refused = match () {
        () if *reuse == 1 => return Ok(()),
        () if *reuse == 0 => "a row that is never used would be owed for ever; declare at least 1".to_owned(),
        () if task.trains.is_some() => {
            "it trains, and training repeats what it has claimed: set `ppo_epochs`".to_owned()
        }
        () if matches!(task.per, Grain::Mini | Grain::Cycle) => {
            "it claims cut batches, which are taken once and in order; claim rows or groups".to_owned()
        }
        () if !task.writes.is_empty() => {
            let writes = names(task.writes.iter().map(String::as_str));
            format!("it writes {writes}, and a cell is written once; let a task that reads alone draw rows again")
        }
        () => return Ok(()),
    };
    refuse(format!("task `{name}` has reuse {reuse}: {refused}"))
}

fn models(def: &Definition, task: &Task) -> Checked {
    let name = &task.name;
    let trained = task.trains.as_ref().map(|t| &t.model);
    for model in trained.into_iter().chain(&task.samples_with) {
        if !def.models.iter().any(|m| &m.name == model) {
            let known = names(def.models.iter().map(|m| m.name.as_str()));
            return refuse(format!("task `{name}` names model `{model}`, which does not exist; there are: {known}"));
        }
    }
    gang(def, task)?;
    if task.on_lost == OnLost::Resume && (task.trains.is_some() || task.writes.is_empty()) {
        return refuse(format!(
            "task `{name}` has `on_lost: resume`, and trains or writes no column: there is nothing to resume; leave it out"
        ));
    }
    if task.external && (task.trains.is_some() || !task.writes.is_empty()) {
        return refuse(format!(
            "task `{name}` is external, and trains or writes columns: the run would wait for what may never come; an external task reads alone"
        ));
    }
    let Some(trains) = &task.trains else { return Ok(()) };
    if !matches!(task.per, Grain::Mini | Grain::Cycle) {
        return refuse(format!(
            "task `{name}` trains model `{}` but claims rows or groups; a training task claims cut batches (mini or cycle)",
            trains.model
        ));
    }
    let same = |t: &&Task| t.trains.as_ref().is_some_and(|t| t.model == trains.model);
    if let Some(other) = def.tasks.iter().filter(same).find(|t| t.name != task.name) {
        return refuse(format!(
            "tasks `{name}` and `{}` both train model `{}`; one task trains a model",
            other.name, trains.model
        ));
    }
    match &def.schedule {
        Some(plan) if plan.partition == task.partition => Ok(()),
        _ => refuse(format!("task `{name}` trains on partition `{}`, which is not the schedule's", task.partition)),
    }
}

fn gang(def: &Definition, task: &Task) -> Checked {
    let (Some(gang), name) = (&task.gang, &task.name) else { return Ok(()) };
    if task.trains.is_none() {
        return refuse(format!(
            "task `{name}` declares a gang but trains no model; other tasks have any number of workers"
        ));
    }
    if !(1..=MAX_RANKS).contains(&gang.ranks) {
        return refuse(format!("task `{name}` has a gang of {} ranks; from 1 to {MAX_RANKS} are possible", gang.ranks));
    }
    for column in &gang.lengths {
        let of = |p: &Partition| p.columns.iter().find(|c| &c.name == column).map(|c| c.kind.clone());
        let table = find(def, &task.partition);
        let kind = table.and_then(|table| match &table.birth {
            Birth::Expand { from, .. } => of(table).or_else(|| find(def, from).and_then(of)),
            Birth::Put { .. } => of(table),
        });
        if !task.reads.contains(column) || matches!(kind, None | Some(Kind::Dense { .. })) {
            let reads = names(task.reads.iter().map(String::as_str));
            return refuse(format!(
                "the gang of task `{name}` counts lengths of `{column}`; expected a column of varying length that the task reads: {reads}"
            ));
        }
    }
    Ok(())
}

fn producers(def: &Definition, partition: &Partition) -> Checked {
    let name = &partition.name;
    let tasks = || def.tasks.iter().filter(|t| &t.partition == name);
    for column in &partition.columns {
        let writers: Vec<&Task> = tasks().filter(|t| t.writes.contains(&column.name)).collect();
        for (i, a) in writers.iter().enumerate() {
            for b in &writers[i + 1..] {
                let disjoint = match (&a.filter, &b.filter) {
                    (Some(a), Some(b)) => Predicate::disjoint(a, b),
                    _ => false,
                };
                if !disjoint {
                    return refuse(format!(
                        "tasks `{}` and `{}` both write column `{}` of `{name}`; give them filters that exclude each other, or another column",
                        a.name, b.name, column.name
                    ));
                }
            }
        }
        let reader = tasks().find(|t| t.reads.contains(&column.name));
        if let (true, Some(reader), Birth::Expand { .. }) = (writers.is_empty(), reader, &partition.birth) {
            return refuse(format!(
                "task `{}` reads column `{}` of `{name}`, which no task writes",
                reader.name, column.name
            ));
        }
    }
    Ok(())
}

/// Tasks of one partition must have an order in which each finds its columns written.
fn acyclic(def: &Definition, partition: &Partition) -> Checked {
    let mut waiting: Vec<&Task> = def.tasks.iter().filter(|t| t.partition == partition.name).collect();
    loop {
        let before = waiting.len();
        let missing: BTreeSet<&String> = waiting.iter().flat_map(|t| &t.writes).collect();
        let stuck: Vec<&Task> =
            waiting.iter().filter(|t| t.reads.iter().any(|c| missing.contains(c))).copied().collect();
        if stuck.is_empty() {
            return Ok(());
        }
        if stuck.len() == before {
            let circle = names(stuck.iter().map(|t| t.name.as_str()));
            return refuse(format!("tasks {circle} of `{}` wait for each other's columns in a circle", partition.name));
        }
        waiting = stuck;
    }
}

fn schedule(def: &Definition, plan: &Schedule) -> Checked {
    let name = &plan.partition;
    let Some(partition) = find(def, name) else {
        return refuse(format!("the schedule trains partition `{name}`, which does not exist"));
    };
    if gate(partition) != Some(Gate::Schedule) {
        return refuse(format!(
            "the schedule trains partition `{name}`, whose rows are not admitted by the schedule; expand it with that gate"
        ));
    }
    if let Some(other) = def.partitions.iter().find(|p| gate(p) == Some(Gate::Schedule) && p.name != *name) {
        return refuse(format!(
            "partition `{}` is admitted by the schedule, which trains `{name}`; one partition is trained",
            other.name
        ));
    }
    let (b, minis) = (plan.groups_per_cycle, plan.minis_per_cycle);
    if b == 0 || plan.total_cycles == 0 {
        return refuse("the schedule has cycles of 0 groups or a run of 0 cycles; both are at least 1".into());
    }
    if b.checked_mul(plan.total_cycles).is_none() || b.checked_add(plan.ahead).is_none() {
        return refuse("the schedule's numbers of groups do not fit 64 bits".into());
    }
    if minis == 0 || !b.is_multiple_of(minis) {
        return refuse(format!(
            "{b} groups per cycle cannot be cut into {minis} equal mini-batches; choose a divisor of {b}"
        ));
    }
    let trainers: Vec<&Task> = def.tasks.iter().filter(|t| t.trains.is_some()).collect();
    let first = trainers.iter().filter_map(|t| t.trains.as_ref()).map(|t| t.from_cycle).min();
    match first {
        None => return refuse("the schedule has no task that trains: no cycle would ever end".into()),
        Some(0) => {}
        Some(cycle) => {
            return refuse(format!("no task trains before cycle {cycle}: cycle 0 would never end; let one begin at 0"));
        }
    }
    lag(plan)?;
    budget(def, partition, plan)
}

/// Without dropping, the lag a schedule promises is bounded by how far it runs ahead.
fn lag(plan: &Schedule) -> Checked {
    let reach = plan.ahead.div_ceil(plan.groups_per_cycle);
    match plan.max_lag {
        Some(max) if !plan.drop_beyond && max < reach => {
            let order = match plan.order {
                Order::Admission => "admission",
                Order::Completion => "completion",
            };
            refuse(format!(
                "max_lag {max} cannot be kept in {order} order: {} groups may be ahead of cycles of {}, which is a lag of {reach}; raise max_lag, lower the lag, or set drop_beyond",
                plan.ahead, plan.groups_per_cycle
            ))
        }
        _ => Ok(()),
    }
}

fn budget(def: &Definition, partition: &Partition, plan: &Schedule) -> Checked {
    let (Some(budget), Birth::Expand { n, .. }) = (def.budget, &partition.birth) else { return Ok(()) };
    if let Some(column) = partition.columns.iter().find(|c| c.keep && c.max_bytes.is_some()) {
        return refuse(format!(
            "column `{}` of `{}` is kept and counts against the budget, so the budget would fill up; declare no max_bytes for it",
            column.name, partition.name
        ));
    }
    let row: u64 = partition.columns.iter().filter_map(|c| c.max_bytes).sum();
    let cycle = row.saturating_mul(u64::from(*n)).saturating_mul(plan.groups_per_cycle);
    if cycle > budget {
        return refuse(format!(
            "the budget of {budget} bytes is below one cycle of `{}`: {} groups × {n} rows × {row} bytes = {cycle}; raise the budget or make cycles smaller",
            partition.name, plan.groups_per_cycle
        ));
    }
    Ok(())
}
