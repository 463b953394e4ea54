//! One record as one line, with its checksum.

use crate::catalog::event::Record;

const MARK: &str = ",\"crc\":\"";

/// The line of a record, newline included.
pub(super) fn write(record: &Record) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).expect("invariant: records hold no map with keys that are not text");
    line.pop(); // the closing brace comes after the checksum
    sealed(line)
}

/// A line with its checksum, of a record without its closing brace.
pub(crate) fn sealed(mut line: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&line);
    line.extend_from_slice(format!("{MARK}{crc:08x}\"}}\n").as_bytes());
    line
}

/// The record of a line without its newline, or what is wrong with it.
pub(crate) fn parse(line: &[u8]) -> Result<Record, String> {
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
    let record: Record = serde_json::from_slice(&whole).map_err(|error| format!("no record: {error}"))?;
    if record.version > Record::VERSION {
        let (found, known) = (record.version, Record::VERSION);
        return Err(format!("a record of form {found}, this version knows forms up to {known}"));
    }
    Ok(record)
}
