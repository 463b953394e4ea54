//! Resampling with the generator that published curves were drawn with.

/// The Mersenne Twister MT19937 (Matsumoto & Nishimura 1998), seeded and used as NumPy's legacy generator: best-of-n curves of other tools come from its
/// sequence, and equal draws make ours comparable with theirs to the last digit. Local state; nothing global is touched.
pub(crate) struct Twister {
    state: [u32; N],
    at: usize,
}

const N: usize = 624;
const M: usize = 397;

impl Twister {
    pub(crate) fn new(seed: u32) -> Self {
        let mut state = [0u32; N];
        state[0] = seed;
        for i in 1..N {
            let before = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(i as u32);
        }
        Twister { state, at: N }
    }

    fn refill(&mut self) {
        for i in 0..N {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (joined >> 1) ^ twist;
        }
        self.at = 0;
    }

    fn next(&mut self) -> u32 {
        if self.at == N {
            self.refill();
        }
        let mut word = self.state[self.at];
        self.at += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// A number in `0..bound` (`bound` at least 1): the low bits of the next words, until one is small enough. With one choice no word is used.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let largest = (bound - 1) as u32;
        if largest == 0 {
            return 0;
        }
        let mask = u32::MAX >> largest.leading_zeros();
        loop {
            let word = self.next() & mask;
            if word <= largest {
                return word as usize;
            }
        }
    }
}

/// Mean and (population) standard deviation of `statistic` over 1,000 draws of `size` of the numbers `0..of`, with replacement.
pub(crate) fn bootstrap<const K: usize>(
    of: usize,
    size: usize,
    seed: u32,
    statistic: impl Fn(&[usize]) -> [f64; K],
) -> [(f64, f64); K] {
    const DRAWS: usize = 1000;
    let mut generator = Twister::new(seed);
    let mut values: [Vec<f64>; K] = std::array::from_fn(|_| Vec::with_capacity(DRAWS));
    let mut draw = vec![0; size];
    for _ in 0..DRAWS {
        draw.iter_mut().for_each(|index| *index = generator.below(of));
        for (list, value) in values.iter_mut().zip(statistic(&draw)) {
            list.push(value);
        }
    }
    values.map(|list| mean_and_deviation(&list))
}

/// Mean and population standard deviation.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        // First outputs of the reference implementation for its default seed, 5489.
        let mut generator = Twister::new(5489);
        let first: Vec<u32> = (0..5).map(|_| generator.next()).collect();
        assert_eq!(first, [3_499_211_612, 581_869_302, 3_890_346_734, 3_586_334_585, 545_404_204]);
        let mut generator = Twister::new(5489);
        // The 10,000th output is fixed by the C++ standard.
        assert_eq!((0..10_000).map(|_| generator.next()).last(), Some(4_123_659_995));
    }

    #[test]
    fn draws_equal_those_of_numpy() {
        // numpy.random.seed(42); [numpy.random.choice(8, size=4) for _ in range(3)]
        let mut generator = Twister::new(42);
        let draws: Vec<usize> = (0..12).map(|_| generator.below(8)).collect();
        assert_eq!(draws, [6, 3, 4, 6, 2, 7, 4, 4, 6, 1, 2, 6]);
    }

    #[test]
    fn one_choice_needs_no_draw() {
        assert_eq!(bootstrap(1, 3, 42, |draw| [draw.len() as f64, draw[0] as f64]), [(3.0, 0.0), (0.0, 0.0)]);
    }
}
