//! Prompts, responses and per-token columns of a mini-batch as flat slices: the one copy out of the store.

use std::ops::Range;

use anyhow::{Result, ensure};
use tq_math::{
    Layout,
    aggregate::{Aggregation, Mode},
};
use tq_stage::Batch;

use crate::{
    Totals,
    pack::{Bounds, Micro, pack},
};

/// Prompts and responses of a mini-batch. Per-token columns are flat, in row order; row `i` is `layout.row(i)` of them.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// Response lengths.
    pub layout: Layout,
    /// Prompt tokens of each row.
    pub prompts: Vec<Vec<i64>>,
    /// Response tokens, flat.
    pub responses: Vec<i64>,
    /// What the loss divides by; those of `layout` unless these rows are a share of a larger mini-batch.
    pub totals: Totals,
}

impl Sequences {
    /// Reads `prompt` and `responses`.
    ///
    /// # Errors
    /// When a column is missing or has another kind.
    pub fn read(batch: &Batch) -> Result<Self> {
        let responses = batch.ragged::<i64>("responses")?;
        let layout = Layout::from_lengths(responses.lens());
        let rows = (0..layout.rows()).filter(|row| layout.kept_in(*row) > 0).count() as f64;
        Ok(Self {
            totals: Totals { tokens: layout.kept() as f64, rows },
            layout,
            prompts: batch.ragged::<i64>("prompt")?.iter().map(<[i64]>::to_vec).collect(),
            responses: responses.iter().flatten().copied().collect(),
        })
    }

    /// How losses of forward passes are weighed, so that those of all passes (of all ranks) add up.
    pub fn aggregation(&self, mode: Mode, loss_scale_factor: Option<f64>) -> Aggregation {
        Aggregation {
            batch_num_tokens: Some(self.totals.tokens),
            global_batch_size: Some(self.totals.rows),
            loss_scale_factor,
            ..Aggregation::new(mode)
        }
    }

    /// A column with one `f32` per response token, flat.
    ///
    /// # Errors
    /// When it is missing, or its lengths are not those of the responses.
    pub fn column(&self, batch: &Batch, name: &str) -> Result<Vec<f32>> {
        let rows = batch.ragged::<f32>(name)?;
        let lens: Vec<usize> = self.layout.iter().map(|row| row.len()).collect();
        ensure!(
            rows.lens() == lens,
            "column `{name}` has other lengths than `responses`; expected one value per response token"
        );
        Ok(rows.iter().flatten().copied().collect())
    }

    /// As [`Sequences::column`], for a column that may be absent.
    ///
    /// # Errors
    /// When it is there with other lengths.
    pub fn optional(&self, batch: &Batch, name: &str) -> Result<Option<Vec<f32>>> {
        batch.columns().any(|c| c == name).then(|| self.column(batch, name)).transpose()
    }

    /// The tokens of consecutive rows in a flat column.
    pub fn tokens(&self, rows: &Range<usize>) -> Range<usize> {
        if rows.is_empty() { 0..0 } else { self.layout.row(rows.start).start..self.layout.row(rows.end - 1).end }
    }

    /// The layout of consecutive rows alone.
    pub fn part(&self, rows: &Range<usize>) -> Layout {
        Layout::from_lengths(rows.clone().map(|row| self.layout.len(row)))
    }

    /// All rows in forward passes within the bounds.
    ///
    /// # Errors
    /// When a prompt is empty.
    pub fn micros(&self, bounds: Bounds) -> Result<Vec<Micro>> {
        pack(self.layout.rows(), bounds, |row| (self.prompts[row].as_slice(), &self.responses[self.layout.row(row)]))
    }

    /// Prompt and response tokens together.
    pub fn total_tokens(&self) -> usize {
        self.responses.len() + self.prompts.iter().map(Vec::len).sum::<usize>()
    }
}
