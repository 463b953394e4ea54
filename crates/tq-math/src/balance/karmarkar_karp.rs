//! The largest differencing method (Karmarkar & Karp 1982) for several parts.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::check_divides;
use crate::error::{Error, Result};

/// Rows bound to end in the same part, and their cost. Ordered by cost, then number of rows, then the rows themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Bundle {
    cost: u64,
    rows: Vec<(usize, u64)>,
}

impl Bundle {
    fn of(row: usize, cost: u64) -> Bundle {
        Bundle { cost, rows: vec![(row, cost)] }
    }

    fn absorb(&mut self, other: Bundle) {
        self.cost += other.cost;
        self.rows.extend(other.rows);
    }
}

impl Ord for Bundle {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.cost, self.rows.len(), &self.rows).cmp(&(other.cost, other.rows.len(), &other.rows))
    }
}

impl PartialOrd for Bundle {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A partial solution: one bundle per part, largest first. Ordered by the spread of its costs, then by its largest bundle.
#[derive(Debug, PartialEq, Eq)]
struct Solution {
    bundles: Vec<Bundle>,
}

impl Solution {
    fn new(mut bundles: Vec<Bundle>, parts: usize) -> Solution {
        bundles.resize_with(parts, Bundle::default);
        bundles.sort_by(|a, b| b.cmp(a));
        Solution { bundles }
    }

    fn spread(&self) -> u64 {
        self.bundles.first().map_or(0, |largest| largest.cost) - self.bundles.last().map_or(0, |smallest| smallest.cost)
    }

    /// The largest bundle of one joins the smallest of the other, and so on.
    fn merge(self, other: Solution) -> Solution {
        let parts = self.bundles.len();
        let mut bundles = self.bundles;
        for (bundle, counterpart) in bundles.iter_mut().zip(other.bundles.into_iter().rev()) {
            bundle.absorb(counterpart);
        }
        Solution::new(bundles, parts)
    }
}

impl Ord for Solution {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.spread(), self.bundles.first()).cmp(&(other.spread(), other.bundles.first()))
    }
}

impl PartialOrd for Solution {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Divides rows of the given costs into `parts` lists of about equal total cost (verl: `get_seqlen_balanced_partitions`), each list ascending.
///
/// The two partial solutions of largest spread are merged, largest against smallest, until one is left. With `equal_size` every list gets the same number
/// of rows.
///
/// ```
/// use tq_math::balance::partitions;
/// let costs = [9, 1, 5, 5];
/// let sums = partitions(&costs, 2, false)?.into_iter().map(|rows| rows.into_iter().map(|row| costs[row]).sum());
/// assert_eq!(sums.collect::<Vec<u64>>(), [10, 10]);
/// # Ok::<(), tq_math::Error>(())
/// ```
///
/// # Errors
/// [`Error::Balance`] if there are fewer rows than parts, if a part stays empty (many costs of 0), or if `equal_size` is asked for and `parts` does not
/// divide the number of rows.
pub fn partitions(costs: &[u64], parts: usize, equal_size: bool) -> Result<Vec<Vec<usize>>> {
    check_divides(costs.len(), parts, equal_size)?;
    if costs.len() < parts {
        return Err(Error::Balance(format!("{} rows cannot fill {parts} parts; ask for fewer parts", costs.len())));
    }
    let mut ascending: Vec<(u64, usize)> = costs.iter().copied().zip(0..).collect();
    ascending.sort_unstable();
    let together = if equal_size { parts } else { 1 };
    let mut heap: BinaryHeap<Solution> = ascending
        .chunks(together)
        .map(|rows| Solution::new(rows.iter().map(|(cost, row)| Bundle::of(*row, *cost)).collect(), parts))
        .collect();
    while heap.len() > 1 {
        let (first, second) = (heap.pop().expect("two are left"), heap.pop().expect("two are left"));
        heap.push(first.merge(second));
    }
    let solution = heap.pop().ok_or_else(|| Error::Balance("there is no row to divide".into()))?;
    let lists: Vec<Vec<usize>> = solution.bundles.into_iter().map(|bundle| sorted(bundle.rows)).collect();
    match lists.iter().position(Vec::is_empty) {
        Some(part) => Err(Error::Balance(format!(
            "part {part} of {parts} stays empty; ask for fewer parts, or for parts of equal size"
        ))),
        None => Ok(lists),
    }
}

fn sorted(rows: Vec<(usize, u64)>) -> Vec<usize> {
    let mut rows: Vec<usize> = rows.into_iter().map(|(row, _)| row).collect();
    rows.sort_unstable();
    rows
}
