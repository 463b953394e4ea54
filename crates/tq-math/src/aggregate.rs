//! From per-token losses to one number: loss aggregation modes as weights.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::stats::COUNT_EPS;

/// How the losses of kept tokens are summed up. verl: `actor.loss_agg_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `token-mean`: every token of the batch counts the same (DAPO).
    TokenMean,
    /// `token-sum`: the plain sum.
    TokenSum,
    /// `seq-mean-token-sum`: the sum of a row's tokens, averaged over rows.
    SeqMeanTokenSum,
    /// `seq-mean-token-sum-norm`: the same, divided by a constant number of tokens (Dr. GRPO).
    SeqMeanTokenSumNorm,
    /// `seq-mean-token-mean`: the mean of a row's tokens, averaged over rows (GRPO).
    SeqMeanTokenMean,
}

const NAMES: [(&str, Mode); 5] = [
    ("token-mean", Mode::TokenMean),
    ("token-sum", Mode::TokenSum),
    ("seq-mean-token-sum", Mode::SeqMeanTokenSum),
    ("seq-mean-token-sum-norm", Mode::SeqMeanTokenSumNorm),
    ("seq-mean-token-mean", Mode::SeqMeanTokenMean),
];

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, mode)| *mode)
            .ok_or_else(|| Error::unknown("loss_agg_mode", name, &NAMES.map(|(known, _)| known)))
    }
}

impl Mode {
    /// verl's name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// A mode together with the totals that it divides by.
///
/// A loss is `Σ weight[k] · loss[k]` with the weights of [`weights`](Self::weights). If the totals are those of a whole mini-batch, the weights of its
/// micro-batches add up: the gradient does not depend on how the mini-batch is cut, nor over how many workers (`dp_size`) it is spread.
///
/// ```
/// use tq_math::Layout;
/// use tq_math::aggregate::{Aggregation, Mode};
/// let mini = Layout::from_lengths([3, 1]);
/// let (first, second) = (Layout::from_lengths([3]), Layout::from_lengths([1]));
/// let totals = Aggregation::over(Mode::TokenMean, &mini, None);
/// assert_eq!(totals.weights(&first)?, [0.25, 0.25, 0.25]);
/// assert_eq!(totals.weights(&second)?, [0.25]);
/// # Ok::<(), tq_math::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aggregation {
    /// The mode.
    pub mode: Mode,
    /// Workers whose gradients are averaged afterwards; the weights are multiplied by it to undo that.
    pub dp_size: usize,
    /// Kept tokens in the whole mini-batch, over all workers. `None`: those of the layout at hand.
    pub batch_num_tokens: Option<f64>,
    /// Rows in the whole mini-batch, over all workers. `None`: the rows of the layout at hand that keep a token.
    pub global_batch_size: Option<f64>,
    /// The constant of `seq-mean-token-sum-norm`, for example the largest response length. There is no padded width here to fall back on.
    pub loss_scale_factor: Option<f64>,
}

impl Aggregation {
    /// `mode` with the totals of whatever layout is handed in, on one worker.
    pub fn new(mode: Mode) -> Self {
        Aggregation { mode, dp_size: 1, batch_num_tokens: None, global_batch_size: None, loss_scale_factor: None }
    }

    /// `mode` with the totals of the mini-batch `mini`, for use on its micro-batches.
    pub fn over(mode: Mode, mini: &Layout, loss_scale_factor: Option<f64>) -> Self {
        let rows = (0..mini.rows()).filter(|i| mini.kept_in(*i) > 0).count();
        Aggregation {
            batch_num_tokens: Some(mini.kept() as f64),
            global_batch_size: Some(rows as f64),
            loss_scale_factor,
            ..Aggregation::new(mode)
        }
    }

    /// The weight of each token of `layout`; 0 outside the mask.
    ///
    /// # Errors
    /// [`Error::Parameter`] if a total is absent that `dp_size` > 1 makes necessary, or `loss_scale_factor` where the mode needs it;
    /// [`Error::TooFewTokens`] if the total to divide by is 0.
    pub fn weights(&self, layout: &Layout) -> Result<Vec<f64>> {
        let dp_size = self.dp_size as f64;
        let mut weights = vec![0.0; layout.tokens()];
        match self.mode {
            Mode::TokenMean => {
                let weight = dp_size / self.tokens(layout)?;
                layout.all_kept().for_each(|k| weights[k] = weight);
            }
            Mode::TokenSum => layout.all_kept().for_each(|k| weights[k] = dp_size),
            Mode::SeqMeanTokenSum | Mode::SeqMeanTokenSumNorm => {
                let weight = dp_size / self.rows(layout)? / self.norm()?;
                layout.all_kept().for_each(|k| weights[k] = weight);
            }
            Mode::SeqMeanTokenMean => {
                let per_row = dp_size / self.rows(layout)?;
                for i in 0..layout.rows() {
                    let weight = per_row / (layout.kept_in(i) as f64 + COUNT_EPS);
                    layout.kept_tokens(i).for_each(|k| weights[k] = weight);
                }
            }
        }
        Ok(weights)
    }

    fn tokens(&self, layout: &Layout) -> Result<f64> {
        self.total("batch_num_tokens", self.batch_num_tokens, layout.kept())
    }

    fn rows(&self, layout: &Layout) -> Result<f64> {
        self.total(
            "global_batch_size",
            self.global_batch_size,
            (0..layout.rows()).filter(|i| layout.kept_in(*i) > 0).count(),
        )
    }

    fn total(&self, name: &'static str, given: Option<f64>, here: usize) -> Result<f64> {
        if given.is_none() && self.dp_size > 1 {
            return Err(Error::Parameter {
                name,
                found: format!("none with dp_size = {}", self.dp_size),
                expected: "the total over all workers",
            });
        }
        let total = given.unwrap_or(here as f64);
        if total > 0.0 { Ok(total) } else { Err(Error::TooFewTokens { what: "a mean loss", found: 0, least: 1 }) }
    }

    fn norm(&self) -> Result<f64> {
        match (self.mode, self.loss_scale_factor) {
            (Mode::SeqMeanTokenSumNorm, Some(factor)) if factor > 0.0 => Ok(factor),
            (Mode::SeqMeanTokenSumNorm, found) => Err(Error::Parameter {
                name: "loss_scale_factor",
                found: format!("{found:?}"),
                expected: "a positive number of tokens, for example data.max_response_length",
            }),
            _ => Ok(1.0),
        }
    }
}
