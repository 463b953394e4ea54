//! What comparisons put and get: tables of columns that are the same on every side.
//!
//! `simple` and `complex` are those of TransferQueue's own `perftest.py` (1024 rows, 9 fields, sequences of 8192);
//! `fields-N` are 256 MiB in 256 rows, cut into N columns. Whoever gets a table looks at every byte of it: the words
//! of all cells are added up, 32 bits each, modulo 2^32, which is the same however a side lays the cells out.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, FixedSizeListArray, Float32Array, ListArray, StringArray},
    buffer::{Buffer, OffsetBuffer},
    datatypes::{DataType, Field},
};
use transferqueue::{
    Batch, BatchError, Column, Definition, Dtype, Kind, arrow_map,
    catalog::definition::{Birth, Partition},
};

/// A table to put and get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What it is called, and its partition.
    pub name: String,
    /// Number of rows.
    pub rows: usize,
    cells: Vec<Cells>,
}

/// What the cells of one column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cells {
    /// So many `f32`.
    Dense(usize),
    /// One `f32` in the first row, so many in the last one, and evenly between.
    Ragged(usize),
    /// So many hexadecimal digits.
    Text(usize),
}

impl Shape {
    /// The shape of that name.
    ///
    /// # Errors
    /// Which ones there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let all = Self::all();
        let known = all.iter().map(|shape| shape.name.clone()).collect::<Vec<_>>().join(", ");
        all.into_iter().find(|shape| shape.name == name).ok_or(format!("shape `{name}`: expected one of {known}"))
    }

    /// All shapes.
    pub fn all() -> Vec<Self> {
        let (dense, ragged, text) = (Cells::Dense(8192), Cells::Ragged(8192), Cells::Text(4 * 8192));
        let shape = |name: &str, rows, cells| Self { name: name.into(), rows, cells };
        let complex = [[dense; 3], [ragged; 3], [text; 3]].concat();
        let fields = FIELDS.map(|n| shape(&format!("fields-{n}"), 256, vec![Cells::Dense((1 << 18) / n); n]));
        [shape("simple", 1024, vec![dense; 9]), shape("complex", 1024, complex)].into_iter().chain(fields).collect()
    }

    /// Its columns; their names are `c0`, `c1` and so on.
    pub fn columns(&self) -> Vec<Column> {
        let kind = |cells: &Cells| match *cells {
            Cells::Dense(width) => Kind::Dense { dtype: Dtype::F32, shape: vec![width] },
            Cells::Ragged(_) => Kind::Ragged { dtype: Dtype::F32, inner: vec![] },
            Cells::Text(_) => Kind::Utf8,
        };
        self.cells.iter().enumerate().map(|(at, cells)| Column::new(format!("c{at}"), kind(cells))).collect()
    }

    /// Bytes of all cells.
    pub fn bytes(&self) -> usize {
        let bytes = |cells: &Cells| match *cells {
            Cells::Dense(width) => 4 * width * self.rows,
            Cells::Ragged(longest) => 4 * lens(self.rows, longest).iter().sum::<usize>(),
            Cells::Text(digits) => digits * self.rows,
        };
        self.cells.iter().map(bytes).sum()
    }

    /// The cells of each column, made from its position.
    pub fn arrays(&self) -> Vec<ArrayRef> {
        let array = |(seed, (cells, column)): (u64, (&Cells, &Column))| {
            let mut random = Random(seed);
            let floats = |n: usize, random: &mut Random| (0..n).map(|_| random.float()).collect::<Float32Array>();
            match *cells {
                Cells::Dense(width) => {
                    let values = Arc::new(floats(width * self.rows, &mut random));
                    let DataType::FixedSizeList(item, len) = arrow_map::storage(&column.kind) else {
                        unreachable!("a tensor")
                    };
                    Arc::new(FixedSizeListArray::new(item, len, values, None)) as ArrayRef
                }
                Cells::Ragged(longest) => {
                    let lens = lens(self.rows, longest);
                    let values = Arc::new(floats(lens.iter().sum(), &mut random));
                    let item: Arc<Field> = match arrow_map::storage(&column.kind) {
                        DataType::List(item) => item,
                        other => unreachable!("ragged cells are stored as a list, not as {other}"),
                    };
                    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lens), values, None))
                }
                Cells::Text(digits) => {
                    let text: Vec<u8> = (0..digits * self.rows).map(|_| random.digit()).collect();
                    let offsets = OffsetBuffer::from_repeated_length(digits, self.rows);
                    Arc::new(StringArray::new(offsets, Buffer::from_vec(text), None))
                }
            }
        };
        (1..).zip(self.cells.iter().zip(&self.columns())).map(array).collect()
    }
}

/// In how many columns the 256 MiB of `fields-N` are cut.
pub const FIELDS: [usize; 3] = [1, 8, 32];

/// A partition for every shape.
pub fn definition(shapes: &[Shape]) -> Definition {
    let partition = |shape: &Shape| Partition {
        name: shape.name.clone(),
        columns: shape.columns(),
        birth: Birth::Put { capacity: None },
    };
    Definition { partitions: shapes.iter().map(partition).collect(), ..Definition::default() }
}

/// Adds up all words of all cells of a batch.
///
/// # Errors
/// When a column cannot be read as what it is.
pub fn sum(batch: &Batch) -> Result<u32, BatchError> {
    let mut sum = 0_u32;
    for column in batch.columns() {
        let add = |sum: u32, bytes: &[u8]| sum.wrapping_add(words(bytes));
        let floats = |sum, row: &[f32]| add(sum, bytemuck::cast_slice(row));
        sum = match batch.kind(column)? {
            Kind::Dense { .. } => batch.dense::<f32>(column)?.iter().fold(sum, floats),
            Kind::Ragged { .. } => batch.ragged::<f32>(column)?.iter().fold(sum, floats),
            _ => batch.utf8(column)?.iter().fold(sum, |sum, text| add(sum, text.as_bytes())),
        };
    }
    Ok(sum)
}

/// The sum of the 32-bit words of these bytes, modulo 2^32. All cells are whole words.
pub fn words(bytes: &[u8]) -> u32 {
    bytes.as_chunks().0.iter().fold(0, |sum: u32, word| sum.wrapping_add(u32::from_le_bytes(*word)))
}

/// As `perftest.py` has them: an arithmetic progression from 1 to the longest.
fn lens(rows: usize, longest: usize) -> Vec<usize> {
    let step = (longest - 1) as f64 / (rows - 1).max(1) as f64;
    (0..rows).map(|row| ((1.0 + row as f64 * step).round() as usize).clamp(1, longest)).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From [0, 1).
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u32 << 24) as f32
    }

    fn digit(&mut self) -> u8 {
        b"0123456789abcdef"[(self.next() >> 60) as usize]
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;
    use transferqueue::Outputs;

    use super::*;

    #[test]
    fn shapes_have_the_bytes_that_they_say() {
        let sizes =
            ["simple", "complex", "fields-1", "fields-32"].map(|name| Shape::named(name).expect(name).bytes() >> 20);
        assert_eq!(sizes, [288, 240, 256, 256]);
    }

    #[test]
    fn every_byte_of_a_table_changes_its_sum() {
        let shape =
            Shape { name: "small".into(), rows: 3, cells: vec![Cells::Dense(2), Cells::Ragged(5), Cells::Text(8)] };
        let batch = |arrays: Vec<ArrayRef>| {
            let outputs =
                (0..).zip(arrays).fold(Outputs::new(), |outputs, (at, array)| outputs.array(format!("c{at}"), array));
            Batch::detached(&shape.columns(), 3, outputs).expect("they fit")
        };
        let arrays = shape.arrays();
        let whole = sum(&batch(arrays.clone())).expect("it is read");
        let alone = arrays.iter().map(|array| match array.data_type() {
            DataType::Utf8 => words(array.to_data().buffers()[1].as_slice()),
            _ => words(array.to_data().child_data()[0].buffers()[0].as_slice()),
        });
        assert_eq!(whole, alone.fold(0, u32::wrapping_add), "the layout does not matter");
        let mut text = vec![b'a'; 24];
        text[23] = b'b';
        let other = |text: Vec<u8>| -> ArrayRef {
            Arc::new(StringArray::new(OffsetBuffer::from_repeated_length(8, 3), Buffer::from_vec(text), None))
        };
        let with = |text| batch(vec![arrays[0].clone(), arrays[1].clone(), other(text)]);
        assert_ne!(sum(&with(text)).ok(), sum(&with(vec![b'a'; 24])).ok());
    }
}
