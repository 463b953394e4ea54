//! `recording`: the source of a replay.

use std::time::Instant;

use anyhow::{Context, Result};
use arrow::{array::UInt32Array, compute::take};
use fail::fail_point;
use tq_stage::{Outputs, Parameters, Ports, Register, Stage, StageContext};
use transferqueue::{Error, NewRow};

use crate::{Config, index::Index};

/// Groups put at once.
const BLOCK: u64 = 64;

/// The source: one row for every archived group.
pub struct Recording {
    config: Config,
}

impl Stage for Recording {
    fn ports(&self) -> Ports {
        Ports::new(vec![], self.config.outputs())
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        let served = cx.served().first().context("the source serves no partition")?.clone();
        let columns: Vec<&str> = served.writes.keys().map(String::as_str).collect();
        let index = Index::open(&self.config.archive, self.config.cycles)?;
        let session = cx.session();
        let partition = session.partition(&served.partition)?;
        let mut next = session.born(partition)?;
        while next < index.groups() {
            let file = index.load(next, &columns)?;
            while file.has(next) {
                let end = file.end().min(next + BLOCK);
                // What groups share stands in each of their rows: the first speaks for all.
                let firsts = (next..end).map(|group| file.group(group).start as u32).collect::<UInt32Array>();
                let mut cells = Outputs::new();
                for column in &columns {
                    let array = file.rows.column(column).with_context(|| format!("column `{column}`"))?;
                    cells = cells.array(*column, take(array, &firsts, None)?);
                }
                let cells = cells.rename(|port| served.writes.get(port).cloned());
                let rows = vec![NewRow::default(); firsts.len()];
                fail_point!("recording::put");
                match session.put(partition, rows, cells, Instant::now() + cx.patience()) {
                    Ok(_) => next = end,
                    Err(error) if error.is_stopped() || matches!(error, Error::Ended { .. }) => return Ok(()),
                    Err(error) => {
                        return Err(error).with_context(|| format!("rows {next}… into `{}`", served.partition));
                    }
                }
            }
        }
        session.close_partition(partition)?;
        Ok(())
    }
}

impl Register for Recording {
    const NAME: &'static str = "recording";
    type Config = Config;

    fn new(config: Config, _: &Parameters) -> Result<Self> {
        Ok(Self { config })
    }
}
