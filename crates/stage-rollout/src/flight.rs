//! Claimed rows on their way: waiting for a slot, generating, committed.

use std::collections::{BTreeMap, HashMap, VecDeque};

use anyhow::{Context, Result};
use fail::fail_point;
use tq_model::generate::{Finished, Request};
use tq_stage::{Outputs, Rows, Work, sample_seed};
use transferqueue::{
    RowId,
    catalog::command::{Span, Tags},
};

use crate::sampling::SamplingSettings;

/// Seeds of validation samples are drawn from another stream than those of training.
const VALIDATION_STREAM: u64 = 0x7661_6c69_6461_7465;

struct Open {
    work: Work,
    left: usize,
}

struct Waiting {
    id: u64,
    version: u64,
    request: Request,
}

/// Rows between claim and commit.
pub(crate) struct Flight {
    seed: u64,
    max_new_tokens: usize,
    training: SamplingSettings,
    validation: SamplingSettings,
    /// Leases by number of claim; each row of them is waiting or generating.
    open: BTreeMap<u64, Open>,
    waiting: VecDeque<Waiting>,
    /// Request → (claim, row).
    rows: HashMap<u64, (u64, RowId)>,
    claims: u64,
    requests: u64,
    steps: u64,
}

impl Flight {
    pub(crate) fn new(
        seed: u64,
        max_new_tokens: usize,
        training: SamplingSettings,
        validation: SamplingSettings,
    ) -> Self {
        Self {
            seed,
            max_new_tokens,
            training,
            validation,
            open: BTreeMap::new(),
            waiting: VecDeque::new(),
            rows: HashMap::new(),
            claims: 0,
            requests: 0,
            steps: 0,
        }
    }

    /// Rows waiting or generating.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether claimed rows have not entered the generator.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The weight version at admission of the row that waits longest.
    pub(crate) fn next_version(&self) -> Option<u64> {
        self.waiting.front().map(|w| w.version)
    }

    /// Takes a lease over.
    pub(crate) fn take(&mut self, work: Work) -> Result<()> {
        let batch = work.batch()?;
        let prompts = batch.ragged::<i64>("prompt")?;
        let validation = work.served().validation;
        let (settings, seed) =
            if validation { (&self.validation, self.seed ^ VALIDATION_STREAM) } else { (&self.training, self.seed) };
        self.claims += 1;
        for (i, head) in work.heads().iter().enumerate() {
            self.requests += 1;
            let request = Request {
                id: self.requests,
                prompt: prompts.row(i).to_vec(),
                max_new_tokens: self.max_new_tokens,
                seed: sample_seed(seed, head.ordinal, head.sample),
                sampling: settings.sampling(),
            };
            self.rows.insert(self.requests, (self.claims, head.row));
            self.waiting.push_back(Waiting { id: self.requests, version: head.version, request });
        }
        let left = work.heads().len();
        if left > 0 {
            self.open.insert(self.claims, Open { work, left });
        }
        Ok(())
    }

    /// The rows that may enter now: all that wait, or those admitted at `version`.
    pub(crate) fn enter(&mut self, version: Option<u64>) -> Vec<Request> {
        let (enter, stay) =
            std::mem::take(&mut self.waiting).into_iter().partition(|w| version.is_none_or(|v| v == w.version));
        self.waiting = stay;
        let enter: VecDeque<Waiting> = enter;
        debug_assert!(enter.iter().all(|w| self.rows.contains_key(&w.id)), "a waiting row is in flight");
        enter.into_iter().map(|w| w.request).collect()
    }

    /// Commits rows that ended, one commit a lease.
    pub(crate) fn finish(&mut self, finished: Vec<Finished>) -> Result<()> {
        self.steps += 1;
        let mut by_claim: BTreeMap<u64, BTreeMap<RowId, Finished>> = BTreeMap::new();
        for done in finished {
            let (claim, row) =
                self.rows.remove(&done.id).context("the generator finished a row that is not in flight")?;
            by_claim.entry(claim).or_default().insert(row, done);
        }
        for (claim, rows) in by_claim {
            let open = self.open.get_mut(&claim).context("a row's lease is open until all its rows are committed")?;
            let ids: Rows = rows.keys().copied().collect();
            let mut outputs = Outputs::for_rows(ids.clone())
                .ragged::<i64>("responses", rows.values().map(|f| f.tokens.as_slice()))
                .ragged::<f32>("rollout_log_probs", rows.values().map(|f| f.log_probs.as_slice()));
            for (row, done) in &rows {
                let span = done.versions.first().zip(done.versions.last()).map(|(&first, &last)| Span { first, last });
                outputs = outputs.note(*row, Tags::new(), span);
            }
            fail_point!("rollout::commit");
            open.work.commit_rows(&ids, outputs)?;
            open.left -= rows.len();
            if open.left == 0 {
                self.open.remove(&claim);
            }
        }
        Ok(())
    }

    /// Prolongs every lease; the number of steps is the progress.
    pub(crate) fn renew(&mut self) -> Result<()> {
        let steps = self.steps;
        Ok(self.open.values_mut().try_for_each(|open| open.work.renew(steps))?)
    }
}
