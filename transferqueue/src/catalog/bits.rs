//! Sets of rows: bitmaps in blocks of 4,096 ids, written down as runs `[first, length]`.
//!
//! Row ids are dense in the order of birth, so a block is nearly always found by index, and adding or taking a row touches
//! one word. (Compressed bitmaps such as Roaring's keep long runs as intervals, where taking scattered rows moves
//! memory each time, and finding the n-th member walks containers; measured on shuffled claims of 1,024 of 10⁶ rows,
//! these two were 40 % of the whole claim and commit.)

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{RowId, Rows};

const WORDS: usize = 64;
/// Ids per block.
const BLOCK: u64 = 64 * WORDS as u64;

/// 4,096 neighbouring ids, at least one of which is in the set.
#[derive(Clone, PartialEq)]
struct Block {
    key: u64,
    len: u32,
    words: Box<[u64; WORDS]>,
}

/// A set of row (or group) ids.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Bits {
    /// By rising key; none is empty.
    blocks: Vec<Block>,
    len: u64,
}

/// Block, word and bit of an id.
fn place(id: u64) -> (u64, usize, u64) {
    (id / BLOCK, (id % BLOCK / 64) as usize, 1 << (id % 64))
}

/// The bits of a word from `from` up to but not including `to`, at most 64.
fn span(from: u64, to: u64) -> u64 {
    (u64::MAX >> (64 - (to - from))) << from
}

impl Bits {
    /// Where a block is, or where it would be.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let Some(first) = self.blocks.first() else { return Err(0) };
        let guess = key.wrapping_sub(first.key) as usize;
        if self.blocks.get(guess).is_some_and(|block| block.key == key) {
            return Ok(guess);
        }
        self.blocks.binary_search_by_key(&key, |block| block.key)
    }

    fn block(&mut self, key: u64) -> &mut Block {
        let at = self.find(key).unwrap_or_else(|at| {
            self.blocks.insert(at, Block { key, len: 0, words: Box::new([0; WORDS]) });
            at
        });
        &mut self.blocks[at]
    }

    pub(crate) fn insert(&mut self, id: u64) -> bool {
        let (key, word, bit) = place(id);
        let block = self.block(key);
        let fresh = block.words[word] & bit == 0;
        block.words[word] |= bit;
        block.len += u32::from(fresh);
        self.len += u64::from(fresh);
        fresh
    }

    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let (key, word, bit) = place(id);
        let Ok(at) = self.find(key) else { return false };
        let block = &mut self.blocks[at];
        let there = block.words[word] & bit != 0;
        block.words[word] &= !bit;
        block.len -= u32::from(there);
        self.len -= u64::from(there);
        if block.len == 0 {
            self.blocks.remove(at);
        }
        there
    }

    pub(crate) fn insert_run(&mut self, first: u64, len: u64) {
        let (mut id, end) = (first, first + len);
        while id < end {
            let upto = end.min((id / 64 + 1) * 64);
            let (key, word, _) = place(id);
            let block = self.block(key);
            let fresh = span(id % 64, id % 64 + (upto - id)) & !block.words[word];
            block.words[word] |= fresh;
            block.len += fresh.count_ones();
            self.len += u64::from(fresh.count_ones());
            id = upto;
        }
    }

    pub(crate) fn remove_run(&mut self, first: u64, len: u64) {
        let (mut id, end) = (first, first + len);
        while id < end {
            let upto = end.min((id / 64 + 1) * 64);
            let (key, word, _) = place(id);
            if let Ok(at) = self.find(key) {
                let block = &mut self.blocks[at];
                let there = span(id % 64, id % 64 + (upto - id)) & block.words[word];
                block.words[word] &= !there;
                block.len -= there.count_ones();
                self.len -= u64::from(there.count_ones());
                if block.len == 0 {
                    self.blocks.remove(at);
                }
            }
            id = upto;
        }
    }

    pub(crate) fn remove_rows(&mut self, rows: &Rows) {
        rows.runs().iter().for_each(|&(first, len)| self.remove_run(first, len));
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        let (key, word, bit) = place(id);
        self.find(key).is_ok_and(|at| self.blocks[at].words[word] & bit != 0)
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn min(&self) -> Option<u64> {
        self.iter().next()
    }

    /// The ids with these ranks (0 is the smallest id); ranks rise. One pass over the blocks, whatever their number.
    pub(crate) fn select(&self, ranks: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let (mut at, mut before) = (0, 0);
        // Within a block: the word reached, and ids before it.
        let mut inner = (0, 0);
        let select = |rank: u64| {
            while rank - before >= u64::from(self.blocks.get(at)?.len) {
                before += u64::from(self.blocks[at].len);
                (at, inner) = (at + 1, (0, 0));
            }
            let block = &self.blocks[at];
            let (mut word, mut seen) = inner;
            while rank - before >= seen + u64::from(block.words[word].count_ones()) {
                seen += u64::from(block.words[word].count_ones());
                word += 1;
            }
            inner = (word, seen);
            let bits = (0..rank - before - seen).fold(block.words[word], |bits, _| bits & (bits - 1));
            Some(block.key * BLOCK + word as u64 * 64 + u64::from(bits.trailing_zeros()))
        };
        ranks.into_iter().map_while(select).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter_from(0)
    }

    /// Ids of at least `first`, in order.
    pub(crate) fn iter_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let (key, first_word, bit) = place(first);
        let at = self.find(key).unwrap_or_else(|at| at);
        self.blocks[at..].iter().flat_map(move |block| {
            let (from, mask) = if block.key == key { (first_word, !(bit - 1)) } else { (0, u64::MAX) };
            block.words.iter().enumerate().skip(from).flat_map(move |(i, &word)| {
                let mut bits = if i == from { word & mask } else { word };
                let base = block.key * BLOCK + i as u64 * 64;
                std::iter::from_fn(move || {
                    let id = (bits != 0).then(|| base + u64::from(bits.trailing_zeros()));
                    bits &= bits.wrapping_sub(1);
                    id
                })
            })
        })
    }

    /// Number of ids of at least `first`.
    pub(crate) fn len_from(&self, first: u64) -> u64 {
        let (key, word, bit) = place(first);
        let at = self.find(key).unwrap_or_else(|at| at);
        let count = |block: &Block| {
            if block.key != key {
                return u64::from(block.len);
            }
            let rest: u32 = block.words[word + 1..].iter().map(|word| word.count_ones()).sum();
            u64::from(rest + (block.words[word] & !(bit - 1)).count_ones())
        };
        self.blocks[at..].iter().map(count).sum()
    }

    /// Keeps what `keep` leaves of each word, given this set's and the other's.
    fn combine(&mut self, other: &Bits, keep: impl Fn(u64, u64) -> u64) {
        static NONE: [u64; WORDS] = [0; WORDS];
        let mut total = 0;
        self.blocks.retain_mut(|block| {
            let theirs = other.find(block.key).map_or(&NONE, |at| &*other.blocks[at].words);
            block.len = 0;
            for (own, theirs) in block.words.iter_mut().zip(theirs) {
                *own = keep(*own, *theirs);
                block.len += own.count_ones();
            }
            total += u64::from(block.len);
            block.len > 0
        });
        self.len = total;
    }

    pub(crate) fn subtract(&mut self, other: &Bits) {
        self.combine(other, |own, theirs| own & !theirs);
    }

    pub(crate) fn union(&mut self, other: &Bits) {
        other.iter().for_each(|id| _ = self.insert(id));
    }

    pub(crate) fn intersection(&self, other: &Bits) -> Bits {
        let mut both = self.clone();
        both.combine(other, |own, theirs| own & theirs);
        both
    }

    pub(crate) fn is_subset(&self, other: &Bits) -> bool {
        self.blocks.iter().all(|block| {
            let Ok(at) = other.find(block.key) else { return false };
            block.words.iter().zip(other.blocks[at].words.iter()).all(|(own, theirs)| own & !theirs == 0)
        })
    }

    pub(crate) fn rows(&self) -> Rows {
        self.iter().map(RowId).collect()
    }
}

impl From<&Rows> for Bits {
    fn from(rows: &Rows) -> Self {
        let mut bits = Self::default();
        for &(first, len) in rows.runs() {
            bits.insert_run(first, len);
        }
        bits
    }
}

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.rows())
    }
}

impl Serialize for Bits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Rows::deserialize(deserializer).map(|rows| Self::from(&rows))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Ids over several blocks, close to their edges too.
    fn id() -> impl Strategy<Value = u64> {
        prop_oneof![0..200_u64, 4_000..4_200_u64, 8_190..8_194_u64, 100_000..100_010_u64]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(u64),
        InsertRun(u64, u64),
        RemoveRun(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            id().prop_map(Step::Insert),
            id().prop_map(Step::Remove),
            (id(), 0..300_u64).prop_map(|(first, len)| Step::InsertRun(first, len)),
            (id(), 0..300_u64).prop_map(|(first, len)| Step::RemoveRun(first, len)),
        ]
    }

    fn build(steps: &[Step]) -> (Bits, BTreeSet<u64>) {
        let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
        for step in steps {
            match *step {
                Step::Insert(id) => assert_eq!(bits.insert(id), set.insert(id)),
                Step::Remove(id) => assert_eq!(bits.remove(id), set.remove(&id)),
                Step::InsertRun(first, len) => {
                    bits.insert_run(first, len);
                    set.extend(first..first + len);
                }
                Step::RemoveRun(first, len) => {
                    bits.remove_run(first, len);
                    set.retain(|id| !(first..first + len).contains(id));
                }
            }
        }
        (bits, set)
    }

    proptest! {
        #[test]
        fn a_set_of_bits_is_a_set(
            a in prop::collection::vec(step(), 0..12),
            b in prop::collection::vec(step(), 0..12),
            probe in id(),
        ) {
            let ((bits, set), (other, others)) = (build(&a), build(&b));
            let ids: Vec<u64> = set.iter().copied().collect();
            prop_assert_eq!(&bits.iter().collect::<Vec<_>>(), &ids);
            prop_assert_eq!((bits.len(), bits.is_empty()), (set.len() as u64, set.is_empty()));
            prop_assert_eq!(bits.min(), set.first().copied());
            prop_assert_eq!(bits.contains(probe), set.contains(&probe));
            prop_assert_eq!(bits.iter_from(probe).collect::<Vec<_>>(), set.range(probe..).copied().collect::<Vec<_>>());
            prop_assert_eq!(bits.len_from(probe), set.range(probe..).count() as u64);
            let ranks: Vec<u64> = (0..ids.len() as u64 + 2).filter(|rank| rank % 3 != 1).collect();
            let selected: Vec<u64> = ranks.iter().filter_map(|&rank| ids.get(rank as usize).copied()).collect();
            prop_assert_eq!(bits.select(ranks), selected);
            prop_assert_eq!(bits.intersection(&other).iter().collect::<BTreeSet<_>>(), &set & &others);
            prop_assert_eq!(bits.is_subset(&other), set.is_subset(&others));
            let (mut less, mut more) = (bits.clone(), bits.clone());
            less.subtract(&other);
            more.union(&other);
            prop_assert_eq!(less.iter().collect::<BTreeSet<_>>(), &set - &others);
            prop_assert_eq!(more.iter().collect::<BTreeSet<_>>(), &set | &others);
            prop_assert_eq!(less.len() + bits.intersection(&other).len(), bits.len());
            prop_assert_eq!(Bits::from(&bits.rows()), bits);
        }
    }
}
