//! Statistics over the kept tokens of a batch, as `verl.utils.torch_functional` defines them.

use crate::error::{Error, Result};
use crate::layout::{Layout, Real};

/// Added to the number of tokens that a mean divides by, so that a mean over nothing is 0.
pub(crate) const COUNT_EPS: f64 = 1e-8;

/// The sum over kept tokens. What lies outside the mask is not read: it may be NaN.
///
/// # Errors
/// [`Error::Length`] if `values` is not one per token. The same holds for the other functions here.
pub fn sum<V: Real>(layout: &Layout, values: &[V]) -> Result<f64> {
    layout.check_tokens("values", values.len())?;
    Ok(layout.all_kept().map(|k| values[k].into()).sum())
}

/// The mean over kept tokens, `sum / (n + 1e-8)`: 0 if there are none.
///
/// # Errors
/// As [`sum`].
pub fn mean<V: Real>(layout: &Layout, values: &[V]) -> Result<f64> {
    Ok(sum(layout, values)? / (layout.kept() as f64 + COUNT_EPS))
}

/// The mean over the kept tokens of each row; 0 for a row that keeps none.
///
/// # Errors
/// As [`sum`].
pub fn row_means<V: Real>(layout: &Layout, values: &[V]) -> Result<Vec<f64>> {
    layout.check_tokens("values", values.len())?;
    let of_row =
        |i| layout.kept_tokens(i).map(|k| values[k].into()).sum::<f64>() / (layout.kept_in(i) as f64 + COUNT_EPS);
    Ok((0..layout.rows()).map(of_row).collect())
}

/// The sum of each whole row, kept or not: the score of a response whose rewards lie on its tokens.
///
/// # Errors
/// As [`sum`].
pub fn row_sums<V: Real>(layout: &Layout, values: &[V]) -> Result<Vec<f64>> {
    layout.check_tokens("values", values.len())?;
    Ok(layout.iter().map(|row| values[row].iter().map(|v| (*v).into()).sum()).collect())
}

/// The unbiased variance over kept tokens.
///
/// # Errors
/// [`Error::TooFewTokens`] below two tokens; otherwise as [`sum`].
pub fn variance<V: Real>(layout: &Layout, values: &[V]) -> Result<f64> {
    Ok(moments(layout, values)?.1)
}

/// Mean 0 (or the old mean, unless `shift_mean`) and variance 1 over kept tokens: `(v - mean) / sqrt(variance + 1e-8)`; 0 outside the mask.
///
/// # Errors
/// As [`variance`].
pub fn whiten<V: Real>(layout: &Layout, values: &[V], shift_mean: bool) -> Result<Vec<f64>> {
    let (mean, variance) = moments(layout, values)?;
    let scale = 1.0 / (variance + 1e-8).sqrt();
    let back = if shift_mean { 0.0 } else { mean };
    let mut whitened = vec![0.0; values.len()];
    for k in layout.all_kept() {
        whitened[k] = (values[k].into() - mean) * scale + back;
    }
    Ok(whitened)
}

fn moments<V: Real>(layout: &Layout, values: &[V]) -> Result<(f64, f64)> {
    let mean = mean(layout, values)?;
    let n = layout.kept();
    if n < 2 {
        return Err(Error::TooFewTokens { what: "a variance", found: n, least: 2 });
    }
    let squares: f64 = layout.all_kept().map(|k| (values[k].into() - mean).powi(2)).sum();
    let n = n as f64;
    Ok((mean, squares / (n + COUNT_EPS) * (n / (n - 1.0))))
}

/// Mean and unbiased standard deviation of plain numbers; a single number has no deviation and gets `None`.
pub(crate) fn mean_and_std(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, None);
    }
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, Some((squares / (n - 1.0)).sqrt()))
}
