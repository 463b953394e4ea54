//! TensorBoard event files.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Sink;
use super::record::{Message, frame};
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// Appends scalars to an event file of its own in a folder that TensorBoard is pointed at. Values are single precision there.
///
/// Every opening starts a new file, as TensorBoard's own writers do: a resumed run's files are shown as one.
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: File,
}

// Fields of tensorflow.Event and tensorflow.Summary.
const EVENT_WALL_TIME: u32 = 1;
const EVENT_STEP: u32 = 2;
const EVENT_FILE_VERSION: u32 = 3;
const EVENT_SUMMARY: u32 = 5;
const SUMMARY_VALUE: u32 = 1;
const VALUE_TAG: u32 = 1;
const VALUE_SIMPLE: u32 = 2;

impl TensorBoard {
    /// Creates `folder` if needed, and a new event file in it.
    ///
    /// # Errors
    /// [`Error::Io`] with the path.
    pub fn create(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let seconds = wall_time() as u64;
        let mut attempt = 0;
        let (path, file) = loop {
            let path = folder.join(format!("events.out.tfevents.{seconds}.tq.{}.{attempt}", std::process::id()));
            match OpenOptions::new().append(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => attempt += 1,
                Err(e) => return Err(Error::io(path)(e)),
            }
        };
        let mut board = TensorBoard { path, file };
        board.append(
            Message::default().double(EVENT_WALL_TIME, wall_time()).bytes(EVENT_FILE_VERSION, b"brain.Event:2"),
        )?;
        Ok(board)
    }

    /// The event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn append(&mut self, event: Message) -> Result<()> {
        self.file.write_all(&frame(&event.into_bytes())).map_err(Error::io(&self.path))
    }
}

impl Sink for TensorBoard {
    fn write(&mut self, step: u64, metrics: &Metrics) -> Result<()> {
        let mut summary = Message::default();
        for (name, value) in metrics.iter() {
            let scalar = Message::default().bytes(VALUE_TAG, name.as_bytes()).float(VALUE_SIMPLE, value as f32);
            summary = summary.message(SUMMARY_VALUE, scalar);
        }
        let event = Message::default().double(EVENT_WALL_TIME, wall_time()).integer(EVENT_STEP, step);
        self.append(event.message(EVENT_SUMMARY, summary))
    }
}

/// Seconds since 1970; 0 for a clock set before.
#[expect(
    clippy::disallowed_methods,
    reason = "a label that TensorBoard shows beside each point; nothing is decided by it"
)]
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
