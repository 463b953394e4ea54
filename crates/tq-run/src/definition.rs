//! The plan in the store's words: what the catalog of one phase is created from.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use tq_schedule::{Phase, plan, port::Per, schedule};
use transferqueue::{
    catalog::{
        command::Tag,
        definition::{
            Birth, CutGrain, Definition, Gang, Gate, Grain, Model, OnPublication, Order, Partition, Poison, Sampling,
            Schedule, Task, Trains, WeightRule,
        },
        predicate::Predicate,
    },
    schema::Column,
};

/// Blocks of cycles' worth of prompts that may be queued ahead of admission.
const QUEUED_CYCLES: u64 = 2;

/// Translates one phase.
///
/// # Errors
/// When the phase's length is not known yet, or a `where` value is not a tag.
pub(crate) fn definition(phase: &Phase, plan: &plan::Plan) -> Result<Definition> {
    let partitions = phase.partitions.iter().map(|(name, p)| partition(name, p, phase)).collect::<Result<_>>()?;
    let sources: Vec<_> = phase
        .partitions
        .iter()
        .filter(|(_, p)| !matches!(p.rows, plan::Rows::Expand { .. }))
        .map(|(n, _)| n.as_str())
        .collect();
    let tasks = phase
        .tasks
        .iter()
        .filter(|(_, t)| !sources.contains(&t.partition.as_str()))
        .map(|(name, t)| task(name, t, phase))
        .collect::<Result<_>>()?;
    let models = phase
        .models
        .iter()
        .map(|(name, model)| Model {
            name: name.clone(),
            keep_initial: model.versions.contains(&plan::Version::Initial),
        })
        .collect();
    Ok(Definition {
        seed: plan.seed,
        partitions,
        tasks,
        models,
        schedule: Some(cycles(phase)?),
        budget: plan.store.budget,
        weights: plan.store.weights,
    })
}

fn partition(name: &str, p: &plan::Partition, phase: &Phase) -> Result<Partition> {
    let own = p.columns.iter().filter(|(_, c)| !matches!(c.origin, plan::ColumnOrigin::Linked(_)));
    let columns = own
        .map(|(name, c)| Column {
            name: name.clone(),
            kind: c.column_type.clone(),
            attributes: c.attributes.clone(),
            // What is archived has the archive as a reader, and is freed once that is done.
            keep: c.keep == Some(plan::Keep::Rows),
            max_bytes: Some(c.max_bytes_per_row),
        })
        .collect();
    let birth = match &p.rows {
        plan::Rows::Files { .. } | plan::Rows::Put => {
            let rounds = phase.partitions.values().any(
                |other| matches!(&other.rows, plan::Rows::Expand { source, every: Some(_), .. } if source == name),
            );
            let arithmetic = &phase.arithmetic;
            let queued = arithmetic.window.max(arithmetic.groups_per_cycle).saturating_mul(QUEUED_CYCLES);
            let capacity = (!rounds).then_some(queued);
            Birth::Put { capacity }
        }
        plan::Rows::Expand { source, n, every } => {
            let link = p
                .columns
                .iter()
                .filter(|(_, c)| matches!(c.origin, plan::ColumnOrigin::Linked(_)))
                .map(|(name, _)| name.clone())
                .collect();
            let gate = match every {
                None => Gate::Schedule,
                Some(cycles) => Gate::Every { cycles: *cycles, first: validates_first(phase) },
            };
            Birth::Expand {
                from: source.clone(),
                n: u32::try_from(*n).with_context(|| format!("n of partition `{name}` is {n}"))?,
                link,
                gate,
            }
        }
    };
    Ok(Partition { name: name.to_owned(), columns, birth })
}

fn validates_first(phase: &Phase) -> bool {
    phase.parameters.pointer("/trainer/val_before_train").and_then(serde_json::Value::as_bool).unwrap_or(true)
}

fn task(name: &str, t: &plan::Task, phase: &Phase) -> Result<Task> {
    let exact = phase.schedule.weights == schedule::WeightsRule::Exact;
    let live = t.model.as_ref().filter(|m| m.version == Some(plan::Version::Live) && t.training.is_none());
    let streams = matches!(t.per, Per::Row | Per::Group);
    let trains = match (&t.training, &t.model) {
        (Some(training), Some(model)) => {
            Some(Trains { model: model.name.clone(), from_cycle: training.from_cycle.saturating_sub(1) })
        }
        (Some(_), None) => bail!("task `{name}` trains but has no model"),
        (None, _) => None,
    };
    Ok(Task {
        // Two ports may be served by one column (old log-probs by those of the rollout).
        reads: t.reads.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
        writes: t.writes.values().cloned().collect(),
        per: match t.per {
            Per::Row => Grain::Row,
            Per::Group => Grain::Group,
            Per::Mini => Grain::Mini,
            Per::Cycle => Grain::Cycle,
        },
        filter: predicate(name, t)?,
        sampling: Sampling::Sequential,
        reuse: u32::try_from(t.reuse).with_context(|| format!("reuse of task `{name}` is {}", t.reuse))?,
        trains,
        gang: t.training.as_ref().filter(|training| training.ranks > 1).map(gang).transpose()?,
        samples_with: live.filter(|_| exact && streams).map(|m| m.name.clone()),
        attempts: u32::try_from(t.attempts).with_context(|| format!("attempts of task `{name}` is {}", t.attempts))?,
        on_poison: match t.on_failure {
            plan::OnFailure::Stop => Poison::Stop,
            plan::OnFailure::Drop => Poison::Drop,
        },
        on_lost: t.on_lost,
        external: t.external,
        ..Task::new(name, &t.partition)
    })
}

fn gang(training: &plan::TaskTraining) -> Result<Gang> {
    Ok(Gang { ranks: u32::try_from(training.ranks).context("ranks")?, lengths: training.lengths.clone() })
}

fn predicate(name: &str, t: &plan::Task) -> Result<Option<Predicate>> {
    let all = t
        .filter
        .iter()
        .map(|(tag, value)| {
            let value: Tag = serde_json::from_value(value.clone())
                .with_context(|| format!("task `{name}`: where.{tag} is {value}; a tag is a bool, number or text"))?;
            Ok(Predicate::Is(tag.clone(), value))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok((!all.is_empty()).then_some(Predicate::All(all)))
}

fn cycles(phase: &Phase) -> Result<Schedule> {
    let (partition, _) = phase.training_partition().context("the phase trains on no partition")?;
    let arithmetic = &phase.arithmetic;
    let s = &phase.schedule;
    let total_cycles = arithmetic.total_cycles.with_context(|| {
        format!("the length of phase `{}` is not known: set trainer.total_training_steps, or trainer.total_epochs with readable files", phase.name)
    })?;
    Ok(Schedule {
        partition: partition.to_owned(),
        groups_per_cycle: arithmetic.groups_per_cycle,
        minis_per_cycle: arithmetic.mini_batches_per_cycle,
        ahead: arithmetic.groups_ahead,
        total_cycles,
        order: match s.order {
            schedule::Order::Admission => Order::Admission,
            schedule::Order::Completion => Order::Completion,
        },
        grain: match s.grain {
            schedule::Grain::Cycle => CutGrain::Cycle,
            schedule::Grain::Mini => CutGrain::Mini,
        },
        weights: match s.weights {
            schedule::WeightsRule::Exact => WeightRule::Exact,
            schedule::WeightsRule::AtLeast => WeightRule::AtLeast,
        },
        max_lag: s.max_lag,
        drop_beyond: s.drop_beyond,
        on_publication: match s.on_publication {
            schedule::OnPublication::Finish => OnPublication::Finish,
            schedule::OnPublication::Continue => OnPublication::Continue,
        },
    })
}
