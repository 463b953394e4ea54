//! One JSON object as one line, with its checksum: how the event log and the arena's index are written.

use serde::{Serialize, de::DeserializeOwned};

const MARK: &str = ",\"crc\":\"";

/// The line of a value that is a JSON object with at least one field, newline included.
pub(crate) fn write(value: &impl Serialize) -> Vec<u8> {
    let mut line =
        serde_json::to_vec(value).expect("invariant: what is written holds no map with keys that are not text");
    line.pop(); // the closing brace comes after the checksum
    sealed(line)
}

/// A line with its checksum, of an object without its closing brace.
pub(crate) fn sealed(mut line: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&line);
    line.extend_from_slice(format!("{MARK}{crc:08x}\"}}\n").as_bytes());
    line
}

/// The value of a line without its newline, or what is wrong with it.
pub(crate) fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    const TAIL: usize = MARK.len() + 8 + 2;
    let split = line.len().checked_sub(TAIL).ok_or("too short for a record")?;
    let (body, tail) = line.split_at(split);
    let told = std::str::from_utf8(tail).ok().and_then(|tail| tail.strip_prefix(MARK)?.strip_suffix("\"}"));
    let told = told.and_then(|hex| u32::from_str_radix(hex, 16).ok()).ok_or("no checksum at its end")?;
    let found = crc32fast::hash(body);
    if told != found {
        return Err(format!("checksum {found:08x}, expected {told:08x}"));
    }
    let whole = [body, b"}"].concat();
    serde_json::from_slice(&whole).map_err(|error| format!("no record: {error}"))
}
