//! How a claim chooses among what is ready.
//!
//! A [`Sampler`] sees a [`Pool`] of ids (rows, or groups for whole-group claims, whose rows then come together) and runs
//! inside `decide`; the event carries its choice, so replay never asks it again.

use std::{cmp::Reverse, collections::BinaryHeap};

use rustc_hash::FxHashSet;

use super::{bits::Bits, definition::Sampling, limits::BALANCE_WINDOW, rng::Rng, state::reuse::Reuse};

/// What a claim may choose from.
pub(crate) struct Pool<'a> {
    ids: &'a Bits,
    /// The same ids by their uses, where they are drawn more than once.
    reuse: Option<&'a Reuse>,
    /// Only ids below this one.
    below: Option<u64>,
    /// Length of an id in bytes.
    weight: &'a dyn Fn(u64) -> u64,
}

impl<'a> Pool<'a> {
    pub(crate) fn new(
        ids: &'a Bits,
        reuse: Option<&'a Reuse>,
        below: Option<u64>,
        weight: &'a dyn Fn(u64) -> u64,
    ) -> Self {
        Self { ids, reuse, below, weight }
    }

    /// Lowest ids first, those with the fewest uses before all others.
    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let below = self.below.unwrap_or(u64::MAX);
        let passes = self.reuse.into_iter().flat_map(|reuse| reuse.passes.values());
        let once = self.reuse.is_none().then_some(self.ids);
        once.into_iter().chain(passes).flat_map(move |ids| ids.iter().take_while(move |&id| id < below))
    }

    fn len(&self) -> u64 {
        self.ids.len() - self.below.map_or(0, |below| self.ids.len_from(below))
    }
}

/// Chooses at most `limit` different ids of a pool, in the order in which they are handed out.
pub(crate) trait Sampler {
    fn choose(&self, pool: &Pool<'_>, limit: u64, rng: &mut Rng) -> Vec<u64>;
}

/// The sampler a task declares.
pub(crate) fn of(sampling: Sampling) -> &'static dyn Sampler {
    match sampling {
        Sampling::Sequential => &Sequential,
        Sampling::Shuffled => &Shuffled,
        Sampling::Balanced => &Balanced,
    }
}

/// In the order of the pool.
struct Sequential;

impl Sampler for Sequential {
    fn choose(&self, pool: &Pool<'_>, limit: u64, _: &mut Rng) -> Vec<u64> {
        pool.iter().take(limit as usize).collect()
    }
}

/// Uniformly without replacement: Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", 1987) draws the ranks,
/// a Fisher–Yates shuffle their order.
struct Shuffled;

impl Sampler for Shuffled {
    fn choose(&self, pool: &Pool<'_>, limit: u64, rng: &mut Rng) -> Vec<u64> {
        let n = pool.len();
        let k = limit.min(n);
        let mut ranks = FxHashSet::default();
        for top in n - k..n {
            let rank = rng.below(top + 1);
            if !ranks.insert(rank) {
                ranks.insert(top);
            }
        }
        let mut ranks: Vec<u64> = ranks.into_iter().collect();
        ranks.sort_unstable();
        let mut ids = pool.ids.select(ranks);
        for i in (1..ids.len()).rev() {
            ids.swap(i, rng.below(i as u64 + 1) as usize);
        }
        ids
    }
}

/// Of the first [`BALANCE_WINDOW`] × `limit` ids, divided into sets of `limit` with nearly equal sums, the set whose sum
/// is closest to the mean.
struct Balanced;

impl Sampler for Balanced {
    fn choose(&self, pool: &Pool<'_>, limit: u64, _: &mut Rng) -> Vec<u64> {
        // A limit may be anything, up to "all there are".
        let limit = limit.min(pool.len().max(1));
        let window: Vec<u64> = pool.iter().take((limit * BALANCE_WINDOW) as usize).collect();
        let sets = window.len() / limit as usize;
        if sets < 2 {
            return window.into_iter().take(limit as usize).collect();
        }
        let items = &window[..sets * limit as usize];
        let weights: Vec<u64> = items.iter().map(|&id| (pool.weight)(id)).collect();
        let total: u64 = weights.iter().sum();
        let parts = partition(&weights, sets);
        let off = |part: &Vec<u32>| {
            let sum: u64 = part.iter().map(|&i| weights[i as usize]).sum();
            (sum * sets as u64).abs_diff(total)
        };
        let best = parts.into_iter().min_by_key(off).unwrap_or_default();
        let mut ids: Vec<u64> = best.into_iter().map(|i| items[i as usize]).collect();
        ids.sort_unstable();
        ids
    }
}

/// Divides items into `k` sets of equal size with nearly equal sums: the largest differencing method of Karmarkar and Karp
/// ("The differencing method of set partitioning", 1982) in its balanced form (Michiels, Korst, Aarts and van Leeuwen,
/// 2003). Items are sorted, `k` neighbours form a partial solution, and the two partial solutions with the largest spread
/// are joined, largest set with smallest, until one is left. `k` divides the number of items.
pub(crate) fn partition(weights: &[u64], k: usize) -> Vec<Vec<u32>> {
    let mut items: Vec<(u64, u32)> = weights.iter().copied().zip(0..).collect();
    items.sort_unstable_by_key(|&(weight, item)| (Reverse(weight), item));
    // The sets of partial solution p are at p·k..(p + 1)·k, by falling sum: (sum, first item, last item) of a chain.
    let mut sets: Vec<(u64, u32, u32)> = items.iter().map(|&(weight, item)| (weight, item, item)).collect();
    let mut next: Vec<u32> = vec![u32::MAX; weights.len()];
    let spread = |sets: &[(u64, u32, u32)], p: usize| sets[p * k].0 - sets[p * k + k - 1].0;
    let mut heap: BinaryHeap<(u64, Reverse<usize>)> =
        (0..sets.len() / k).map(|p| (spread(&sets, p), Reverse(p))).collect();
    while heap.len() > 1 {
        let (Some((_, Reverse(a))), Some((_, Reverse(b)))) = (heap.pop(), heap.pop()) else { break };
        for i in 0..k {
            let (sum, first, last) = sets[b * k + k - 1 - i];
            let set = &mut sets[a * k + i];
            next[set.2 as usize] = first;
            *set = (set.0 + sum, set.1, last);
        }
        sets[a * k..(a + 1) * k].sort_unstable_by_key(|&(sum, first, _)| (Reverse(sum), first));
        heap.push((spread(&sets, a), Reverse(a)));
    }
    let Some((_, Reverse(whole))) = heap.pop() else { return Vec::new() };
    let walk = |&(_, first, last): &(u64, u32, u32)| {
        let mut set = vec![first];
        while let Some(&item) = set.last().filter(|&&item| item != last) {
            set.push(next[item as usize]);
        }
        set
    };
    sets[whole * k..(whole + 1) * k].iter().map(walk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(sampling: Sampling, ids: impl IntoIterator<Item = u64>, limit: u64, seed: u64) -> Vec<u64> {
        let mut bits = Bits::default();
        ids.into_iter().for_each(|id| _ = bits.insert(id));
        of(sampling).choose(&Pool::new(&bits, None, None, &|id| id), limit, &mut Rng::new(seed, 0))
    }

    #[test]
    fn sequential_takes_the_lowest() {
        assert_eq!(choose(Sampling::Sequential, [9, 3, 70_000, 5], 3, 0), [3, 5, 9]);
    }

    #[test]
    fn shuffled_follows_its_seed_and_repeats_nothing() {
        let once = choose(Sampling::Shuffled, 0..1000, 300, 7);
        assert_eq!(once, choose(Sampling::Shuffled, 0..1000, 300, 7));
        assert_ne!(once, choose(Sampling::Shuffled, 0..1000, 300, 8));
        let different: std::collections::BTreeSet<_> = once.iter().collect();
        assert_eq!(different.len(), 300);
        assert!(once.windows(2).any(|pair| pair[0] > pair[1]), "the order is shuffled too");
    }

    #[test]
    fn shuffled_is_about_uniform() {
        let mut hits = [0_u32; 10];
        for seed in 0..4000 {
            for id in choose(Sampling::Shuffled, 0..10, 3, seed) {
                hits[id as usize] += 1;
            }
        }
        // 1200 expected, standard deviation 29.
        assert!(hits.iter().all(|&n| (1050..1350).contains(&n)), "{hits:?}");
    }

    #[test]
    fn a_bound_hides_later_ids() {
        let mut bits = Bits::default();
        (0..100).for_each(|id| _ = bits.insert(id));
        for sampling in [Sampling::Sequential, Sampling::Shuffled, Sampling::Balanced] {
            let ids = of(sampling).choose(&Pool::new(&bits, None, Some(8), &|id| id), 20, &mut Rng::new(1, 1));
            assert_eq!(ids.len(), 8);
            assert!(ids.iter().all(|&id| id < 8));
        }
    }

    #[test]
    fn balanced_takes_a_set_near_the_mean() {
        // Ids are their own lengths: the first four sum to 6, the mean of a set of four of 0..16 is 30.
        let ids = choose(Sampling::Balanced, 0..16, 4, 0);
        assert_eq!(ids.len(), 4);
        assert_eq!(ids.iter().sum::<u64>(), 30);
    }

    #[test]
    fn differencing_covers_every_item_once_in_sets_of_equal_size() {
        let weights: Vec<u64> = (0..96).map(|i| i * i % 101).collect();
        let parts = partition(&weights, 8);
        let mut seen: Vec<u32> = parts.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..96).collect::<Vec<u32>>());
        assert!(parts.iter().all(|part| part.len() == 12));
        let sums: Vec<u64> = parts.iter().map(|part| part.iter().map(|&i| weights[i as usize]).sum()).collect();
        let (low, high) = (sums.iter().min().unwrap(), sums.iter().max().unwrap());
        assert!(high - low <= 3, "{sums:?}");
    }
}
