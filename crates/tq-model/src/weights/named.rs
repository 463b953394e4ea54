//! Tensors as (name, type, shape, bytes): the form in which weights and optimizer state travel through the store.

use std::collections::HashMap;

use bytes::Bytes;

use crate::{Error, Result};

/// The type of a tensor's elements. Bytes are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 64-bit float.
    F64,
    /// 64-bit signed integer (counters only; no weights).
    I64,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The short name used in columns and options: `f32`, `bf16`, `f64`, `i64`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::I64 => "i64",
        }
    }

    /// The name used in `config.json`.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F64 => "float64",
            Self::I64 => "int64",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for DType {
    type Err = Error;

    /// Reads a short name or the one of `config.json`.
    fn from_str(text: &str) -> Result<Self> {
        [Self::F32, Self::Bf16, Self::F64, Self::I64]
            .into_iter()
            .find(|dtype| text == dtype.as_str() || text == dtype.torch_name())
            .ok_or_else(|| Error::Weights(format!("dtype {text:?} is not known; expected f32, bf16, f64 or i64")))
    }
}

/// One tensor's type, shape and bytes (row-major, little-endian). Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    dtype: DType,
    shape: Vec<i64>,
    data: Bytes,
}

impl NamedTensor {
    /// Checks that the bytes are as many as type and shape say.
    ///
    /// # Errors
    /// A negative dimension, or another number of bytes than the shape needs.
    pub fn new(dtype: DType, shape: impl Into<Vec<i64>>, data: impl Into<Bytes>) -> Result<Self> {
        let (shape, data) = (shape.into(), data.into());
        let expected = shape
            .iter()
            .try_fold(dtype.size(), |bytes, dim| usize::try_from(*dim).ok().and_then(|dim| bytes.checked_mul(dim)))
            .ok_or_else(|| Error::Weights(format!("shape {shape:?} is not possible")))?;
        if data.len() != expected {
            return Err(Error::Weights(format!(
                "{} bytes were given for {dtype} {shape:?}, which needs {expected}",
                data.len()
            )));
        }
        Ok(Self { dtype, shape, data })
    }

    /// A tensor of 32-bit floats.
    ///
    /// # Errors
    /// The number of values is not the shape's.
    pub fn from_f32(shape: impl Into<Vec<i64>>, values: &[f32]) -> Result<Self> {
        Self::new(DType::F32, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// One integer.
    pub fn from_i64(value: i64) -> Self {
        Self { dtype: DType::I64, shape: Vec::new(), data: Bytes::copy_from_slice(&value.to_le_bytes()) }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions, outermost first.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The bytes, row-major and little-endian.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The values of an f32 or bf16 tensor as 32-bit floats (bf16 widens exactly).
    ///
    /// # Errors
    /// The tensor holds another type.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        match self.dtype {
            DType::F32 => Ok(self.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
            DType::Bf16 => {
                Ok(self.data.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect())
            }
            other => Err(Error::Weights(format!("a tensor of {other} was found where floats were expected"))),
        }
    }

    /// The value of a tensor of one integer.
    ///
    /// # Errors
    /// The tensor holds another type or more than one value.
    pub fn to_i64(&self) -> Result<i64> {
        match (self.dtype, <[u8; 8]>::try_from(self.data.as_ref())) {
            (DType::I64, Ok(bytes)) => Ok(i64::from_le_bytes(bytes)),
            _ => Err(Error::Weights(format!("{} {:?} was found where one i64 was expected", self.dtype, self.shape))),
        }
    }
}

/// Tensors by name, in a fixed order (the order of insertion).
#[derive(Clone, Debug, Default)]
pub struct NamedTensors {
    entries: Vec<(String, NamedTensor)>,
    index: HashMap<String, usize>,
}

impl NamedTensors {
    /// No tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a tensor.
    ///
    /// # Errors
    /// The name is already there.
    pub fn insert(&mut self, name: impl Into<String>, tensor: NamedTensor) -> Result<()> {
        let name = name.into();
        if self.index.insert(name.clone(), self.entries.len()).is_some() {
            return Err(Error::Weights(format!("{name} is given twice")));
        }
        self.entries.push((name, tensor));
        Ok(())
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&NamedTensor> {
        self.index.get(name).map(|&position| &self.entries[position].1)
    }

    /// The tensor of that name, or an error that names it.
    ///
    /// # Errors
    /// There is none.
    pub fn require(&self, name: &str) -> Result<&NamedTensor> {
        self.get(name).ok_or_else(|| Error::Weights(format!("{name} is missing")))
    }

    /// Names and tensors in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &NamedTensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Names in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.entries.iter().map(|(_, tensor)| tensor.data.len()).sum()
    }

    /// The tensors whose names `keep` accepts, in order; bytes are shared.
    #[must_use]
    pub fn filtered(&self, mut keep: impl FnMut(&str) -> bool) -> Self {
        let mut kept = Self::new();
        for (name, tensor) in self.iter().filter(|(name, _)| keep(name)) {
            kept.index.insert(name.to_owned(), kept.entries.len());
            kept.entries.push((name.to_owned(), tensor.clone()));
        }
        kept
    }
}

/// Equal when order, names, types, shapes and every byte are.
impl PartialEq for NamedTensors {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_number_of_bytes_is_refused_with_the_numbers() {
        let error = NamedTensor::new(DType::Bf16, [2, 3], vec![0u8; 8]).unwrap_err().to_string();
        assert_eq!(error, "weights: 8 bytes were given for bf16 [2, 3], which needs 12");
        assert!(NamedTensor::new(DType::F32, [-1], vec![]).is_err());
        assert!(NamedTensor::new(DType::F32, [i64::MAX, i64::MAX], vec![]).is_err());
    }

    #[test]
    fn order_is_that_of_insertion_and_names_are_unique() {
        let mut tensors = NamedTensors::new();
        tensors.insert("z", NamedTensor::from_i64(1)).unwrap();
        tensors.insert("a", NamedTensor::from_i64(2)).unwrap();
        assert_eq!(tensors.names().collect::<Vec<_>>(), ["z", "a"]);
        assert!(tensors.insert("z", NamedTensor::from_i64(3)).is_err());
        assert_eq!(tensors.filtered(|name| name == "a").names().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn bf16_widens_exactly() {
        let tensor = NamedTensor::new(DType::Bf16, [2], vec![0x80, 0x3F, 0x00, 0xC0]).unwrap();
        assert_eq!(tensor.to_f32().unwrap(), [1.0, -2.0]);
    }
}
