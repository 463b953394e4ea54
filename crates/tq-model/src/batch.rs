//! Rows of tokens laid end to end, and how a model lays them out for libtorch.

use crate::{Error, Result};

/// Rows of token ids concatenated without padding, with the part of each row that is to be scored.
///
/// A row is a prompt followed by a response; the *scored* tokens are the response's. The result for scored token `t` of a row is what the
/// model says before seeing it: its log-prob given the tokens before, the entropy of that distribution, the value of that state. So every
/// output has exactly one number a scored token, and rows follow one another as they were pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedBatch {
    ids: Vec<i64>,
    /// Row r is `ids[bounds[r]..bounds[r + 1]]`; empty while there are no rows.
    bounds: Vec<usize>,
    /// Scored tokens of row r are `scored[r]..scored[r + 1]` of an output.
    scored: Vec<usize>,
}

impl PackedBatch {
    /// A batch without rows.
    pub fn new() -> Self {
        Self { ids: Vec::new(), bounds: vec![0], scored: vec![0] }
    }

    /// A batch from concatenated ids and `rows + 1` offsets, in which everything but each row's first token is scored.
    ///
    /// # Errors
    /// Offsets that do not start at 0, do not end at the number of ids, or leave a row empty.
    pub fn from_packed(ids: Vec<i64>, cu_seqlens: &[i64]) -> Result<Self> {
        let bounds: Vec<usize> =
            cu_seqlens.iter().map(|&offset| usize::try_from(offset).unwrap_or(usize::MAX)).collect();
        let ordered = bounds.first() == Some(&0)
            && bounds.last() == Some(&ids.len())
            && bounds.windows(2).all(|pair| pair[0] < pair[1]);
        if !ordered {
            return Err(Error::Batch(format!(
                "cu_seqlens {cu_seqlens:?} must rise from 0 to the number of ids, {}, without an empty row",
                ids.len()
            )));
        }
        let scored = bounds.iter().enumerate().map(|(row, offset)| offset - row).collect();
        Ok(Self { ids, bounds, scored })
    }

    /// Appends a prompt (at least one token) and its response (scored; may be empty).
    ///
    /// # Errors
    /// The prompt is empty: nothing would predict the first token.
    pub fn push(&mut self, prompt: &[i64], response: &[i64]) -> Result<()> {
        if prompt.is_empty() {
            return Err(Error::Batch(format!(
                "row {} has an empty prompt; the first token of a row cannot be scored",
                self.rows()
            )));
        }
        if self.bounds.is_empty() {
            *self = Self::new();
        }
        self.ids.extend_from_slice(prompt);
        self.ids.extend_from_slice(response);
        self.bounds.push(self.ids.len());
        self.scored.push(self.scored_tokens() + response.len());
        Ok(())
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }

    /// Number of tokens of all rows.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of scored tokens of all rows: the length of every output.
    pub fn scored_tokens(&self) -> usize {
        self.scored.last().copied().unwrap_or(0)
    }

    /// The tokens of a row.
    pub fn row(&self, row: usize) -> &[i64] {
        &self.ids[self.bounds[row]..self.bounds[row + 1]]
    }

    /// Where a row's scored tokens lie in an output.
    pub fn scored_range(&self, row: usize) -> std::ops::Range<usize> {
        self.scored[row]..self.scored[row + 1]
    }

    /// All ids.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// `rows + 1` offsets into [`PackedBatch::ids`].
    pub fn cu_seqlens(&self) -> &[usize] {
        &self.bounds
    }

    fn row_len(&self, row: usize) -> usize {
        self.bounds[row + 1] - self.bounds[row]
    }
}

/// Attention runs over a row's length rounded up to this.
///
/// libtorch's attention gives each thread a piece of one scratch buffer, and the products on it have other last bits on another alignment.
/// With lengths that are multiples of 8 every piece is a multiple of 64 bytes, so that it is no matter which thread a row falls to.
const LENGTH_STEP: usize = 8;

/// Rows of one rounded length, lying next to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) offset: i64,
    pub(crate) rows: i64,
    pub(crate) len: i64,
}

/// A batch as a model runs it: rows sorted by length so that equal rounded lengths are neighbours, each with filler up to its rounded length,
/// then filler rows.
///
/// Attention runs bucket by bucket over each row's own rounded length, where causality hides the filler at a row's end; everything else runs
/// over all tokens at once.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) ids: Vec<i64>,
    pub(crate) positions: Vec<i64>,
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) longest: usize,
    /// For each scored token, in the batch's order, the laid-out token that predicts it.
    pub(crate) sources: Vec<i64>,
    /// For each scored token its id.
    pub(crate) targets: Vec<i64>,
    /// For each row, in the batch's order, its last laid-out token.
    pub(crate) lasts: Vec<i64>,
    /// Rows in laid-out order.
    pub(crate) order: Vec<usize>,
}

impl Layout {
    /// Lays a batch out, filled up to a number of tokens that `padded` names for the batch's own.
    pub(crate) fn new(
        batch: &PackedBatch,
        vocab_size: i64,
        max_len: usize,
        padded: impl FnOnce(usize) -> usize,
    ) -> Result<Self> {
        let rows = batch.rows();
        if rows == 0 {
            return Err(Error::Batch("there are no rows; leave an empty batch out".into()));
        }
        for row in 0..rows {
            if batch.row_len(row) > max_len {
                return Err(Error::Batch(format!(
                    "row {row} has {} tokens, the model takes at most {max_len} (max_position_embeddings)",
                    batch.row_len(row)
                )));
            }
            if let Some(id) = batch.row(row).iter().find(|id| !(0..vocab_size).contains(*id)) {
                return Err(Error::Batch(format!("row {row} holds id {id}, outside the vocabulary of {vocab_size}")));
            }
        }
        let mut order: Vec<usize> = (0..rows).collect();
        order.sort_by_key(|&row| batch.row_len(row));

        let rounded = |row: usize| batch.row_len(row).next_multiple_of(LENGTH_STEP);
        let total = padded((0..rows).map(rounded).sum());
        let mut ids = Vec::with_capacity(total);
        let mut positions = Vec::with_capacity(total);
        let mut offsets = vec![0i64; rows];
        let mut buckets: Vec<Bucket> = Vec::new();
        for &row in &order {
            let (offset, len) = (ids.len() as i64, rounded(row) as i64);
            offsets[row] = offset;
            ids.extend_from_slice(batch.row(row));
            ids.resize(ids.len().next_multiple_of(LENGTH_STEP), 0);
            positions.extend(0..len);
            match buckets.last_mut() {
                Some(bucket) if bucket.len == len => bucket.rows += 1,
                _ => buckets.push(Bucket { offset, rows: 1, len }),
            }
        }
        let longest = rounded(order[rows - 1]);
        let filler = total - ids.len();
        // The filler is cut into rows of one token: no row of it grows the rotary table or costs attention.
        if filler > 0 {
            buckets.push(Bucket { offset: ids.len() as i64, rows: filler as i64, len: 1 });
            ids.resize(total, 0);
            positions.resize(total, 0);
        }

        let mut sources = Vec::with_capacity(batch.scored_tokens());
        let mut targets = Vec::with_capacity(batch.scored_tokens());
        let mut lasts = Vec::with_capacity(rows);
        for (row, &offset) in offsets.iter().enumerate() {
            let len = batch.row_len(row);
            let first = len - batch.scored_range(row).len();
            sources.extend((first..len).map(|token| offset + token as i64 - 1));
            targets.extend_from_slice(&batch.row(row)[first..]);
            lasts.push(offset + len as i64 - 1);
        }
        Ok(Self { ids, positions, buckets, longest, sources, targets, lasts, order })
    }

    pub(crate) fn tokens(&self) -> i64 {
        self.ids.len() as i64
    }
}

/// Fewest rows of a matrix product whose bits do not depend on the number of rows.
///
/// Measured on libtorch 2.11's CPU products with 2 threads: a row's bits differ at 1–11 rows and agree from 12 on.
pub(crate) const MIN_ROWS: usize = 16;

/// How many rows of `width` to run so that no row's bits depend on where it lies.
///
/// libtorch's point-wise SiLU uses other instructions, with other last bits, for the elements left over at the end of each thread's share.
/// With shares that are whole rows and whole vectors nothing is left over. Threads split `rows * width` elements evenly, one thread for each
/// 32,768 begun, at most `threads`.
pub(crate) fn padded_rows(rows: usize, width: usize, threads: usize) -> usize {
    const GRAIN: usize = 32_768;
    const VECTOR: usize = 64;
    let mut padded = rows.max(MIN_ROWS);
    loop {
        let elements = padded * width;
        let shares = if elements < GRAIN { 1 } else { elements.div_ceil(GRAIN).min(threads.max(1)) };
        if padded.is_multiple_of(shares) && elements.is_multiple_of(shares * VECTOR) {
            return padded;
        }
        padded += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(rows: &[(usize, usize)]) -> PackedBatch {
        let mut batch = PackedBatch::new();
        for (row, &(prompt, response)) in rows.iter().enumerate() {
            let ids: Vec<i64> = (0..(prompt + response) as i64).map(|token| 10 * row as i64 + token).collect();
            batch.push(&ids[..prompt], &ids[prompt..]).unwrap();
        }
        batch
    }

    #[test]
    fn equal_rounded_lengths_become_neighbours_and_outputs_keep_the_callers_order() {
        let layout = Layout::new(&batch(&[(2, 7), (1, 1), (3, 1)]), 100, 9, |tokens| tokens + 2).unwrap();
        assert_eq!(layout.ids[..16], [10, 11, 0, 0, 0, 0, 0, 0, 20, 21, 22, 23, 0, 0, 0, 0]);
        assert_eq!(layout.ids[16..], [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(layout.positions[..16], [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]);
        let bucket = |offset, rows, len| Bucket { offset, rows, len };
        assert_eq!(layout.buckets, [bucket(0, 2, 8), bucket(16, 1, 16), bucket(32, 2, 1)]);
        assert_eq!(layout.targets, [2, 3, 4, 5, 6, 7, 8, 11, 23]);
        assert_eq!(layout.sources, [17, 18, 19, 20, 21, 22, 23, 0, 10]);
        assert_eq!(layout.lasts, [24, 1, 11]);
        assert_eq!((layout.longest, layout.order), (16, vec![1, 2, 0]));
    }

    #[test]
    fn packed_ids_score_everything_but_first_tokens() {
        let batch = PackedBatch::from_packed(vec![5, 6, 7, 8, 9], &[0, 3, 5]).unwrap();
        assert_eq!((batch.scored_tokens(), batch.scored_range(1)), (3, 2..3));
        for wrong in [&[][..], &[0, 5, 3], &[0, 3, 3, 5], &[1, 5], &[0, 4], &[0, -1, 5]] {
            assert!(PackedBatch::from_packed(vec![5, 6, 7, 8, 9], wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn impossible_batches_are_refused_with_the_row() {
        let refusal = |batch: &PackedBatch| Layout::new(batch, 12, 4, |tokens| tokens).unwrap_err().to_string();
        assert!(refusal(&PackedBatch::new()).contains("no rows"));
        assert!(refusal(&batch(&[(1, 1), (3, 2)])).contains("row 1 has 5 tokens"));
        assert!(refusal(&batch(&[(1, 1), (2, 1)])).contains("row 1 holds id 12"));
        assert!(PackedBatch::new().push(&[], &[1]).is_err());
    }

    #[test]
    fn padded_rows_give_every_thread_whole_rows_and_whole_vectors() {
        for width in [1, 172, 171, 344, 1536] {
            for threads in [1, 2, 3, 4, 7, 8, 16] {
                for rows in [1, 15, 16, 17, 95, 96, 97, 1000, 4099] {
                    let padded = padded_rows(rows, width, threads);
                    let elements = padded * width;
                    let shares = if elements < 32_768 { 1 } else { elements.div_ceil(32_768).min(threads) };
                    assert!(padded >= rows.max(16));
                    assert!(
                        width % 8 != 0 || padded < rows.max(16) + 16 * threads,
                        "{rows} rows of {width} for {threads}: {padded}"
                    );
                    assert_eq!((padded % shares, elements / shares % 64), (0, 0));
                    assert!(padded_rows(rows + 1, width, threads) >= padded, "monotone");
                }
            }
        }
    }
}
