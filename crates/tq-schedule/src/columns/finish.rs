//! The planned partitions and tasks, once every port is bound.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::{Binder, Bound, Cell, Cells};
use crate::numbers::Longest;
use crate::plan::{Column, ColumnOrigin, Keep, ModelUse, Partition, Rows, Task, TaskTraining};
use crate::port::Output;
use crate::tasks::{Columns, Table};

impl<'a> Binder<'a> {
    pub(super) fn finish(
        &self,
        cells: &IndexMap<&str, Cells<'a>>,
        reads: &[IndexMap<String, String>],
        models: IndexMap<String, ModelUse>,
        training: Option<&str>,
        longest: &Longest,
    ) -> Bound {
        let name_of = |index: &usize| self.task(*index).name.clone();
        // A source's column exists when somebody reads or links it.
        let mut linked_into: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for (partition, columns) in cells {
            if let Rows::Expand { source, .. } = &self.drafts.partitions[*partition].rows {
                for (column, _) in columns.iter().filter(|(_, cell)| cell.linked) {
                    linked_into.entry((source, column)).or_default().push((*partition).to_owned());
                }
            }
        }
        let mut partitions: IndexMap<String, Partition> = IndexMap::new();
        for (partition, columns) in cells {
            let table = &self.drafts.partitions[*partition];
            let is_source = matches!(table.rows, Rows::Files { .. });
            let mut planned = IndexMap::new();
            for (column, cell) in columns {
                let links = linked_into.get(&(*partition, column.as_str())).cloned().unwrap_or_default();
                let archived = cell.archived.then_some(Keep::Archive);
                let keep = archived.or(table.keep.columns.get(column).copied());
                let wanted = !cell.readers.is_empty() || keep.is_some() || !links.is_empty();
                if !wanted && (is_source || cell.output.optional) {
                    continue;
                }
                planned.insert(column.clone(), self.column(cell, table, keep, links, longest, &name_of));
            }
            let n = if let Rows::Expand { n, .. } = table.rows { n } else { 1 };
            let row: u64 = planned.values().map(|c: &Column| c.max_bytes_per_row).fold(0, u64::saturating_add);
            partitions.insert(
                (*partition).to_owned(),
                Partition {
                    rows: table.rows.clone(),
                    training: training == Some(*partition),
                    columns: planned,
                    bytes_per_group: row.saturating_mul(n),
                },
            );
        }
        let mut tasks = IndexMap::new();
        let mut mini_batch_keys = IndexMap::new();
        for (index, draft) in self.drafts.tasks.iter().enumerate() {
            if let Some(training) = &draft.info.training {
                mini_batch_keys.insert(draft.name.clone(), training.mini_batch_key.clone());
            }
            let columns = &partitions[&draft.partition].columns;
            let column = |o: &Output| draft.bind.get(&o.name).unwrap_or(&o.name).clone();
            let writes = draft.info.outputs.iter().map(|o| (o.name.clone(), column(o)));
            tasks.insert(
                draft.name.clone(),
                Task {
                    stage: draft.stage.clone(),
                    implementation: draft.implementation.clone(),
                    partition: draft.partition.clone(),
                    priority: draft.priority,
                    per: draft.per,
                    model: draft.model.clone(),
                    reads: reads[index].clone(),
                    writes: writes.filter(|(_, column)| columns.contains_key(column)).collect(),
                    filter: draft.filter.clone(),
                    reuse: draft.reuse,
                    external: matches!(draft.columns, Columns::External(_)),
                    training: draft.info.training.as_ref().map(|t| TaskTraining {
                        mini_batch: t.mini_batch,
                        epochs: t.epochs,
                        from_cycle: draft.from_cycle,
                        ranks: draft.ranks,
                        lengths: t.lengths.iter().filter_map(|port| reads[index].get(port).cloned()).collect(),
                    }),
                    attempts: draft.attempts,
                    on_failure: draft.on_failure,
                    on_lost: draft.on_lost,
                    with: draft.with.clone(),
                    parameters: draft.info.parameters.clone(),
                },
            );
        }
        Bound { partitions, tasks, models, mini_batch_keys }
    }

    fn column(
        &self,
        cell: &Cell<'_>,
        table: &Table,
        keep: Option<Keep>,
        linked_into: Vec<String>,
        longest: &Longest,
        name_of: &dyn Fn(&usize) -> String,
    ) -> Column {
        let origin = match &table.rows {
            Rows::Expand { source, .. } if cell.linked => ColumnOrigin::Linked(source.clone()),
            Rows::Put if cell.writers.is_empty() => ColumnOrigin::Put,
            _ => ColumnOrigin::Written(cell.writers.iter().map(name_of).collect()),
        };
        Column {
            column_type: cell.output.column_type.clone(),
            attributes: cell.output.carries.clone(),
            readers: cell.readers.iter().map(name_of).collect(),
            linked_into,
            keep,
            extent: cell.output.extent,
            max_bytes_per_row: if cell.linked { 0 } else { longest.bytes(cell.output) },
            origin,
        }
    }
}
