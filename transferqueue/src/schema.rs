//! What a column holds: element type, shape, and the facts its readers check.
//!
//! The Arrow side of these types is in [`crate::arrow_map`].

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// Element type of a dense or ragged column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are the meaning")]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_lowercase())
    }
}

/// Type and shape of one cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tensor of fixed shape; `[]` is a scalar.
    Dense {
        /// Element type.
        dtype: Dtype,
        /// Axes, outermost first.
        shape: Vec<usize>,
    },
    /// A tensor whose first axis differs from row to row; `inner` are the further, fixed axes.
    Ragged {
        /// Element type.
        dtype: Dtype,
        /// Axes behind the first one.
        inner: Vec<usize>,
    },
    /// Text.
    Utf8,
    /// Bytes.
    Binary,
    /// A JSON document as text.
    Json,
}

impl Kind {
    /// Bytes of one dense cell, or of one step of a ragged cell's first axis; 1 for text and bytes. `None`: more than
    /// Arrow's 32-bit lengths can say.
    pub fn unit_bytes(&self) -> Option<usize> {
        let (dtype, axes) = match self {
            Self::Dense { dtype, shape: axes } | Self::Ragged { dtype, inner: axes } => (dtype, axes),
            _ => return Some(1),
        };
        // A zero among the axes must not hide what the others come to.
        let elements = axes.iter().try_fold(1_usize, |product, &axis| product.checked_mul(axis.max(1)))?;
        elements.checked_mul(dtype.size()).filter(|bytes| i32::try_from(*bytes).is_ok())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense { dtype, shape } => write!(f, "dense {dtype}{shape:?}"),
            Self::Ragged { dtype, inner } if inner.is_empty() => write!(f, "ragged {dtype}"),
            Self::Ragged { dtype, inner } => write!(f, "ragged {dtype}{inner:?}"),
            Self::Utf8 => write!(f, "utf8"),
            Self::Binary => write!(f, "binary"),
            Self::Json => write!(f, "json"),
        }
    }
}

/// A named field of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Unique within the partition.
    pub name: String,
    /// What a cell holds.
    pub kind: Kind,
    /// Facts that readers check, such as `distribution: full`.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    /// Keep the cells until their rows are dropped or the partition is deleted, whoever has read them.
    #[serde(default)]
    pub keep: bool,
    /// Declared maximum of one cell in bytes; what admission reserves. `None`: not counted against the budget.
    #[serde(default)]
    pub max_bytes: Option<u64>,
}

impl Column {
    /// A column that is freed once its declared readers are done.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind, attributes: BTreeMap::new(), keep: false, max_bytes: None }
    }
}
