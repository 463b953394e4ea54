//! Which models a phase uses and trains, and on which partition.

use indexmap::IndexMap;
use tq_config::{Refusals, join};

use super::Binder;
use crate::plan::{ModelRef, ModelUse, Rows};
use crate::tasks::Draft;

impl Binder<'_> {
    pub(super) fn models(&self, refusals: &mut Refusals) -> IndexMap<String, ModelUse> {
        let mut models: IndexMap<String, ModelUse> = IndexMap::new();
        for draft in &self.drafts.tasks {
            let Some(ModelRef { name, version }) = &draft.model else {
                continue;
            };
            let used =
                models.entry(name.clone()).or_insert_with(|| ModelUse { trained_by: None, versions: Vec::new() });
            match (version, &used.trained_by) {
                (None, Some(other)) => {
                    let key = join(&draft.key, "model");
                    let refusal = self.scope.refuse(
                        &key,
                        format!("`{name}`, which task `{other}` trains too"),
                        "one training task per model",
                    );
                    refusals.push(refusal.action("train another model, or merge the stages"));
                }
                (None, None) => used.trained_by = Some(draft.name.clone()),
                (Some(version), _) => {
                    if !used.versions.contains(version) {
                        used.versions.push(*version);
                    }
                }
            }
        }
        models
    }

    /// The partition all training tasks serve.
    pub(super) fn training(&self, complete: bool, refusals: &mut Refusals) -> Option<String> {
        let mut partition: Option<&Draft> = None;
        for draft in self.drafts.tasks.iter().filter(|d| d.info.training.is_some()) {
            let rows = &self.drafts.partitions[&draft.partition].rows;
            if !matches!(rows, Rows::Expand { every: None, .. }) {
                let refusal = self.scope.refuse(
                    &draft.key,
                    format!("training on `{}`", draft.partition),
                    "a partition with `expand` and without `every`",
                );
                refusals.push(refusal.action("only rows that the schedule admits can be trained on"));
            }
            match partition {
                Some(first) if first.partition != draft.partition => {
                    let found = format!(
                        "training on `{}`, while stage `{}` trains on `{}`",
                        draft.partition, first.stage, first.partition
                    );
                    let refusal = self.scope.refuse(&draft.key, found, "one training partition per phase");
                    refusals.push(refusal.action("serve the same partition, or use two phases"));
                }
                Some(_) => {}
                None => partition = Some(draft),
            }
        }
        if partition.is_none() && complete {
            let key = if self.scope.pipeline.get("phases").is_some() {
                format!("phases.{}", self.scope.phase)
            } else {
                "stages".into()
            };
            let refusal = self.scope.refuse(
                &key,
                "no stage that trains",
                "at least one: a cycle ends when its groups are trained",
            );
            refusals.push(refusal.action("add one, such as `use: policy-update`"));
        }
        partition.map(|draft| draft.partition.clone())
    }
}
