//! Drawing a token from logits, in f64 on the CPU, so that equal bits in give equal tokens out.

use super::Sampling;
use crate::random;

/// A token and its ln p under the full distribution.
pub(crate) struct Drawn {
    pub(crate) token: usize,
    pub(crate) log_prob: f32,
}

/// Memory reused from draw to draw.
#[derive(Default)]
pub(crate) struct Scratch {
    weights: Vec<f64>,
    order: Vec<u32>,
}

/// Draws the `index`-th token of `seed` by inverting the cumulative distribution. `None` when a logit is NaN or +∞, or all are −∞.
pub(crate) fn draw(logits: &[f32], sampling: &Sampling, seed: u64, index: u64, scratch: &mut Scratch) -> Option<Drawn> {
    let best = logits.iter().enumerate().try_fold((0, f32::NEG_INFINITY), |best, (token, &logit)| {
        if logit.is_nan() { None } else { Some(if logit > best.1 { (token, logit) } else { best }) }
    })?;
    if !best.1.is_finite() {
        return None;
    }
    let peak = f64::from(best.1);
    let greedy = sampling.temperature == 0.0;
    let scale = if greedy { 1.0 } else { 1.0 / sampling.temperature };
    let weights = &mut scratch.weights;
    weights.clear();
    weights.extend(logits.iter().map(|&logit| ((f64::from(logit) - peak) * scale).exp()));
    let total: f64 = weights.iter().sum();

    let token = if greedy {
        best.0
    } else if sampling.restricted() {
        let kept = keep(weights, sampling, total, &mut scratch.order);
        let mass: f64 = kept.iter().map(|&token| weights[token as usize]).sum();
        let chosen = invert(kept.iter().map(|&token| weights[token as usize]), random::uniform(seed, index) * mass);
        kept[chosen] as usize
    } else {
        invert(weights.iter().copied(), random::uniform(seed, index) * total)
    };
    let log_prob = (f64::from(logits[token]) - peak) * scale - total.ln();
    Some(Drawn { token, log_prob: log_prob as f32 })
}

/// The position where the running sum passes `threshold`; rounding cannot carry it past the last position of positive weight.
fn invert(weights: impl Iterator<Item = f64>, threshold: f64) -> usize {
    let mut sum = 0.0;
    let mut last = 0;
    for (position, weight) in weights.enumerate() {
        if weight > 0.0 {
            sum += weight;
            last = position;
            if sum > threshold {
                break;
            }
        }
    }
    last
}

/// Tokens that top-k and then top-p leave, likeliest first, lower ids first among equals. At least one.
fn keep<'a>(weights: &[f64], sampling: &Sampling, total: f64, order: &'a mut Vec<u32>) -> &'a [u32] {
    let likelier = |a: &u32, b: &u32| weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b));
    order.clear();
    order.extend(0..weights.len() as u32);
    let mut mass = total;
    if let Some(k) = sampling.top_k.filter(|&k| k < order.len()) {
        order.select_nth_unstable_by(k - 1, likelier);
        order.truncate(k);
        mass = f64::NAN;
    }
    order.sort_unstable_by(likelier);
    if mass.is_nan() {
        mass = order.iter().map(|&token| weights[token as usize]).sum();
    }
    if sampling.top_p < 1.0 {
        let mut sum = 0.0;
        let reached = order.iter().position(|&token| {
            sum += weights[token as usize];
            sum >= sampling.top_p * mass
        });
        order.truncate(reached.map_or(order.len(), |position| position + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, -2.0, 3.0, 0.5];

    fn shares(sampling: Sampling, draws: u64) -> [f64; 5] {
        let mut counts = [0.0; 5];
        let mut scratch = Scratch::default();
        for index in 0..draws {
            counts[draw(&LOGITS, &sampling, 9, index, &mut scratch).unwrap().token] += 1.0 / draws as f64;
        }
        counts
    }

    fn softmax(temperature: f64, kept: &[usize]) -> [f64; 5] {
        let mut probs = [0.0; 5];
        let total: f64 = kept.iter().map(|&token| (f64::from(LOGITS[token]) / temperature).exp()).sum();
        for &token in kept {
            probs[token] = (f64::from(LOGITS[token]) / temperature).exp() / total;
        }
        probs
    }

    fn assert_close(found: [f64; 5], expected: [f64; 5]) {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 0.01, "{found} against {expected}");
        }
    }

    #[test]
    fn draws_follow_the_distribution_that_the_options_leave() {
        assert_close(shares(Sampling::full(0.8), 40_000), softmax(0.8, &[0, 1, 2, 3, 4]));
        assert_close(
            shares(Sampling { temperature: 1.0, top_k: Some(3), top_p: 1.0 }, 40_000),
            softmax(1.0, &[1, 3, 0]),
        );
        // The two likeliest carry 0.82: 0.4 is reached by the first alone, 0.5 by both.
        assert_close(shares(Sampling { temperature: 1.0, top_k: None, top_p: 0.4 }, 100), softmax(1.0, &[1]));
        assert_close(shares(Sampling { temperature: 1.0, top_k: None, top_p: 0.5 }, 40_000), softmax(1.0, &[1, 3]));
        assert_close(shares(Sampling { temperature: 1.0, top_k: Some(1), top_p: 0.9 }, 100), softmax(1.0, &[1]));
    }

    #[test]
    fn log_prob_is_that_of_the_full_distribution() {
        let mut scratch = Scratch::default();
        for sampling in [Sampling::full(0.7), Sampling { temperature: 0.7, top_k: Some(2), top_p: 0.9 }] {
            let drawn = draw(&LOGITS, &sampling, 1, 0, &mut scratch).unwrap();
            let expected = softmax(0.7, &[0, 1, 2, 3, 4])[drawn.token].ln();
            assert!((f64::from(drawn.log_prob) - expected).abs() < 1e-6);
        }
        let greedy = draw(&LOGITS, &Sampling::GREEDY, 1, 0, &mut scratch).unwrap();
        assert_eq!(greedy.token, 1);
        assert!((f64::from(greedy.log_prob) - softmax(1.0, &[0, 1, 2, 3, 4])[1].ln()).abs() < 1e-6);
    }

    #[test]
    fn logits_that_are_not_a_distribution_draw_nothing() {
        let mut scratch = Scratch::default();
        for logits in [[f32::NAN, 1.0], [1.0, f32::NAN], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(draw(&logits, &Sampling::full(1.0), 0, 0, &mut scratch).is_none(), "{logits:?}");
        }
        assert_eq!(draw(&[f32::NEG_INFINITY, 0.0], &Sampling::full(1.0), 0, 0, &mut scratch).unwrap().token, 1);
    }
}
