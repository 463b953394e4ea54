//! The audit: one line for every row that a training task consumed, written once per publication.
//!
//! ```text
//! {"task":"actor","row":17,"group":2,"step":3,"lineage":0,"versions":{"first":2,"last":2},"admitted":2,"version":2,"lag":0}
//! {"rollback":true,"to_step":2}
//! ```
//!
//! `version` is the trainer's version when the row was used (the one it then replaced), `lag` its distance to the
//! version of the row's first token. A rollback takes back every line of a later step before it in the file.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    catalog::{Publication, command::Span, definition::Definition},
    ids::{GroupId, RowId},
};

/// Why the audit cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("audit {}: cannot {what}: {error}", .path.display())]
pub struct AuditError {
    path: PathBuf,
    what: &'static str,
    error: io::Error,
}

/// A row that training consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Which task.
    pub task: String,
    /// Which row.
    pub row: RowId,
    /// Its group.
    pub group: GroupId,
    /// The training step.
    pub step: u64,
    /// Lineage of the publication.
    pub lineage: u64,
    /// Weight versions of its tokens (those at its admission when its writer told none).
    pub versions: Span,
    /// Weight version at its admission.
    pub admitted: u64,
    /// The trainer's version when it was used.
    pub version: u64,
    /// `version` minus the version of the first token.
    pub lag: u64,
}

/// A step back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// Always true.
    pub rollback: bool,
    /// The last step that still counts.
    pub to_step: u64,
}

/// The file, open at its end.
pub struct Audit {
    path: PathBuf,
    file: File,
}

impl Audit {
    /// Opens or begins an audit; an unfinished last line of a killed process is cut off.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        let failed = |what| move |error| AuditError { path: path.to_owned(), what, error };
        let opened = OpenOptions::new().create(true).read(true).append(true).open(path);
        let file = opened.map_err(failed("open"))?;
        let mut reader = BufReader::new(&file);
        let (mut whole, mut line) = (0, Vec::new());
        while reader.read_until(b'\n', &mut line).map_err(failed("read"))? > 0 {
            if line.ends_with(b"\n") {
                whole += line.len() as u64;
            }
            line.clear();
        }
        file.set_len(whole).map_err(failed("cut an unfinished line off"))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends what a publication consumed; `step` is the run's number for the cycle.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append(&mut self, publication: &Publication, definition: &Definition, step: u64) -> Result<(), AuditError> {
        self.write(&lines(publication, definition, step))
    }

    /// Says that the run went back: lines of steps beyond `to_step` do not count any more.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn rollback(&mut self, to_step: u64) -> Result<(), AuditError> {
        self.write(&[Rollback { rollback: true, to_step }])
    }

    /// One write for all lines.
    fn write<T: Serialize>(&mut self, lines: &[T]) -> Result<(), AuditError> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line).expect("invariant: lines are plain values");
            text.push(b'\n');
        }
        self.file.write_all(&text).map_err(|error| AuditError { path: self.path.clone(), what: "append", error })
    }
}

/// The lines of a publication, in the order of tasks and rows.
pub fn lines(publication: &Publication, definition: &Definition, step: u64) -> Vec<Line> {
    let version = publication.version.saturating_sub(1);
    let of = |row: &crate::catalog::Trained| {
        let versions = row.span.unwrap_or(Span { first: row.admitted, last: row.admitted });
        Line {
            task: definition.tasks[row.task.0 as usize].name.clone(),
            row: row.row,
            group: row.group,
            step,
            lineage: publication.lineage,
            versions,
            admitted: row.admitted,
            version,
            lag: version.saturating_sub(versions.first),
        }
    };
    publication.rows.iter().map(of).collect()
}

/// Reads an audit back: the lines that still count.
///
/// # Errors
/// When the file cannot be read, or a line is neither a row nor a rollback.
pub fn surviving(path: &Path) -> Result<Vec<Line>, AuditError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Line(Line),
        Rollback(Rollback),
    }
    let failed = |what| move |error| AuditError { path: path.to_owned(), what, error };
    let mut lines: Vec<Line> = Vec::new();
    for line in BufReader::new(File::open(path).map_err(failed("open"))?).lines() {
        match serde_json::from_str(&line.map_err(failed("read"))?).map_err(|error| failed("parse")(error.into()))? {
            Either::Line(line) => lines.push(line),
            Either::Rollback(Rollback { to_step, .. }) => lines.retain(|line| line.step <= to_step),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalog::Trained, ids::TaskId, testing::training};

    fn publication(cycle: u64, rows: std::ops::Range<u64>) -> Publication {
        let trained = |row| Trained {
            task: TaskId(3),
            row: RowId(row),
            group: GroupId(row / 2),
            ordinal: row / 2,
            sample: row as u32 % 2,
            index: 0,
            admitted: cycle,
            span: (row % 2 == 0).then_some(Span { first: cycle.saturating_sub(1), last: cycle }),
        };
        Publication { cycle: Some(cycle), version: cycle + 1, lineage: 2, rows: rows.map(trained).collect() }
    }

    #[test]
    fn every_consumed_row_is_a_line_with_its_lag() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let definition = training(9);
        Audit::open(&path).unwrap().append(&publication(4, 8..10), &definition, 5).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = r#"{"task":"actor","row":8,"group":4,"step":5,"lineage":2,"versions":{"first":3,"last":4},"admitted":4,"version":4,"lag":1}
{"task":"actor","row":9,"group":4,"step":5,"lineage":2,"versions":{"first":4,"last":4},"admitted":4,"version":4,"lag":0}
"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn a_rollback_takes_later_steps_back_and_an_unfinished_line_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let definition = training(9);
        let mut audit = Audit::open(&path).unwrap();
        audit.append(&publication(0, 0..2), &definition, 1).unwrap();
        audit.append(&publication(1, 2..4), &definition, 2).unwrap();
        drop(audit);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"task\":\"act").unwrap();
        let mut audit = Audit::open(&path).unwrap();
        audit.rollback(1).unwrap();
        audit.append(&publication(1, 4..6), &definition, 2).unwrap();
        let rows: Vec<u64> = surviving(&path).unwrap().iter().map(|line| line.row.0).collect();
        assert_eq!(rows, [0, 1, 4, 5]);
    }
}
