//! Gradients against central differences of the value, and the invariance of sums to how a batch is cut.

use tq_math::aggregate::{Aggregation, Mode};
use tq_math::kl::Penalty;
use tq_math::loss::{Loss, Params, PolicyLoss, Registry, Tokens, kl_loss, value_loss};
use tq_math::{Layout, Result};

/// Exactly representable, as are all log-probabilities below: the differences have no rounding of their own.
const STEP: f32 = 1.0 / 1024.0;

/// Log-ratios on both sides of every bound used here, none within two steps of one; advantages of both signs and 0.
const LOG_RATIOS: [f32; 10] = [-2.0, -0.5, -0.25, -0.125, -0.0625, 0.0625, 0.125, 0.25, 0.5, 1.5];
const ADVANTAGES: [f32; 10] = [1.0, -0.5, 2.0, -1.0, 0.75, -2.0, 0.0, 1.5, -0.25, -1.0];

fn batch() -> (Layout, Vec<f32>, Vec<f32>) {
    let mut mask = vec![true; 10];
    mask[4] = false;
    let layout = Layout::from_lengths([4, 0, 3, 3]).with_mask(mask).expect("ten flags");
    let old: Vec<f32> = (0..10).map(|k| -3.0 - 0.25 * k as f32).collect();
    let new = old.iter().zip(LOG_RATIOS).map(|(old, d)| old + d).collect();
    (layout, new, old)
}

/// Compares `grad` with differences of `value` over each of `at`.
fn check(name: &str, at: &[f32], of: impl Fn(&[f32]) -> Result<Loss>) {
    let loss = of(at).expect("a loss");
    for k in 0..at.len() {
        let moved = |by: f32| {
            let mut there = at.to_vec();
            there[k] += by;
            of(&there).expect("a loss").value
        };
        let slope = (moved(STEP) - moved(-STEP)) / (2.0 * f64::from(STEP));
        let close = (slope - loss.grad[k]).abs() <= 1e-5 + 1e-4 * slope.abs();
        assert!(close, "{name}, token {k}: gradient {} but slope {slope}", loss.grad[k]);
    }
    assert!(loss.grad.iter().any(|g| *g != 0.0), "{name}: a gradient of zeros proves nothing");
}

fn params() -> Params {
    Params {
        clip_ratio_low: Some(0.15),
        clip_ratio_high: Some(0.3),
        clip_ratio_c: 1.7,
        clip_cov_ratio: 0.3,
        clip_cov_lb: 0.01,
        clip_cov_ub: 50.0,
        kl_cov_ratio: 0.3,
        ppo_kl_coef: 0.5,
        dro_beta: Some(0.5),
        ..Params::default()
    }
}

#[test]
fn policy_gradients_are_slopes() {
    let (layout, new, old) = batch();
    // Losses with stopped gradients (cispo, dppo, gspo) are not the derivative of their value; the recorded values cover those.
    for name in ["vanilla", "sapo", "gpg", "dro", "geo_mean", "clip_cov", "kl_cov"] {
        let loss = Registry::builtin().get(name, &params()).expect(name);
        for mode in [Mode::TokenMean, Mode::SeqMeanTokenMean, Mode::TokenSum] {
            check(name, &new, |at| {
                loss.evaluate(&Tokens::new(&layout, at, &old, &ADVANTAGES), &Aggregation::new(mode))
            });
        }
    }
}

#[test]
fn kl_gradients_are_slopes_and_plus_borrows_the_one_of_k2() {
    let (layout, new, old) = batch();
    let aggregation = Aggregation::new(Mode::TokenMean);
    let of = |name: &str, at: &[f32]| kl_loss(&layout, at, &old, name.parse::<Penalty>().expect(name), &aggregation);
    for name in ["k1", "abs", "k2", "k3"] {
        check(name, &new, |at| of(name, at));
        let plus = of(&format!("{name}+"), &new).expect("a loss");
        assert_eq!(plus.value, of(name, &new).expect("a loss").value);
        assert_eq!(plus.grad, of("k2", &new).expect("a loss").grad);
    }
}

#[test]
fn value_gradients_are_slopes() {
    let (layout, predictions, _) = batch();
    let old: Vec<f32> = predictions.iter().zip(LOG_RATIOS).map(|(v, d)| v - d).collect();
    let returns: Vec<f32> = predictions.iter().zip(ADVANTAGES).map(|(v, a)| v + a + 0.07).collect();
    check("value", &predictions, |at| value_loss(&layout, at, &returns, &old, 0.2, &Aggregation::new(Mode::TokenMean)));
}

#[test]
fn a_mini_batch_has_the_same_gradient_however_it_is_cut() {
    let (layout, new, old) = batch();
    let mask = layout.mask().expect("masked").to_vec();
    for name in ["vanilla", "cispo", "sapo", "gspo", "geo_mean", "dppo_tv", "dppo_kl", "gpg", "dro"] {
        let loss = Registry::builtin().get(name, &params()).expect(name);
        for mode in
            [Mode::TokenMean, Mode::TokenSum, Mode::SeqMeanTokenMean, Mode::SeqMeanTokenSum, Mode::SeqMeanTokenSumNorm]
        {
            let totals = Aggregation::over(mode, &layout, Some(16.0));
            let evaluate = |loss: &dyn PolicyLoss, layout: &Layout, from: usize, to: usize| {
                let tokens = Tokens::new(layout, &new[from..to], &old[from..to], &ADVANTAGES[from..to]);
                loss.evaluate(&tokens, &totals).expect("a loss")
            };
            let whole = evaluate(&*loss, &layout, 0, 10);
            let first = Layout::from_lengths([4, 0]).with_mask(mask[..4].to_vec()).expect("four flags");
            let second = Layout::from_lengths([3, 3]).with_mask(mask[4..].to_vec()).expect("six flags");
            let (first, second) = (evaluate(&*loss, &first, 0, 4), evaluate(&*loss, &second, 4, 10));
            assert!((first.value + second.value - whole.value).abs() < 1e-12, "{name} {mode:?}");
            let parts: Vec<f64> = first.grad.iter().chain(&second.grad).copied().collect();
            for (part, whole) in parts.iter().zip(&whole.grad) {
                assert!((part - whole).abs() < 1e-12, "{name} {mode:?}");
            }
        }
    }
}

#[test]
fn two_workers_average_to_the_gradient_of_one() {
    let (layout, new, old) = batch();
    let loss = Registry::builtin().get("vanilla", &params()).expect("vanilla");
    let tokens = Tokens::new(&layout, &new, &old, &ADVANTAGES);
    let one = Aggregation::over(Mode::TokenMean, &layout, None);
    // Each of two workers holds the same rows, so the totals double; averaging two equal gradients changes nothing.
    let two = Aggregation { dp_size: 2, batch_num_tokens: one.batch_num_tokens.map(|n| 2.0 * n), ..one };
    let (one, two) = (loss.evaluate(&tokens, &one).expect("a loss"), loss.evaluate(&tokens, &two).expect("a loss"));
    assert!(one.grad.iter().zip(&two.grad).all(|(a, b)| (a - b).abs() < 1e-15));
}

#[test]
fn clip_cov_silences_as_many_tokens_as_asked_and_the_seed_picks_them() {
    let layout = Layout::from_lengths([40]);
    let advantages: Vec<f32> = (0..40).map(|k| k as f32 - 19.5).collect();
    let log_probs: Vec<f32> = (0..40).map(|k| -5.0 + 0.125 * k as f32).collect();
    let params = Params { clip_cov_ratio: 0.2, clip_cov_lb: 0.0, clip_cov_ub: 1e9, ..Params::default() };
    let loss = Registry::builtin().get("clip_cov", &params).expect("clip_cov");
    let silenced = |seed| {
        let tokens = Tokens { seed, ..Tokens::new(&layout, &log_probs, &log_probs, &advantages) };
        let grad = loss.evaluate(&tokens, &Aggregation::new(Mode::TokenMean)).expect("a loss").grad;
        (0..40).filter(|k| grad[*k] == 0.0).collect::<Vec<usize>>()
    };
    assert_eq!(silenced(1).len(), 8);
    assert_eq!(silenced(1), silenced(1));
    assert_ne!(silenced(1), silenced(2));
}
