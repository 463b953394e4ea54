//! In which order rows are visited, as a function and not as a state.

use crate::rng::mix;

/// The order in which the rows of a data set of `len` rows are visited, for ever.
///
/// Position `ordinal` (0, 1, 2, … across epochs) belongs to epoch `ordinal / len`; inside an epoch every row comes exactly once. So the whole
/// state of a data loader is one integer, a resume needs nothing else, and a batch may span the end of an epoch.
///
/// A shuffled order is a different permutation for each epoch. It is computed, not stored: a Feistel network over the next power of four, walked
/// until it falls inside the data set (Black & Rogaway 2002), so asking for one position costs O(1) time and no memory.
///
/// ```
/// use tq_data::Order;
/// let order = Order::shuffled(5, 42);
/// let mut epoch: Vec<_> = (0..5).map(|i| order.at(i)).collect();
/// epoch.sort();
/// assert_eq!(epoch, [0, 1, 2, 3, 4]);
/// assert_eq!(order.at(7), order.row(1, 2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    len: u64,
    seed: Option<u64>,
}

const ROUNDS: u64 = 8;

impl Order {
    /// File order in every epoch.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn sequential(len: usize) -> Self {
        assert!(len > 0, "an order over no rows has no first row");
        Order { len: len as u64, seed: None }
    }

    /// A new permutation for each epoch, all determined by `seed`.
    ///
    /// # Panics
    /// If `len` is 0.
    pub fn shuffled(len: usize, seed: u64) -> Self {
        Order { seed: Some(seed), ..Order::sequential(len) }
    }

    /// Rows in one epoch.
    pub fn epoch_len(&self) -> usize {
        self.len as usize
    }

    /// The epoch that position `ordinal` falls in.
    pub fn epoch(&self, ordinal: u64) -> u64 {
        ordinal / self.len
    }

    /// The row at position `ordinal`, counted across epochs.
    pub fn at(&self, ordinal: u64) -> usize {
        self.row(ordinal / self.len, ordinal % self.len)
    }

    /// The row at place `index` of epoch `epoch`.
    ///
    /// # Panics
    /// If `index` is not below the number of rows.
    pub fn row(&self, epoch: u64, index: u64) -> usize {
        assert!(index < self.len, "index {index} is outside an epoch of {} rows", self.len);
        let Some(seed) = self.seed else {
            return index as usize;
        };
        let key = mix(seed ^ mix(epoch.wrapping_add(1)));
        let mut place = index;
        loop {
            place = self.permute(key, place);
            if place < self.len {
                return place as usize;
            }
        }
    }

    /// A bijection of `0..4^half`, where `4^half` is the smallest such power that is at least `len`.
    fn permute(&self, key: u64, place: u64) -> u64 {
        let bits = 64 - (self.len - 1).leading_zeros();
        let half = bits.div_ceil(2).max(1);
        let mask = (1u64 << half) - 1;
        let (mut left, mut right) = (place >> half, place & mask);
        for round in 0..ROUNDS {
            let scattered = mix(key ^ mix((round << 32) | right));
            (left, right) = (right, left ^ (scattered & mask));
        }
        (left << half) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_epoch_visits_each_row_once(len in 1usize..700, seed: u64, epoch in 0u64..1000) {
            let order = Order::shuffled(len, seed);
            let mut seen = vec![false; len];
            for index in 0..len as u64 {
                let row = order.row(epoch, index);
                prop_assert!(!seen[row], "row {row} came twice");
                seen[row] = true;
            }
        }
    }

    #[test]
    fn epochs_and_seeds_differ_and_nothing_is_left_in_place() {
        let of = |seed, epoch| (0..650).map(|i| Order::shuffled(650, seed).row(epoch, i)).collect::<Vec<_>>();
        assert_ne!(of(1, 0), of(1, 1));
        assert_ne!(of(1, 0), of(2, 0));
        assert_eq!(of(3, 5), of(3, 5));
        let fixed = of(1, 0).iter().enumerate().filter(|(i, row)| i == *row).count();
        assert!(fixed < 10, "{fixed} rows kept their place; a random permutation keeps about one");
    }

    #[test]
    fn first_place_is_spread_evenly_over_rows() {
        // 4,000 epochs of 10 rows: each row should come first about 400 times (standard deviation 19).
        let order = Order::shuffled(10, 9);
        let mut first = [0usize; 10];
        for epoch in 0..4000 {
            first[order.row(epoch, 0)] += 1;
        }
        assert!(first.iter().all(|n| (300..500).contains(n)), "{first:?}");
    }

    #[test]
    fn sequential_order_wraps_around() {
        let order = Order::sequential(3);
        assert_eq!((0..7).map(|i| order.at(i)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(order.epoch(6), 2);
    }
}
