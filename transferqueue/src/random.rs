//! Numbers that nobody can guess: from the system's generator.

use std::{
    fs::File,
    io::{self, Read},
};

/// Random bytes.
///
/// # Errors
/// What the system says.
pub(crate) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// So many random numbers.
///
/// # Errors
/// What the system says.
#[cfg(feature = "ucx")]
pub(crate) fn numbers(count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; 8 * count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("invariant: chunks of eight"));
    Ok(bytes.chunks_exact(8).map(number).collect())
}
