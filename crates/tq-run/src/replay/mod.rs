//! `tq-run replay`: a recorded run's rows, fed to some of its stages again.
//!
//! The recorded plan says what the stages were, its archive what they read. A pipeline is made of both: the named stages as
//! they were, `replay` in the place of all others (and `pace` in that of the trainers, when none is named), and a schedule
//! that cuts the archived batches again. From there on it is a run like others: overrides change it, `--resume` goes on
//! with it.

mod pipeline;
mod survey;

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use stage_archive::Archive;
use stage_dataset::Source;
use stage_replay::{Pace, Recording, Replay, pace::NO_WEIGHTS};
use stage_validation::Validation;
use tq_config::Arguments;
use tq_schedule::{
    Phase, Plan, Planner, SourceFiles, StageCatalog,
    plan::{Keep, Rows, StoreKind, Task},
    port::{DescribeError, Ports, Query},
};
use tq_stage::Register;
use transferqueue::audit;

use crate::{registry::Registry, settings};
use pipeline::Recorded;

/// Plans the replay of the run in `root`. `arguments`: names of stages, and overrides; without names, the stages that
/// train.
///
/// # Errors
/// A folder without a recording, a stage that the recorded phase has not, an archive that is damaged or lacks a column.
pub(crate) fn plan(registry: &Registry, root: &Path, phase: Option<&str>, arguments: &[String]) -> Result<Plan> {
    let (stages, overrides): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| !argument.contains('=') && !argument.starts_with('~'));
    let overrides = Arguments::parse(overrides.into_iter().map(String::as_str))?.overrides;
    let path = root.join("plan.yaml");
    let text = fs::read_to_string(&path).with_context(|| {
        format!("cannot read `{}`; expected the folder of a recorded run, such as runs/NAME", path.display())
    })?;
    let recorded =
        Plan::from_yaml(&text).with_context(|| format!("`{}` is no plan of this program", path.display()))?;
    let phase = archived_phase(&recorded, phase).with_context(|| format!("`{}`", path.display()))?;
    let (partition, _) = phase.training_partition().context("the phase trains on no partition")?;
    let kept = kept(phase, partition, &stages)?;
    let last = recorded.phases.last().is_some_and(|last| last.name == phase.name);
    let folder = if last { root.to_owned() } else { root.join("phases").join(&phase.name) };
    let archive = folder.join("archive").join(partition);
    let survey = survey::survey(&archive, partition, &phase.arithmetic, trained(&folder)?)?;
    let recorded = Recorded { root, plan: &recorded, phase, archive, partition, kept, survey };

    let source = recorded.source()?;
    let catalog = Replaying { registry, source: &source };
    let name = format!("replay of {}", root.display());
    let rows = |_: &SourceFiles<'_>| Some(recorded.survey.groups);
    let planner = Planner::new(&catalog).rows(&rows).processes(true);
    let planned =
        |versions| Ok::<_, anyhow::Error>(planner.plan_text(&recorded.pipeline(versions)?, &name, &overrides)?);
    let mut versions = !recorded.samples();
    let mut plan = planned(versions)?;
    if versions && !recorded.fits(&plan) {
        tracing::warn!(
            "other batches than the recorded ones: rows are not given the weight versions they were recorded with"
        );
        versions = false;
        plan = planned(versions)?;
    }
    ensure!(
        plan.store.kind == StoreKind::Thread,
        "store.kind: found `process`; expected `thread`: a replay's store is a part of the runner; leave it out"
    );
    recorded.compare_length(&plan);
    settings::check(&plan)?;
    Ok(plan)
}

impl Recorded<'_> {
    /// Whether the plan cuts the recorded batches, and admits each group before its oldest version is replaced.
    fn fits(&self, plan: &Plan) -> bool {
        let recorded = &self.phase.arithmetic;
        plan.phases.iter().all(|phase| {
            let planned = &phase.arithmetic;
            planned.groups_per_cycle == recorded.groups_per_cycle
                && planned.groups_ahead >= recorded.groups_per_cycle.saturating_mul(self.survey.lag)
        })
    }

    /// Says when the archive ends before the replay would.
    fn compare_length(&self, plan: &Plan) {
        for arithmetic in plan.phases.iter().map(|phase| &phase.arithmetic) {
            let there = self.survey.groups.div_ceil(arithmetic.groups_per_cycle);
            if let Some(total) = arithmetic.total_cycles.filter(|total| *total > there) {
                tracing::warn!("the archive holds {there} cycles of {total}: the replay ends with them");
            }
        }
    }
}

/// The phase of that name, else the last one that archived what it trained on.
fn archived_phase<'a>(plan: &'a Plan, name: Option<&str>) -> Result<&'a Phase> {
    let archives = |phase: &&Phase| {
        let columns = phase.training_partition().map(|(_, partition)| partition.columns.values());
        columns.into_iter().flatten().any(|column| column.keep == Some(Keep::Archive))
    };
    let record = "record the run with `partitions.NAME.keep=archive`, NAME being the partition that is trained on";
    match name {
        Some(name) => {
            let phase = plan.phase(name).with_context(|| {
                let names: Vec<&str> = plan.phases.iter().map(|phase| phase.name.as_str()).collect();
                format!("found no phase `{name}`; expected one of {}", names.join(", "))
            })?;
            ensure!(archives(&phase), "phase `{name}` archived nothing; {record}");
            Ok(phase)
        }
        None => plan.phases.iter().rfind(archives).with_context(|| format!("no phase archived anything; {record}")),
    }
}

/// Stages that planner and replays add: nothing is fed to them.
const ADDED: [&str; 6] = [Source::NAME, Validation::NAME, Archive::NAME, Recording::NAME, Replay::NAME, Pace::NAME];

/// The tasks of the named stages on the archived partition; without names, those that train.
fn kept<'a>(phase: &'a Phase, partition: &str, stages: &[&String]) -> Result<Vec<&'a Task>> {
    let added = |task: &Task| ADDED.contains(&task.implementation.as_str());
    let here: Vec<&Task> = phase.tasks.values().filter(|task| task.partition == partition && !added(task)).collect();
    for name in stages {
        if !here.iter().any(|task| task.stage == **name) {
            let known: Vec<&str> = here.iter().map(|task| task.stage.as_str()).collect();
            bail!(
                "found the stage `{name}`; expected one that phase `{}` ran on `{partition}`: {}; overrides are written KEY=VALUE",
                phase.name,
                known.join(", ")
            );
        }
    }
    let stays = |task: &&Task| match stages {
        [] => task.training.is_some(),
        names => names.iter().any(|name| **name == task.stage),
    };
    let kept: Vec<&Task> = here.into_iter().filter(stays).collect();
    ensure!(!kept.is_empty(), "phase `{}` ran no stage that trains on `{partition}`", phase.name);
    let trains =
        |model: &str| kept.iter().any(|t| t.training.is_some() && t.model.as_ref().is_some_and(|m| m.name == model));
    for (task, model) in kept.iter().filter_map(|task| Some((task, &task.model.as_ref()?.name))) {
        ensure!(
            trains(model),
            "stage `{}` computes with model `{model}`, which none of the named stages trains; expected its trainer, which publishes its weights: name it too, or leave `{}` out and take what was recorded",
            task.stage,
            task.stage
        );
    }
    let first = kept.iter().filter_map(|task| Some((task.training.as_ref()?.from_cycle, &task.stage))).min();
    if let Some((step, stage)) = first.filter(|(step, _)| *step > 1) {
        bail!(
            "stage `{stage}` trains from step {step} on; found no other stage that trains before; expected one: name the trainer of the first steps too"
        );
    }
    Ok(kept)
}

/// Cycles that the audit of the surviving lineage tells of.
fn trained(folder: &Path) -> Result<u64> {
    let path = folder.join("audit.jsonl");
    if !path.exists() {
        return Ok(0);
    }
    Ok(audit::surviving(&path)?.iter().map(|line| line.step).max().unwrap_or(0))
}

/// The program's stages, with the archive as the source of prompts.
struct Replaying<'a> {
    registry: &'a Registry,
    /// Settings of the source.
    source: &'a Value,
}

impl StageCatalog for Replaying<'_> {
    fn describe(&self, query: &Query<'_>) -> Result<Ports, DescribeError> {
        self.registry.describe(query)
    }

    fn stages(&self) -> Vec<String> {
        self.registry.stages()
    }

    fn model_kinds(&self) -> Vec<String> {
        let mut kinds = self.registry.model_kinds();
        kinds.push(NO_WEIGHTS.to_owned());
        kinds
    }

    fn check_device(&self, name: &str) -> Result<(), String> {
        self.registry.check_device(name)
    }

    fn sections(&self) -> Vec<(String, Value)> {
        self.registry.sections()
    }

    fn source(&self) -> &str {
        Recording::NAME
    }

    fn source_settings(&self) -> Value {
        self.source.clone()
    }
}

/// Whether the partition is filled from an archive, which was looked through when the replay was planned.
pub(crate) fn is_replayed(phase: &Phase, partition: &str) -> bool {
    let is_files = phase.partitions.get(partition).is_some_and(|p| matches!(p.rows, Rows::Files { .. }));
    is_files && phase.tasks.values().any(|task| task.partition == partition && task.implementation == Recording::NAME)
}
