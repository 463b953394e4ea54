//! What the ranks of a gang tell each other: sums of vectors, always in the order of ranks, and messages.
//!
//! Plain values over the store's own channels. Sums are made where the store is, rank 0 + rank 1 + …, so that every rank
//! gets the same bits whoever comes first.

use serde::{Deserialize, Serialize};

/// What becomes of what the ranks bring to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Vectors of one type and length are added up.
    Sum,
    /// Every rank hears what each has brought.
    Gather,
}

/// A vector, or a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Added up in f32.
    F32(Vec<f32>),
    /// Added up in f64.
    F64(Vec<f64>),
    /// Anything; cannot be added up.
    Bytes(Vec<u8>),
}

/// What one rank brings to a round.
#[derive(Debug)]
pub struct Brought {
    /// Which life of the gang it belongs to.
    pub epoch: u64,
    /// Which round of that life, from 1.
    pub number: u64,
    /// What is done.
    pub op: Op,
    /// What it brings; taken once it is there.
    pub values: Option<Values>,
}

impl Values {
    /// Whether two can be added up.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a.len() == b.len(),
            (Self::F64(a), Self::F64(b)) => a.len() == b.len(),
            _ => false,
        }
    }

    /// The sum, in place of the first; of those that [fit](Self::fits).
    pub(crate) fn plus(mut self, other: Self) -> Self {
        match (&mut self, &other) {
            (Self::F32(a), Self::F32(b)) => a.iter_mut().zip(b).for_each(|(a, b)| *a += b),
            (Self::F64(a), Self::F64(b)) => a.iter_mut().zip(b).for_each(|(a, b)| *a += b),
            _ => {}
        }
        self
    }

    /// In words.
    pub(crate) fn shape(&self) -> String {
        match self {
            Self::F32(values) => format!("{} f32", values.len()),
            Self::F64(values) => format!("{} f64", values.len()),
            Self::Bytes(bytes) => format!("{} bytes", bytes.len()),
        }
    }
}
