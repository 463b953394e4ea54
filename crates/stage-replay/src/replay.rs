//! `replay`: writes the recorded columns of each sample.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use arrow::{array::UInt32Array, compute::take};
use tq_stage::{Outputs, Parameters, Ports, Register, Rows, Served, Stage, StageContext, Work};
use transferqueue::{RowHead, Span, catalog::definition::Birth};

use crate::{
    Config,
    index::{Index, Loaded},
};

/// How long a version or a group is waited for before leases are renewed.
const RENEW: Duration = Duration::from_secs(10);

/// Why a sample leaves that its group had lost when it was recorded.
const ABSENT: &str = "absent";

/// The stage.
pub struct Replay {
    config: Config,
}

/// Claimed rows in the order of claims, the first of which are written.
#[derive(Default)]
struct Held {
    works: VecDeque<Work>,
    /// Rows of the first that are written.
    written: usize,
    /// Renewals so far, and when the last one was.
    renewed: u64,
    last: Option<Instant>,
}

impl Held {
    /// Rows of the first claim that are not written yet.
    fn rest(&self) -> &[RowHead] {
        self.works.front().map_or(&[], |work| &work.heads()[self.written..])
    }

    /// So many more rows of it are.
    fn written(&mut self, rows: usize) {
        self.written += rows;
        if self.rest().is_empty() {
            self.works.pop_front();
            self.written = 0;
        }
    }

    /// Renews what is held, when it is time.
    fn renew(&mut self) -> Result<()> {
        if self.last.is_some_and(|last| last.elapsed() < RENEW) {
            return Ok(());
        }
        self.last = Some(Instant::now());
        self.renewed += 1;
        Ok(self.works.iter_mut().try_for_each(|work| work.renew(self.renewed))?)
    }
}

impl Stage for Replay {
    fn ports(&self) -> Ports {
        Ports::new(vec![], self.config.outputs())
    }

    fn run(&mut self, cx: &mut StageContext) -> Result<()> {
        let served = cx.served().first().context("the replay serves no partition")?.clone();
        let columns: Vec<&str> = served.writes.keys().map(String::as_str).collect();
        let index = Index::open(&self.config.archive, self.config.cycles)?;
        let (mut held, mut open): (Held, Option<Loaded>) = Default::default();
        loop {
            let Some(head) = held.rest().first() else {
                match cx.claim(cx.rows_per_claim())? {
                    Some(work) => held.works.push_back(work),
                    None => return Ok(()),
                }
                continue;
            };
            let file = match open.take().filter(|file| file.has(head.ordinal)) {
                Some(file) => file,
                None => index.load(head.ordinal, &columns)?,
            };
            let part = held.rest()[..self.together(held.rest(), &file)].to_vec();
            let version = self.version(&part[0], &file);
            let due = self.admitted(cx, &served, &index, file.cycle, &mut held);
            if let Err(error) = due.and_then(|()| self.reach(cx, version, &mut held)) {
                // The run may have ended before: then nothing ever comes again, and nobody misses these rows.
                drop(held);
                return if cx.claim(1)?.is_none() { Ok(()) } else { Err(error) };
            }
            let work = held.works.front_mut().context("invariant: it holds the rows that are written")?;
            self.commit(work, &part, &file, &columns)?;
            held.written(part.len());
            open = Some(file);
        }
    }
}

impl Replay {
    /// Waits until the groups are born that have to be before the publication of `cycle`: those of the cycles that may lag
    /// behind it. The schedule admits them without it.
    fn admitted(&self, cx: &StageContext, served: &Served, index: &Index, cycle: u64, held: &mut Held) -> Result<()> {
        let Some(lag) = self.config.lag.filter(|lag| *lag > 0) else { return Ok(()) };
        let session = cx.session();
        let schedule = session.definition().schedule.as_ref().context("a replay has a schedule")?;
        let declared = session.definition().partitions.iter().find(|partition| partition.name == served.partition);
        let Some(Birth::Expand { n, .. }) = declared.map(|partition| &partition.birth) else {
            bail!("partition `{}` is not expanded", served.partition);
        };
        let all = schedule.total_cycles.saturating_mul(schedule.groups_per_cycle);
        let rows = index.groups_through(cycle + lag).min(all) * u64::from(*n);
        let partition = session.partition(&served.partition)?;
        let give_up = Instant::now() + cx.patience();
        while session.born(partition)? < rows {
            held.renew()?;
            // Whatever is born can be claimed: that is how to hear of it.
            let until = give_up.min(Instant::now() + RENEW);
            match cx.claim_until(cx.rows_per_claim(), until) {
                Ok(Some(work)) => held.works.push_back(work),
                Ok(None) => bail!("stage `{}`: {rows} rows are to be born, and no further one is", cx.stage()),
                Err(error) if error.is_deadline() && until < give_up => {}
                Err(error) => return Err(error).with_context(|| format!("stage `{}`: row {rows}", cx.stage())),
            }
        }
        Ok(())
    }

    /// The version that has to be published before a row is written.
    fn version(&self, head: &RowHead, file: &Loaded) -> u64 {
        self.span(head, file).map_or(0, |span| span.last)
    }

    fn span(&self, head: &RowHead, file: &Loaded) -> Option<Span> {
        let row = file.sample(head.ordinal, head.sample).filter(|_| self.config.lag.is_some())?;
        file.rows.heads[row].span
    }

    /// How many of the rows lie in the same file and can be written as soon as the first of them.
    fn together(&self, heads: &[RowHead], file: &Loaded) -> usize {
        let version = self.version(&heads[0], file);
        heads.iter().take_while(|head| file.has(head.ordinal) && self.version(head, file) <= version).count().max(1)
    }

    /// Waits until a version is published. Rows of earlier cycles were written before, so it comes.
    fn reach(&self, cx: &StageContext, version: u64, held: &mut Held) -> Result<()> {
        let Some(model) = cx.session().definition().models.first().filter(|_| version > 0) else { return Ok(()) };
        let begun = Instant::now();
        let give_up = begun + cx.patience();
        loop {
            held.renew()?;
            let newest = || Ok::<_, anyhow::Error>(cx.session().newest(&model.name)?.version.map_or(0, |v| v.version));
            if newest()? >= version {
                return Ok(());
            }
            let until = give_up.min(Instant::now() + RENEW);
            match cx.session().pin(&model.name, Some(version), until) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_deadline() && until < give_up => {}
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
