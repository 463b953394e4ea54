//! A counter-based generator: small, seedable, the same on every machine.

/// SplitMix64 (Steele, Lea & Flood 2014): a 64-bit counter behind a mixing function. Good enough to shuffle, not for secrets.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The mixing function alone: a bijection of 64-bit words that scatters neighbouring inputs.
pub(crate) fn mix(word: u64) -> u64 {
    let z = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl SplitMix64 {
    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A whole number in `0..bound`, without bias.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no numbers");
        // Lemire's multiplication with rejection of the short last interval.
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(bound);
            if wide as u64 >= threshold {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Fisher–Yates: every order of `items` equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}
