//! One record as one line, with its checksum.

use crate::{catalog::event::Record, checked_line};

/// The line of a record, newline included.
pub(super) fn write(record: &Record) -> Vec<u8> {
    checked_line::write(record)
}

/// The record of a line without its newline, or what is wrong with it.
pub(crate) fn parse(line: &[u8]) -> Result<Record, String> {
    let record: Record = checked_line::parse(line)?;
    if record.version > Record::VERSION {
        let (found, known) = (record.version, Record::VERSION);
        return Err(format!("a record of form {found}, this version knows forms up to {known}"));
    }
    Ok(record)
}
