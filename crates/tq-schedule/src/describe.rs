//! The plan as text, for `--dry-run`.

use std::collections::BTreeSet;
use std::fmt::Write;

use transferqueue::Durability;

use crate::plan::{ColumnOrigin, Keep, Phase, Plan, Rows, Store, StoreKind, Task, Version};
use crate::schedule::{Grain, OnPublication, Order, Schedule, WeightsRule};

impl Plan {
    /// The plan as YAML, the content of `plan.yaml`.
    ///
    /// # Errors
    /// Never for a plan the planner made; a value that YAML cannot carry otherwise.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(self)
    }

    /// Reads a plan that [`Plan::to_yaml`] wrote.
    ///
    /// # Errors
    /// What is not a plan, with its position.
    pub fn from_yaml(text: &str) -> Result<Self, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }

    /// The plan for people: what `--dry-run` prints.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut out = String::new();
        let text = &mut out;
        line(text, format!("pipeline {}, seed {}", self.pipeline, self.seed));
        if !self.overrides.is_empty() {
            line(text, format!("  with {}", self.overrides.join(" ")));
        }
        for (name, model) in &self.models {
            line(text, format!("model {name}: {} from {}", model.kind, model.path));
        }
        for (name, group) in &self.workers {
            let kind = format!("{:?}", group.kind).to_lowercase();
            line(
                text,
                format!("workers {name}: {} ({} each, {kind}, {})", group.stages.join(", "), group.count, group.device),
            );
        }
        let budget = self.store.budget.map_or_else(|| "no limit".into(), bytes);
        let spill =
            if self.store.spill.is_some() { ", beyond it readers outside the run are served from files" } else { "" };
        let weights = self.store.weights.map_or_else(|| "no limit".into(), bytes);
        line(text, format!("store budget: {budget}{spill}, weights: {weights}; {}", survives(&self.store)));
        for phase in &self.phases {
            text.push('\n');
            phase.describe(text);
        }
        if !self.notes.is_empty() {
            line(text, "\nnoted".into());
            for note in &self.notes {
                line(text, format!("  {}: {} ({})", note.key, note.reason, note.at));
            }
        }
        out
    }
}

impl Phase {
    fn describe(&self, text: &mut String) {
        let init = self.init.as_ref().map_or(String::new(), |init| format!(", from the weights of {init}"));
        line(text, format!("phase {}{init}", self.name));
        let a = &self.arithmetic;
        let mut fact = |name: &str, value: String| line(text, format!("  {name:<11} {value}"));
        fact("schedule", self.schedule.describe());
        fact(
            "cycle",
            format!(
                "{} groups × {} = {} rows, {} mini-batch{} of {} groups",
                a.groups_per_cycle,
                a.rows_per_group,
                a.rows_per_cycle,
                a.mini_batches_per_cycle,
                if a.mini_batches_per_cycle == 1 { "" } else { "es" },
                a.mini_batch
            ),
        );
        let updates: Vec<_> = a.updates_per_publication.iter().map(|(task, n)| format!("{task} {n}")).collect();
        fact("updates", format!("{} per publication", updates.join(", ")));
        fact(
            "length",
            match a.total_cycles {
                Some(cycles) => format!("{cycles} cycles ({})", a.total_cycles_from),
                None => format!("not known yet ({})", a.total_cycles_from),
            },
        );
        if let Some(level) = &a.level {
            fact("until", format!("{level}, after the first cycle that reaches it"));
        }
        let whole = a.total_cycles.map_or_else(
            || format!("total cycles × {}", a.groups_per_cycle),
            |cycles| cycles.saturating_mul(a.groups_per_cycle).to_string(),
        );
        fact(
            "admission",
            format!(
                "while admitted − dropped − retired < {} + {} = {} and admitted − dropped < {whole}",
                a.groups_per_cycle, a.groups_ahead, a.window
            ),
        );
        fact("largest lag", self.promises.lag.to_string());
        let repeatable = if self.promises.repeatable { "yes" } else { "no" };
        fact("repeatable", format!("{repeatable}: {}", self.promises.repeatable_why));
        fact("tokens", format!("at most {} per cycle", a.max_tokens_per_cycle));
        fact(
            "memory",
            format!(
                "{} per group, at least {}, {} at peak{}",
                bytes(a.bytes_per_group),
                bytes(a.bytes_reserved_least),
                bytes(a.bytes_at_peak),
                match a.bytes_evaluation {
                    Some(0) => String::new(),
                    Some(more) => format!(", {} more while evaluating", bytes(more)),
                    None => ", evaluation not counted".into(),
                }
            ),
        );
        fact("weights", self.weights());
        let needs = [
            ("critic", self.needs.critic),
            ("reference", self.needs.reference),
            ("old", self.needs.old),
            ("filter", self.needs.filter),
        ];
        let needs: Vec<_> = needs.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        fact("needs", if needs.is_empty() { "nothing extra".into() } else { needs.join(", ") });
        self.describe_partitions(text);
        self.describe_tasks(text);
    }

    /// Versions of a model's weights that are in memory at one time.
    fn weights(&self) -> String {
        let (a, schedule) = (&self.arithmetic, &self.schedule);
        let flying = match (schedule.weights, schedule.order) {
            _ if a.groups_ahead == 0 => String::new(),
            (WeightsRule::AtLeast, _) => String::new(),
            (WeightsRule::Exact, Order::Admission) => {
                format!(", {} more that groups in flight need", a.groups_ahead.div_ceil(a.groups_per_cycle))
            }
            (WeightsRule::Exact, Order::Completion) => ", those that groups in flight need".to_owned(),
        };
        let initial = self.tasks.values().filter_map(|task| task.model.as_ref());
        let initial = initial.filter(|model| model.version == Some(Version::Initial)).map(|model| model.name.as_str());
        let initial: BTreeSet<&str> = initial.collect();
        let initial: String = initial.iter().map(|model| format!(", {model}@0")).collect();
        format!(
            "2 versions of a model (the newest, the one being published){flying}{initial}, and what is pinned; its bytes are known once it is loaded"
        )
    }

    fn describe_partitions(&self, text: &mut String) {
        for (name, partition) in &self.partitions {
            let rows = match &partition.rows {
                Rows::Files { files, count } => {
                    let count = count.map_or_else(|| "rows not counted".into(), |n| format!("{n} rows"));
                    format!("{} ({count})", files.join(", "))
                }
                Rows::Expand { source, n, every } => {
                    let every = every.map_or(String::new(), |k| {
                        if k == 1 { ", all of it every cycle".into() } else { format!(", all of it every {k} cycles") }
                    });
                    format!("{n} row{} for each of {source}{every}", if *n == 1 { "" } else { "s" })
                }
                Rows::Put => "put by clients".into(),
            };
            let training = if partition.training { " [trained on]" } else { "" };
            line(text, format!("  partition {name}: {rows}{training}"));
            let table = partition.columns.iter().map(|(column, c)| {
                let from = match &c.origin {
                    ColumnOrigin::Written(tasks) => tasks.join(", "),
                    ColumnOrigin::Linked(source) => format!("linked from {source}"),
                    ColumnOrigin::Put => "clients".into(),
                };
                let mut to = c.readers.clone();
                to.dedup();
                to.extend(c.linked_into.iter().map(|p| format!("(linked into {p})")));
                to.extend(c.keep.map(|keep| match keep {
                    Keep::Rows => "(kept)".to_owned(),
                    Keep::Archive => "(archived)".to_owned(),
                }));
                let size = if c.max_bytes_per_row == 0 { "–".into() } else { bytes(c.max_bytes_per_row) };
                [column.clone(), c.column_type.to_string(), from, to.join(", "), size]
            });
            rows_of(text, ["column", "type", "from", "to", "longest"], table);
        }
    }

    fn describe_tasks(&self, text: &mut String) {
        line(text, "  tasks".into());
        let table = self.tasks.iter().map(|(name, task)| {
            let ports = |ports: &indexmap::IndexMap<String, String>| {
                let shown: Vec<_> =
                    ports.iter().map(|(p, c)| if p == c { p.clone() } else { format!("{p}={c}") }).collect();
                if shown.is_empty() { "–".to_owned() } else { shown.join(" ") }
            };
            [
                name.clone(),
                task.implementation.clone(),
                task.partition.clone(),
                task.describe_claims(),
                task.describe_model(),
                format!("{} → {}", ports(&task.reads), ports(&task.writes)),
            ]
        });
        rows_of(text, ["task", "use", "partition", "per", "model", "reads → writes"], table);
    }
}

impl Task {
    fn describe_claims(&self) -> String {
        let resumed = (!self.on_lost.is_again()).then(|| "resumed".to_owned());
        let reused = (self.reuse > 1).then(|| format!("{} times", self.reuse));
        [Some(self.per.to_string()), resumed, reused].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn describe_model(&self) -> String {
        let Some(model) = &self.model else {
            return "–".into();
        };
        let name = &model.name;
        let alone = match (model.version, &self.training) {
            (Some(Version::Live), _) => format!("{name}@live"),
            (Some(Version::Cycle), _) => format!("{name}@cycle"),
            (Some(Version::Initial), _) => format!("{name}@0"),
            (None, Some(training)) if training.from_cycle > 1 => {
                format!("trains {name} from step {}", training.from_cycle)
            }
            (None, _) => format!("trains {name}"),
        };
        match &self.training {
            Some(training) if training.ranks > 1 => format!("{alone}, {} ranks", training.ranks),
            _ => alone,
        }
    }
}

impl Schedule {
    fn describe(&self) -> String {
        let order = match self.order {
            Order::Admission => "admission",
            Order::Completion => "completion",
        };
        let weights = match self.weights {
            WeightsRule::Exact => "exact",
            WeightsRule::AtLeast => "at_least",
        };
        let grain = match self.grain {
            Grain::Cycle => "cycle",
            Grain::Mini => "mini",
        };
        let publication = match self.on_publication {
            OnPublication::Finish => "finish",
            OnPublication::Continue => "continue",
        };
        let mut fields = format!(
            "{} (lag {}, order {order}, weights {weights}, grain {grain}, on_publication {publication}",
            self.preset.name(),
            self.lag
        );
        if let Some(lag) = self.max_lag {
            fields.push_str(&format!(", max_lag {lag}, drop_beyond {}", self.drop_beyond));
        }
        if self.oversample > 0.0 {
            fields.push_str(&format!(", oversample {}", self.oversample));
        }
        fields.push_str(&format!(", state_every {})", self.state_every));
        fields
    }
}

fn line(text: &mut String, content: String) {
    writeln!(text, "{}", content.trim_end()).expect("a String takes everything");
}

/// An aligned table, indented by four.
fn rows_of<const N: usize>(text: &mut String, header: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let rows: Vec<[String; N]> = std::iter::once(header.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(text, format!("    {}", cells.join("  ")));
    }
}

/// Bytes for people: three digits and a binary unit.
fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// What a kill costs.
fn survives(store: &Store) -> &'static str {
    match (store.kind, store.durability) {
        (_, Durability::None) => "a killed run goes on from its last named state",
        (StoreKind::Thread, Durability::Process) => "a killed run goes on where it was",
        (StoreKind::Process, Durability::Process) => {
            "in a process of its own: its workers outlive it, and it goes on where it was"
        }
        (StoreKind::Thread, Durability::Host) => "a run whose machine goes down goes on where it was",
        (StoreKind::Process, Durability::Host) => {
            "in a process of its own: its workers outlive it; after the machine goes down it goes on where it was"
        }
    }
}
