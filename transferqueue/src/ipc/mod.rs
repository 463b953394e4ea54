//! Arrow IPC messages that come from outside, looked at before Arrow's reader sees them.
//!
//! Arrow's reader takes the numbers of a message for granted: a buffer that reaches beyond the body ends in a panic, a
//! length that no body could fill in as much memory. Here each number is held against the bytes that came, so that what
//! is left to Arrow are messages whose parts fit. Taken are the types that columns have (`crate::arrow_map`):
//! integers, floats, utf8, binary, and lists and fixed-size lists of them; no dictionaries, no compression, little-endian.

mod file;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    datatypes::{DataType, SchemaRef},
    ipc::{self, Endianness, FieldNode, MessageHeader, MetadataVersion, reader::RecordBatchDecoder},
};
use bytes::Bytes;

pub(crate) use self::file::{File, Mapped, Source};

/// Rows or elements of one array: Arrow's 32-bit offsets end there.
const MAX_LEN: u64 = i32::MAX as u64;
/// Bytes of a list's or a text's offset.
const OFFSET: u64 = 4;
/// Levels of lists in one another.
const MAX_DEPTH: usize = 16;

/// Bytes that are no message, or one that is not taken here.
#[derive(Debug, thiserror::Error)]
#[error("no Arrow message that is taken here: {0}")]
pub(crate) struct NoMessage(String);

fn refuse<T>(why: impl Into<String>) -> Result<T, NoMessage> {
    Err(NoMessage(why.into()))
}

/// Messages of one stream in their order: a schema, then record batches of it.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    schema: Option<SchemaRef>,
}

impl Messages {
    /// The schema, once it has come.
    pub(crate) fn schema(&self) -> Option<&SchemaRef> {
        self.schema.as_ref()
    }

    /// Takes the next message: its header (a flatbuffer) and its body. `None` for one that brings no rows. A body that does
    /// not start on 64 bytes is copied to where it does.
    ///
    /// # Errors
    /// What is wrong with the message; the stream cannot go on after it.
    pub(crate) fn take(&mut self, header: &[u8], body: &Bytes) -> Result<Option<RecordBatch>, NoMessage> {
        // Flight sends metadata of its own without any message.
        if header.is_empty() && body.is_empty() {
            return Ok(None);
        }
        let message = ipc::root_as_message(header).map_err(|error| NoMessage(format!("its header: {error}")))?;
        match message.header_type() {
            MessageHeader::NONE => Ok(None),
            MessageHeader::Schema => {
                let Some(sent) = message.header_as_schema() else { return refuse("a schema without content") };
                self.begin(sent).map(|()| None)
            }
            MessageHeader::RecordBatch => {
                let Some(schema) = &self.schema else { return refuse("a record batch before the schema") };
                let Some(batch) = message.header_as_record_batch() else {
                    return refuse("a record batch without content");
                };
                let buffer = match body.as_ptr().align_offset(64) {
                    0 => Buffer::from(body.clone()),
                    _ => Buffer::from(body.as_ref()),
                };
                read(schema, batch, &buffer, message.version()).map(Some)
            }
            other => refuse(format!("a {}; send a schema and record batches", other.variant_name().unwrap_or("?"))),
        }
    }

    fn begin(&mut self, sent: ipc::Schema<'_>) -> Result<(), NoMessage> {
        if self.schema.is_some() {
            return refuse("a second schema");
        }
        if sent.endianness() == Endianness::Big {
            return refuse("big-endian data; send little-endian");
        }
        let schema = ipc::convert::try_fb_to_schema(sent).map_err(|error| NoMessage(error.to_string()))?;
        for field in schema.fields() {
            stored(field.name(), field.data_type(), 0)?;
        }
        self.schema = Some(Arc::new(schema));
        Ok(())
    }
}

/// Whether arrays of a type are taken; which of them fit a column is the mapping's business.
fn stored(column: &str, found: &DataType, depth: usize) -> Result<(), NoMessage> {
    if depth > MAX_DEPTH {
        return refuse(format!("column `{column}` has more than {MAX_DEPTH} levels of lists"));
    }
    match found {
        DataType::Utf8 | DataType::Binary | DataType::Float16 | DataType::Float32 | DataType::Float64 => Ok(()),
        found if found.is_integer() => Ok(()),
        DataType::List(item) => stored(column, item.data_type(), depth + 1),
        DataType::FixedSizeList(item, 1..) => stored(column, item.data_type(), depth + 1),
        found => refuse(format!(
            "column `{column}` has the type {found}; send integers, floats, utf8, binary, or lists of them (booleans as uint8)"
        )),
    }
}

/// A record batch whose every part lies in the body.
fn read(
    schema: &SchemaRef,
    batch: ipc::RecordBatch<'_>,
    body: &Buffer,
    version: MetadataVersion,
) -> Result<RecordBatch, NoMessage> {
    if batch.compression().is_some() {
        return refuse("a compressed body; send it plain");
    }
    let rows = length("rows", batch.length())?;
    let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
        return refuse("a record batch without arrays or buffers");
    };
    let (mut nodes, mut buffers) = (nodes.iter(), buffers.iter());
    let mut parts = Parts { body: body.len() as u64, nodes: &mut nodes, buffers: &mut buffers };
    for field in schema.fields() {
        let found = parts.array(field.name(), field.data_type())?;
        if found != rows {
            return refuse(format!("column `{}` has {found} rows, the batch {rows}", field.name()));
        }
    }
    if nodes.next().is_some() || buffers.next().is_some() {
        return refuse("a record batch with more arrays or buffers than its schema has");
    }
    let none = Default::default();
    let decoder = RecordBatchDecoder::try_new(body, batch, schema.clone(), &none, &version);
    decoder.and_then(RecordBatchDecoder::read_record_batch).map_err(|error| NoMessage(error.to_string()))
}

/// The arrays and buffers that are not looked at yet.
struct Parts<'a, N, B> {
    body: u64,
    nodes: &'a mut N,
    buffers: &'a mut B,
}

impl<'m, N: Iterator<Item = &'m FieldNode>, B: Iterator<Item = &'m ipc::Buffer>> Parts<'_, N, B> {
    /// Looks at one array and those inside it; its length.
    fn array(&mut self, column: &str, kind: &DataType) -> Result<u64, NoMessage> {
        let Some(node) = self.nodes.next() else { return refuse(format!("column `{column}` is not in the batch")) };
        let len = length(column, node.length())?;
        let nulls = length(column, node.null_count())?;
        let validity = self.buffer(column, 1)?;
        if nulls > len || (nulls > 0 && validity < len.div_ceil(8)) {
            return refuse(format!("column `{column}`: {nulls} of {len} are null by {validity} bytes of bits"));
        }
        match kind {
            DataType::Utf8 | DataType::Binary => {
                self.buffer(column, OFFSET)?;
                self.buffer(column, 1)?;
            }
            DataType::List(item) => {
                self.buffer(column, OFFSET)?;
                self.array(column, item.data_type())?;
            }
            DataType::FixedSizeList(item, size) => {
                let (found, expected) = (self.array(column, item.data_type())?, len * u64::from(size.unsigned_abs()));
                if found < expected {
                    return refuse(format!("column `{column}`: {found} elements in {len} lists of {size}"));
                }
            }
            other => _ = self.buffer(column, other.primitive_width().unwrap_or(1) as u64)?,
        }
        Ok(len)
    }

    /// The length of the next buffer: it lies in the body, on 8 bytes as the format wants, and holds whole elements.
    fn buffer(&mut self, column: &str, width: u64) -> Result<u64, NoMessage> {
        let Some(buffer) = self.buffers.next() else { return refuse(format!("column `{column}` misses a buffer")) };
        let place = u64::try_from(buffer.offset()).ok().zip(u64::try_from(buffer.length()).ok());
        match place {
            Some((offset, len))
                if offset.checked_add(len).is_some_and(|end| end <= self.body)
                    && offset.is_multiple_of(8)
                    && len.is_multiple_of(width) =>
            {
                Ok(len)
            }
            _ => refuse(format!(
                "column `{column}`: a buffer of {} bytes at {} of a body of {}; it lies within, on 8 bytes, in elements of {width}",
                buffer.length(),
                buffer.offset(),
                self.body
            )),
        }
    }
}

fn length(what: &str, found: i64) -> Result<u64, NoMessage> {
    match u64::try_from(found) {
        Ok(len) if len <= MAX_LEN => Ok(len),
        _ => refuse(format!("{what}: a length of {found}; it is between 0 and {MAX_LEN}")),
    }
}
