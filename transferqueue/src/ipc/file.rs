//! The messages of an Arrow IPC file, read in their order. The footer, which repeats where they lie, is not needed: nothing
//! is allocated that the file is not long enough to fill.

use std::io::{self, Read};

use arrow::{array::RecordBatch, buffer::MutableBuffer, datatypes::SchemaRef, ipc};
use bytes::Bytes;

use super::{Messages, NoMessage, refuse};

const MAGIC: &[u8; 6] = b"ARROW1";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The magic is padded to this at most.
const MAX_PADDING: u64 = 64;

/// Where the bytes of a file come from.
pub(crate) trait Source {
    /// The next bytes, as many as fit.
    fn fill(&mut self, into: &mut [u8]) -> io::Result<()>;

    /// The next `len` bytes, of which there are as many.
    fn body(&mut self, len: usize) -> io::Result<Bytes>;
}

impl<R: Read> Source for R {
    fn fill(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.read_exact(into)
    }

    fn body(&mut self, len: usize) -> io::Result<Bytes> {
        // Aligned, so that the arrays of this batch are views of it.
        let mut buffer = MutableBuffer::from_len_zeroed(len);
        self.read_exact(buffer.as_slice_mut())?;
        Ok(Bytes::from_owner(arrow::buffer::Buffer::from(buffer)))
    }
}

/// A file that is in memory as it lies: bodies are views of it.
pub(crate) struct Mapped(pub(crate) Bytes);

impl Source for Mapped {
    fn fill(&mut self, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.body(into.len())?);
        Ok(())
    }

    fn body(&mut self, len: usize) -> io::Result<Bytes> {
        if len > self.0.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.0.split_to(len))
    }
}

/// A file, positioned before its next record batch.
pub(crate) struct File<S> {
    from: S,
    /// Bytes that are left of it.
    left: u64,
    messages: Messages,
    schema: SchemaRef,
}

impl<S: Source> File<S> {
    /// Reads up to the schema of a file of so many bytes.
    ///
    /// # Errors
    /// [`NoMessage`] when it does not begin as a file does, or the file system fails.
    pub(crate) fn open(mut from: S, bytes: u64) -> Result<Self, NoMessage> {
        let (mut left, mut magic) = (bytes, [0; MAGIC.len() + 2]);
        exactly(&mut from, &mut left, &mut magic)?;
        if !magic.starts_with(MAGIC) {
            return refuse("the file does not begin with ARROW1");
        }
        let mut messages = Messages::default();
        let mut mark = [0; 4];
        // Writers pad the magic to 8 or 64 bytes.
        while mark != CONTINUATION {
            exactly(&mut from, &mut left, &mut mark)?;
            if mark != CONTINUATION && (mark != [0; 4] || bytes - left > MAX_PADDING) {
                return refuse("the first message does not follow the magic");
            }
        }
        let first = message(&mut from, &mut left)?;
        let Some((header, body)) = first else { return refuse("the file has no schema") };
        messages.take(&header, &body)?;
        let Some(schema) = messages.schema().cloned() else { return refuse("the file does not begin with a schema") };
        Ok(Self { from, left, messages, schema })
    }

    /// Its schema.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>, NoMessage> {
        loop {
            let mut mark = [0; 4];
            exactly(&mut self.from, &mut self.left, &mut mark)?;
            if mark != CONTINUATION {
                return refuse("a message without the mark of its beginning");
            }
            let Some((header, body)) = message(&mut self.from, &mut self.left)? else { return Ok(None) };
            if let Some(batch) = self.messages.take(&header, &body)? {
                return Ok(Some(batch));
            }
        }
    }
}

impl<S: Source> Iterator for File<S> {
    type Item = Result<RecordBatch, NoMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

/// Header and body of the message behind its mark; `None` at the end of all messages.
fn message(from: &mut impl Source, left: &mut u64) -> Result<Option<(Vec<u8>, Bytes)>, NoMessage> {
    let mut len = [0; 4];
    exactly(from, left, &mut len)?;
    let header = match i32::from_le_bytes(len) {
        0 => return Ok(None),
        len => u64::try_from(len).ok().filter(|len| len <= left),
    };
    let Some(header) = header else { return refuse("a header longer than the file") };
    let mut bytes = vec![0; header as usize];
    exactly(from, left, &mut bytes)?;
    let found = ipc::root_as_message(&bytes).map_err(|error| NoMessage(format!("its header: {error}")))?;
    let Some(body) = u64::try_from(found.bodyLength()).ok().filter(|len| len <= left) else {
        return refuse(format!("a body of {} bytes, {left} are left of the file", found.bodyLength()));
    };
    *left -= body;
    let body = from.body(body as usize).map_err(short)?;
    Ok(Some((bytes, body)))
}

fn exactly(from: &mut impl Source, left: &mut u64, into: &mut [u8]) -> Result<(), NoMessage> {
    *left = left.checked_sub(into.len() as u64).ok_or_else(|| short(io::ErrorKind::UnexpectedEof.into()))?;
    from.fill(into).map_err(short)
}

fn short(error: io::Error) -> NoMessage {
    NoMessage(format!("the file ends early: {error}"))
}
