//! Binding ports to columns, and what must hold of the result: one producer per column, agreeing types, every reader
//! served, every column read or kept, no circle.

mod archive;
mod checks;
mod external;
mod finish;
mod links;
mod training;

use indexmap::IndexMap;
use tq_config::Refusals;

use crate::numbers::Longest;
use crate::plan::{ModelUse, Note, Partition, Task};
use crate::planner::Planner;
use crate::port::{Input, Output};
use crate::scope::Scope;
use crate::tasks::{Columns, Draft, Drafts, Off};

/// A phase with its ports bound.
pub(crate) struct Bound {
    pub(crate) partitions: IndexMap<String, Partition>,
    pub(crate) tasks: IndexMap<String, Task>,
    pub(crate) models: IndexMap<String, ModelUse>,
    /// Keys that training tasks took their mini-batch from: task → parameter.
    pub(crate) mini_batch_keys: IndexMap<String, String>,
}

/// One column while the ports are bound.
struct Cell<'a> {
    /// Indices of the tasks that write it; for a linked column, of the source's; none when clients put it.
    writers: Vec<usize>,
    output: &'a Output,
    linked: bool,
    readers: Vec<usize>,
    archived: bool,
}

type Cells<'a> = IndexMap<String, Cell<'a>>;

/// Binds the ports of `drafts`. With `complete` false some stage is missing because it was refused: then columns that
/// lack a producer or a reader are not reported, since that stage may be the reason.
pub(crate) fn bind(
    planner: &Planner<'_>,
    scope: &Scope,
    drafts: Drafts,
    complete: bool,
    refusals: &mut Refusals,
    notes: &mut Vec<Note>,
) -> Option<Bound> {
    let before = refusals.0.len();
    let binder = Binder { planner, scope, drafts: &drafts, complete };
    let longest = Longest::read(scope, refusals)?;
    let mut cells: IndexMap<&str, Cells<'_>> = IndexMap::new();
    let mut reads: Vec<IndexMap<String, String>> = vec![IndexMap::new(); drafts.tasks.len()];
    // A column may lack its reader only because something else is wrong: that is said first.
    let mut whole = complete;
    for (name, table) in &drafts.partitions {
        let mut columns = binder.produced(name, refusals);
        let linked = binder.link(name, table, &mut columns, refusals);
        whole &= linked;
        for (index, draft) in drafts.tasks.iter().enumerate().filter(|(_, d)| d.partition == *name) {
            let inputs = binder.read(index, draft, &mut columns, refusals);
            for (input, candidates) in inputs.missing {
                whole = false;
                if linked && complete {
                    refusals.push(binder.missing(draft, input, &candidates, &columns));
                }
            }
            reads[index] = inputs.bound;
        }
        binder.keep(table, &columns, refusals);
        // The archive holds what others read, too: it comes last.
        let here = || drafts.tasks.iter().enumerate().filter(|(_, draft)| draft.partition == *name);
        for (index, draft) in here() {
            if let Columns::External(named) = &draft.columns {
                reads[index] = binder.external(index, draft, named, &mut columns, refusals);
            }
        }
        for (index, _) in here().filter(|(_, draft)| draft.columns == Columns::Archived) {
            reads[index] = binder.archive(index, table, &mut columns, refusals);
        }
        cells.insert(name, columns);
    }
    whole &= binder.circles(&cells, &reads, refusals);
    let models = binder.models(refusals);
    let training = binder.training(complete, refusals);
    if whole && training.is_some() {
        binder.dead(&cells, refusals);
    }
    if refusals.0.len() > before || !complete {
        return None;
    }
    binder.note_links(&cells, notes);
    Some(binder.finish(&cells, &reads, models, training.as_deref(), &longest))
}

/// The inputs of a task: those bound (port → column), and those that no column can serve, with the columns tried.
struct Inputs<'a> {
    bound: IndexMap<String, String>,
    missing: Vec<(&'a Input, Vec<&'a String>)>,
}

struct Binder<'a> {
    planner: &'a Planner<'a>,
    scope: &'a Scope,
    drafts: &'a Drafts,
    complete: bool,
}

impl<'a> Binder<'a> {
    fn task(&self, index: usize) -> &'a Draft {
        &self.drafts.tasks[index]
    }

    /// The columns that tasks on `partition` write, with one producer each.
    fn produced(&self, partition: &str, refusals: &mut Refusals) -> Cells<'a> {
        let put = self.drafts.partitions[partition].put.iter();
        let cell = |output| Cell { writers: Vec::new(), output, linked: false, readers: Vec::new(), archived: false };
        let mut cells: Cells<'a> = put.map(|output| (output.name.clone(), cell(output))).collect();
        for (index, draft) in self.drafts.tasks.iter().enumerate().filter(|(_, d)| d.partition == partition) {
            for output in &draft.info.outputs {
                let column = draft.bind.get(&output.name).unwrap_or(&output.name);
                let key = if draft.bind.contains_key(&output.name) {
                    format!("{}.bind.{}", draft.key, output.name)
                } else {
                    draft.key.clone()
                };
                let Some(cell) = cells.get_mut(column) else {
                    let readers = Vec::new();
                    let cell = Cell { writers: vec![index], output, linked: false, readers, archived: false };
                    cells.insert(column.clone(), cell);
                    continue;
                };
                let overlapping = cell.writers.iter().any(|w| !disjoint(self.task(*w), draft));
                if overlapping || cell.writers.is_empty() {
                    let refusal = self.scope.refuse(
                        &key,
                        format!("a second producer of column `{column}` in `{partition}`: {} too", self.writes(cell)),
                        "one producer, or several with disjoint `where`",
                    );
                    refusals.push(refusal.action(format!("give it another column: `bind: {{{}: NAME}}`", output.name)));
                } else if cell.output.column_type != output.column_type {
                    refusals.push(self.scope.refuse(
                        &key,
                        format!("column `{column}` written as {}", output.column_type),
                        format!("{}, since {} as that", cell.output.column_type, self.writes(cell)),
                    ));
                }
                cell.writers.push(index);
            }
        }
        cells
    }

    /// The stage that would write one of these columns if it were not switched off.
    fn switched_off(&self, candidates: &[&String]) -> Option<&'a Off> {
        let writes = |off: &&Off| candidates.iter().any(|c| off.columns.contains(c));
        self.drafts.off.iter().find(writes)
    }

    /// Who fills a column, as the subject of a sentence.
    fn writes(&self, cell: &Cell<'_>) -> String {
        match cell.writers.first() {
            Some(index) => format!("stage `{}` writes it", self.task(*index).stage),
            None => "clients put it".to_owned(),
        }
    }

    /// Binds the inputs of one task.
    fn read(&self, index: usize, draft: &'a Draft, columns: &mut Cells<'a>, refusals: &mut Refusals) -> Inputs<'a> {
        let mut inputs = Inputs { bound: IndexMap::new(), missing: Vec::new() };
        for input in &draft.info.inputs {
            let candidates = candidates(draft, input);
            let Some(column) = candidates.iter().copied().find(|column| columns.contains_key(*column)) else {
                if is_required(draft, input) {
                    inputs.missing.push((input, candidates));
                }
                continue;
            };
            let cell = columns.get_mut(column).expect("found above");
            cell.readers.push(index);
            self.agree(draft, input, column, cell, refusals);
            inputs.bound.insert(input.name.clone(), column.clone());
        }
        inputs
    }

    fn agree(&self, draft: &Draft, input: &Input, column: &str, cell: &Cell<'_>, refusals: &mut Refusals) {
        let output = cell.output;
        let writes = self.writes(cell);
        let mut refuse = |found: String, expected: String, action: String| {
            refusals.push(self.scope.refuse(&draft.key, found, expected).action(action));
        };
        if output.column_type != input.column_type {
            refuse(
                format!("column `{column}` of type {} ({writes})", output.column_type),
                format!("type {} for its input `{}`", input.column_type, input.name),
                "bind the input to another column, or use another stage to write it".into(),
            );
        }
        for (attribute, wanted) in &input.requires {
            let found = output.carries.get(attribute);
            if found != Some(wanted) {
                let found =
                    found.map_or_else(|| format!("no `{attribute}`"), |value| format!("`{attribute}: {value}`"));
                refuse(
                    format!("column `{column}` with {found} ({writes})"),
                    format!("`{attribute}: {wanted}` for its input `{}`", input.name),
                    "what must not be mixed is refused: bind the input to a column that carries it".into(),
                );
            }
        }
    }
}

/// The columns that can serve an input, best first.
fn candidates<'a>(draft: &'a Draft, input: &'a Input) -> Vec<&'a String> {
    match draft.bind.get(&input.name) {
        Some(column) => vec![column],
        None if input.candidates.is_empty() => vec![&input.name],
        None => input.candidates.iter().collect(),
    }
}

/// Whether the task cannot do without the input: an optional one is wanted once the pipeline binds it.
fn is_required(draft: &Draft, input: &Input) -> bool {
    !input.optional || draft.bind.contains_key(&input.name)
}

/// Whether two tasks' `where` can never match the same row: some tag is to have two different values.
fn disjoint(a: &Draft, b: &Draft) -> bool {
    a.filter.iter().any(|(tag, value)| b.filter.get(tag).is_some_and(|other| other != value))
}
