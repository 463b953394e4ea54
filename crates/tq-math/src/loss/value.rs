//! The critic's loss.

use super::{Loss, Term};
use crate::aggregate::Aggregation;
use crate::error::Result;
use crate::layout::Layout;
use crate::stats;

/// The clipped squared error of a critic: half of `max((v - R)², (clamp(v, v_old ± clip) - R)²)`, aggregated; the gradient is with respect to `predictions`.
///
/// Metric: `critic/vf_clipfrac`, the share of tokens at which the clipped error is the larger one.
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) for a column; what [`Aggregation::weights`] refuses.
pub fn value_loss(
    layout: &Layout,
    predictions: &[f32],
    returns: &[f32],
    old_values: &[f32],
    clip: f64,
    aggregation: &Aggregation,
) -> Result<Loss> {
    layout.check_tokens("predictions", predictions.len())?;
    layout.check_tokens("returns", returns.len())?;
    layout.check_tokens("values", old_values.len())?;
    let weights = aggregation.weights(layout)?;
    let mut loss = Loss::zero(layout.tokens());
    let mut clipped_larger = vec![0.0; layout.tokens()];
    for k in layout.all_kept() {
        let (target, old) = (f64::from(returns[k]), f64::from(old_values[k]));
        let prediction = Term { value: predictions[k].into(), slope: 1.0 };
        let square = |term: Term| {
            let miss = term.value - target;
            Term { value: miss * miss, slope: 2.0 * miss * term.slope }
        };
        let (free, clipped) = (square(prediction), square(prediction.clamp(old - clip, old + clip)));
        let term = free.max(clipped);
        loss.value += 0.5 * weights[k] * term.value;
        loss.grad[k] = 0.5 * weights[k] * term.slope;
        clipped_larger[k] = f64::from(u8::from(clipped.value > free.value));
    }
    let share = stats::mean(layout, &clipped_larger)?;
    Ok(loss.with_metrics([("critic/vf_clipfrac", share)]))
}
