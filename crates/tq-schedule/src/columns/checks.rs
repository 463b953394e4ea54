//! What must hold of bound columns, and what to say when it does not.

use indexmap::IndexMap;
use serde_json::Value as Json;
use tq_config::{Refusals, join};

use super::{Binder, Cells};
use crate::plan::Rows;
use crate::port::{Input, Query};
use crate::tasks::{Draft, Table};

impl<'a> Binder<'a> {
    pub(super) fn missing(
        &self,
        draft: &Draft,
        input: &Input,
        candidates: &[&String],
        columns: &Cells<'a>,
    ) -> tq_config::Refusal {
        let names = candidates.iter().map(|c| format!("`{c}`")).collect::<Vec<_>>().join(" or ");
        let key = if draft.bind.contains_key(&input.name) {
            format!("{}.bind.{}", draft.key, input.name)
        } else {
            draft.key.clone()
        };
        let refusal = self.scope.refuse(
            &key,
            format!("no column {names} in `{}` for its input `{}`", draft.partition, input.name),
            "a stage that writes it, or a linked column",
        );
        if let Some(off) = self.switched_off(candidates) {
            return refusal.action(format!("stage `{}` would write it, but is off: {}", off.stage, off.why));
        }
        let near = refusal.nearest(candidates[0], columns.keys().map(String::as_str));
        if !near.action.is_empty() {
            return near;
        }
        let makers = self.makers(candidates);
        let action = if makers.is_empty() {
            format!("bind the input to a column there is: `bind: {{{}: NAME}}`", input.name)
        } else {
            format!("add a stage with `use: {}`", makers.join("` or `use: "))
        };
        near.action(action)
    }

    /// Registered stages that write one of these columns by themselves.
    fn makers(&self, columns: &[&String]) -> Vec<String> {
        let parameters = self.scope.tree.to_json();
        let with = Json::Object(serde_json::Map::new());
        let writes = |stage: &String| {
            let info = self.planner.catalog.describe(&Query { stage, parameters: &parameters, with: &with });
            info.is_ok_and(|info| info.outputs.iter().any(|o| columns.contains(&&o.name)))
        };
        self.planner.catalog.stages().into_iter().filter(writes).collect()
    }

    pub(super) fn keep(&self, table: &Table, columns: &Cells<'a>, refusals: &mut Refusals) {
        for column in table.keep.columns.keys().filter(|column| self.complete && !columns.contains_key(*column)) {
            let refusal =
                self.scope.refuse(&join(&table.key, "keep"), format!("`{column}`"), "a column of this partition");
            refusals.push(refusal.nearest(column, columns.keys().map(String::as_str)));
        }
    }

    /// Columns that are always written and never read.
    pub(super) fn dead(&self, cells: &IndexMap<&str, Cells<'a>>, refusals: &mut Refusals) {
        for (partition, columns) in cells {
            let table = &self.drafts.partitions[*partition];
            if matches!(table.rows, Rows::Files { .. } | Rows::Put) {
                continue;
            }
            for (column, cell) in columns {
                if !cell.readers.is_empty() || table.keep.columns.contains_key(column) {
                    continue;
                }
                if cell.linked {
                    let refusal = self.scope.refuse(
                        &join(&table.key, "link"),
                        format!("`{column}`, which nobody reads"),
                        "a linked column with a reader",
                    );
                    refusals.push(refusal.action("leave it out of `link`"));
                } else if !cell.output.optional {
                    let Some(writer) = cell.writers.first().map(|index| self.task(*index)) else {
                        continue;
                    };
                    let refusal = self.scope.refuse(
                        &writer.key,
                        format!("column `{column}` of `{partition}`, which nobody reads"),
                        "a reader for every column",
                    );
                    refusals.push(
                        refusal.action(format!(
                            "remove the stage, or keep the column: `keep: [{column}]` in {}",
                            table.key
                        )),
                    );
                }
            }
        }
    }

    /// A task that waits, through others, for its own output: true when there is none.
    pub(super) fn circles(
        &self,
        cells: &IndexMap<&str, Cells<'a>>,
        reads: &[IndexMap<String, String>],
        refusals: &mut Refusals,
    ) -> bool {
        let waits_for = |index: usize| {
            let columns = &cells[self.task(index).partition.as_str()];
            reads[index].values().flat_map(|c| columns[c].writers.clone()).collect::<Vec<_>>()
        };
        for start in 0..self.drafts.tasks.len() {
            // Depth first from `start`; a circle is reported from its first task alone.
            let mut stack = vec![(start, vec![start])];
            let mut seen = vec![false; self.drafts.tasks.len()];
            while let Some((index, path)) = stack.pop() {
                for next in waits_for(index) {
                    if next == start {
                        let names: Vec<_> =
                            path.iter().chain([&start]).map(|i| format!("`{}`", self.task(*i).name)).collect();
                        let refusal = self.scope.refuse(
                            &self.task(start).key,
                            format!("a circle: {}", names.join(" waits for ")),
                            "inputs that come before the stage",
                        );
                        refusals.push(refusal.action("bind one of the inputs to another column"));
                        return false;
                    }
                    if next > start && !seen[next] {
                        seen[next] = true;
                        stack.push((next, path.iter().copied().chain([next]).collect()));
                    }
                }
            }
        }
        true
    }
}
