//! Planning one phase: its parameters, schedule, needs, tasks, columns and numbers, in this order.

mod chosen;
mod ranges;

use indexmap::IndexMap;
use tq_config::{Node, Override, Parameters, Refusals, join};

use crate::entry::{self, Until};
use crate::plan::{Needs, Note, Phase, Store};
use crate::planner::{self, Planner, entries};
use crate::schedule::{Preset, Schedule};
use crate::scope::Scope;
use crate::{columns, numbers, tasks};

/// Plans every phase of the pipeline; a pipeline without `phases` has one, called `main`.
#[expect(clippy::too_many_arguments, reason = "the planner's state, taken apart once")]
pub(crate) fn plan_all(
    planner: &Planner<'_>,
    pipeline: &Node,
    resolved: &Node,
    parameters: &Parameters,
    of_phases: &[(String, Override)],
    store: &Store,
    refusals: &mut Refusals,
    notes: &mut Vec<Note>,
) -> Vec<Phase> {
    let has_phases = resolved.get("phases").is_some_and(|node| !node.is_null());
    let phases: IndexMap<String, entry::Phase> = if has_phases {
        entries(resolved, "phases", refusals)
    } else {
        IndexMap::from([("main".to_owned(), entry::Phase::default())])
    };
    for (phase, argument) in of_phases {
        if !phases.contains_key(phase) {
            let refusal =
                tq_config::Refusal::new(format!("phases.{phase}"), format!("`{phase}`"), "a phase of this pipeline");
            refusals.push(refusal.at(&argument.origin()).nearest(phase, phases.keys().map(String::as_str)));
        }
    }
    let mut planned = Vec::new();
    let names: Vec<&String> = phases.keys().collect();
    for (index, (name, entry)) in phases.iter().enumerate() {
        let key = format!("phases.{name}");
        if let Some(init) = &entry.init
            && !names[..index].contains(&init)
        {
            let mut refusal =
                tq_config::Refusal::new(join(&key, "init"), format!("`{init}`"), "a phase before this one");
            refusal.at = resolved.get(&join(&key, "init")).map(|node| Box::new(node.place().clone()));
            refusals.push(refusal.nearest(init, names[..index].iter().map(|n| n.as_str())));
        }
        let Some(scope) = scope(planner, name, pipeline, parameters, of_phases, refusals, notes) else {
            continue;
        };
        if let Some(phase) = plan(planner, &scope, entry, &phases, store, refusals, notes) {
            planned.push(phase);
        }
    }
    if refusals.0.is_empty() {
        for name in planner::keys(resolved, "partitions") {
            let key = format!("partitions.{name}");
            let noted = notes.iter().any(|note| note.key == key);
            if !noted && !planned.iter().any(|phase| phase.partitions.contains_key(name)) {
                let at = resolved.get(&key).map_or(String::new(), |n| n.place().to_string());
                let reason = "no active stage serves this partition: it is not made".into();
                notes.push(Note { key, at, reason });
            }
        }
    }
    planned
}

/// The phase's own parameters on top of the run's, and the pipeline read under them.
fn scope(
    planner: &Planner<'_>,
    name: &str,
    pipeline: &Node,
    parameters: &Parameters,
    of_phases: &[(String, Override)],
    refusals: &mut Refusals,
    notes: &mut Vec<Note>,
) -> Option<Scope> {
    let mut parameters = parameters.clone();
    if let Some(layer) = pipeline.get(&format!("phases.{name}.parameters"))
        && let Err(more) = parameters.layer(layer)
    {
        refusals.extend(more);
    }
    for (_, argument) in of_phases.iter().filter(|(phase, _)| phase == name) {
        if let Err(more) = parameters.apply(argument) {
            refusals.extend(more);
        }
    }
    for note in planner::notes(&parameters) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let read = planner.read(&parameters, pipeline);
    let (tree, pipeline) = read.map_err(|more| refusals.extend(more)).ok()?;
    Some(Scope { phase: name.to_owned(), pipeline, tree })
}

fn plan(
    planner: &Planner<'_>,
    scope: &Scope,
    entry: &entry::Phase,
    phases: &IndexMap<String, entry::Phase>,
    store: &Store,
    refusals: &mut Refusals,
    notes: &mut Vec<Note>,
) -> Option<Phase> {
    let before = refusals.0.len();
    // With a wrong schedule the rest is still looked at, under the plainest one.
    let schedule = chosen::schedule(planner, scope, refusals).unwrap_or_else(|| Schedule::preset(Preset::OnPolicy));
    ranges::check(scope, refusals);
    // Outside its range it has been refused; nothing is divided by 0.
    let groups: u64 = scope.parameter("data.train_batch_size", refusals).filter(|groups| *groups > 0)?;
    chosen::reachable(scope, &schedule, groups, refusals);
    let needs = needs(scope, &schedule, groups, refusals)?;
    let json = scope.tree.to_json();
    let drafts = tasks::draft(planner, scope, entry, phases, needs, &json, refusals, notes);
    let bound = columns::bind(planner, scope, drafts, refusals.0.len() == before, refusals, notes)?;
    let arithmetic = numbers::arithmetic(scope, &schedule, groups, entry.until.as_ref(), &bound, store, refusals)?;
    let promises = numbers::promises(&schedule, groups);
    Some(Phase {
        name: scope.phase.clone(),
        init: entry.init.clone(),
        schedule,
        needs,
        partitions: bound.partitions,
        tasks: bound.tasks,
        models: bound.models,
        arithmetic,
        promises,
        parameters: json,
    })
}

/// verl's rules for what an algorithm needs.
fn needs(scope: &Scope, schedule: &Schedule, groups: u64, refusals: &mut Refusals) -> Option<Needs> {
    let critic: Option<bool> = scope.parameter("critic.enable", refusals)?;
    let estimator: String = scope.parameter("algorithm.adv_estimator", refusals)?;
    let in_reward: bool = scope.parameter("algorithm.use_kl_in_reward", refusals)?;
    let in_loss: bool = scope.parameter("actor_rollout_ref.actor.use_kl_loss", refusals)?;
    let bypass: bool = scope.parameter("algorithm.rollout_correction.bypass_mode", refusals)?;
    let filter: bool = scope.parameter("algorithm.filter_groups.enable", refusals)?;
    let mini: u64 = scope.parameter("actor_rollout_ref.actor.ppo_mini_batch_size", refusals)?;
    let epochs: u64 = scope.parameter("actor_rollout_ref.actor.ppo_epochs", refusals)?;
    let updates = groups.div_ceil(mini.max(1)).saturating_mul(epochs);
    Some(Needs {
        critic: critic.unwrap_or(estimator == "gae"),
        reference: in_reward || in_loss,
        old: !bypass && (updates > 1 || schedule.ahead(groups) > 0),
        filter,
    })
}

/// Where the length of a phase comes from.
pub(crate) enum Length {
    Steps(u64, String),
    Epochs(u64, String),
}

/// `until`, else `trainer.total_training_steps`, else `trainer.total_epochs`.
pub(crate) fn length(scope: &Scope, until: Option<&Until>, refusals: &mut Refusals) -> Option<Length> {
    let key = format!("phases.{}.until", scope.phase);
    match until.map(|until| (until.steps, until.epochs)) {
        Some((Some(steps), None)) => return Some(Length::Steps(steps, key)),
        Some((None, Some(epochs))) => return Some(Length::Epochs(epochs, key)),
        Some((Some(_), Some(_))) => {
            refusals.push(scope.refuse(&key, "`steps` and `epochs`", "one of them"));
            return None;
        }
        Some((None, None)) | None => {}
    }
    let steps: Option<u64> = scope.parameter("trainer.total_training_steps", refusals)?;
    if let Some(steps) = steps {
        return Some(Length::Steps(steps, "trainer.total_training_steps".into()));
    }
    let epochs: u64 = scope.parameter("trainer.total_epochs", refusals)?;
    Some(Length::Epochs(epochs, "trainer.total_epochs".into()))
}
