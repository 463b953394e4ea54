//! Columns that are read through the group from the source partition.

use indexmap::IndexMap;
use tq_config::{Refusals, join};

use super::{Binder, Cell, Cells, candidates, is_required};
use crate::plan::{Note, Rows};
use crate::port::Output;
use crate::tasks::Table;

/// A column that a source partition can have.
struct Linkable<'a> {
    name: &'a str,
    /// The task that writes it; none when clients put it.
    writer: Option<usize>,
    output: &'a Output,
}

impl<'a> Linkable<'a> {
    fn linked(&self) -> Cell<'a> {
        Cell {
            writers: self.writer.into_iter().collect(),
            output: self.output,
            linked: true,
            readers: Vec::new(),
            archived: false,
        }
    }
}

impl<'a> Binder<'a> {
    /// Adds the linked columns: those of `link`, then those that are required and that only the source has. False when
    /// one of the former is refused.
    pub(super) fn link(
        &self,
        partition: &str,
        table: &Table,
        columns: &mut Cells<'a>,
        refusals: &mut Refusals,
    ) -> bool {
        let Rows::Expand { source, .. } = &table.rows else {
            return true;
        };
        let before = refusals.0.len();
        let outputs = self.columns_of(source);
        for column in &table.link {
            let key = join(&table.key, "link");
            let Some(found) = outputs.iter().find(|found| found.name == column) else {
                if self.complete {
                    let refusal = self.scope.refuse(&key, format!("`{column}`"), format!("a column of `{source}`"));
                    refusals.push(refusal.nearest(column, outputs.iter().map(|found| found.name)));
                }
                continue;
            };
            if let Some(cell) = columns.get(column) {
                let refusal = self.scope.refuse(
                    &key,
                    format!("a second producer of column `{column}` in `{partition}`: {} too", self.writes(cell)),
                    "one producer",
                );
                refusals.push(refusal.action("leave it out of `link`, or bind the stage's output to another column"));
                continue;
            }
            columns.insert(column.clone(), found.linked());
        }
        self.link_required(partition, &outputs, columns);
        refusals.0.len() == before
    }

    /// The columns that `source` can have: what its tasks write and what clients put.
    fn columns_of(&self, source: &str) -> Vec<Linkable<'a>> {
        let mut columns = Vec::new();
        for (index, draft) in self.drafts.tasks.iter().enumerate() {
            if draft.partition == source {
                columns.extend(draft.info.outputs.iter().map(|output| Linkable {
                    name: draft.bind.get(&output.name).unwrap_or(&output.name),
                    writer: Some(index),
                    output,
                }));
            }
        }
        let put = self.drafts.partitions.get(source);
        columns.extend(put.into_iter().flat_map(|t| &t.put).map(|output| Linkable {
            name: &output.name,
            writer: None,
            output,
        }));
        columns
    }

    /// Links what a task on `partition` requires, nobody writes there (or would, were it not switched off), and the
    /// source can have: the pipeline need not list it.
    fn link_required(&self, partition: &str, outputs: &[Linkable<'a>], columns: &mut Cells<'a>) {
        for draft in self.drafts.tasks.iter().filter(|d| d.partition == partition) {
            for input in draft.info.inputs.iter().filter(|i| is_required(draft, i)) {
                let candidates = candidates(draft, input);
                let served = candidates.iter().any(|column| columns.contains_key(*column));
                if served || self.switched_off(&candidates).is_some() {
                    continue;
                }
                let source = |column: &&String| outputs.iter().find(|found| found.name == **column);
                if let Some(found) = candidates.iter().find_map(source) {
                    columns.insert(found.name.to_owned(), found.linked());
                }
            }
        }
    }

    /// One line for every column that is linked without having been listed.
    pub(super) fn note_links(&self, cells: &IndexMap<&str, Cells<'a>>, notes: &mut Vec<Note>) {
        for (partition, columns) in cells {
            let table = &self.drafts.partitions[*partition];
            let Rows::Expand { source, .. } = &table.rows else {
                continue;
            };
            let key = join(&table.key, "link");
            let pipeline = &self.scope.pipeline;
            let node = pipeline.get(&key).or_else(|| pipeline.get(&table.key));
            for (column, cell) in columns {
                if !cell.linked || table.link.contains(column) {
                    continue;
                }
                let readers = cell.readers.iter().map(|index| format!("`{}`", self.task(*index).name));
                let readers = readers.collect::<Vec<_>>().join(" and ");
                let note = Note {
                    key: key.clone(),
                    at: node.map_or_else(String::new, |node| node.place().to_string()),
                    reason: format!("column `{column}` of `{source}` is linked by itself, for {readers}"),
                };
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
    }
}
