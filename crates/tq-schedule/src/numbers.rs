//! The arithmetic of a plan.

use indexmap::IndexMap;
use tq_config::Refusals;

use crate::columns::Bound;
use crate::entry::Until;
use crate::phase::{Length, length};
use crate::plan::{Arithmetic, Level, Promises, Rows, Side, Store};
use crate::port::{Extent, Kind, Output};
use crate::schedule::Schedule;
use crate::scope::Scope;

/// A token as text, for text columns whose longest cell is declared in tokens.
const BYTES_PER_TOKEN: u64 = 4;

/// Most cycles of a phase: times the most groups of a cycle it stays far below the largest number.
const MOST_CYCLES: u64 = 1_000_000_000;

/// The longest prompt and response, in tokens.
pub(crate) struct Longest {
    prompt: u64,
    response: u64,
}

impl Longest {
    pub(crate) fn read(scope: &Scope, refusals: &mut Refusals) -> Option<Self> {
        Some(Self {
            prompt: scope.parameter("data.max_prompt_length", refusals)?,
            response: scope.parameter("data.max_response_length", refusals)?,
        })
    }

    fn sequence(&self) -> u64 {
        self.prompt.saturating_add(self.response)
    }

    /// Bytes the longest cell of a column takes: elements × width, without offsets.
    pub(crate) fn bytes(&self, output: &Output) -> u64 {
        let tokens = match output.extent {
            Extent::Prompt => self.prompt,
            Extent::Response => self.response,
            Extent::Sequence => self.sequence(),
            Extent::Fixed(count) => count,
        };
        let product = |axes: &[usize]| axes.iter().fold(1, |all: u64, axis| all.saturating_mul(*axis as u64));
        match (&output.column_type, output.extent) {
            (Kind::Dense { dtype, shape }, _) => product(shape).saturating_mul(dtype.size() as u64),
            (Kind::Ragged { dtype, inner }, _) => {
                tokens.saturating_mul(product(inner)).saturating_mul(dtype.size() as u64)
            }
            (_, Extent::Fixed(bytes)) => bytes,
            (Kind::Utf8 | Kind::Binary | Kind::Json, _) => tokens.saturating_mul(BYTES_PER_TOKEN),
        }
    }
}

pub(crate) fn arithmetic(
    scope: &Scope,
    schedule: &Schedule,
    groups: u64,
    until: Option<&Until>,
    bound: &Bound,
    store: &Store,
    refusals: &mut Refusals,
) -> Option<Arithmetic> {
    let before = refusals.0.len();
    let (name, partition) = bound.partitions.iter().find(|(_, p)| p.training)?;
    let Rows::Expand { source, n, .. } = &partition.rows else {
        return None;
    };
    let mini_batch = mini_batch(scope, groups, *n, bound, refusals)?;
    let longest = Longest::read(scope, refusals)?;
    let rows_per_cycle = groups.saturating_mul(*n);
    let bytes_per_group = partition.bytes_per_group.saturating_add(bound.partitions[source].bytes_per_group);
    let bytes_reserved_least = bytes_per_group.saturating_mul(groups).saturating_mul(schedule.state_every);
    let held = schedule.window(groups).saturating_add((schedule.state_every - 1).saturating_mul(groups));
    let (total_cycles, total_cycles_from) = total_cycles(scope, groups, until, bound, source, refusals)?;
    let level = level(scope, until, bound, refusals);
    if let Some(budget) = store.budget.filter(|budget| *budget < bytes_reserved_least) {
        let cycles = schedule.state_every;
        let of_cycles = if cycles == 1 { "one cycle".into() } else { format!("{cycles} cycles (state_every)") };
        let refusal = scope.refuse(
            "store.budget",
            format!("a budget of {budget} bytes"),
            format!(
                "at least {bytes_reserved_least} bytes, the reservation of {of_cycles}: {groups} groups of {bytes_per_group} bytes in `{name}`{}",
                if cycles == 1 { String::new() } else { format!(", {cycles} times") },
            ),
        );
        refusals
            .push(refusal.action("raise the budget, or lower data.train_batch_size, rollout.n or the maximum lengths"));
    }
    if refusals.0.len() > before {
        return None;
    }
    let minis = groups / mini_batch;
    let updates = bound.tasks.iter().filter_map(|(task, t)| Some((task.clone(), minis * t.training.as_ref()?.epochs)));
    Some(Arithmetic {
        groups_per_cycle: groups,
        rows_per_group: *n,
        rows_per_cycle,
        mini_batch,
        mini_batches_per_cycle: minis,
        updates_per_publication: updates.collect::<IndexMap<_, _>>(),
        total_cycles,
        total_cycles_from,
        level,
        groups_ahead: schedule.ahead(groups),
        window: schedule.window(groups),
        max_tokens_per_cycle: rows_per_cycle.saturating_mul(longest.sequence()),
        bytes_per_group,
        bytes_reserved_least,
        bytes_at_peak: bytes_per_group.saturating_mul(held),
        bytes_evaluation: evaluation(bound),
    })
}

/// The mini-batch all training tasks agree on: batches are cut once.
fn mini_batch(scope: &Scope, groups: u64, n: u64, bound: &Bound, refusals: &mut Refusals) -> Option<u64> {
    let before = refusals.0.len();
    let mut agreed: Option<(u64, &String)> = None;
    for (name, task) in &bound.tasks {
        let Some(training) = &task.training else {
            continue;
        };
        let key = &bound.mini_batch_keys[name];
        let mini = training.mini_batch;
        let refuse = |found: String, expected: String| scope.refuse_parameter(key, found, expected);
        if mini == 0 {
            refusals.push(refuse("a mini-batch of 0 groups".into(), "at least 1".into()));
        } else if mini > groups {
            let found = format!("a mini-batch of {mini} groups");
            refusals.push(
                refuse(found, format!("at most the {groups} groups of a cycle (data.train_batch_size)"))
                    .action("lower it, or raise data.train_batch_size"),
            );
        } else if !groups.is_multiple_of(mini) {
            let found = format!("a mini-batch of {mini} groups");
            refusals.push(
                refuse(found, format!("a divisor of the {groups} groups of a cycle (data.train_batch_size)"))
                    .action(format!("the nearest below is {}", divisor_below(groups, mini))),
            );
        }
        let rows = mini.saturating_mul(n);
        if training.ranks > rows && rows > 0 {
            let refusal = scope.refuse(
                &format!("stages.{}.ranks", task.stage),
                format!("{} ranks", training.ranks),
                format!("at most the {rows} rows of a mini-batch ({mini} groups of {n})"),
            );
            refusals
                .push(refusal.action("every rank gets a share of each mini-batch: lower it, or raise the mini-batch"));
        }
        match agreed {
            Some((first, task)) if first != mini => {
                let found = format!("a mini-batch of {mini} groups for task `{name}`");
                refusals.push(
                    refuse(found, format!("{first}, as for task `{task}`"))
                        .action("batches are cut once, for every training task alike"),
                );
            }
            Some(_) => {}
            None => agreed = Some((mini, name)),
        }
        if training.epochs == 0 {
            refusals.push(scope.refuse(&format!("stages.{}", task.stage), "0 passes over a mini-batch", "at least 1"));
        }
    }
    if refusals.0.len() > before { None } else { agreed.map(|(mini, _)| mini) }
}

fn divisor_below(groups: u64, mini: u64) -> u64 {
    (1..=mini).rev().find(|d| groups.is_multiple_of(*d)).unwrap_or(1)
}

fn total_cycles(
    scope: &Scope,
    groups: u64,
    until: Option<&Until>,
    bound: &Bound,
    source: &str,
    refusals: &mut Refusals,
) -> Option<(Option<u64>, String)> {
    let refuse = |key: &str, found: String, expected: String| {
        if key.starts_with("phases.") {
            scope.refuse(key, found, expected)
        } else {
            scope.refuse_parameter(key, found, expected)
        }
    };
    let too_long = |key: &str, found: String| refuse(key, found, format!("a length of at most {MOST_CYCLES} cycles"));
    match length(scope, until, refusals)? {
        Length::Steps(steps, key) => {
            if steps == 0 {
                let refusal = refuse(&key, "0 steps".into(), "at least 1".into());
                refusals.push(refusal.action("leave the phase out, or give it steps"));
            } else if steps > MOST_CYCLES {
                refusals.push(too_long(&key, format!("{steps} steps")));
            }
            Some((Some(steps), key))
        }
        Length::Epochs(epochs, key) => {
            let Rows::Files { count: Some(rows), .. } = bound.partitions[source].rows else {
                return Some((None, format!("{key} = {epochs}, over rows of `{source}` that were not counted")));
            };
            // A cycle may span an epoch's end, so only the last, incomplete one is lost.
            let cycles = epochs.saturating_mul(rows) / groups;
            let found = format!("{epochs} epochs of {rows} rows");
            if cycles == 0 {
                let refusal = refuse(&key, found, format!("at least one cycle of {groups} groups"));
                refusals.push(refusal.action("raise it, or lower data.train_batch_size"));
            } else if cycles > MOST_CYCLES {
                refusals.push(too_long(&key, found));
            }
            Some((Some(cycles), format!("{key}: {epochs} × {rows} rows of `{source}` / {groups} groups")))
        }
    }
}

/// The level of a metric that ends the phase earlier, which only a single training task can tell.
fn level(scope: &Scope, until: Option<&Until>, bound: &Bound, refusals: &mut Refusals) -> Option<Level> {
    let until = until?;
    let sides = [(Side::AtMost, &until.at_most), (Side::AtLeast, &until.at_least)];
    let mut levels = sides.into_iter().flat_map(|(side, levels)| {
        levels.iter().map(move |(metric, &value)| Level { metric: metric.clone(), side, value })
    });
    let (first, more) = (levels.next()?, levels.next());
    let key = format!("phases.{}.until", scope.phase);
    if let Some(more) = more {
        refusals.push(scope.refuse(&key, format!("two levels, `{first}` and `{more}`"), "one"));
    }
    if !first.value.is_finite() {
        refusals.push(scope.refuse(&key, format!("`{first}`"), "a finite level"));
    }
    let trainers: Vec<&str> =
        bound.tasks.iter().filter(|(_, t)| t.training.is_some()).map(|(n, _)| n.as_str()).collect();
    if trainers.len() != 1 {
        let found = format!("a level, and training tasks {}", trainers.join(", "));
        refusals.push(scope.refuse(&key, found, "one training task, whose metric ends the phase"));
    }
    Some(first)
}

/// Bytes of all evaluation partitions at once, when their rows are counted.
fn evaluation(bound: &Bound) -> Option<u64> {
    let mut total: u64 = 0;
    for partition in bound.partitions.values() {
        let Rows::Expand { source, every: Some(_), .. } = &partition.rows else {
            continue;
        };
        let source = &bound.partitions[source];
        let Rows::Files { count, .. } = source.rows else {
            continue;
        };
        total = total
            .saturating_add(count?.saturating_mul(partition.bytes_per_group.saturating_add(source.bytes_per_group)));
    }
    Some(total)
}

pub(crate) fn promises(schedule: &Schedule, groups: u64) -> Promises {
    let repeatable = schedule.is_repeatable(groups);
    let repeatable_why = if !repeatable {
        "the ledger and the audit are exact; bits depend on timing (whole cycles with nothing ahead, or in admission \
         order on exact weights, are repeatable)"
    } else if schedule.ahead(groups) == 0 {
        "whole cycles, nothing admitted ahead: bit for bit on CPU at a fixed number of threads"
    } else {
        "whole cycles in admission order on exact weights: bit for bit on CPU at a fixed number of threads"
    };
    Promises { lag: schedule.largest_lag(groups), repeatable, repeatable_why: repeatable_why.into() }
}
