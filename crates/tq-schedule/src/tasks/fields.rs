//! What a stage says of itself: partitions, model, claim, bindings.

use indexmap::IndexMap;
use tq_config::{Refusal, Refusals, join};

use super::{Columns, Table};
use crate::entry::{self, Names};
use crate::plan::{ModelRef, OnLost, Rows, Version};
use crate::planner::keys;
use crate::port::{Per, Ports};
use crate::scope::Scope;

/// Most ranks of a stage: each is a thread or a process of its own.
const MOST_RANKS: u64 = 1_024;

/// Most attempts at a row.
const MOST_ATTEMPTS: u64 = 1_000;

/// Most uses of a row.
const MOST_REUSE: u64 = 1_000_000;

/// The partitions a stage serves: those it names, else the one that the phase trains on.
pub(super) fn serve(
    scope: &Scope,
    name: &str,
    stage: &entry::Stage,
    tables: &IndexMap<String, Table>,
    stages: &IndexMap<String, entry::Stage>,
    members: &[String],
    refusals: &mut Refusals,
) -> Vec<String> {
    let key = format!("stages.{name}");
    if let Some(Names(named)) = &stage.serve {
        let mut served: Vec<String> = Vec::new();
        for partition in named {
            let declared = scope.pipeline.get(&format!("partitions.{partition}")).is_some();
            if served.contains(partition) {
                refusals.push(scope.refuse(
                    &join(&key, "serve"),
                    format!("`{partition}` twice"),
                    "each partition once",
                ));
            } else if tables.contains_key(partition) {
                served.push(partition.clone());
            } else if !declared {
                let refusal = scope.refuse(&join(&key, "serve"), format!("`{partition}`"), "a partition");
                refusals.push(refusal.nearest(partition, keys(&scope.pipeline, "partitions")));
            }
        }
        return served;
    }
    // A partition that only stages of other phases name is theirs.
    let of_others = |partition: &str| {
        let names = |stage: &entry::Stage| stage.serve.as_ref().is_some_and(|s| s.0.iter().any(|p| p == partition));
        let here = stages.iter().any(|(n, s)| members.contains(n) && names(s));
        !here && stages.iter().any(|(n, s)| !members.contains(n) && names(s))
    };
    let candidates: Vec<&String> = tables
        .iter()
        .filter(|(name, table)| matches!(table.rows, Rows::Expand { every: None, .. }) && !of_others(name))
        .map(|(name, _)| name)
        .collect();
    match candidates.as_slice() {
        [one] => vec![(*one).clone()],
        [] => {
            let refusal = scope.refuse(
                "stages",
                "stages without `serve`, and no partition that the schedule admits",
                "one to serve",
            );
            refusals
                .push(refusal.action("declare a partition with `expand` and without `every`, or say `serve: [NAME]`"));
            Vec::new()
        }
        several => {
            let names = several.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(" and ");
            let refusal =
                scope.refuse("stages", format!("stages without `serve`, and {names} to choose from"), "one of them");
            refusals.push(refusal.action("say `serve: [NAME]` in each"));
            Vec::new()
        }
    }
}

pub(super) fn model(
    scope: &Scope,
    key: &str,
    stage: &entry::Stage,
    info: &Ports,
    refusals: &mut Refusals,
) -> Option<ModelRef> {
    let key = join(key, "model");
    let (text, kind) = match (&stage.model, &info.model) {
        (None, None) => return None,
        (None, Some(kind)) => {
            let refusal = scope.refuse(&key, "no model", format!("a model of kind `{kind}`"));
            refusals.push(refusal.action(format!("stage `{}` computes with one", stage.implementation)));
            return None;
        }
        (Some(text), None) => {
            let refusal = scope.refuse(&key, format!("`{text}`"), "no model");
            refusals.push(refusal.action(format!("stage `{}` computes without one", stage.implementation)));
            return None;
        }
        (Some(text), Some(kind)) => (text, kind),
    };
    let (name, version) = match text.split_once('@') {
        None => (text.as_str(), None),
        Some((name, "live")) => (name, Some(Version::Live)),
        Some((name, "cycle")) => (name, Some(Version::Cycle)),
        Some((name, "0")) => (name, Some(Version::Initial)),
        Some((name, other)) => {
            let refusal =
                scope.refuse(&key, format!("`{text}`"), format!("`{name}@live`, `{name}@cycle` or `{name}@0`"));
            refusals.push(refusal.nearest(other, ["live", "cycle"]));
            return None;
        }
    };
    let declared = scope.pipeline.get(&format!("models.{name}"));
    let Some(declared) = declared else {
        let refusal = scope.refuse(&key, format!("`{name}`"), "a model of `models`");
        refusals.push(refusal.nearest(name, keys(&scope.pipeline, "models")));
        return None;
    };
    if let Some(there) = declared.get("use").and_then(|node| node.as_str())
        && there != kind
    {
        let refusal =
            scope.refuse(&key, format!("`{name}`, which is a `{there}`"), format!("a model of kind `{kind}`"));
        refusals.push(refusal.action(format!("stage `{}` computes with a `{kind}`", stage.implementation)));
    }
    match (&info.training, version) {
        (Some(_), Some(_)) => {
            let refusal = scope.refuse(&key, format!("`{text}`"), format!("`{name}`"));
            refusals.push(refusal.action("a stage that trains owns the model: leave the `@…` out"));
        }
        (None, None) => {
            let expected = format!("`{name}@live`, `{name}@cycle` or `{name}@0`");
            let refusal = scope.refuse(&key, format!("`{text}` without version"), expected);
            refusals.push(refusal.action("say which weights the stage uses"));
        }
        _ => {}
    }
    Some(ModelRef { name: name.to_owned(), version })
}

pub(super) fn per(
    scope: &Scope,
    key: &str,
    stage: &entry::Stage,
    info: &Ports,
    model: Option<&ModelRef>,
    refusals: &mut Refusals,
) -> Per {
    let per = stage.per.unwrap_or(info.per);
    let of_cycle = matches!(per, Per::Mini | Per::Cycle);
    let at_cycle = model.is_some_and(|m| m.version == Some(Version::Cycle));
    let mut refuse = |action: &str| {
        let refusal = scope.refuse(&join(key, "per"), format!("`per: {per}`"), "`per: mini` or `per: cycle`");
        refusals.push(refusal.action(action));
    };
    if info.training.is_some() && !of_cycle {
        refuse("a training stage takes the batches that the schedule cut");
    } else if at_cycle && !of_cycle {
        refuse("which cycle a row belongs to is known when its batch is cut: `@cycle` needs that");
    }
    per
}

/// The columns that a reader outside the run names.
pub(super) fn external(scope: &Scope, key: &str, stage: &entry::Stage, refusals: &mut Refusals) -> Option<Columns> {
    let given = [
        ("attempts", stage.attempts.is_some()),
        ("on_failure", stage.on_failure.is_some()),
        ("on_lost", stage.on_lost.is_some()),
    ];
    for (field, given) in given {
        if given {
            let refusal = scope.refuse(&join(key, field), format!("`{field}`"), "a stage of the run");
            refusals
                .push(refusal.action(
                    "leave it out: what an external reader fails at goes back to it, and nothing else happens",
                ));
        }
    }
    let with = serde_json::Value::Object(stage.with.clone().into_iter().collect());
    let read: Result<entry::External, _> = serde_json::from_value(with);
    let (found, expected) = match read {
        Ok(external) if !external.columns.is_empty() => return Some(Columns::External(external.columns)),
        Ok(_) => ("no columns".to_owned(), "`{columns: [NAME, …]}`"),
        Err(error) => (error.to_string(), "`{columns: [NAME, …]}` and nothing else"),
    };
    let refusal = scope.refuse(&join(key, "with"), found, expected);
    refusals.push(refusal.action("name the columns that are read from outside the run"));
    None
}

/// A stage that draws rows several times reads alone, and draws them as they come.
pub(super) fn reuse(scope: &Scope, key: &str, stage: &entry::Stage, info: &Ports, per: Per, refusals: &mut Refusals) {
    let Some(reuse) = stage.reuse.filter(|reuse| *reuse != 1) else { return };
    let key = join(key, "reuse");
    let refuse = |found: String, expected: &str| scope.refuse(&key, found, expected);
    let refusal = if !(2..=MOST_REUSE).contains(&reuse) {
        refuse(format!("{reuse} uses"), &format!("from 1 to {MOST_REUSE}"))
    } else if info.training.is_some() {
        refuse(format!("`reuse: {reuse}` of a stage that trains"), "each row once a cycle")
            .action("leave it out; `ppo_epochs` repeats what a stage trains on")
    } else if let Some(port) = info.outputs.first() {
        refuse(format!("`reuse: {reuse}` of a stage that writes `{}`", port.name), "a stage that writes no column")
            .action("leave it out: a cell is written once")
    } else if !matches!(per, Per::Row | Per::Group) {
        refuse(format!("`reuse: {reuse}` with `per: {per}`"), "`per: row` or `per: group`")
            .action("batches are cut once and taken in order")
    } else {
        return;
    };
    refusals.push(refusal);
}

pub(super) fn check_fields(scope: &Scope, key: &str, stage: &entry::Stage, info: &Ports, refusals: &mut Refusals) {
    if stage.from_cycle.is_some() && info.training.is_none() {
        let refusal = scope.refuse(&join(key, "from_cycle"), "`from_cycle`", "a stage that trains");
        refusals.push(refusal.action("leave it out"));
    }
    if let Some(ranks) = stage.ranks {
        let key = join(key, "ranks");
        if info.training.is_none() {
            let refusal = scope.refuse(&key, "`ranks`", "a stage that trains");
            refusals.push(refusal.action("leave it out; `workers: {…: {count: N}}` gives other stages more workers"));
        } else if !(1..=MOST_RANKS).contains(&ranks) {
            refusals.push(scope.refuse(&key, format!("{ranks} ranks"), format!("from 1 to {MOST_RANKS}")));
        }
    }
    if let Some(attempts) = stage.attempts.filter(|attempts| !(1..=MOST_ATTEMPTS).contains(attempts)) {
        let expected = format!("from 1 to {MOST_ATTEMPTS}");
        refusals.push(scope.refuse(&join(key, "attempts"), format!("{attempts} attempts"), expected));
    }
    if stage.on_lost == Some(OnLost::Resume) && !info.outputs.iter().any(|output| output.resumable) {
        let (name, key) = (&stage.implementation, join(key, "on_lost"));
        let refusal = scope.refuse(&key, "`resume`", format!("`again`: `{name}` does not save unfinished work"));
        refusals.push(refusal.action("leave it out; a row whose worker is lost is done again, from its beginning"));
    }
    let ports: Vec<&str> =
        info.inputs.iter().map(|p| p.name.as_str()).chain(info.outputs.iter().map(|p| p.name.as_str())).collect();
    for port in stage.bind.keys().filter(|port| !ports.contains(&port.as_str())) {
        let expected =
            if ports.is_empty() { "no ports".into() } else { format!("one of the ports {}", ports.join(", ")) };
        let refusal: Refusal = scope.refuse(&format!("{key}.bind.{port}"), format!("the port `{port}`"), expected);
        refusals.push(refusal.nearest(port, ports.iter().copied()));
    }
    for (tag, value) in &stage.filter {
        if value.is_array() || value.is_object() {
            let refusal =
                scope.refuse(&format!("{key}.where.{tag}"), format!("`{value}`"), "one value to compare the tag with");
            refusals.push(refusal);
        }
    }
}
