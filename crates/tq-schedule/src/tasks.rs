//! Which stages a phase runs, on which partitions, with which model.

mod fields;
mod tables;

use indexmap::IndexMap;
use serde_json::Value as Json;
use tq_config::{Refusals, join};

use crate::entry::{self, Keeps, When};
use crate::plan::{ModelRef, Needs, Note, OnFailure, OnLost, Rows};
use crate::planner::{Planner, entries, keys};
use crate::port::{DescribeError, Output, Per, Ports, Query};
use crate::scope::Scope;
use fields::{check_fields, external, model, per, reuse, serve};
use tables::tables;

/// A phase before its ports are bound.
pub(crate) struct Drafts {
    pub(crate) partitions: IndexMap<String, Table>,
    pub(crate) tasks: Vec<Draft>,
    /// Stages that are switched off, with the columns they would write: named when one of those is missed.
    pub(crate) off: Vec<Off>,
}

/// A partition before its columns are known.
pub(crate) struct Table {
    pub(crate) rows: Rows,
    pub(crate) link: Vec<String>,
    /// Columns that clients put.
    pub(crate) put: Vec<Output>,
    pub(crate) keep: Keeps,
    /// The key it is declared by.
    pub(crate) key: String,
}

/// One stage serving one partition, before its ports are bound.
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) stage: String,
    /// Key of the stage in the pipeline; that of the partition for tasks the planner adds.
    pub(crate) key: String,
    pub(crate) implementation: String,
    pub(crate) partition: String,
    pub(crate) priority: u64,
    pub(crate) per: Per,
    pub(crate) info: Ports,
    pub(crate) model: Option<ModelRef>,
    pub(crate) bind: IndexMap<String, String>,
    pub(crate) filter: IndexMap<String, Json>,
    pub(crate) from_cycle: u64,
    pub(crate) ranks: u64,
    pub(crate) reuse: u64,
    pub(crate) attempts: u64,
    pub(crate) on_failure: OnFailure,
    pub(crate) on_lost: OnLost,
    pub(crate) with: Json,
    pub(crate) columns: Columns,
}

/// What decides the columns that a task reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    /// Its ports.
    Ports,
    /// What its partition archives.
    Archived,
    /// The pipeline names them, and whoever reads them is no part of the run.
    External(Vec<String>),
}

/// The `use` of a stage whose workers are no part of the run.
pub(crate) const EXTERNAL: &str = "external";

/// A stage that `when` switches off.
pub(crate) struct Off {
    pub(crate) stage: String,
    pub(crate) why: &'static str,
    pub(crate) columns: Vec<String>,
}

#[expect(clippy::too_many_arguments, reason = "one call, from the phase")]
pub(crate) fn draft(
    planner: &Planner<'_>,
    scope: &Scope,
    phase: &entry::Phase,
    phases: &IndexMap<String, entry::Phase>,
    needs: Needs,
    parameters: &Json,
    refusals: &mut Refusals,
    notes: &mut Vec<Note>,
) -> Drafts {
    let stages: IndexMap<String, entry::Stage> = entries(&scope.pipeline, "stages", refusals);
    let declared: IndexMap<String, entry::Partition> = entries(&scope.pipeline, "partitions", refusals);
    let mut tables = tables(planner, scope, &declared, parameters, refusals, notes);
    let members = members(scope, phase, phases, refusals);
    let describe = Describe { planner, scope, parameters };
    let mut drafts = Drafts { partitions: IndexMap::new(), tasks: Vec::new(), off: Vec::new() };

    for (name, stage) in stages.iter().filter(|(name, _)| members.contains(name)) {
        let key = format!("stages.{name}");
        let with = Json::Object(stage.with.clone().into_iter().collect());
        if let Some(why) = is_off(stage.when, needs) {
            if let Ok(info) = planner.catalog.describe(&Query { stage: &stage.implementation, parameters, with: &with })
            {
                let columns = info.outputs.iter().map(|o| stage.bind.get(&o.name).unwrap_or(&o.name).clone()).collect();
                drafts.off.push(Off { stage: name.clone(), why, columns });
            }
            continue;
        }
        let (info, columns) = match stage.implementation == EXTERNAL {
            true => (Some(Ports::new(vec![], vec![])), external(scope, &key, stage, refusals)),
            false => (describe.stage(&key, &stage.implementation, &with, refusals), Some(Columns::Ports)),
        };
        let (Some(info), Some(columns)) = (info, columns) else {
            continue;
        };
        let partitions = serve(scope, name, stage, &tables, &stages, &members, refusals);
        let model = model(scope, &key, stage, &info, refusals);
        let per = per(scope, &key, stage, &info, model.as_ref(), refusals);
        check_fields(scope, &key, stage, &info, refusals);
        reuse(scope, &key, stage, &info, per, refusals);
        for (priority, partition) in partitions.iter().enumerate() {
            drafts.tasks.push(Draft {
                name: if partitions.len() == 1 { name.clone() } else { format!("{name}.{partition}") },
                stage: name.clone(),
                key: key.clone(),
                implementation: stage.implementation.clone(),
                partition: partition.clone(),
                priority: priority as u64,
                per,
                info: info.clone(),
                model: model.clone(),
                bind: stage.bind.clone(),
                filter: stage.filter.clone(),
                from_cycle: stage.from_cycle.unwrap_or(0),
                ranks: stage.ranks.unwrap_or(1),
                reuse: stage.reuse.unwrap_or(1),
                attempts: stage.attempts.unwrap_or(3),
                on_failure: stage.on_failure.unwrap_or(OnFailure::Stop),
                on_lost: stage.on_lost.unwrap_or_default(),
                with: with.clone(),
                columns: columns.clone(),
            });
        }
    }
    keep_used(&mut tables, &drafts.tasks);
    implicit(planner, scope, &describe, &tables, &mut drafts, refusals);
    drafts.partitions = tables;
    drafts
}

/// The stages of the phase: those it lists, else those no other phase lists.
fn members(
    scope: &Scope,
    phase: &entry::Phase,
    phases: &IndexMap<String, entry::Phase>,
    refusals: &mut Refusals,
) -> Vec<String> {
    let all: Vec<&str> = keys(&scope.pipeline, "stages").collect();
    let listed =
        |phase: &entry::Phase| phase.stages.as_ref().filter(|names| names.0 != ["*"]).map(|names| names.0.clone());
    if let Some(names) = listed(phase) {
        for name in names.iter().filter(|name| !all.contains(&name.as_str())) {
            let key = format!("phases.{}.stages", scope.phase);
            let refusal = scope.refuse(&key, format!("`{name}`"), "a stage of this pipeline");
            refusals.push(refusal.nearest(name, all.iter().copied()));
        }
        return names;
    }
    let elsewhere: Vec<String> =
        if phase.stages.is_some() { Vec::new() } else { phases.values().filter_map(listed).flatten().collect() };
    all.into_iter().map(str::to_owned).filter(|name| !elsewhere.contains(name)).collect()
}

fn is_off(when: When, needs: Needs) -> Option<&'static str> {
    match when {
        When::Always(false) => Some("`when` is false"),
        When::Critic if !needs.critic => Some("`need.critic` is false"),
        When::Reference if !needs.reference => Some("`need.reference` is false"),
        When::Old if !needs.old => Some("`need.old` is false"),
        When::Filter if !needs.filter => Some("`need.filter` is false"),
        _ => None,
    }
}

struct Describe<'a> {
    planner: &'a Planner<'a>,
    scope: &'a Scope,
    parameters: &'a Json,
}

impl Describe<'_> {
    fn stage(&self, key: &str, name: &str, with: &Json, refusals: &mut Refusals) -> Option<Ports> {
        match self.planner.catalog.describe(&Query { stage: name, parameters: self.parameters, with }) {
            Ok(info) => Some(info),
            Err(DescribeError::Unknown) => {
                let known = self.planner.catalog.stages();
                let refusal = self.scope.refuse(&join(key, "use"), format!("the stage `{name}`"), "a registered stage");
                let refusal = refusal.nearest(name, known.iter().map(String::as_str));
                let list = format!("run it with the program that registers it; this one has {}", known.join(", "));
                refusals.push(if refusal.action.is_empty() { refusal.action(list) } else { refusal });
                None
            }
            Err(DescribeError::Parameter { key: parameter, found, expected }) => {
                let refusal = match parameter.split('.').next() {
                    Some("with") => self.scope.refuse(&join(key, &parameter), found, expected),
                    Some("stages") => self.scope.refuse(key, found, expected),
                    _ => self.scope.refuse_parameter(&parameter, found, expected),
                };
                refusals.push(refusal.action(format!("stage `{name}` reads it")));
                None
            }
        }
    }
}

/// Leaves out partitions that no task serves and nothing served expands.
fn keep_used(tables: &mut IndexMap<String, Table>, tasks: &[Draft]) {
    let mut used: Vec<String> = tasks.iter().map(|t| t.partition.clone()).collect();
    for (name, table) in tables.iter() {
        if let Rows::Expand { source, .. } = &table.rows
            && used.contains(name)
        {
            used.push(source.clone());
        }
    }
    tables.retain(|name, _| used.contains(name));
}

/// The tasks the planner adds: the source stage on every partition of files, evaluation on every one with `every`, the
/// archive on every one that archives columns.
fn implicit(
    planner: &Planner<'_>,
    scope: &Scope,
    describe: &Describe<'_>,
    tables: &IndexMap<String, Table>,
    drafts: &mut Drafts,
    refusals: &mut Refusals,
) {
    let source = planner.catalog.source().to_owned();
    let evaluation = planner.catalog.evaluation().map(str::to_owned);
    let archive = planner.catalog.archive().to_owned();
    for reserved in [&source, &archive].into_iter().chain(&evaluation) {
        if scope.pipeline.get(&format!("stages.{reserved}")).is_some() {
            let refusal = scope.refuse(
                &format!("stages.{reserved}"),
                "a name the planner uses for a stage it adds",
                "another name",
            );
            refusals.push(refusal.action("rename the stage"));
        }
    }
    let mut add = |stage: &str, wanted: &dyn Fn(&Table) -> bool, first: bool, refusals: &mut Refusals| {
        let served: Vec<(&String, &Table)> = tables.iter().filter(|(_, table)| wanted(table)).collect();
        let none = || Json::Object(serde_json::Map::new());
        let with = if stage == source { planner.catalog.source_settings() } else { none() };
        let Some((_, table)) = served.first() else {
            return;
        };
        let Some(info) = describe.stage(&table.key, stage, &with, refusals) else {
            return;
        };
        let added = served.iter().enumerate().map(|(priority, (partition, table))| Draft {
            name: if served.len() == 1 { stage.to_owned() } else { format!("{stage}.{partition}") },
            stage: stage.to_owned(),
            key: table.key.clone(),
            implementation: stage.to_owned(),
            partition: (*partition).clone(),
            priority: priority as u64,
            per: info.per,
            info: info.clone(),
            model: None,
            bind: IndexMap::new(),
            filter: IndexMap::new(),
            from_cycle: 0,
            ranks: 1,
            reuse: 1,
            attempts: 3,
            on_failure: OnFailure::Stop,
            on_lost: OnLost::Again,
            with: with.clone(),
            columns: if stage == archive { Columns::Archived } else { Columns::Ports },
        });
        if first {
            drafts.tasks.splice(0..0, added);
        } else {
            drafts.tasks.extend(added);
        }
    };
    add(&source, &|table| matches!(table.rows, Rows::Files { .. }), true, refusals);
    if let Some(evaluation) = evaluation {
        add(&evaluation, &|table| matches!(table.rows, Rows::Expand { every: Some(_), .. }), false, refusals);
    }
    add(&archive, &|table| table.keep.archives(), false, refusals);
}
