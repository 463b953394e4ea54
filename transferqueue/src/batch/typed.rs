//! Typed looks at one column: slices into the store's own bytes.

use serde::de::DeserializeOwned;

use super::{
    error::BatchError,
    parts::{Views, locate},
};
use crate::{
    arrow_map::{inner_len, leaf_bytes, offsets},
    element::Element,
    schema::{Dtype, Kind},
};

/// A ragged column: one slice a row.
#[derive(Clone, Debug)]
pub struct Ragged<'a, T> {
    starts: &'a [usize],
    parts: Vec<(&'a [i32], &'a [T])>,
    inner: usize,
}

impl<'a, T: Element> Ragged<'a, T> {
    pub(super) fn new(views: &'a Views) -> Result<Self, BatchError> {
        let asked = || format!("ragged {}", T::DTYPE);
        match &views.column().kind {
            Kind::Ragged { dtype, .. } if *dtype == T::DTYPE => {}
            _ => return Err(other_kind(views, asked())),
        }
        let parts = views.views().iter().map(|view| {
            let offsets = offsets(view.array()).ok_or_else(|| layout(views))?;
            Ok((offsets, elements(views, view.array())?))
        });
        let parts = parts.collect::<Result<_, BatchError>>()?;
        Ok(Self { starts: views.starts(), parts, inner: inner_len(&views.column().kind) })
    }

    /// The elements of a row: first-axis length × inner axes, row-major.
    ///
    /// # Panics
    /// When the batch has no such row, as indexing does.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [T] {
        let (part, at) = locate(self.starts, row);
        let (offsets, values) = self.parts[part];
        &values[offsets[at] as usize * self.inner..offsets[at + 1] as usize * self.inner]
    }

    /// Rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [T]> {
        (0..self.len()).map(|row| self.row(row))
    }

    /// First-axis length of each row.
    pub fn lens(&self) -> Vec<usize> {
        let each = |offsets: &'a [i32]| offsets.windows(2).map(|w| (w[1] - w[0]) as usize);
        self.parts.iter().flat_map(|&(offsets, _)| each(offsets)).collect()
    }

    /// Sum of all first-axis lengths.
    pub fn total(&self) -> usize {
        self.parts.iter().map(|(offsets, _)| (offsets[offsets.len() - 1] - offsets[0]) as usize).sum()
    }

    /// Elements of one step of the first axis: the product of the inner axes.
    pub fn inner_len(&self) -> usize {
        self.inner
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A dense column: equally long slices.
#[derive(Clone, Debug)]
pub struct Dense<'a, T> {
    starts: &'a [usize],
    parts: Vec<&'a [T]>,
    width: usize,
}

impl<'a, T: Element> Dense<'a, T> {
    pub(super) fn new(views: &'a Views) -> Result<Self, BatchError> {
        match &views.column().kind {
            Kind::Dense { dtype, .. } if *dtype == T::DTYPE => {}
            _ => return Err(other_kind(views, format!("dense {}", T::DTYPE))),
        }
        let parts = views.views().iter().map(|view| elements(views, view.array())).collect::<Result<_, _>>()?;
        Ok(Self { starts: views.starts(), parts, width: inner_len(&views.column().kind) })
    }

    /// The elements of a row, row-major; one element for a scalar column.
    ///
    /// # Panics
    /// When the batch has no such row, as indexing does.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [T] {
        let (part, at) = locate(self.starts, row);
        &self.parts[part][at * self.width..(at + 1) * self.width]
    }

    /// The first element of a row: its value, for a scalar column.
    ///
    /// # Panics
    /// When the batch has no such row, as indexing does.
    #[inline]
    pub fn scalar(&self, row: usize) -> T {
        self.row(row)[0]
    }

    /// Rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [T]> {
        (0..self.len()).map(|row| self.row(row))
    }

    /// All elements of all rows in one vector: a copy.
    pub fn to_vec(&self) -> Vec<T> {
        let each = self.parts.iter().zip(self.starts.windows(2));
        each.flat_map(|(part, w)| &part[..(w[1] - w[0]) * self.width]).copied().collect()
    }

    /// Elements of one row: the product of the axes.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A column of bytes.
#[derive(Clone, Debug)]
pub struct Bytes<'a> {
    starts: &'a [usize],
    parts: Vec<(&'a [i32], &'a [u8])>,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(views: &'a Views) -> Result<Self, BatchError> {
        Self::of(views, &Kind::Binary)
    }

    fn of(views: &'a Views, asked: &Kind) -> Result<Self, BatchError> {
        if &views.column().kind != asked {
            return Err(other_kind(views, asked.to_string()));
        }
        let parts = views.views().iter().map(|view| offsets(view.array()).zip(leaf_bytes(view.array())));
        let parts = parts.collect::<Option<_>>().ok_or_else(|| layout(views))?;
        Ok(Self { starts: views.starts(), parts })
    }

    /// The bytes of a row.
    ///
    /// # Panics
    /// When the batch has no such row, as indexing does.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [u8] {
        let (part, at) = locate(self.starts, row);
        let (offsets, values) = self.parts[part];
        &values[offsets[at] as usize..offsets[at + 1] as usize]
    }

    /// Rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        (0..self.len()).map(|row| self.row(row))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A column of text.
#[derive(Clone, Debug)]
pub struct Text<'a> {
    starts: &'a [usize],
    parts: Vec<&'a arrow::array::StringArray>,
}

impl<'a> Text<'a> {
    pub(super) fn new(views: &'a Views, asked: &Kind) -> Result<Self, BatchError> {
        if &views.column().kind != asked {
            return Err(other_kind(views, asked.to_string()));
        }
        let parts = views.views().iter().map(|view| view.array().as_any().downcast_ref());
        let parts = parts.collect::<Option<_>>().ok_or_else(|| layout(views))?;
        Ok(Self { starts: views.starts(), parts })
    }

    /// The text of a row.
    ///
    /// # Panics
    /// When the batch has no such row, as indexing does.
    #[inline]
    pub fn row(&self, row: usize) -> &'a str {
        let (part, at) = locate(self.starts, row);
        self.parts[part].value(at)
    }

    /// Rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a str> {
        (0..self.len()).map(|row| self.row(row))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A column of JSON documents.
#[derive(Clone, Debug)]
pub struct Json<'a> {
    column: &'a str,
    texts: Text<'a>,
}

impl<'a> Json<'a> {
    pub(super) fn new(views: &'a Views) -> Result<Self, BatchError> {
        Ok(Self { column: views.name(), texts: Text::new(views, &Kind::Json)? })
    }

    /// The document's text.
    ///
    /// # Panics
    /// When the batch has no such row, as indexing does.
    pub fn text(&self, row: usize) -> &'a str {
        self.texts.row(row)
    }

    /// The document as a value of your own type (or `serde_json::Value`).
    ///
    /// # Errors
    /// [`BatchError::Json`] with the row when it has another form.
    ///
    /// # Panics
    /// When the batch has no such row, as indexing does.
    pub fn parse<V: DeserializeOwned>(&self, row: usize) -> Result<V, BatchError> {
        let failed = |error| BatchError::Json { column: self.column.to_owned(), row, error };
        serde_json::from_str(self.text(row)).map_err(failed)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

fn elements<'a, T: Element>(views: &'a Views, array: &'a dyn arrow::array::Array) -> Result<&'a [T], BatchError> {
    leaf_bytes(array).and_then(T::cast).ok_or_else(|| layout(views))
}

fn layout(views: &Views) -> BatchError {
    BatchError::Layout { column: views.name().to_owned(), found: views.column().kind.clone() }
}

fn other_kind(views: &Views, asked: String) -> BatchError {
    let rust = |dtype: &Dtype| dtype.to_string();
    let with = match &views.column().kind {
        Kind::Dense { dtype, .. } => format!("dense::<{}>", rust(dtype)),
        Kind::Ragged { dtype, .. } => format!("ragged::<{}>", rust(dtype)),
        kind => kind.to_string(),
    };
    BatchError::Kind { column: views.name().to_owned(), found: views.column().kind.clone(), asked, with }
}
