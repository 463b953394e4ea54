//! A batch: rows in a fixed order and views of their columns. Reading copies nothing; padding and packing happen inside a
//! model, once, and [`Batch::gather`] is the one explicit copy.
//!
//! ```
//! use transferqueue::{Batch, Outputs, schema::{Column, Dtype, Kind}};
//! let columns = [Column::new("advantages", Kind::Ragged { dtype: Dtype::F32, inner: vec![] })];
//! let outputs = Outputs::new().ragged::<f32>("advantages", [vec![0.5, 0.25], vec![], vec![1.0]]);
//! let batch = Batch::detached(&columns, 3, outputs)?;
//! let advantages = batch.ragged::<f32>("advantages")?;
//! assert_eq!(advantages.row(0), [0.5, 0.25]);
//! assert_eq!(advantages.lens(), [2, 0, 1]);
//! let wrong = batch.dense::<f32>("advantages").unwrap_err();
//! assert_eq!(wrong.to_string(), "column `advantages` is ragged f32, asked for as dense f32; read it with `ragged::<f32>`");
//! # Ok::<(), transferqueue::Error>(())
//! ```

mod error;
mod parts;
#[cfg(test)]
mod tests;
mod typed;

use std::{fmt, ops::Range, sync::Arc};

use arrow::{array::RecordBatch, datatypes::Schema};

use self::parts::Views;
pub use self::{
    error::BatchError,
    typed::{Bytes, Dense, Json, Ragged, Text},
};
use crate::{
    arrow_map,
    catalog::command::RowHead,
    element::Element,
    ids::{GroupId, RowId, Rows},
    outputs::{OutputError, Outputs},
    schema::{Column, Kind},
    transport::View,
};

/// Rows and views of their columns, in the order of the lease. A clone shares the views; while one lives their bytes stay.
#[derive(Clone)]
pub struct Batch {
    heads: Arc<Vec<RowHead>>,
    /// Which of the heads.
    range: Range<usize>,
    rows: Rows,
    columns: Arc<Vec<Views>>,
}

impl Batch {
    pub(crate) fn new(heads: Arc<Vec<RowHead>>, columns: Vec<(Arc<Column>, Vec<View>)>) -> Result<Self, BatchError> {
        let rows = heads.iter().map(|head| head.row).collect();
        let columns: Vec<Views> = columns.into_iter().map(|(column, views)| Views::new(column, views)).collect();
        for column in &columns {
            if column.len() != heads.len() {
                return Err(BatchError::Rows {
                    column: column.name().to_owned(),
                    found: column.len(),
                    expected: heads.len(),
                });
            }
        }
        Ok(Self { range: 0..heads.len(), heads, rows, columns: Arc::new(columns) })
    }

    /// A batch of `rows` rows made of outputs, outside any store: for trying a stage's computation alone.
    /// Rows and groups count from 0.
    ///
    /// # Errors
    /// [`OutputError`] when the outputs do not fit the columns.
    pub fn detached(columns: &[Column], rows: u64, outputs: Outputs) -> Result<Self, OutputError> {
        let head = |row: u64| RowHead {
            row: RowId(row),
            group: GroupId(row),
            ordinal: row,
            sample: 0,
            version: 0,
            span: None,
            tags: Default::default(),
        };
        let all = Rows::run(RowId(0), rows);
        let (encoded, notes) = outputs.encode_detached(columns, &all)?;
        let mut heads: Vec<RowHead> = (0..rows).map(head).collect();
        for note in notes {
            if let Some(head) = heads.get_mut(note.row.0 as usize) {
                head.tags.extend(note.tags);
                head.span = note.span.or(head.span);
            }
        }
        let no_grant: Arc<()> = Arc::new(());
        let columns = encoded
            .into_iter()
            .map(|(column, array)| (Arc::new(column), vec![View::new(array, no_grant.clone())]))
            .collect();
        Ok(Self::new(Arc::new(heads), columns).expect("invariant: outputs cover every row"))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there is no row (a training task's last lease of a cycle may be empty).
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The rows in order.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// What is known of each row without its columns, in order.
    pub fn heads(&self) -> &[RowHead] {
        &self.heads[self.range.clone()]
    }

    /// Names of the columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(Views::name)
    }

    /// Type and shape of a column.
    ///
    /// # Errors
    /// [`BatchError::Unknown`].
    pub fn kind(&self, column: &str) -> Result<&Kind, BatchError> {
        Ok(&self.find(column)?.column().kind)
    }

    /// A column's description, attributes included.
    ///
    /// # Errors
    /// [`BatchError::Unknown`].
    pub fn describe(&self, column: &str) -> Result<&Column, BatchError> {
        Ok(self.find(column)?.column())
    }

    /// A ragged column. Each row is its elements, further axes flattened in row-major order.
    ///
    /// # Errors
    /// [`BatchError::Unknown`], [`BatchError::Kind`].
    pub fn ragged<T: Element>(&self, column: &str) -> Result<Ragged<'_, T>, BatchError> {
        Ragged::new(self.find(column)?)
    }

    /// A dense column. Each row is its elements in row-major order.
    ///
    /// # Errors
    /// [`BatchError::Unknown`], [`BatchError::Kind`].
    pub fn dense<T: Element>(&self, column: &str) -> Result<Dense<'_, T>, BatchError> {
        Dense::new(self.find(column)?)
    }

    /// A text column.
    ///
    /// # Errors
    /// [`BatchError::Unknown`], [`BatchError::Kind`].
    pub fn utf8(&self, column: &str) -> Result<Text<'_>, BatchError> {
        Text::new(self.find(column)?, &Kind::Utf8)
    }

    /// A column of bytes.
    ///
    /// # Errors
    /// [`BatchError::Unknown`], [`BatchError::Kind`].
    pub fn binary(&self, column: &str) -> Result<Bytes<'_>, BatchError> {
        Bytes::new(self.find(column)?)
    }

    /// A column of JSON documents.
    ///
    /// # Errors
    /// [`BatchError::Unknown`], [`BatchError::Kind`].
    pub fn json(&self, column: &str) -> Result<Json<'_>, BatchError> {
        Json::new(self.find(column)?)
    }

    /// The views that make up a column, in the order of the rows: for whoever takes bytes as they lie.
    ///
    /// # Errors
    /// [`BatchError::Unknown`].
    pub fn views(&self, column: &str) -> Result<&[View], BatchError> {
        Ok(self.find(column)?.views())
    }

    /// Some consecutive rows, as a batch of its own; no byte is copied.
    ///
    /// # Panics
    /// When the range reaches beyond the batch, as slicing does.
    pub fn select(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.len(), "rows {rows:?} of a batch of {}", self.len());
        let range = self.range.start + rows.start..self.range.start + rows.end;
        Self {
            rows: self.heads[range.clone()].iter().map(|head| head.row).collect(),
            columns: Arc::new(self.columns.iter().map(|column| column.select(rows.clone())).collect()),
            heads: self.heads.clone(),
            range,
        }
    }

    /// Consecutive batches of the given sizes (such as the mini-batches of `CutRef::sizes`); no byte is copied.
    ///
    /// # Errors
    /// [`BatchError::Split`] when the sizes do not add up to the batch.
    pub fn split(&self, sizes: &[usize]) -> Result<Vec<Self>, BatchError> {
        if sizes.iter().sum::<usize>() != self.len() {
            return Err(BatchError::Split { sizes: sizes.to_vec(), rows: self.len() });
        }
        let mut start = 0;
        Ok(sizes
            .iter()
            .map(|size| {
                start += size;
                self.select(start - size..start)
            })
            .collect())
    }

    /// The same columns under other names, as a reader knows them; `names` gives (name now, name then), and one column may be
    /// asked for under several.
    ///
    /// # Errors
    /// [`BatchError::Unknown`].
    pub fn renamed<'a>(&self, names: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, BatchError> {
        let renamed = names.into_iter().map(|(now, then)| Ok(self.find(now)?.renamed(then)));
        Ok(Self { columns: Arc::new(renamed.collect::<Result<_, BatchError>>()?), ..self.clone() })
    }

    /// All columns as one Arrow record batch in contiguous buffers: a copy.
    ///
    /// # Errors
    /// [`BatchError::Map`] when a column has more elements than Arrow's offsets reach.
    pub fn gather(&self) -> Result<RecordBatch, BatchError> {
        let fields =
            self.columns.iter().map(|views| arrow_map::field(views.column())).collect::<Result<Vec<_>, _>>()?;
        let arrays = self.columns.iter().map(Views::gather).collect::<Result<Vec<_>, _>>()?;
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(self.len()));
        Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
            .expect("invariant: fields and arrays come from the same columns, all of the batch's length"))
    }

    fn find(&self, column: &str) -> Result<&Views, BatchError> {
        self.columns.iter().find(|views| views.name() == column).ok_or_else(|| BatchError::Unknown {
            column: column.to_owned(),
            have: self.columns().map(str::to_owned).collect(),
        })
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows ({}) of {:?}", self.len(), self.rows, self.columns().collect::<Vec<_>>())
    }
}
