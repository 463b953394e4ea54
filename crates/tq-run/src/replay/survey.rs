//! Looking through an archive before anything starts: every file is there, whole, and of batches that a schedule can cut
//! again.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail, ensure};
use stage_archive::{BatchName, Recorded, list};
use tq_schedule::plan::Arithmetic;
use transferqueue::Column;

/// What an archive holds.
pub(super) struct Survey {
    /// Complete cycles.
    pub(super) cycles: u64,
    /// Groups in them.
    pub(super) groups: u64,
    /// Largest distance between the cycle that a row was trained in and the version of its first token.
    pub(super) lag: u64,
    /// Archived columns.
    pub(super) columns: Vec<Column>,
}

/// Batches of one cycle as they were found.
struct Cycle {
    /// Groups of each batch.
    batches: Vec<u64>,
    lag: u64,
}

/// Reads every file of the partition's archive, checksums included. `trained`: cycles that the run's audit tells of.
///
/// # Errors
/// The first file that is missing or damaged, and the first cycle that cannot be cut again.
pub(super) fn survey(archive: &Path, partition: &str, arithmetic: &Arithmetic, trained: u64) -> Result<Survey> {
    let shown = archive.display();
    ensure!(
        archive.is_dir(),
        "`{shown}`: found no such folder; expected the archive of partition `{partition}`, which `keep: archive` writes"
    );
    let (mut cycles, mut open): (Vec<Cycle>, Cycle) = (Vec::new(), Cycle { batches: Vec::new(), lag: 0 });
    let mut columns: Option<Vec<Column>> = None;
    for (name, path) in list(archive)? {
        let expected = BatchName { cycle: cycles.len() as u64, index: open.batches.len() as u64 };
        if name != expected {
            bail!(
                "`{shown}`: found no file `{expected}`, while `{name}` is there; expected every batch of every cycle; restore it from a copy, or record the run again"
            );
        }
        let recorded = Recorded::open(&path)?;
        recorded.verify()?;
        let facts = recorded.facts().clone();
        ensure!(
            facts.partition == partition,
            "`{}`: found rows of partition `{}`; expected those of `{partition}`",
            path.display(),
            facts.partition
        );
        let found = recorded.columns().to_vec();
        let first = columns.get_or_insert_with(|| found.clone());
        ensure!(
            *first == found,
            "`{}`: found other columns than in the files before it ({}); expected {}",
            path.display(),
            names(&found),
            names(first)
        );
        let rows = recorded.read(&[])?;
        let starts = rows.groups();
        let (groups, mut seen) = (starts.len().saturating_sub(1) as u64, BTreeSet::new());
        for bounds in starts.windows(2) {
            let group = &rows.heads[bounds[0]..bounds[1]];
            let samples: BTreeSet<u32> = group.iter().map(|head| head.sample).collect();
            let fits = samples.last().is_none_or(|last| u64::from(*last) < arithmetic.rows_per_group);
            ensure!(
                fits && samples.len() == group.len() && seen.insert(group[0].group),
                "`{}`: found the samples {:?} of group {}; expected each of 0 to {} once at most, together",
                path.display(),
                group.iter().map(|head| head.sample).collect::<Vec<_>>(),
                group[0].group,
                arithmetic.rows_per_group - 1
            );
        }
        let lags = rows.heads.iter().filter_map(|head| Some(name.cycle.saturating_sub(head.span?.first)));
        open.lag = lags.fold(open.lag, u64::max);
        open.batches.push(groups);
        if facts.last {
            cycles.push(std::mem::replace(&mut open, Cycle { batches: Vec::new(), lag: 0 }));
        }
    }
    let complete = cycles.len() as u64;
    ensure!(
        complete >= trained.max(1),
        "`{shown}`: found {complete} complete cycles; expected {}; {}",
        if trained == 0 {
            "at least one".to_owned()
        } else {
            format!("the {trained} that audit.jsonl says were trained")
        },
        match open.batches.len() as u64 {
            0 => format!("the first that lacks is cycle {complete}"),
            index => format!("the first file that lacks is `{}`", BatchName { cycle: complete, index }),
        }
    );
    if !open.batches.is_empty() {
        tracing::warn!("`{shown}`: cycle {complete} was not recorded to its end, and is left out");
    }
    for (cycle, found) in cycles.iter().enumerate() {
        cuttable(cycle as u64, &found.batches, cycle as u64 + 1 == complete, arithmetic)
            .with_context(|| format!("`{shown}`"))?;
    }
    Ok(Survey {
        cycles: complete,
        groups: cycles.iter().flat_map(|cycle| &cycle.batches).sum(),
        lag: cycles.iter().map(|cycle| cycle.lag).max().unwrap_or(0),
        columns: columns.unwrap_or_default(),
    })
}

/// Whether a schedule cuts these batches again: all full, but for the last of the last cycle.
fn cuttable(cycle: u64, batches: &[u64], last: bool, arithmetic: &Arithmetic) -> Result<()> {
    let (mini, whole) = (arithmetic.mini_batch, arithmetic.mini_batches_per_cycle);
    let full = |groups: &[u64]| groups.iter().all(|groups| *groups == mini);
    let fits = match (last, batches.split_last()) {
        (true, Some((end, before))) => full(before) && *end <= mini && batches.len() as u64 <= whole,
        _ => full(batches) && batches.len() as u64 == whole,
    };
    ensure!(
        fits,
        "cycle {cycle}: found batches of {batches:?} groups; expected {whole} of {mini}: groups left it after it was cut, and no schedule cuts such a cycle again"
    );
    Ok(())
}

fn names(columns: &[Column]) -> String {
    let names: Vec<String> = columns.iter().map(|column| format!("{} {}", column.name, column.kind)).collect();
    names.join(", ")
}
