//! Micro-batches under a token budget.

use super::{partitions, workload};
use crate::error::{Error, Result};

/// How rows are packed into micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Most tokens in a micro-batch. verl: `ppo_max_token_len_per_gpu`.
    pub max_tokens: usize,
    /// At least this many micro-batches.
    pub at_least: usize,
    /// Their number is a multiple of this.
    pub multiple_of: usize,
    /// This many consecutive rows stay together.
    pub keep_together: usize,
    /// Whether small micro-batches come first and last, to keep pipelines busy; otherwise the order is that of [`partitions`].
    pub small_at_ends: bool,
}

impl Packing {
    /// A budget of `max_tokens` and no other wish.
    pub fn new(max_tokens: usize) -> Self {
        Packing { max_tokens, at_least: 1, multiple_of: 1, keep_together: 1, small_at_ends: true }
    }
}

/// Packs rows of the given lengths (in tokens) into micro-batches that all respect the budget and cost about the same (verl: `rearrange_micro_batches`).
///
/// Starts with `⌈tokens / max_tokens⌉` parts balanced by [`workload`] and adds parts until every one fits.
///
/// ```
/// use tq_math::balance::{Packing, micro_batches};
/// let lists = micro_batches(&[30, 10, 20, 25], &Packing::new(45))?;
/// assert!(lists.iter().all(|rows| rows.iter().map(|row| [30, 10, 20, 25][*row]).sum::<usize>() <= 45));
/// # Ok::<(), tq_math::Error>(())
/// ```
///
/// # Errors
/// [`Error::Balance`] if a row, or rows that stay together, exceed the budget; if the rows cannot be kept together (their number is no multiple);
/// or if more micro-batches are asked for than there are rows to fill them.
pub fn micro_batches(lengths: &[usize], packing: &Packing) -> Result<Vec<Vec<usize>>> {
    let together = packing.keep_together.max(1);
    if lengths.is_empty() || !lengths.len().is_multiple_of(together) {
        return Err(Error::Balance(format!(
            "{} rows cannot be taken {together} at a time; give a positive multiple",
            lengths.len()
        )));
    }
    let tokens: Vec<usize> = lengths.chunks(together).map(|group| group.iter().sum()).collect();
    let costs: Vec<u64> =
        lengths.chunks(together).map(|group| group.iter().map(|length| workload(*length)).sum()).collect();
    if let Some((group, found)) = tokens.iter().enumerate().find(|(_, found)| **found > packing.max_tokens) {
        return Err(Error::Balance(format!(
            "rows {}..{} have {found} tokens, more than the budget of {} tokens per micro-batch; raise it to at least {}",
            group * together,
            (group + 1) * together,
            packing.max_tokens,
            tokens.iter().max().unwrap_or(found),
        )));
    }
    let step = packing.multiple_of.max(1);
    let fewest = tokens.iter().sum::<usize>().div_ceil(packing.max_tokens.max(1)).clamp(1, tokens.len());
    let mut parts = fewest.max(packing.at_least).next_multiple_of(step);
    let mut lists = loop {
        if parts > tokens.len() {
            return Err(Error::Balance(format!(
                "{parts} micro-batches are needed or asked for, but there are only {} rows (or groups kept together) to fill them",
                tokens.len()
            )));
        }
        let lists = partitions(&costs, parts, false)?;
        if lists.iter().all(|groups| groups.iter().map(|group| tokens[*group]).sum::<usize>() <= packing.max_tokens) {
            break lists;
        }
        parts += step;
    };
    if packing.small_at_ends {
        lists = small_at_ends(lists, &costs);
    }
    Ok(lists
        .into_iter()
        .map(|groups| groups.into_iter().flat_map(|group| group * together..(group + 1) * together).collect())
        .collect())
}

/// Largest in the middle: of the lists by descending cost, every second one backwards, then the others.
fn small_at_ends(mut lists: Vec<Vec<usize>>, costs: &[u64]) -> Vec<Vec<usize>> {
    let cost = |groups: &Vec<usize>| groups.iter().map(|group| costs[*group]).sum::<u64>();
    lists.sort_by_key(|groups| std::cmp::Reverse((cost(groups), groups.first().copied())));
    let evens: Vec<Vec<usize>> = lists.iter().step_by(2).rev().cloned().collect();
    let odds = lists.into_iter().skip(1).step_by(2);
    evens.into_iter().chain(odds).collect()
}
