//! The element types of dense and ragged columns, as Rust types.

use half::{bf16, f16};

use crate::schema::Dtype;

/// A Rust type that a column can hold without conversion.
///
/// Implemented for `f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool`; sealed, since the set is the wire format's.
pub trait Element: sealed::Cast + Copy + Default + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// The column type it stands for.
    const DTYPE: Dtype;
}

pub(crate) mod sealed {
    /// Bytes as elements and back, without a copy.
    pub trait Cast: Sized {
        /// `None`: the bytes are not aligned, not a whole number of elements, or (for `bool`) hold another value than 0 and 1.
        fn cast(bytes: &[u8]) -> Option<&[Self]>;
        /// The elements' bytes, little-endian as the machine.
        fn bytes(elements: &[Self]) -> &[u8];
    }
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl Element for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        }

        impl sealed::Cast for $rust {
            fn cast(bytes: &[u8]) -> Option<&[Self]> {
                bytemuck::try_cast_slice(bytes).ok()
            }

            fn bytes(elements: &[Self]) -> &[u8] {
                bytemuck::cast_slice(elements)
            }
        }
    )*};
}

element!(
    f64 => F64, f32 => F32, f16 => F16, bf16 => Bf16, i64 => I64, i32 => I32, i16 => I16, i8 => I8, u64 => U64,
    u32 => U32, u16 => U16, u8 => U8
);

impl Element for bool {
    const DTYPE: Dtype = Dtype::Bool;
}

impl sealed::Cast for bool {
    // Stored one byte each: every byte is looked at, since a `bool` other than 0 and 1 must not exist.
    fn cast(bytes: &[u8]) -> Option<&[Self]> {
        bytemuck::checked::try_cast_slice(bytes).ok()
    }

    fn bytes(elements: &[Self]) -> &[u8] {
        bytemuck::cast_slice(elements)
    }
}
