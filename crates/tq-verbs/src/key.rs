//! What goes to other processes: tickets that let them in, and keys that open memory.

use crate::Error;

/// What a guest shows when it comes. Whoever has it comes in: it is drawn at random, and used once.
pub type Ticket = [u8; 16];

/// Bytes of a [`Key`] on its way.
const LEN: usize = 20;

/// Opens memory that was shared with one guest, to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub(crate) rkey: u32,
    /// Of its first byte, there.
    pub(crate) start: u64,
    pub(crate) len: u64,
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

    /// For the way to the guest.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.rkey.to_le_bytes()[..], &self.start.to_le_bytes(), &self.len.to_le_bytes()].concat()
    }

    /// # Errors
    /// [`Error::Refused`] when they are not of the length of a key. (Other bytes make another key, which opens nothing: the owner's
    /// device holds it against what it shares.)
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; LEN] = bytes
            .try_into()
            .map_err(|_| Error::refused("a key of memory", format!("{} bytes", bytes.len()), format!("{LEN}")))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Self { rkey: u32::from_le_bytes(std::array::from_fn(|i| bytes[i])), start: word(4), len: word(12) })
    }

    /// The address, there, of a range.
    pub(crate) fn range(&self, at: u64, len: u64) -> Result<u64, Error> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            let what = format!("reading {len} bytes at {at} of a peer's {}", self.len);
            return Err(Error::refused(what, "a range that ends beyond", "one inside"));
        }
        Ok(self.start.wrapping_add(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_as_it_was_and_opens_nothing_beyond() {
        let key = Key { rkey: 0x1234_5678, start: 0x7f00_0000_0040, len: 4096 };
        let bytes = key.to_bytes();
        assert_eq!(Key::from_bytes(&bytes).unwrap(), key);
        Key::from_bytes(&bytes[1..]).unwrap_err();
        Key::from_bytes(&[&bytes[..], &[0]].concat()).unwrap_err();
        assert_eq!(key.range(96, 4000).unwrap(), 0x7f00_0000_00a0);
        assert_eq!(key.range(4096, 0).unwrap(), key.start + 4096);
        for (at, len) in [(96, 4001), (4096, 1), (u64::MAX, 2), (0, u64::MAX)] {
            key.range(at, len).unwrap_err();
        }
    }
}
