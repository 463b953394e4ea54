//! One column of a batch: views in row order, and finding the view of a row.

use std::{ops::Range, sync::Arc};

use arrow::array::ArrayRef;

use crate::{
    arrow_map::{self, MapError},
    schema::Column,
    transport::View,
};

#[derive(Clone)]
pub(super) struct Views {
    column: Arc<Column>,
    views: Vec<View>,
    /// First row of each view, and the number of rows at the end.
    starts: Vec<usize>,
}

impl Views {
    pub(super) fn new(column: Arc<Column>, views: Vec<View>) -> Self {
        let mut starts = Vec::with_capacity(views.len() + 1);
        starts.push(0);
        let mut end = 0;
        for view in &views {
            end += view.len();
            starts.push(end);
        }
        Self { column, views, starts }
    }

    pub(super) fn name(&self) -> &str {
        &self.column.name
    }

    pub(super) fn renamed(&self, name: &str) -> Self {
        Self { column: Arc::new(Column { name: name.to_owned(), ..Column::clone(&self.column) }), ..self.clone() }
    }

    pub(super) fn column(&self) -> &Column {
        &self.column
    }

    pub(super) fn len(&self) -> usize {
        self.starts[self.views.len()]
    }

    pub(super) fn views(&self) -> &[View] {
        &self.views
    }

    pub(super) fn starts(&self) -> &[usize] {
        &self.starts
    }

    pub(super) fn select(&self, rows: Range<usize>) -> Self {
        let views = self.views.iter().zip(&self.starts).filter_map(|(view, &start)| {
            let (from, to) = (rows.start.max(start), rows.end.min(start + view.len()));
            (from < to).then(|| view.slice(from - start, to - from))
        });
        Self::new(self.column.clone(), views.collect())
    }

    pub(super) fn gather(&self) -> Result<ArrayRef, MapError> {
        arrow_map::copy(&self.column, self.views.iter().map(View::array))
    }
}

/// Which part a row lies in, and which row of that part it is.
#[inline]
pub(super) fn locate(starts: &[usize], row: usize) -> (usize, usize) {
    let len = starts[starts.len() - 1];
    assert!(row < len, "row {row} of a column of {len} rows");
    let part = match starts {
        [_, _] => 0,
        _ => starts.partition_point(|&start| start <= row) - 1,
    };
    (part, row - starts[part])
}
