//! Which ranges of a segment are free.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of a segment: by place, and by length. Neighbours are one range.
#[derive(Debug)]
pub(super) struct Free {
    by_place: BTreeMap<usize, usize>,
    by_length: BTreeSet<(usize, usize)>,
    bytes: usize,
}

impl Free {
    /// All of so many bytes.
    pub(super) fn all(bytes: usize) -> Self {
        let mut free = Self { by_place: BTreeMap::new(), by_length: BTreeSet::new(), bytes: 0 };
        free.add(0, bytes);
        free
    }

    /// Takes the shortest range that is long enough, the first of several; `None` when there is none.
    pub(super) fn take(&mut self, bytes: usize) -> Option<usize> {
        let &(len, at) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(at, len);
        self.add(at + bytes, len - bytes);
        Some(at)
    }

    /// Gives a range back: the free range that it is part of now.
    pub(super) fn give(&mut self, mut at: usize, mut len: usize) -> (usize, usize) {
        if let Some((&before, &length)) = self.by_place.range(..at).next_back()
            && before + length == at
        {
            self.remove(before, length);
            (at, len) = (before, length + len);
        }
        if let Some(&length) = self.by_place.get(&(at + len)) {
            self.remove(at + len, length);
            len += length;
        }
        self.add(at, len);
        (at, len)
    }

    /// The free ranges in order: place and length.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.by_place.iter().map(|(at, len)| (*at, *len))
    }

    /// Bytes that are free.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The longest free range.
    pub(super) fn longest(&self) -> usize {
        self.by_length.last().map_or(0, |(len, _)| *len)
    }

    fn add(&mut self, at: usize, len: usize) {
        if len > 0 {
            self.by_place.insert(at, len);
            self.by_length.insert((len, at));
            self.bytes += len;
        }
    }

    fn remove(&mut self, at: usize, len: usize) {
        self.by_place.remove(&at);
        self.by_length.remove(&(len, at));
        self.bytes -= len;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_shortest_range_that_is_long_enough_is_taken() {
        let mut free = Free::all(100);
        let [a, b, c, d] = [30, 10, 20, 40].map(|bytes| free.take(bytes).unwrap());
        assert_eq!(([a, b, c, d], free.bytes(), free.take(1)), ([0, 30, 40, 60], 0, None));
        free.give(a, 30);
        free.give(c, 20);
        assert_eq!((free.take(20), free.take(20), free.take(20)), (Some(40), Some(0), None));
        assert_eq!((free.bytes(), free.longest()), (10, 10));
    }

    #[test]
    fn neighbours_become_one_range_whatever_the_order() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut free = Free::all(30);
            (0..3).for_each(|part| assert_eq!(free.take(10), Some(10 * part)));
            for part in order {
                free.give(10 * part, 10);
            }
            assert_eq!((free.longest(), free.bytes()), (30, 30), "{order:?}");
        }
    }

    proptest! {
        /// Beside a model that knows each byte.
        #[test]
        fn no_byte_is_given_twice_and_none_is_lost(steps in proptest::collection::vec((any::<bool>(), 1..40_usize), 0..200)) {
            const BYTES: usize = 256;
            let (mut free, mut taken, mut used) = (Free::all(BYTES), Vec::new(), [false; BYTES]);
            for (take, number) in steps {
                if take {
                    let longest = used.split(|used| *used).map(<[bool]>::len).max().unwrap();
                    let found = free.take(number);
                    prop_assert_eq!(found.is_some(), longest >= number, "{} of at most {}", number, longest);
                    if let Some(at) = found {
                        prop_assert!(used[at..at + number].iter().all(|used| !used));
                        used[at..at + number].fill(true);
                        taken.push((at, number));
                    }
                } else if !taken.is_empty() {
                    let (at, len) = taken.swap_remove(number % taken.len());
                    used[at..at + len].fill(false);
                    free.give(at, len);
                }
                prop_assert_eq!(free.bytes(), used.iter().filter(|used| !**used).count());
                prop_assert_eq!(free.longest(), used.split(|used| *used).map(<[bool]>::len).max().unwrap());
            }
        }
    }
}
