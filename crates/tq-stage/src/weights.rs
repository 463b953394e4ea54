//! Weight versions and trainer states as rows of the store.
//!
//! A version is a partition `weights/<model>/<lineage>.<version>`: one row per parameter (tensors above 256 MiB in
//! parts), complete and closed before it is offered, with a checksum per row that is verified before use. A trainer's
//! state lies beside it in `state/<model>/<lineage>.<version>`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use transferqueue::{
    Batch, Outputs, PartitionId, Pinned, Session,
    catalog::{
        Newest,
        command::{NewRow, Tag, VersionRef},
        definition::{Birth, Partition},
    },
    schema::{Column, Dtype, Kind},
};

use crate::NamedTensor;

/// Largest part of a tensor in one row, in bytes.
pub const MAX_PART_BYTES: usize = 256 << 20;

/// The versions of one model, as a stage sees them.
#[derive(Clone)]
pub struct Weights {
    session: Session,
    model: String,
    patience: Duration,
}

impl Weights {
    /// For model `model`; waits for a version at most `patience`.
    pub fn new(session: Session, model: &str, patience: Duration) -> Self {
        Self { session, model: model.to_owned(), patience }
    }

    /// Where the model stands: the newest version, if one is published.
    ///
    /// # Errors
    /// When the store does not know the model or has stopped.
    pub fn newest(&self) -> Result<Newest> {
        Ok(self.session.newest(&self.model)?)
    }

    /// Holds a version (`None`: the newest), waiting until it is published.
    ///
    /// # Errors
    /// When it is not published within the patience, or is gone.
    pub fn pin(&self, version: Option<u64>) -> Result<Pinned> {
        let what = version.map_or_else(|| "the newest version".to_owned(), |v| format!("version {v}"));
        self.session
            .pin(&self.model, version, Instant::now() + self.patience)
            .with_context(|| format!("{what} of model `{}`", self.model))
    }

    /// Reads a held version: every parameter in its order, checksums verified.
    ///
    /// # Errors
    /// When a part is missing or a checksum differs, naming the parameter.
    pub fn read(&self, pinned: &Pinned) -> Result<Vec<NamedTensor>> {
        tensors(&pinned.read(&COLUMNS)?)
            .with_context(|| format!("weights of model `{}`, version {}", self.model, pinned.version().version))
    }

    /// Reads a version without holding it, for when nothing retires versions any more.
    ///
    /// # Errors
    /// As [`Weights::read`].
    pub fn read_version(&self, version: &VersionRef) -> Result<Vec<NamedTensor>> {
        tensors(&self.session.read(version.partition, None, &COLUMNS)?)
            .with_context(|| format!("weights of model `{}`, version {}", self.model, version.version))
    }

    /// Reads a trainer's state that lies beside a version.
    ///
    /// # Errors
    /// As [`Weights::read`].
    pub fn read_state(&self, state: PartitionId) -> Result<Vec<NamedTensor>> {
        tensors(&self.session.read(state, None, &COLUMNS)?)
            .with_context(|| format!("trainer state of model `{}`", self.model))
    }

    /// Writes tensors as a closed partition `<family>/<model>/<lineage>.<version>`.
    ///
    /// # Errors
    /// When the store refuses the rows.
    pub fn write(&self, family: &str, lineage: u64, version: u64, tensors: &[NamedTensor]) -> Result<PartitionId> {
        let name = format!("{family}/{}/{lineage}.{version}", self.model);
        let id = self.session.create_partition(Partition {
            name,
            columns: schema(),
            birth: Birth::Put { capacity: None },
        })?;
        let parts: Vec<Part<'_>> = tensors.iter().flat_map(parts).collect();
        let rows = parts.iter().map(|part| part.row(parts.len())).collect();
        let cells = Outputs::new()
            .utf8("name", parts.iter().map(|p| p.tensor.name.as_str()))
            .utf8("dtype", parts.iter().map(|p| p.tensor.dtype.to_string()))
            .ragged::<i64>("shape", parts.iter().map(|p| p.tensor.shape.as_slice()))
            .binary("data", parts.iter().map(|p| p.data));
        self.session.put(id, rows, cells, Instant::now() + self.patience)?;
        self.session.close_partition(id)?;
        Ok(id)
    }
}

const COLUMNS: [&str; 4] = ["name", "dtype", "shape", "data"];

fn schema() -> Vec<Column> {
    let kinds = [Kind::Utf8, Kind::Utf8, Kind::Ragged { dtype: Dtype::I64, inner: Vec::new() }, Kind::Binary];
    COLUMNS.into_iter().zip(kinds).map(|(name, kind)| Column { keep: true, ..Column::new(name, kind) }).collect()
}

struct Part<'a> {
    tensor: &'a NamedTensor,
    index: usize,
    data: &'a [u8],
}

impl Part<'_> {
    fn row(&self, total: usize) -> NewRow {
        let key =
            if self.index == 0 { self.tensor.name.clone() } else { format!("{}#{}", self.tensor.name, self.index) };
        let tags = [
            ("part", Tag::Int(self.index as i64)),
            ("rows", Tag::Int(total as i64)),
            ("crc32", Tag::Int(i64::from(crc32fast::hash(self.data)))),
        ];
        NewRow { key: Some(key), tags: tags.into_iter().map(|(name, tag)| (name.to_owned(), tag)).collect() }
    }
}

fn parts(tensor: &NamedTensor) -> Vec<Part<'_>> {
    if tensor.data.is_empty() {
        return vec![Part { tensor, index: 0, data: &[] }];
    }
    tensor.data.chunks(MAX_PART_BYTES).enumerate().map(|(index, data)| Part { tensor, index, data }).collect()
}

/// Joins the parts again; the bytes are copied once, out of the store.
fn tensors(batch: &Batch) -> Result<Vec<NamedTensor>> {
    let (names, dtypes) = (batch.utf8("name")?, batch.utf8("dtype")?);
    let (shapes, data) = (batch.ragged::<i64>("shape")?, batch.binary("data")?);
    let mut out: Vec<NamedTensor> = Vec::with_capacity(batch.len());
    for (i, head) in batch.heads().iter().enumerate() {
        let (name, bytes) = (names.row(i), data.row(i));
        let tag = |tag: &str| match head.tags.get(tag) {
            Some(Tag::Int(value)) => Ok(*value),
            other => bail!("row of `{name}` has tag `{tag}` = {other:?}; expected a number"),
        };
        ensure!(tag("rows")? == batch.len() as i64, "{} rows are there, {} were written", batch.len(), tag("rows")?);
        let found = i64::from(crc32fast::hash(bytes));
        ensure!(
            tag("crc32")? == found,
            "checksum of `{name}` is {found:08x}, {:08x} was written; the version is damaged",
            tag("crc32")?
        );
        match out.last_mut() {
            Some(last) if tag("part")? > 0 && last.name == name => last.data.extend_from_slice(bytes),
            _ => out.push(NamedTensor {
                name: name.to_owned(),
                dtype: parse_dtype(dtypes.row(i))?,
                shape: shapes.row(i).to_vec(),
                data: bytes.to_vec(),
            }),
        }
    }
    Ok(out)
}

fn parse_dtype(text: &str) -> Result<Dtype> {
    serde_json::from_value(text.into()).with_context(|| format!("`{text}` is no element type"))
}
