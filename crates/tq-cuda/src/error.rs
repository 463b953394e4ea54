//! What can go wrong, by what the caller can do about it.

use std::time::Duration;

/// Why something did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields are named in the message")]
pub enum Error {
    /// This process finds no CUDA driver.
    #[error(
        "CUDA device {ordinal}: no CUDA driver library (libcuda.so) found on this machine; install NVIDIA's driver, or run \
         where there is a GPU"
    )]
    NoDriver { ordinal: usize },
    /// There is a driver, and not that device.
    #[error(
        "CUDA device {ordinal}: found {found} devices, expected more than {ordinal}; see nvidia-smi and CUDA_VISIBLE_DEVICES"
    )]
    NoDevice { ordinal: usize, found: usize },
    /// The lengths of two sides of a copy differ.
    #[error("{what}: found {found} bytes, expected {expected}")]
    Length { what: String, found: usize, expected: usize },
    /// The caller's deadline came first. The copy goes on, and may be waited for again.
    #[error("{what}: not done after {waited:?}; wait again, or see what else the device does")]
    Late { what: String, waited: Duration },
    /// What a copy owned was handed out already.
    #[error("{what}: waited for already; what it owned was given then")]
    Taken { what: String },
    /// The driver refuses, for reasons of its own.
    #[error("{what}: CUDA says {name}: {said}")]
    Cuda { what: String, name: String, said: String },
}
