//! `replay`: writes the recorded columns of each sample.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use arrow::{array::UInt32Array, compute::take};
use tq_stage::{Outputs, Parameters, Ports, Register, Rows, Stage, StageContext, Work};
use transferqueue::{RowHead, Span};

use crate::{
    Config,
    index::{Index, Loaded},
};

/// How long the version of a row is waited for before the lease is renewed.
const RENEW: Duration = Duration::from_secs(10);

/// Why a sample leaves that its group had lost when it was recorded.
const ABSENT: &str = "absent";

/// The stage.
pub struct Replay {
    config: Config,
}

impl Stage for Replay {
    fn ports(&self) -> Ports {
        Ports::new(vec![], self.config.outputs())
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        let served = cx.served().first().context("the replay serves no partition")?;
        let columns: Vec<String> = served.writes.keys().cloned().collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let index = Index::open(&self.config.archive, self.config.cycles)?;
        let mut open: Option<Loaded> = None;
        while let Some(mut work) = cx.claim(cx.rows_per_claim())? {
            let heads = work.heads().to_vec();
            let mut progress = 0;
            let mut rest = heads.as_slice();
            while let Some(head) = rest.first() {
                let file = match open.take().filter(|file| file.has(head.ordinal)) {
                    Some(file) => file,
                    None => index.load(head.ordinal, &columns)?,
                };
                let (part, others) = rest.split_at(self.together(rest, &file));
                if let Err(error) = self.reach(cx, self.version(&part[0], &file), &mut work, &mut progress) {
                    // The run may have ended before: then nothing ever comes again, and nobody misses these rows.
                    drop(work);
                    return if cx.claim(1)?.is_none() { Ok(()) } else { Err(error) };
                }
                self.commit(&mut work, part, &file, &columns)?;
                (open, rest) = (Some(file), others);
            }
        }
        Ok(())
    }
}

impl Replay {
    /// The version that has to be published before a row is written.
    fn version(&self, head: &RowHead, file: &Loaded) -> u64 {
        self.span(head, file).map_or(0, |span| span.last)
    }

    fn span(&self, head: &RowHead, file: &Loaded) -> Option<Span> {
        let row = file.sample(head.ordinal, head.sample).filter(|_| self.config.versions)?;
        file.rows.heads[row].span
    }

    /// How many of the rows lie in the same file and can be written as soon as the first of them.
    fn together(&self, heads: &[RowHead], file: &Loaded) -> usize {
        let version = self.version(&heads[0], file);
        heads.iter().take_while(|head| file.has(head.ordinal) && self.version(head, file) <= version).count().max(1)
    }

    /// Waits until a version is published. Rows of earlier cycles were written before, so it comes.
    fn reach(&self, cx: &StageContext, version: u64, work: &mut Work, progress: &mut u64) -> Result<()> {
        let Some(model) = cx.session().definition().models.first().filter(|_| version > 0) else { return Ok(()) };
        let begun = Instant::now();
        let give_up = begun + cx.patience();
        loop {
            let newest = || Ok::<_, anyhow::Error>(cx.session().newest(&model.name)?.version.map_or(0, |v| v.version));
            if newest()? >= version {
                return Ok(());
            }
            let until = give_up.min(Instant::now() + RENEW);
            match cx.session().pin(&model.name, Some(version), until) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_deadline() && until < give_up => {
                    *progress += 1;
                    work.renew(*progress)?;
                }
                // It may have come and gone meanwhile.
                Err(_) if newest()? >= version => return Ok(()),
                Err(error) => {
                    return Err(error).with_context(|| format!("stage `{}`: version {version}", cx.stage()));
                }
            }
        }
    }

    /// Writes rows that lie in one file.
    fn commit(&self, work: &mut Work, heads: &[RowHead], file: &Loaded, columns: &[&str]) -> Result<()> {
        let all: Rows = heads.iter().map(|head| head.row).collect();
        let sample = |head: &RowHead| file.sample(head.ordinal, head.sample);
        let absent: Rows = heads.iter().filter(|head| sample(head).is_none()).map(|head| head.row).collect();
        let positions: UInt32Array = heads.iter().filter_map(sample).map(|row| row as u32).collect();
        let mut outputs = Outputs::new();
        for column in columns {
            let array = file.rows.column(column).with_context(|| format!("column `{column}`"))?;
            outputs = outputs.array(*column, take(array, &positions, None)?);
        }
        for head in heads {
            if let Some(row) = sample(head) {
                let recorded = &file.rows.heads[row];
                outputs = outputs.note(head.row, recorded.tags.clone(), self.span(head, file));
            }
        }
        if !absent.is_empty() {
            outputs = outputs.drop_rows(absent, ABSENT);
        }
        work.commit_rows(&all, outputs)
    }
}

impl Register for Replay {
    const NAME: &'static str = "replay";
    type Config = Config;

    fn new(config: Config, _: &Parameters) -> Result<Self> {
        Ok(Self { config })
    }
}
