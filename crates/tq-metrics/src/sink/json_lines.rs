//! `metrics.jsonl`: one object a step.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Sink;
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// Appends `{"step": 3, "actor/lr": 0.0001, …}` a step, one line each, written at once. JSON has no NaN: such values are null.
///
/// A line that a killed process did not finish is removed when the file is opened again, so that the file is always whole lines. Steps that a resumed run
/// repeats are appended again: a reader takes the last.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Opens `path`, creating the file if there is none; lines in it are kept.
    ///
    /// # Errors
    /// [`Error::Io`] with the path.
    pub fn open(path: &Path) -> Result<Self> {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.map_err(Error::io(path))?;
        let whole = whole_lines(&mut file).map_err(Error::io(path))?;
        file.set_len(whole).and_then(|()| file.seek(SeekFrom::End(0))).map_err(Error::io(path))?;
        Ok(JsonLines { path: path.into(), file })
    }
}

/// The length of the file up to and including its last line end.
fn whole_lines(file: &mut File) -> std::io::Result<u64> {
    const BLOCK: u64 = 4096;
    let mut end = file.seek(SeekFrom::End(0))?;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

impl Sink for JsonLines {
    fn write(&mut self, step: u64, metrics: &Metrics) -> Result<()> {
        let mut object = Map::from_iter([("step".to_string(), Value::from(step))]);
        object.extend(metrics.to_json());
        let mut line = Value::Object(object).to_string();
        line.push('\n');
        self.file.write_all(line.as_bytes()).map_err(Error::io(&self.path))
    }
}
