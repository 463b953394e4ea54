//! Identities: small `Copy` newtypes, and [`Rows`], the run-length form in which row sets travel.

use std::{fmt, str::FromStr};

use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// One sample of a partition. Unique within its partition, born in increasing order, never reused.
    RowId, u64
);
id!(
    /// The rows born from one prompt; the unit of admission. Unique within its partition, never reused.
    GroupId, u64
);
id!(
    /// A named table of rows. Never reused, also when a partition of the same name is created again.
    PartitionId, u32
);
id!(
    /// Position of a column in its partition's schema.
    ColumnId, u16
);
id!(
    /// A named consumer of one partition with its own cursor.
    TaskId, u32
);
id!(
    /// Position of a model in the definition.
    ModelId, u16
);
id!(
    /// Rows a worker of a task holds until it commits, releases or fails them, or the lease expires.
    LeaseId, u64
);
id!(
    /// A worker's connection to the catalog; every call of it carries a sequence number.
    SessionId, u64
);
id!(
    /// A unit of memory: sealed cells of one column. Chosen by the unit that holds it, never reused.
    ChunkId, u64
);

/// Store time in milliseconds: monotonic within one life of the store, set by the caller of `decide`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// A set of rows in a fixed order, as runs of consecutive ids.
///
/// ```
/// use transferqueue::{RowId, Rows};
/// let rows: Rows = [4, 5, 6, 9].into_iter().map(RowId).collect();
/// assert_eq!(rows.runs(), &[(4, 3), (9, 1)]);
/// assert_eq!(rows.len(), 4);
/// assert_eq!(rows.to_string(), "4-6,9");
/// ```
///
/// No run reaches beyond the last id: what is read from text or JSON is checked, so that sums cannot run over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Rows {
    runs: Vec<(u64, u64)>,
}

impl From<Rows> for Vec<(u64, u64)> {
    fn from(rows: Rows) -> Self {
        rows.runs
    }
}

/// Runs as the log and the wire carry them.
impl TryFrom<Vec<(u64, u64)>> for Rows {
    type Error = NotRows;

    fn try_from(runs: Vec<(u64, u64)>) -> Result<Self, NotRows> {
        let mut rows = Self { runs: Vec::with_capacity(runs.len()) };
        let mut total = 0_u64;
        for &(first, len) in &runs {
            let fits = first.checked_add(len).is_some();
            total = total.checked_add(len).filter(|_| fits).ok_or_else(|| NotRows(format!("run [{first},{len}]")))?;
            rows.push_run(RowId(first), len);
        }
        Ok(rows)
    }
}

impl Rows {
    /// The `len` rows starting at `first`.
    pub fn run(first: RowId, len: u64) -> Self {
        let runs = if len == 0 { Vec::new() } else { vec![(first.0, len)] };
        Self { runs }
    }

    /// Appends one row at the end of the order.
    pub fn push(&mut self, row: RowId) {
        match self.runs.last_mut() {
            Some((first, len)) if first.checked_add(*len) == Some(row.0) => *len += 1,
            _ => self.runs.push((row.0, 1)),
        }
    }

    /// Appends a run at the end of the order.
    pub fn push_run(&mut self, first: RowId, len: u64) {
        match self.runs.last_mut() {
            _ if len == 0 => {}
            Some((start, old)) if start.checked_add(*old) == Some(first.0) => *old += len,
            _ => self.runs.push((first.0, len)),
        }
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|(_, len)| len).sum()
    }

    /// Whether no row is in the set.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs `(first, length)` in order; neighbouring runs are joined.
    pub fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }

    /// These rows without the `other` ones, in their order.
    pub fn without(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        let mut gone = RoaringTreemap::new();
        for &(first, len) in &other.runs {
            gone.insert_range(first..=first + (len - 1));
        }
        self.iter().filter(|row| !gone.contains(row.0)).collect()
    }

    /// Whether the row is in the set.
    pub fn contains(&self, row: RowId) -> bool {
        self.runs.iter().any(|&(first, len)| row.0 >= first && row.0 - first < len)
    }

    /// The rows one by one, in order.
    pub fn iter(&self) -> impl Iterator<Item = RowId> + '_ {
        self.runs.iter().flat_map(|&(first, len)| (0..len).map(move |at| RowId(first + at)))
    }
}

impl FromIterator<RowId> for Rows {
    fn from_iter<I: IntoIterator<Item = RowId>>(rows: I) -> Self {
        let mut out = Self::default();
        rows.into_iter().for_each(|row| out.push(row));
        out
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(first, len)) in self.runs.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match len {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", first + (len - 1))?,
            }
        }
        Ok(())
    }
}

/// Text that is no set of rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no set of rows; write row ids and inclusive ranges, such as 4-6,9")]
pub struct NotRows(String);

/// Reads what `Display` writes: `4-6,9`.
impl FromStr for Rows {
    type Err = NotRows;

    fn from_str(text: &str) -> Result<Self, NotRows> {
        let mut rows = Self::default();
        let wrong = || NotRows(text.to_owned());
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u64 = first.parse().map_err(|_| wrong())?;
            let last: u64 = last.parse().map_err(|_| wrong())?;
            // The last id of all is none: nothing could follow it.
            let end = last.checked_add(1).ok_or_else(wrong)?;
            rows.push_run(RowId(first), end.checked_sub(first).filter(|len| *len > 0).ok_or_else(wrong)?);
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_are_shown() {
        let rows: Rows = "4-6,9,2-3".parse().unwrap();
        assert_eq!((rows.runs(), rows.to_string().as_str()), (&[(4, 3), (9, 1), (2, 2)][..], "4-6,9,2-3"));
        for wrong in ["6-4", "6-5", "a", "1-", "0-18446744073709551615", "18446744073709551615,3"] {
            assert!(wrong.parse::<Rows>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn runs_that_reach_beyond_the_last_id_are_refused_and_neighbours_are_joined() {
        let read = |text: &str| serde_json::from_str::<Rows>(text).map_err(|error| error.to_string());
        assert_eq!(read("[[4,3],[7,1],[9,0]]").unwrap().runs(), [(4, 4)]);
        for wrong in ["[[18446744073709551615,1]]", "[[1,18446744073709551615]]", "[[0,18446744073709551614],[0,2]]"] {
            assert!(read(wrong).unwrap_err().contains("is no set of rows"), "{wrong}");
        }
    }

    #[test]
    fn the_last_id_of_all_runs_nothing_over() {
        let mut rows = Rows::run(RowId(u64::MAX), 1);
        assert_eq!(rows.iter().collect::<Vec<_>>(), [RowId(u64::MAX)]);
        assert!(rows.contains(RowId(u64::MAX)) && rows.without(&rows).is_empty());
        assert_eq!(rows.to_string(), u64::MAX.to_string());
        rows.push(RowId(3));
        rows.push_run(RowId(4), 2);
        assert_eq!(rows.runs(), [(u64::MAX, 1), (3, 3)]);
    }

    #[test]
    fn taking_rows_away_keeps_the_order_of_the_others() {
        let rows: Rows = "10-14,0-3".parse().unwrap();
        assert_eq!(rows.without(&"11,2-3,99".parse().unwrap()).to_string(), "10,12-14,0-1");
        assert!(rows.contains(RowId(3)) && !rows.contains(RowId(4)));
    }
}
