//! What goes to other processes: UCX's own bytes in an envelope, since UCX is not told their length and reads on.
//!
//! Bytes that are cut short, damaged, or of another make are refused before UCX sees them. (Whoever computes the checksum over
//! bytes of their own can still mislead UCX: they are trusted like the connection that they came over.)

use std::fmt;

use crate::Error;

/// Before everything: what it is, and the layout's version.
const MARK: [u8; 4] = *b"tqx\x01";
/// UCX reads lengths out of what it unpacks; whatever they say within one byte each, it ends inside of this.
const SLACK: usize = 64 * 257;

/// Where a worker is found.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) packed: Vec<u8>,
}

/// What opens a [`Memory`](crate::Memory) to be read from afar.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Of its first byte, there.
    pub(crate) start: u64,
    /// Its bytes.
    pub(crate) len: u64,
    pub(crate) packed: Vec<u8>,
}

impl Address {
    /// For the way to another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        seal(b'a', &[&self.packed])
    }

    /// # Errors
    /// [`Error::Refused`] when they are not the whole of what [`to_bytes`](Self::to_bytes) gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        open(b'a', "a worker's address", bytes).map(|packed| Self { packed: packed.to_vec() })
    }

    /// The packed form with zeros after it.
    pub(crate) fn padded(&self) -> Vec<u8> {
        padded(&self.packed)
    }
}

impl Key {
    /// Bytes that it opens.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it opens no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For the way to another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        seal(b'k', &[&self.start.to_le_bytes(), &self.len.to_le_bytes(), &self.packed])
    }

    /// # Errors
    /// [`Error::Refused`] when they are not the whole of what [`to_bytes`](Self::to_bytes) gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let what = "a key of memory";
        let opened = open(b'k', what, bytes)?;
        let short = || Error::refused(what, format!("{} bytes", opened.len()), "more than 16");
        let (start, rest) = opened.split_first_chunk::<8>().ok_or_else(short)?;
        let (len, packed) = rest.split_first_chunk::<8>().ok_or_else(short)?;
        let (start, len) = (u64::from_le_bytes(*start), u64::from_le_bytes(*len));
        Ok(Self { start, len, packed: packed.to_vec() })
    }

    /// The packed form with zeros after it.
    pub(crate) fn padded(&self) -> Vec<u8> {
        padded(&self.packed)
    }
}

fn padded(packed: &[u8]) -> Vec<u8> {
    let mut bytes = packed.to_vec();
    bytes.resize(packed.len() + SLACK, 0);
    bytes
}

/// Mark, kind, length, contents, checksum.
fn seal(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = Vec::with_capacity(MARK.len() + 9 + len);
    bytes.extend(MARK);
    bytes.push(kind);
    bytes.extend((len as u32).to_le_bytes());
    parts.iter().for_each(|part| bytes.extend(*part));
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn open<'a>(kind: u8, what: &str, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
    let refuse = |found: String, expected: &str| Err(Error::refused(what, found, expected));
    let Some((contents, sum)) = bytes.split_last_chunk::<4>() else {
        return refuse(format!("{} bytes", bytes.len()), "more than 13");
    };
    let Some((head, contents)) = contents.split_first_chunk::<9>() else {
        return refuse(format!("{} bytes", bytes.len()), "more than 13");
    };
    if head[..4] != MARK || head[4] != kind {
        return refuse(format!("bytes that begin with {:02x?}", &head[..5]), "those of this version of tq-ucx");
    }
    let len = u32::from_le_bytes([head[5], head[6], head[7], head[8]]) as usize;
    if len != contents.len() {
        return refuse(format!("{} bytes of contents", contents.len()), &format!("{len}"));
    }
    if crc32fast::hash(&bytes[..bytes.len() - 4]) != u32::from_le_bytes(*sum) {
        return refuse("bytes that are damaged".into(), "their checksum");
    }
    Ok(contents)
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address of {} bytes", self.packed.len())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key to {} bytes at {:#x}", self.len, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_comes_back_and_anything_else_is_refused() {
        let key = Key { start: 0x7f00_0000_0040, len: 4096, packed: vec![1, 2, 3, 250] };
        let bytes = key.to_bytes();
        assert_eq!(Key::from_bytes(&bytes).unwrap(), key);
        let address = Address { packed: vec![9; 70] };
        assert_eq!(Address::from_bytes(&address.to_bytes()).unwrap(), address);
        for end in 0..bytes.len() {
            Key::from_bytes(&bytes[..end]).unwrap_err();
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            Key::from_bytes(&flipped).unwrap_err();
        }
        let error = Key::from_bytes(&address.to_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("a key of memory: found bytes that begin with"), "{error}");
        let longer = [&bytes[..], &[0]].concat();
        assert!(Key::from_bytes(&longer).unwrap_err().to_string().contains("expected 20"));
    }
}
