//! Claimed rows on their way: waiting for a slot, generating, committed.

use std::collections::{BTreeMap, HashMap, VecDeque};

use anyhow::{Context, Result};
use fail::fail_point;
use tq_model::generate::{Finished, Partial, Request};
use tq_stage::{Outputs, Rows, Work, sample_seed};
use transferqueue::{RowId, Sampled, SavedRow, Span, Tags};

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

/// A row that waits or generates.
struct Flying {
    /// Number of its claim.
    claim: u64,
    row: RowId,
    /// Tokens of it that the store keeps should this worker be lost.
    saved: usize,
}

/// Rows that enter the generator.
#[derive(Default)]
pub(crate) struct Entering {
    pub(crate) requests: Vec<Request>,
    /// Tokens that workers which were lost had made of them, and that need not be made again.
    pub(crate) resumed: usize,
    /// Such tokens that are of no use: other weights made them than the row must have.
    pub(crate) discarded: usize,
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
    /// By request.
    rows: HashMap<u64, Flying>,
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
        let mut begun = begun(&work)?;
        for (i, head) in work.heads().iter().enumerate() {
            self.requests += 1;
            let partial = begun.remove(&head.row).unwrap_or_default();
            let saved = partial.tokens.len();
            let request = Request {
                id: self.requests,
                prompt: prompts.row(i).to_vec(),
                max_new_tokens: self.max_new_tokens,
                seed: sample_seed(seed, head.ordinal, head.sample),
                sampling: settings.sampling(),
                partial,
            };
            self.rows.insert(self.requests, Flying { claim: self.claims, row: head.row, saved });
            self.waiting.push_back(Waiting { id: self.requests, version: head.version, request });
        }
        let left = work.heads().len();
        if left > 0 {
            self.open.insert(self.claims, Open { work, left });
        }
        Ok(())
    }

    /// The rows that may enter now: all that wait, or those admitted at `version`. A row all of whose tokens must be drawn
    /// with version `whole` begins anew where the tokens it has are of another.
    pub(crate) fn enter(&mut self, version: Option<u64>, whole: Option<u64>) -> Entering {
        let (enter, stay): (VecDeque<Waiting>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|w| version.is_none_or(|v| v == w.version));
        self.waiting = stay;
        debug_assert!(enter.iter().all(|w| self.rows.contains_key(&w.id)), "a waiting row is in flight");
        let mut entering = Entering::default();
        for Waiting { mut request, .. } in enter {
            let Partial { tokens, versions, .. } = &request.partial;
            match whole.is_none_or(|whole| versions.iter().all(|version| *version == whole)) {
                true => entering.resumed += tokens.len(),
                false => {
                    entering.discarded += tokens.len();
                    request.partial = Partial::default();
                    if let Some(row) = self.rows.get_mut(&request.id) {
                        row.saved = 0;
                    }
                }
            }
            entering.requests.push(request);
        }
        entering
    }

    /// Saves what running rows have so far, for whoever has them next if this worker is lost. A row is saved when it has grown
    /// by an eighth, so that all saves of it together write at most nine times what it ends with.
    pub(crate) fn save(&mut self, partials: &[(u64, &Partial)]) -> Result<()> {
        let mut by_claim: BTreeMap<u64, BTreeMap<RowId, &Partial>> = BTreeMap::new();
        for (id, partial) in partials {
            let row = self.rows.get_mut(id).context("the generator runs a row that is not in flight")?;
            let open = self.open.get(&row.claim).context("a running row's lease is open")?;
            if open.work.served().resumes && partial.tokens.len() > row.saved + row.saved / 8 {
                row.saved = partial.tokens.len();
                by_claim.entry(row.claim).or_default().insert(row.row, partial);
            }
        }
        for (claim, rows) in by_claim {
            let open = self.open.get_mut(&claim).context("a running row's lease is open")?;
            let outputs = columns(
                rows.keys().copied().collect(),
                rows.values().map(|partial| partial.tokens.as_slice()),
                rows.values().map(|partial| partial.log_probs.as_slice()),
            );
            let saved = |(row, partial): (&RowId, &&Partial)| {
                let stretch = |run: &[u64]| Sampled { version: run[0], tokens: run.len() as u64 };
                let sampled = partial.versions.chunk_by(|a, b| a == b).map(stretch).collect();
                SavedRow { row: *row, sampled }
            };
            open.work.save(outputs, rows.iter().map(saved).collect())?;
            fail_point!("rollout::saved");
        }
        Ok(())
    }

    /// Commits rows that ended, one commit a lease.
    pub(crate) fn finish(&mut self, finished: Vec<Finished>) -> Result<()> {
        self.steps += 1;
        let mut by_claim: BTreeMap<u64, BTreeMap<RowId, Finished>> = BTreeMap::new();
        for done in finished {
            let Flying { claim, row, .. } =
                self.rows.remove(&done.id).context("the generator finished a row that is not in flight")?;
            by_claim.entry(claim).or_default().insert(row, done);
        }
        for (claim, rows) in by_claim {
            let open = self.open.get_mut(&claim).context("a row's lease is open until all its rows are committed")?;
            let ids: Rows = rows.keys().copied().collect();
            let mut outputs = columns(
                ids.clone(),
                rows.values().map(|f| f.tokens.as_slice()),
                rows.values().map(|f| f.log_probs.as_slice()),
            );
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

/// Tokens and their log-probs, finished or not.
fn columns<'a>(
    rows: Rows,
    tokens: impl Iterator<Item = &'a [i64]>,
    log_probs: impl Iterator<Item = &'a [f32]>,
) -> Outputs {
    Outputs::for_rows(rows).ragged::<i64>("responses", tokens).ragged::<f32>("rollout_log_probs", log_probs)
}

/// What workers that were lost had made of the claimed rows.
fn begun(work: &Work) -> Result<HashMap<RowId, Partial>> {
    let mut begun = HashMap::new();
    // Nobody reads log-probs that are no column, so none are kept.
    let kept = work.served().writes.contains_key("rollout_log_probs");
    for saved in work.saved()? {
        let tokens = saved.batch.ragged::<i64>("responses")?;
        let log_probs = kept.then(|| saved.batch.ragged::<f32>("rollout_log_probs")).transpose()?;
        for (i, (head, sampled)) in saved.batch.heads().iter().zip(&saved.sampled).enumerate() {
            let tokens = tokens.row(i).to_vec();
            let log_probs = log_probs.as_ref().map_or_else(|| vec![f32::NAN; tokens.len()], |all| all.row(i).to_vec());
            let stretch = |s: &Sampled| std::iter::repeat_n(s.version, s.tokens as usize);
            let versions = sampled.iter().flat_map(stretch).collect();
            begun.insert(head.row, Partial { tokens, log_probs, versions });
        }
    }
    Ok(begun)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A flight in which a row waits that has tokens of these versions.
    fn waiting(versions: &[u64]) -> Flight {
        let sampling: SamplingSettings =
            serde_json::from_value(json!({"temperature": 1.0, "top_k": -1, "top_p": 1.0, "do_sample": true}))
                .expect("settings");
        let mut flight = Flight::new(1, 8, sampling.clone(), sampling.clone());
        let (tokens, log_probs) = (vec![3; versions.len()], vec![-0.5; versions.len()]);
        let partial = Partial { tokens, log_probs, versions: versions.to_vec() };
        let request =
            Request { id: 1, prompt: vec![4], max_new_tokens: 8, seed: 7, sampling: sampling.sampling(), partial };
        flight.rows.insert(1, Flying { claim: 1, row: RowId(5), saved: versions.len() });
        flight.waiting.push_back(Waiting { id: 1, version: 3, request });
        flight
    }

    #[test]
    fn a_row_that_must_not_mix_weights_begins_anew_where_its_tokens_are_of_others() {
        for (versions, whole, resumed, discarded) in [
            (&[3, 3][..], Some(3), 2, 0),
            (&[3, 3], Some(4), 0, 2),
            (&[3, 4], Some(4), 0, 2),
            (&[3, 4], None, 2, 0),
            (&[], Some(4), 0, 0),
        ] {
            let mut flight = waiting(versions);
            let entering = flight.enter(None, whole);
            assert_eq!((entering.resumed, entering.discarded), (resumed, discarded), "{versions:?} under {whole:?}");
            assert_eq!((entering.requests[0].partial.tokens.len(), flight.rows[&1].saved), (resumed, resumed));
        }
        assert!(waiting(&[3]).enter(Some(2), Some(2)).requests.is_empty(), "it waits for the weights of its admission");
    }
}
