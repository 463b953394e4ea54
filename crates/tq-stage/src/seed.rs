//! A sample's seed is a function of the run's seed, the prompt's ordinal and the sample's index: nothing else.

/// Mixes the three numbers into one seed (two rounds of the SplitMix64 finalizer, Steele et al. 2014, per number).
///
/// ```
/// use tq_stage::sample_seed;
/// assert_eq!(sample_seed(1, 5, 0), sample_seed(1, 5, 0));
/// assert_ne!(sample_seed(1, 5, 0), sample_seed(1, 5, 1));
/// assert_ne!(sample_seed(1, 5, 0), sample_seed(2, 5, 0));
/// ```
pub fn sample_seed(run_seed: u64, ordinal: u64, sample: u32) -> u64 {
    [run_seed, ordinal, u64::from(sample)]
        .into_iter()
        .fold(0x243f_6a88_85a3_08d3, |state, word| mix(mix(state ^ word).wrapping_add(word)))
}

fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
