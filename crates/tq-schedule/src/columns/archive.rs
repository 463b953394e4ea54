//! The columns that a partition archives, as inputs of the task that writes them.

use indexmap::IndexMap;
use tq_config::{Refusals, join};

use super::{Binder, Cells};
use crate::plan::Keep;
use crate::port::ROW_COLUMNS;
use crate::tasks::Table;

impl<'a> Binder<'a> {
    /// Makes task `index` a reader of every archived column: those that `keep` names, or with the word `archive` all that
    /// exist once the other tasks are bound. Each is bound under its own name.
    pub(super) fn archive(
        &self,
        index: usize,
        table: &Table,
        columns: &mut Cells<'a>,
        refusals: &mut Refusals,
    ) -> IndexMap<String, String> {
        let mut bound = IndexMap::new();
        for (name, cell) in columns.iter_mut() {
            let exists = cell.linked || !cell.readers.is_empty() || !cell.output.optional;
            let named = table.keep.columns.get(name);
            if named != Some(&Keep::Archive) && !(table.keep.all_archived && exists) {
                continue;
            }
            if ROW_COLUMNS.contains(&name.as_str()) {
                let refusal = self.scope.refuse(
                    &join(&table.key, "keep"),
                    format!("the column `{name}`, and an archive has one of that name for every row"),
                    format!("none of {}", ROW_COLUMNS.join(", ")),
                );
                refusals.push(refusal.action("bind the stage's output to another column"));
                continue;
            }
            // Whoever reads a column is owed only rows that have it: the archive would lack the others.
            let some = cell.writers.iter().map(|writer| self.task(*writer)).find(|writer| !writer.filter.is_empty());
            let trained = cell.readers.iter().any(|reader| self.task(*reader).info.training.is_some());
            if let Some(writer) = some.filter(|_| !trained) {
                let refusal = self.scope.refuse(
                    &join(&table.key, "keep"),
                    format!("the column `{name}`, which stage `{}` writes only `where` tags match", writer.stage),
                    "columns that every row has, or that training reads",
                );
                refusals.push(refusal.action("name the columns that are archived: `keep: {COLUMN: archive, …}`"));
                continue;
            }
            cell.readers.push(index);
            cell.archived = true;
            bound.insert(name.clone(), name.clone());
        }
        bound
    }
}
