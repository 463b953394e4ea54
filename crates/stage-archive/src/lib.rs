//! `archive`: writes cut batches to Parquet before their bytes are freed, and reads them back.
//!
//! The planner adds the stage wherever a partition says `keep: archive`. It is a task like others: it reads the archived
//! columns `per: mini`, so that a batch's bytes stay until its file is on the disk, and what was not archived when a process
//! was killed is archived after it. One file a cut batch: `archive/<partition>/cycle_000012.mini_0003.parquet`, with
//!
//! | columns | what |
//! |---|---|
//! | `row`, `group`, `ordinal`, `sample` | u64, u64, u64, u32: which row, of which group, prompt and sample |
//! | `version` | u64: weight version at its admission |
//! | `first_version`, `last_version` | u64 or null: weight versions of its first and last token |
//! | `tags` | JSON object |
//! | the archived columns | as the store maps them to Arrow (`transferqueue::arrow_map`) |
//!
//! ```
//! use stage_archive::{Facts, Recorded, list, write};
//! use transferqueue::{Batch, Column, Dtype, Kind, Outputs};
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let columns = [Column::new("responses", Kind::Ragged { dtype: Dtype::I64, inner: vec![] })];
//! let batch = Batch::detached(&columns, 2, Outputs::new().ragged::<i64>("responses", [vec![5, 6], vec![7]]))?;
//! let partition = "samples".to_owned();
//! let facts = Facts { format: Facts::FORMAT, partition, cycle: 3, index: 0, last: true, rows: 2, groups: 2 };
//! write(folder, &facts, &batch)?;
//!
//! let (_, path) = &list(folder)?[0];
//! let recorded = Recorded::open(path)?;
//! assert_eq!((recorded.facts(), recorded.columns()), (&facts, &columns[..]));
//! assert_eq!(recorded.read(&["responses"])?.column("responses"), Some(batch.gather()?.column(0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod facts;
mod name;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;

use anyhow::{Context, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tq_stage::{Batch, Map, MapContext, Outputs, Parameters, Per, Ports, Register};

pub use error::ArchiveError;
pub use facts::Facts;
pub use name::{BatchName, list, rollback};
pub use read::{Head, Recorded, Rows};
pub use write::write;

/// Settings of the stage; the runner fills them in.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder of the archive; each partition has a folder in it.
    pub folder: PathBuf,
}

/// The stage. Its inputs are the archived columns, which the planner binds.
pub struct Archive {
    config: Config,
}

impl Map for Archive {
    fn ports(&self) -> Ports {
        Ports::new(vec![], vec![]).per(Per::Mini)
    }

    fn map(&mut self, batch: &Batch, cx: &MapContext<'_>) -> Result<Outputs> {
        let cut = cx.cut().context("an archive is made of cut batches; leave `per` alone")?;
        let partition = &cx.served().partition;
        let mut groups: Vec<_> = batch.heads().iter().map(|head| head.group).collect();
        groups.dedup();
        let facts = Facts {
            format: Facts::FORMAT,
            partition: partition.clone(),
            cycle: cut.cycle,
            index: cut.index,
            last: cut.last,
            rows: batch.len() as u64,
            groups: groups.len() as u64,
        };
        write(&self.config.folder.join(partition), &facts, batch)?;
        Ok(Outputs::new())
    }
}

impl Register for Archive {
    const NAME: &'static str = "archive";
    type Config = Config;

    fn new(config: Config, _: &Parameters) -> Result<Self> {
        Ok(Self { config })
    }
}
