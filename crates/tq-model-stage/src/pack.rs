//! Rows of a batch into packed micro-batches: consecutive rows, as many as a bound on rows and tokens allows.

use std::ops::Range;

use anyhow::{Context, Result};
use tq_model::PackedBatch;
use tq_stage::{Parameters, Range as Numbers};

/// Bounds of one forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most rows.
    pub rows: usize,
    /// Most tokens, prompts included; a single longer row goes alone.
    pub tokens: usize,
}

impl Bounds {
    /// From verl's pair of parameters: rows by `rows_key` (null: unbounded), tokens by `tokens_key`.
    ///
    /// # Errors
    /// When one of them is 0 or no whole number.
    pub fn from_parameters(parameters: &Parameters, rows_key: &str, tokens_key: &str) -> Result<Self> {
        let bounds =
            Self { rows: parameters.get_or(rows_key, usize::MAX)?, tokens: parameters.get_or(tokens_key, usize::MAX)? };
        Numbers::AtLeast(1.0).check(rows_key, bounds.rows as f64)?;
        Numbers::AtLeast(1.0).check(tokens_key, bounds.tokens as f64)?;
        Ok(bounds)
    }
}

/// A forward pass: which rows of the batch, and their tokens.
pub struct Micro {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Their tokens.
    pub packed: PackedBatch,
}

/// Cuts `lens` (tokens per row) into consecutive ranges within the bounds.
///
/// ```
/// use tq_model_stage::pack::{Bounds, ranges};
/// let bounds = Bounds { rows: 3, tokens: 10 };
/// assert_eq!(ranges(&[4, 4, 4, 20, 1, 1, 1, 1], bounds), vec![0..2, 2..3, 3..4, 4..7, 7..8]);
/// ```
pub fn ranges(lens: &[usize], bounds: Bounds) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    let mut tokens = 0;
    for (row, &len) in lens.iter().enumerate() {
        match out.last_mut() {
            Some(range) if range.len() < bounds.rows && tokens + len <= bounds.tokens => {
                range.end = row + 1;
                tokens += len;
            }
            _ => {
                out.push(row..row + 1);
                tokens = len;
            }
        }
    }
    out
}

/// Packs rows given by a function: (prompt, response).
///
/// # Errors
/// When a prompt is empty, naming the row's position.
pub fn pack<'a>(rows: usize, bounds: Bounds, row: impl Fn(usize) -> (&'a [i64], &'a [i64])) -> Result<Vec<Micro>> {
    let lens: Vec<usize> = (0..rows).map(|r| row(r).0.len() + row(r).1.len()).collect();
    let packed = |rows: Range<usize>| {
        let mut packed = PackedBatch::new();
        for r in rows.clone() {
            let (prompt, response) = row(r);
            packed.push(prompt, response).with_context(|| format!("row {r} of the batch"))?;
        }
        Ok(Micro { rows, packed })
    };
    ranges(&lens, bounds).into_iter().map(packed).collect()
}

/// Splits one number per scored token back into rows.
pub fn by_row(packed: &PackedBatch, values: &[f32]) -> Vec<Vec<f32>> {
    (0..packed.rows()).map(|row| values[packed.scored_range(row)].to_vec()).collect()
}
