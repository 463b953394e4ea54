//! Where the rows of a batch begin, and which of its tokens count.

use std::ops::Range;

use crate::error::{Error, Result};

/// A number that widens to `f64` without loss: `f32` or `f64`.
pub trait Real: Copy + Into<f64> {}

impl<T: Copy + Into<f64>> Real for T {}

/// The shape shared by all per-token columns of a batch: its rows, one after the other without padding, and the response mask.
///
/// A per-token column is a flat slice with [`tokens`](Self::tokens) values; row `i` is `column[layout.row(i)]`. A token is *kept* if the mask says that
/// the policy generated it; observations inside a response (tool results) are not kept. Without a mask every token is kept.
///
/// ```
/// use tq_math::Layout;
/// let layout = Layout::from_lengths([2, 0, 3]);
/// assert_eq!((layout.rows(), layout.tokens(), layout.row(2)), (3, 5, 2..5));
/// let masked = layout.with_mask(vec![true, true, true, false, true])?;
/// assert_eq!((masked.kept(), masked.kept_in(2)), (4, 2));
/// # Ok::<(), tq_math::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Row `i` is `offsets[i]..offsets[i + 1]`.
    offsets: Vec<usize>,
    mask: Option<Vec<bool>>,
}

impl Layout {
    /// Rows of the given lengths (in tokens), all tokens kept.
    pub fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut offsets = vec![0];
        let mut end = 0;
        offsets.extend(lengths.into_iter().map(|length| {
            end += length;
            end
        }));
        Layout { offsets, mask: None }
    }

    /// The same rows with a response mask, one flag per token.
    ///
    /// # Errors
    /// [`Error::Length`] if there is not one flag per token.
    pub fn with_mask(self, mask: Vec<bool>) -> Result<Self> {
        self.check_tokens("response_mask", mask.len())?;
        Ok(Layout { mask: Some(mask), ..self })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of tokens, kept or not.
    pub fn tokens(&self) -> usize {
        self.offsets[self.rows()]
    }

    /// The tokens of row `i`, as a range of every flat column.
    pub fn row(&self, i: usize) -> Range<usize> {
        self.offsets[i]..self.offsets[i + 1]
    }

    /// The length of row `i` in tokens, kept or not.
    pub fn len(&self, i: usize) -> usize {
        self.row(i).len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.tokens() == 0
    }

    /// The ranges of all rows.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        self.offsets.windows(2).map(|ends| ends[0]..ends[1])
    }

    /// Whether token `k` is kept.
    pub fn keeps(&self, k: usize) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask[k])
    }

    /// Number of kept tokens.
    pub fn kept(&self) -> usize {
        self.mask.as_ref().map_or(self.tokens(), |mask| mask.iter().filter(|kept| **kept).count())
    }

    /// Number of kept tokens of row `i`.
    pub fn kept_in(&self, i: usize) -> usize {
        let row = self.row(i);
        self.mask.as_ref().map_or(row.len(), |mask| mask[row].iter().filter(|kept| **kept).count())
    }

    /// The kept tokens of row `i`, in order, as positions in the flat columns.
    pub fn kept_tokens(&self, i: usize) -> impl DoubleEndedIterator<Item = usize> + Clone {
        self.row(i).filter(|k| self.keeps(*k))
    }

    /// All kept tokens, in order.
    pub fn all_kept(&self) -> impl DoubleEndedIterator<Item = usize> + Clone {
        (0..self.tokens()).filter(|k| self.keeps(*k))
    }

    /// The response mask, if there is one.
    pub fn mask(&self) -> Option<&[bool]> {
        self.mask.as_deref()
    }

    pub(crate) fn check_tokens(&self, what: &'static str, found: usize) -> Result<()> {
        if found == self.tokens() {
            Ok(())
        } else {
            Err(Error::Length { what, found, expected: self.tokens(), unit: "token" })
        }
    }

    pub(crate) fn check_rows(&self, what: &'static str, found: usize) -> Result<()> {
        if found == self.rows() {
            Ok(())
        } else {
            Err(Error::Length { what, found, expected: self.rows(), unit: "row" })
        }
    }
}

/// Results as a column holds them.
pub fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}
