//! From a pipeline file and arguments to a plan.

mod store;
mod switches;

use std::collections::HashSet;
use std::path::Path;

use indexmap::IndexMap;
use serde_json::Value as Json;
use tq_config::{Node, Override, Parameters, Refusal, Refusals, extract, home, interpolate, join, yaml};

use crate::edit::{Target, edit, target};
use crate::entry::{self, SECTIONS};
use crate::phase;
use crate::plan::{Model, Note, Plan, WorkerKind, Workers};
use crate::port::StageCatalog;
use crate::tasks::EXTERNAL;

/// A source partition whose rows are to be counted.
#[derive(Clone, Copy, Debug)]
pub struct SourceFiles<'a> {
    /// Its name.
    pub partition: &'a str,
    /// The files it is filled from.
    pub files: &'a [String],
    /// Whether its rows are evaluated in rounds (`every`), not trained on.
    pub evaluated: bool,
    /// The phase's parameter tree.
    pub parameters: &'a Json,
}

/// Most workers of a group: each is a thread or a process of its own.
const MOST_WORKERS: u64 = 1_024;

/// Counts the rows of a source partition, or `None` when it cannot say.
pub type RowCounter<'a> = dyn Fn(&SourceFiles<'_>) -> Option<u64> + 'a;

/// Makes plans for one program: its stages, and what it is able to do.
///
/// See the crate's example.
pub struct Planner<'a> {
    pub(crate) catalog: &'a dyn StageCatalog,
    pub(crate) rows: Option<&'a RowCounter<'a>>,
    processes: bool,
    pub(crate) oversampling: bool,
    home: Option<String>,
}

impl<'a> Planner<'a> {
    /// A planner for the stages of `catalog`.
    #[must_use]
    pub fn new(catalog: &'a dyn StageCatalog) -> Self {
        Self { catalog, rows: None, processes: false, oversampling: false, home: home::folder() }
    }

    /// The folder that a leading `~/` stands for, instead of the environment's `HOME`.
    #[must_use]
    pub fn home(mut self, folder: Option<&str>) -> Self {
        self.home = folder.map(str::to_owned);
        self
    }

    /// How to count the rows of files. Without it a phase whose length is given in epochs has no known length.
    #[must_use]
    pub fn rows(mut self, count: &'a RowCounter<'a>) -> Self {
        self.rows = Some(count);
        self
    }

    /// Whether the program can run workers as processes of their own; refused otherwise.
    #[must_use]
    pub fn processes(mut self, able: bool) -> Self {
        self.processes = able;
        self
    }

    /// Whether the program can admit more groups than it trains; `oversample` above 0 is refused otherwise.
    #[must_use]
    pub fn oversampling(mut self, able: bool) -> Self {
        self.oversampling = able;
        self
    }

    /// Plans the pipeline in a file.
    ///
    /// # Errors
    /// Everything that is wrong with the file, the overrides, or the two together.
    pub fn plan_file(&self, path: &Path, overrides: &[Override]) -> Result<Plan, Refusals> {
        let pipeline = yaml::load(path)?;
        self.plan(pipeline, &path.display().to_string(), overrides)
    }

    /// Plans the pipeline in `text`; messages call the file `name`.
    ///
    /// # Errors
    /// As [`Planner::plan_file`].
    pub fn plan_text(&self, text: &str, name: &str, overrides: &[Override]) -> Result<Plan, Refusals> {
        let pipeline = yaml::parse(text, name)?;
        self.plan(pipeline, name, overrides)
    }

    fn plan(&self, mut pipeline: Node, name: &str, overrides: &[Override]) -> Result<Plan, Refusals> {
        let mut refusals = Refusals::default();
        if pipeline.as_map().is_none() {
            let sections = SECTIONS.map(|s| format!("`{s}`")).join(", ");
            return Err(Refusal::new("", pipeline.show(), format!("a map of {sections}")).at(&pipeline.at).into());
        }
        for (key, node) in pipeline.as_map().into_iter().flatten() {
            if !SECTIONS.contains(&key.as_str()) {
                let expected = format!("one of {}", SECTIONS.map(|s| format!("`{s}`")).join(", "));
                let refusal = Refusal::new(key, "a section that is not known", expected).at(node.place());
                refusals.push(refusal.nearest(key, SECTIONS));
            }
        }

        let mut parameters = Parameters::builtin().home(self.home.as_deref());
        for (path, defaults) in self.catalog.sections() {
            if let Err(refusal) = parameters.declare(&path, &defaults, "a stage's defaults") {
                refusals.push(refusal);
            }
        }
        if let Some(layer) = pipeline.get("parameters")
            && let Err(more) = parameters.layer(layer)
        {
            refusals.extend(more);
        }
        // (phase, override of its own parameters), applied after the phase's layer.
        let mut of_phases: Vec<(String, Override)> = Vec::new();
        for argument in overrides {
            let result = match target(&argument.key) {
                Target::Parameters(key) => parameters.apply(&Override { key: key.into(), ..argument.clone() }),
                Target::Phase(phase, key) => {
                    of_phases.push((phase.into(), Override { key: key.into(), ..argument.clone() }));
                    Ok(())
                }
                Target::Pipeline => edit(&mut pipeline, argument).map_err(Refusals::from),
            };
            if let Err(more) = result {
                refusals.extend(more);
            }
        }

        // The pipeline under the whole run's parameters; each phase reads it again under its own.
        let (tree, resolved) = match self.read(&parameters, &pipeline) {
            Ok(read) => read,
            Err(more) => {
                refusals.extend(more);
                return Err(refusals);
            }
        };
        let mut notes = notes(&parameters);
        switches::check(&tree, &pipeline, &mut refusals, &mut notes);
        let models = self.models(&resolved, &mut refusals);
        let store = store::plan(&resolved, &mut refusals);
        let external = |stage: &&str| {
            let used = resolved.get(&format!("stages.{stage}.use"));
            used.and_then(Node::as_str) == Some(EXTERNAL)
        };
        let stage_names: Vec<&str> = keys(&resolved, "stages").filter(|stage| !external(stage)).collect();
        let workers = self.workers(&tree, &resolved, &stage_names, &mut refusals);
        let phases =
            phase::plan_all(self, &pipeline, &resolved, &parameters, &of_phases, &store, &mut refusals, &mut notes);

        let seed = tree.get("trainer.seed").map(|node| extract(node, "trainer.seed")).transpose();
        let seed: u64 = match seed {
            Ok(seed) => seed.unwrap_or(1),
            Err(refusal) => {
                refusals.push(refusal);
                1
            }
        };
        let used = |model: &str| phases.iter().any(|p| p.models.contains_key(model));
        for (model, node) in resolved.get("models").and_then(Node::as_map).into_iter().flatten() {
            if refusals.0.is_empty() && !used(model) {
                notes.push(Note {
                    key: format!("models.{model}"),
                    at: node.place().to_string(),
                    reason: "no active stage uses this model: it is not loaded".into(),
                });
            }
        }
        unique(&mut refusals);
        refusals.into_result()?;
        Ok(Plan {
            pipeline: name.to_owned(),
            overrides: overrides.iter().map(|o| o.text.to_string()).collect(),
            seed,
            models: models.into_iter().filter(|(model, _)| used(model)).collect(),
            phases,
            workers,
            store,
            notes,
            parameters: tree.to_json(),
        })
    }

    /// The parameter tree, and the pipeline under it: `${…}` resolved, `~/` replaced by the home folder.
    pub(crate) fn read(&self, parameters: &Parameters, pipeline: &Node) -> Result<(Node, Node), Refusals> {
        let tree = parameters.resolve()?;
        let mut pipeline = interpolate::resolve(pipeline, &tree)?;
        let mut refusals = Refusals::default();
        for section in ["partitions", "models", "stages"] {
            if let Some(node) = pipeline.get_mut(section)
                && let Err(more) = home::expand(node, section, self.home.as_deref())
            {
                refusals.extend(more);
            }
        }
        refusals.into_result().map(|()| (tree, pipeline))
    }

    fn models(&self, pipeline: &Node, refusals: &mut Refusals) -> IndexMap<String, Model> {
        let kinds = self.catalog.model_kinds();
        let entries: IndexMap<String, entry::Model> = entries(pipeline, "models", refusals);
        let mut models = IndexMap::new();
        for (name, model) in entries {
            if !kinds.contains(&model.kind) {
                let key = format!("models.{name}.use");
                let expected =
                    format!("one of {}", kinds.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", "));
                let mut refusal = Refusal::new(&key, format!("the model kind `{}`", model.kind), expected);
                refusal.at = pipeline.get(&key).map(|node| Box::new(node.place().clone()));
                refusals.push(refusal.nearest(&model.kind, kinds.iter().map(String::as_str)));
            }
            models.insert(name, Model { kind: model.kind, path: model.path });
        }
        models
    }

    /// The groups of workers; one that names no device has `trainer.device`.
    fn workers(
        &self,
        tree: &Node,
        pipeline: &Node,
        stages: &[&str],
        refusals: &mut Refusals,
    ) -> IndexMap<String, Workers> {
        let entries: IndexMap<String, entry::Workers> = entries(pipeline, "workers", refusals);
        let whole = || entry::Workers { stages: entry::Names(vec!["*".into()]), count: None, device: None, kind: None };
        let entries =
            if pipeline.get("workers").is_none() { IndexMap::from([("all".to_owned(), whole())]) } else { entries };
        let named: Vec<&str> = entries.values().flat_map(|w| &w.stages.0).map(String::as_str).collect();
        let place = |key: &str| pipeline.get(key).map(|node| Box::new(node.place().clone()));
        let device = tree.get("trainer.device").and_then(Node::as_str);
        let device = device.unwrap_or("cpu");
        let mut groups = IndexMap::new();
        for (name, group) in &entries {
            let key = format!("workers.{name}");
            let mut list: Vec<String> = Vec::new();
            for stage in &group.stages.0 {
                if stage == "*" {
                    list.extend(stages.iter().filter(|s| !named.contains(s)).map(|s| (*s).to_owned()));
                } else if stages.contains(&stage.as_str()) {
                    list.push(stage.clone());
                } else {
                    let mut refusal = Refusal::new(
                        format!("{key}.stages"),
                        format!("`{stage}`"),
                        "a stage of this pipeline, or \"*\"",
                    );
                    refusal.at = place(&key);
                    refusals.push(refusal.nearest(stage, stages.iter().copied()));
                }
            }
            // Threads of a runner without a store would have nothing to hold on to.
            let apart =
                pipeline.get("store.kind").and_then(Node::as_str).is_some_and(|kind| kind.starts_with("process"));
            if apart && group.kind == Some(WorkerKind::Threads) {
                let found = "`threads` beside `store.kind: process`";
                let mut refusal = Refusal::new(format!("{key}.kind"), found, "`processes`")
                    .action("leave it out, or leave the store in the runner's process");
                refusal.at = place(&format!("{key}.kind"));
                refusals.push(refusal);
            }
            let own = if apart { WorkerKind::Processes } else { WorkerKind::Threads };
            let kind = group.kind.unwrap_or(own);
            if kind == WorkerKind::Processes && !self.processes {
                let mut refusal = Refusal::new(format!("{key}.kind"), "`processes`", "`threads`")
                    .action("this program runs its workers as threads");
                refusal.at = place(&format!("{key}.kind"));
                refusals.push(refusal);
            }
            let count = group.count.unwrap_or(1);
            if !(1..=MOST_WORKERS).contains(&count) {
                let expected = format!("from 1 to {MOST_WORKERS}");
                let mut refusal = Refusal::new(format!("{key}.count"), format!("{count} workers"), expected);
                refusal.at = place(&format!("{key}.count"));
                refusals.push(refusal);
            }
            let own = group.device.as_deref();
            let device = own.unwrap_or(device).to_owned();
            if let Err(expected) = self.catalog.check_device(&device) {
                let key = if own.is_some() { format!("{key}.device") } else { "trainer.device".to_owned() };
                let mut refusal = Refusal::new(&key, format!("the device `{device}`"), expected);
                let there = if own.is_some() { pipeline.get(&key) } else { tree.get(&key) };
                refusal.at = there.map(|node| Box::new(node.place().clone()));
                refusals.push(refusal);
            }
            groups.insert(name.clone(), Workers { stages: list, count, device, kind });
        }
        for stage in stages {
            let groups: Vec<&str> =
                groups.iter().filter(|(_, g)| g.stages.iter().any(|s| s == stage)).map(|(n, _)| n.as_str()).collect();
            let found = match groups.as_slice() {
                [_] => continue,
                [] => "no group of workers".to_owned(),
                several => format!("the groups {}", several.join(", ")),
            };
            let mut refusal = Refusal::new("workers", format!("{found} for stage `{stage}`"), "one group");
            refusal.at = place("workers");
            refusals.push(refusal.action("a group with `stages: \"*\"` runs every stage that no other group names"));
        }
        groups
    }
}

/// The keys of a section, in order.
pub(crate) fn keys<'a>(pipeline: &'a Node, section: &str) -> impl Iterator<Item = &'a str> {
    pipeline.get(section).and_then(Node::as_map).into_iter().flatten().map(|(key, _)| key.as_str())
}

/// A section as one value.
pub(crate) fn section<T: serde::de::DeserializeOwned>(
    pipeline: &Node,
    path: &str,
    refusals: &mut Refusals,
) -> Option<T> {
    match extract(pipeline.get(path)?, path) {
        Ok(value) => Some(value),
        Err(refusal) => {
            refusals.push(refusal);
            None
        }
    }
}

/// A section entry by entry, so that every bad entry is reported; an empty entry (`val:`) is read as an empty map.
pub(crate) fn entries<T: serde::de::DeserializeOwned>(
    pipeline: &Node,
    section: &str,
    refusals: &mut Refusals,
) -> IndexMap<String, T> {
    let mut read = IndexMap::new();
    let Some(node) = pipeline.get(section) else {
        return read;
    };
    let Some(map) = node.as_map() else {
        refusals.push(Refusal::new(section, node.show(), format!("a map of {section}")).at(node.place()));
        return read;
    };
    for (name, node) in map {
        let path = join(section, name);
        let empty = Node { key: node.key.clone(), ..Node::map(node.at.clone()) };
        match extract::<T>(if node.is_null() { &empty } else { node }, &path) {
            Ok(entry) => {
                read.insert(name.clone(), entry);
            }
            Err(refusal) => refusals.push(refusal),
        }
    }
    read
}

pub(crate) fn notes(parameters: &Parameters) -> Vec<Note> {
    let note = |n: &tq_config::Note| Note { key: n.key.clone(), at: n.at.to_string(), reason: n.reason.clone() };
    parameters.notes().iter().map(note).collect()
}

/// Several phases read the same file: what is wrong with it is said once.
fn unique(refusals: &mut Refusals) {
    let mut seen = HashSet::new();
    refusals.0.retain(|refusal| seen.insert(refusal.to_string()));
}
