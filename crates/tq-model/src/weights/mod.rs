//! Weights outside libtorch: named bytes, and the Hugging Face folder they come from and go to.

mod folder;
mod named;
mod spec;

pub use folder::{read_folder, write_folder};
pub use named::{DType, NamedTensor, NamedTensors};
pub use spec::{Head, ParameterSpec, parameters};
