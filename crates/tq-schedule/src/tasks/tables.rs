//! The partitions of a phase.

use indexmap::IndexMap;
use serde_json::Value as Json;
use tq_config::{Refusals, join};

use super::Table;
use crate::entry::{self, Expand, Keeps, Names};
use crate::plan::{Note, Rows};
use crate::planner::{Planner, SourceFiles};
use crate::port::{Extent, Output};
use crate::scope::Scope;

/// Most rows of a group.
const MOST_ROWS: u64 = 65_536;

/// The partitions a phase could use: an `expand: {files: …}` becomes a source of its own; one that is never evaluated
/// is left out.
pub(super) fn tables(
    planner: &Planner<'_>,
    scope: &Scope,
    declared: &IndexMap<String, entry::Partition>,
    parameters: &Json,
    refusals: &mut Refusals,
    notes: &mut Vec<Note>,
) -> IndexMap<String, Table> {
    let mut sources = IndexMap::new();
    let mut tables = IndexMap::new();
    let files = |Names(files): &Names| Rows::Files { files: files.clone(), count: None };
    for (name, partition) in declared {
        let key = format!("partitions.{name}");
        let only_expanded = |field: &str, set: bool, refusals: &mut Refusals| {
            if set {
                let refusal =
                    scope.refuse(&join(&key, field), format!("`{field}` without `expand`"), "`expand` as well");
                refusals.push(refusal.action("only rows born at admission have it"));
            }
        };
        let ways = [partition.files.is_some(), partition.expand.is_some(), partition.columns.is_some()];
        let refuse = |found: &str, refusals: &mut Refusals| {
            let refusal = scope.refuse(&key, found, "one of `files`, `expand` and `columns`");
            refusals.push(refusal.action("rows are read from files, born from another partition's, or put by clients"));
        };
        if ways.iter().filter(|way| **way).count() > 1 {
            refuse("several ways to get rows", refusals);
            continue;
        }
        if partition.expand.is_none() {
            only_expanded("n", partition.n.is_some(), refusals);
            only_expanded("every", partition.every.is_some(), refusals);
            only_expanded("link", partition.link.is_some(), refusals);
            if partition.keep.archives() {
                let refusal = scope.refuse(
                    &join(&key, "keep"),
                    "`archive` on a partition that is not expanded",
                    "`archive` on one with `expand`",
                );
                refusals.push(refusal.action(
                    "an archive is made of cut batches: say `keep: archive` where these rows are expanded, and link their columns there",
                ));
            }
        }
        let table = |rows: Rows, put: Vec<Output>| Table {
            rows,
            link: partition.link.clone().unwrap_or_default(),
            put,
            keep: partition.keep.clone(),
            key: key.clone(),
        };
        match (&partition.files, &partition.expand, &partition.columns) {
            (Some(paths), ..) => {
                sources.insert(name.clone(), table(files(paths), Vec::new()));
            }
            (None, None, Some(columns)) => {
                let put = columns.iter().map(|(column, put)| {
                    let extent = put.max.map_or(Extent::Sequence, Extent::Fixed);
                    Output::new(column, put.kind.clone()).extent(extent)
                });
                sources.insert(name.clone(), table(Rows::Put, put.collect()));
            }
            (None, None, None) => refuse("no way to get rows", refusals),
            (None, Some(expand), _) => {
                let n = partition.n.unwrap_or(1);
                if n == 0 {
                    let refusal = scope.refuse(&join(&key, "n"), "groups of 0 rows", "at least 1 row a group");
                    refusals.push(refusal.action("set actor_rollout_ref.rollout.n, or `n` here"));
                } else if n > MOST_ROWS {
                    let expected = format!("at most {MOST_ROWS} rows a group");
                    refusals.push(scope.refuse(&join(&key, "n"), format!("groups of {n} rows"), expected));
                }
                let every = match partition.every {
                    None => None,
                    Some(cycles) if cycles > 0 => u64::try_from(cycles).ok(),
                    Some(cycles) => {
                        let note = Note {
                            key: key.clone(),
                            at: scope.pipeline.get(&key).map_or(String::new(), |n| n.place().to_string()),
                            reason: format!("`every` is {cycles}: it is never evaluated"),
                        };
                        if !notes.contains(&note) {
                            notes.push(note);
                        }
                        continue;
                    }
                };
                let source = match expand {
                    Expand::Partition(source) => source.clone(),
                    Expand::Files(paths) => {
                        let source = format!("{name}-prompts");
                        let rows = files(paths);
                        let key = join(&key, "expand");
                        let table = Table { rows, link: Vec::new(), put: Vec::new(), keep: Keeps::default(), key };
                        sources.insert(source.clone(), table);
                        source
                    }
                };
                tables.insert(name.clone(), table(Rows::Expand { source, n, every }, Vec::new()));
            }
        }
    }
    for table in tables.values() {
        if let Rows::Expand { source, .. } = &table.rows
            && !sources.contains_key(source)
            && (tables.contains_key(source) || scope.pipeline.get(&format!("partitions.{source}")).is_none())
        {
            let key = join(&table.key, "expand");
            let refusal = scope.refuse(&key, format!("`{source}`"), "a partition with `files` or `columns`");
            refusals.push(refusal.nearest(source, sources.keys().map(String::as_str)));
        }
    }
    count(planner, parameters, &mut sources, &tables);
    sources.extend(tables);
    sources
}

/// Counts the rows of every source of files.
fn count(
    planner: &Planner<'_>,
    parameters: &Json,
    sources: &mut IndexMap<String, Table>,
    tables: &IndexMap<String, Table>,
) {
    let Some(counter) = planner.rows else { return };
    for (partition, table) in sources {
        let evaluated = tables
            .values()
            .any(|t| matches!(&t.rows, Rows::Expand { source, every: Some(_), .. } if source == partition));
        if let Rows::Files { files, count } = &mut table.rows {
            *count = counter(&SourceFiles { partition, files, evaluated, parameters });
        }
    }
}
