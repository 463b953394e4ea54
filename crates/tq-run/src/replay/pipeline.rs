//! The pipeline of a replay: the stages that stay, and the archive in the place of all others.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use stage_replay::{Pace, Recording, Replay, pace};
use tq_config::Parameters;
use tq_schedule::{
    Phase, Plan, Version,
    plan::{ColumnOrigin, Rows, Side, Task},
    port::{Kind, Output, Per},
};
use tq_stage::Register;

use super::survey::Survey;

/// Parameters (section, key) that act through the pipeline alone, which stages there are and on what: the recorded plan has
/// answered them, and the pipeline of a replay does not ask again.
const ANSWERED: [(&str, &str); 7] = [
    ("/data", "train_files"),
    ("/data", "val_files"),
    ("/algorithm", "use_kl_in_reward"),
    ("/algorithm/filter_groups", "enable"),
    ("/critic", "enable"),
    ("/trainer", "test_freq"),
    ("/trainer", "critic_warmup"),
];

/// A recorded phase, and what of it is replayed.
pub(super) struct Recorded<'a> {
    /// Folder of the run.
    pub(super) root: &'a Path,
    pub(super) plan: &'a Plan,
    pub(super) phase: &'a Phase,
    /// Folder of the archived partition.
    pub(super) archive: PathBuf,
    pub(super) partition: &'a str,
    /// Tasks of the stages that stay, on that partition.
    pub(super) kept: Vec<&'a Task>,
    pub(super) survey: Survey,
}

impl Recorded<'_> {
    /// The pipeline, as the text of a file. `versions`: rows are given the weight versions they were recorded with.
    ///
    /// # Errors
    /// A column that a stage reads and nobody archived, weights that are not there.
    pub(super) fn pipeline(&self, versions: bool) -> Result<String> {
        self.has_columns()?;
        let Rows::Expand { source, .. } = &self.phase.partitions[self.partition].rows else {
            bail!("partition `{}` is not expanded, so its rows are in no batches", self.partition);
        };
        let mut stages = Map::new();
        if !self.written().is_empty() {
            stages.insert(
                Replay::NAME.to_owned(),
                json!({"use": Replay::NAME, "with": self.settings(&self.written(), versions.then_some(self.survey.lag))?}),
            );
        }
        for task in &self.kept {
            let of_planner = [Replay::NAME, Recording::NAME, Pace::NAME].contains(&task.stage.as_str());
            ensure!(!of_planner, "stages.{}: found a name that a replay uses; expected another one", task.stage);
            stages.insert(task.stage.clone(), stage(task));
        }
        let mut models = self.models()?;
        let mut samples = json!({
            "expand": source,
            "n": self.phase.arithmetic.rows_per_group,
            "link": self.linked_and_read(),
        });
        if !self.trains() {
            let columns = self.made().into_iter().map(|(name, kind)| (name.clone(), kind.clone())).collect();
            let with = pace::Config { columns };
            stages.insert(Pace::NAME.to_owned(), json!({"use": Pace::NAME, "model": Pace::NAME, "with": with}));
            models.insert(Pace::NAME.to_owned(), json!({"use": pace::NO_WEIGHTS, "path": ""}));
            // What the stages compute is all that comes of it.
            samples["keep"] = json!("archive");
        }
        let mut pipeline = json!({
            "partitions": {
                source.as_str(): {"files": [self.archive]},
                self.partition: samples,
            },
            "models": models,
            "stages": stages,
            "schedule": self.schedule(versions),
            "workers": self.workers(),
            "parameters": self.parameters()?,
        });
        let level = self.phase.arithmetic.level.as_ref().filter(|_| self.trains()).map(|level| {
            let side = if level.side == Side::AtMost { "at_most" } else { "at_least" };
            json!({"until": {side: {level.metric.as_str(): level.value}}})
        });
        pipeline["phases"] = json!({self.phase.name.as_str(): level.unwrap_or_else(|| json!({}))});
        serde_json::to_string_pretty(&pipeline).context("the pipeline of the replay")
    }

    /// Settings of the source.
    ///
    /// # Errors
    /// When the archive's path cannot be made absolute.
    pub(super) fn source(&self) -> Result<Value> {
        let linked = self.outputs(|origin| matches!(origin, ColumnOrigin::Linked(_)));
        self.settings(&linked, None)
    }

    fn settings(&self, columns: &[Output], lag: Option<u64>) -> Result<Value> {
        let archive = std::path::absolute(&self.archive).context("the archive's folder")?;
        let (cycles, columns) = (self.survey.cycles, columns.to_vec());
        Ok(serde_json::to_value(stage_replay::Config { archive, cycles, columns, lag })?)
    }

    /// Whether a task that stays makes the tokens: their versions are then those of the replay.
    pub(super) fn samples(&self) -> bool {
        let samples = |task: &&Task| {
            let live = task.model.as_ref().is_some_and(|model| model.version == Some(Version::Live));
            live && matches!(task.per, Per::Row | Per::Group)
        };
        self.kept.iter().any(samples)
    }

    fn trains(&self) -> bool {
        self.kept.iter().any(|task| task.training.is_some())
    }

    /// Columns that the stages that stay write.
    fn made(&self) -> Vec<(&String, &Kind)> {
        let columns = &self.phase.partitions[self.partition].columns;
        let names = self.kept.iter().flat_map(|task| task.writes.values());
        names.filter_map(|name| Some((name, &columns.get(name)?.column_type))).collect()
    }

    /// Archived columns that a task had written and no task that stays writes.
    fn written(&self) -> Vec<Output> {
        let own = |column: &Output| self.kept.iter().any(|task| task.writes.values().any(|name| *name == column.name));
        let columns = self.outputs(|origin| !matches!(origin, ColumnOrigin::Linked(_)));
        columns.into_iter().filter(|column| !own(column)).collect()
    }

    fn outputs(&self, of: impl Fn(&ColumnOrigin) -> bool) -> Vec<Output> {
        let planned = &self.phase.partitions[self.partition].columns;
        let archived = self.survey.columns.iter().filter_map(|column| {
            let planned = planned.get(&column.name).filter(|planned| of(&planned.origin))?;
            let mut output = Output::new(&column.name, column.kind.clone()).extent(planned.extent);
            output.carries = planned.attributes.clone();
            Some(output)
        });
        archived.collect()
    }

    fn linked_and_read(&self) -> Vec<&str> {
        let columns = self.phase.partitions[self.partition].columns.iter();
        let read = |name: &String| self.kept.iter().any(|task| task.reads.values().any(|column| column == name));
        let linked = columns.filter(|(name, column)| matches!(column.origin, ColumnOrigin::Linked(_)) && read(name));
        linked.map(|(name, _)| name.as_str()).collect()
    }

    /// What the stages that stay had read is archived, or written by one of them.
    fn has_columns(&self) -> Result<()> {
        for task in &self.kept {
            for column in task.reads.values() {
                let archived = self.survey.columns.iter().any(|archived| archived.name == *column);
                let made = self.kept.iter().any(|other| other.writes.values().any(|name| name == column));
                ensure!(
                    archived || made,
                    "column `{column}` of stage `{}` was not archived; found {} in `{}`; record the run with `partitions.{}.keep: archive`, or replay the stage that writes it too",
                    task.stage,
                    self.survey.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", "),
                    self.archive.display(),
                    self.partition
                );
            }
        }
        Ok(())
    }

    /// The models of the stages that stay, from where the recorded phase had them.
    fn models(&self) -> Result<Map<String, Value>> {
        let mut models = Map::new();
        for name in self.kept.iter().filter_map(|task| task.model.as_ref()).map(|model| &model.name) {
            let declared =
                self.plan.models.get(name).with_context(|| format!("plan.yaml declares no model `{name}`"))?;
            let before = self.plan.phases.iter().take_while(|phase| phase.name != self.phase.name);
            let path = match before.filter(|phase| phase.models.contains_key(name)).last() {
                None => PathBuf::from(&declared.path),
                Some(phase) => {
                    let path = self.root.join("phases").join(&phase.name).join("final").join(name);
                    ensure!(
                        path.join("config.json").is_file(),
                        "`{}`: found no weights; expected those that phase `{}` began with; finish or restore phase `{}` of the recorded run",
                        path.display(),
                        self.phase.name,
                        phase.name
                    );
                    path
                }
            };
            models.insert(name.clone(), json!({"use": declared.kind, "path": path}));
        }
        Ok(models)
    }

    /// The recorded batches in the recorded order; groups are admitted early enough for the oldest version of theirs.
    fn schedule(&self, versions: bool) -> Value {
        let recorded = &self.phase.schedule;
        json!({
            "use": "on_policy",
            "lag": if versions { self.survey.lag } else { 0 },
            "order": "admission",
            "weights": "at_least",
            "grain": recorded.grain,
            "on_publication": recorded.on_publication,
            "state_every": recorded.state_every,
        })
    }

    /// The recorded groups of workers, as far as they have stages that stay; one for all else.
    fn workers(&self) -> Value {
        let mut groups = Map::new();
        for (name, group) in &self.plan.workers {
            let stays = |stage: &&String| self.kept.iter().any(|task| task.stage == **stage);
            let stages: Vec<&String> = group.stages.iter().filter(stays).collect();
            if !stages.is_empty() {
                let group = json!({"stages": stages, "count": group.count, "device": group.device, "kind": group.kind});
                groups.insert(name.clone(), group);
            }
        }
        groups.insert("archived".to_owned(), json!({"stages": "*"}));
        Value::Object(groups)
    }

    /// What the recorded phase had set, and the names and length of the replay.
    fn parameters(&self) -> Result<Value> {
        let defaults = Parameters::builtin().resolve().map_err(anyhow::Error::from)?.to_json();
        let mut parameters = differing(&defaults, &self.phase.parameters).unwrap_or_else(|| json!({}));
        let whole = self.root.canonicalize().with_context(|| format!("`{}`", self.root.display()))?;
        let name = whole.file_name().and_then(|name| name.to_str()).context("the run's folder has a name in UTF-8")?;
        // Beside the recorded run, as short as the run was named: a socket's path has few bytes.
        let named = if self.root.file_name().is_some() { self.root } else { &whole };
        let near = named.parent().filter(|near| !near.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for (section, key) in ANSWERED {
            if let Some(fields) = parameters.pointer_mut(section).and_then(Value::as_object_mut) {
                fields.remove(key);
            }
        }
        if !self.trains() {
            // No trainer says how batches are cut.
            let mini = json!({"actor": {"ppo_mini_batch_size": self.phase.arithmetic.mini_batch}});
            merge(&mut parameters["actor_rollout_ref"], mini);
        }
        let sections = parameters.as_object_mut().context("parameters are a map")?;
        let trainer = sections.entry("trainer").or_insert_with(|| json!({}));
        trainer["experiment_name"] = json!(format!("{name}-replay"));
        trainer["default_local_dir"] = json!(near.join("${trainer.experiment_name}"));
        trainer["total_training_steps"] = json!(self.phase.arithmetic.total_cycles);
        Ok(parameters)
    }
}

/// A task as the pipeline says it. Ports that take the column of their own name are left to the planner, so that an
/// override may do away with one.
fn stage(task: &Task) -> Value {
    let mut entry = Map::new();
    entry.insert("use".into(), json!(task.implementation));
    if let Some(model) = &task.model {
        let version = match model.version {
            None => "",
            Some(Version::Live) => "@live",
            Some(Version::Cycle) => "@cycle",
            Some(Version::Initial) => "@0",
        };
        entry.insert("model".into(), json!(format!("{}{version}", model.name)));
    }
    let ports = task.reads.iter().chain(&task.writes).filter(|(port, column)| port != column);
    let bind: Map<String, Value> = ports.map(|(port, column)| (port.clone(), json!(column))).collect();
    entry.insert("bind".into(), Value::Object(bind));
    entry.insert("per".into(), json!(task.per));
    if let Some(training) = &task.training {
        entry.insert("from_cycle".into(), json!(training.from_cycle));
        entry.insert("ranks".into(), json!(training.ranks));
    }
    entry.insert("where".into(), json!(task.filter));
    if task.reuse > 1 {
        entry.insert("reuse".into(), json!(task.reuse));
    }
    entry.insert("attempts".into(), json!(task.attempts));
    entry.insert("on_failure".into(), json!(task.on_failure));
    if !task.on_lost.is_again() {
        entry.insert("on_lost".into(), json!(task.on_lost));
    }
    if task.with.as_object().is_some_and(|with| !with.is_empty()) {
        entry.insert("with".into(), task.with.clone());
    }
    Value::Object(entry)
}

/// Puts the values of `from` into `into`.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(fields), Value::Object(more)) => {
            more.into_iter().for_each(|(key, value)| merge(fields.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

/// What of `own` is not as in `defaults`.
fn differing(defaults: &Value, own: &Value) -> Option<Value> {
    let (Value::Object(known), Value::Object(fields)) = (defaults, own) else {
        return (defaults != own).then(|| own.clone());
    };
    let differs = |(key, value): (&String, &Value)| {
        let value = known.get(key).map_or_else(|| Some(value.clone()), |default| differing(default, value))?;
        Some((key.clone(), value))
    };
    let fields: Map<String, Value> = fields.iter().filter_map(differs).collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}
