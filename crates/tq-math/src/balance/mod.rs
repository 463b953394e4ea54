//! Rows of differing lengths, divided evenly and packed under a budget.
//!
//! [`partitions`] divides rows into a fixed number of parts of about equal cost; [`micro_batches`] finds how many parts a token budget needs.
//! Both are deterministic: equal inputs give equal lists.

mod karmarkar_karp;
mod packing;

pub use karmarkar_karp::partitions;
pub use packing::{Packing, micro_batches};

/// The cost of a row of `tokens` tokens in a transformer of about 7 B parameters: `24576·s + s²` (linear layers, attention).
pub fn workload(tokens: usize) -> u64 {
    let tokens = tokens as u64;
    24_576 * tokens + tokens * tokens
}

/// Each row in turn to the part with the smallest sum so far (the first of equals). `equal_size` gives every part the same number of rows.
///
/// # Errors
/// [`Error::Balance`](crate::Error::Balance) if `parts` is 0, or if `equal_size` is asked for and `parts` does not divide the number of rows.
pub fn greedy(costs: &[u64], parts: usize, equal_size: bool) -> crate::Result<Vec<Vec<usize>>> {
    check_divides(costs.len(), parts, equal_size)?;
    // Larger than any sum of costs: parts with fewer rows always come first.
    let bias = if equal_size { costs.iter().sum::<u64>() + 1 } else { 0 };
    let mut lists = vec![Vec::new(); parts];
    let mut sums = vec![0u64; parts];
    for (row, cost) in costs.iter().enumerate() {
        let smallest = (0..parts).min_by_key(|part| sums[*part]).expect("there is at least one part");
        lists[smallest].push(row);
        sums[smallest] += cost + bias;
    }
    Ok(lists)
}

/// Where each row is found in the concatenation of `lists`: `inverse[lists.concat()[i]] = i`.
///
/// # Panics
/// If the lists do not hold each of `0..n` once.
pub fn inverse(lists: &[Vec<usize>]) -> Vec<usize> {
    let order = lists.concat();
    let mut inverse = vec![usize::MAX; order.len()];
    for (place, row) in order.into_iter().enumerate() {
        assert!(inverse.get(row) == Some(&usize::MAX), "row {row} is outside the lists' range, or listed twice");
        inverse[row] = place;
    }
    inverse
}

fn check_divides(rows: usize, parts: usize, equal_size: bool) -> crate::Result<()> {
    if parts == 0 {
        return Err(crate::Error::Balance("0 parts; expected at least 1".into()));
    }
    if equal_size && !rows.is_multiple_of(parts) {
        return Err(crate::Error::Balance(format!(
            "{rows} rows cannot be divided into {parts} parts of equal size; choose a divisor of {rows}"
        )));
    }
    Ok(())
}
