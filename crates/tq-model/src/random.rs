//! Counter-based random numbers: the n-th number of a seed is a pure function of (seed, n).
//!
//! The generator is Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), checked
//! against the authors' known answers. Nothing is carried from draw to draw, so a sample draws the same numbers wherever and in whatever
//! company it runs.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One block of Philox 4x32-10.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Two 64-bit words of block `index` of stream `stream` under `seed`.
fn block(seed: u64, stream: u64, index: u64) -> [u64; 2] {
    let [a, b, c, d] = philox(
        [index as u32, (index >> 32) as u32, stream as u32, (stream >> 32) as u32],
        [seed as u32, (seed >> 32) as u32],
    );
    [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32]
}

/// The 53 upper bits of a word as a number in [0, 1).
fn unit(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The `index`-th uniform number in [0, 1) of `seed`.
pub fn uniform(seed: u64, index: u64) -> f64 {
    unit(block(seed, 0, index)[0])
}

/// Fills `out` with normal numbers of mean 0 and deviation `std`; `name` separates the streams of one seed.
///
/// Box–Muller in f64, rounded once to f32.
pub(crate) fn fill_normal(seed: u64, name: &str, std: f64, out: &mut [f32]) {
    let stream = fnv1a(name);
    for (index, pair) in out.chunks_mut(2).enumerate() {
        let [a, b] = block(seed, stream, index as u64);
        let radius = std * (-2.0 * (1.0 - unit(a)).ln()).sqrt();
        let angle = std::f64::consts::TAU * unit(b);
        pair[0] = (radius * angle.cos()) as f32;
        if let Some(second) = pair.get_mut(1) {
            *second = (radius * angle.sin()) as f32;
        }
    }
}

/// FNV-1a, 64 bit; never zero's stream, which [`uniform`] uses.
fn fnv1a(name: &str) -> u64 {
    name.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_authors_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
        assert_eq!(
            philox([0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344], [0xA409_3822, 0x299F_31D0]),
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]
        );
    }

    #[test]
    fn normal_numbers_have_the_asked_moments_and_differ_by_name_and_seed() {
        let mut numbers = vec![0.0; 100_001];
        fill_normal(3, "a", 0.5, &mut numbers);
        let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 0.25).abs() < 0.01, "mean {mean}, variance {variance}");
        let mut other = vec![0.0; 8];
        fill_normal(3, "b", 0.5, &mut other);
        assert_ne!(other, numbers[..8]);
        fill_normal(4, "a", 0.5, &mut other);
        assert_ne!(other, numbers[..8]);
        fill_normal(3, "a", 0.5, &mut other);
        assert_eq!(other, numbers[..8]);
    }
}
