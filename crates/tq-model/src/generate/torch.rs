//! The [`Generator`] on libtorch.

use tch::{Kind, Tensor};

use super::cache::{Cache, Step};
use super::sample::{Scratch, draw};
use super::slots::{Row, Slots};
use super::{Finished, Generator, GeneratorOptions, Partial, Request};
use crate::batch::{Layout, PackedBatch, padded_rows};
use crate::config::ModelConfig;
use crate::decoder::{Decoder, Placement};
use crate::score;
use crate::tensor;
use crate::weights::{Head, NamedTensors};
use crate::{Error, Result};

/// Tokens of a response that run side by side when it is resumed: each looks at its own copy of the row's keys and values.
const CATCH_UP: usize = 64;

/// A generator with its own copy of the weights.
pub struct TorchGenerator {
    decoder: Decoder,
    version: u64,
    options: GeneratorOptions,
    /// Threads of libtorch when the generator was made; row counts that keep bits equal follow from it.
    threads: usize,
    slots: Slots,
    cache: Cache,
    logits: Vec<f32>,
    scratch: Scratch,
    failed: bool,
}

impl std::fmt::Debug for TorchGenerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TorchGenerator")
            .field("decoder", &self.decoder)
            .field("version", &self.version)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl TorchGenerator {
    /// A generator with the given weights, its caches allocated.
    ///
    /// The cache takes 2 · blocks · slots · max_len · kv heads · head_dim elements of the compute type.
    ///
    /// # Errors
    /// An option is out of range, weights are not the model's, or memory is short.
    pub fn new(
        config: &ModelConfig,
        placement: Placement,
        version: u64,
        weights: &NamedTensors,
        options: GeneratorOptions,
    ) -> Result<Self> {
        if options.slots == 0 || options.max_len < 2 || options.prefill_tokens == 0 {
            return Err(Error::Generation(format!(
                "slots {} and prefill_tokens {} must be at least 1, max_len {} at least 2",
                options.slots, options.prefill_tokens, options.max_len
            )));
        }
        if options.max_len > config.max_position_embeddings {
            return Err(Error::Generation(format!(
                "max_len is {}, the model takes rows of at most {} tokens (max_position_embeddings)",
                options.max_len, config.max_position_embeddings
            )));
        }
        let threads = tch::get_num_threads().max(1) as usize;
        let decoder = Decoder::fused(config, Head::Lm, placement, weights)?;
        let slots = padded_rows(options.slots, config.intermediate_size as usize, threads);
        let cache = Cache::new(config, slots, options.max_len, decoder.compute_kind(), placement.device)?;
        Ok(Self {
            decoder,
            version,
            threads,
            slots: Slots::new(options.slots),
            cache,
            options,
            logits: Vec::new(),
            scratch: Scratch::default(),
            failed: false,
        })
    }

    fn admissible(&self, request: &Request) -> Result<()> {
        request.sampling.check()?;
        let wrong = |what: String| Err(Error::Generation(format!("request {}: {what}", request.id)));
        if request.prompt.is_empty() || request.max_new_tokens == 0 {
            return wrong(format!(
                "a prompt of {} tokens and {} new tokens; both must be at least 1",
                request.prompt.len(),
                request.max_new_tokens
            ));
        }
        if request.prompt.len() + request.max_new_tokens > self.options.max_len {
            return wrong(format!(
                "a prompt of {} tokens and up to {} new ones do not fit into max_len {}",
                request.prompt.len(),
                request.max_new_tokens,
                self.options.max_len
            ));
        }
        let Partial { tokens, log_probs, versions } = &request.partial;
        if tokens.len() > request.max_new_tokens || [log_probs.len(), versions.len()] != [tokens.len(); 2] {
            return wrong(format!(
                "it goes on from {} tokens with {} log-probs and {} versions; expected as many of each, and at most {} (max_new_tokens)",
                tokens.len(),
                log_probs.len(),
                versions.len(),
                request.max_new_tokens
            ));
        }
        let vocab = self.decoder.config().vocab_size;
        match request.prompt.iter().chain(tokens).find(|id| !(0..vocab).contains(*id)) {
            Some(id) => wrong(format!("id {id} is outside the vocabulary of {vocab}")),
            None => Ok(()),
        }
    }

    /// Runs the prompts of the rows from slot `first` on and draws the first tokens of those that have none.
    fn prefill(&mut self, first: usize) -> Result<()> {
        let mut batch = PackedBatch::new();
        for row in &self.slots.rows()[first..] {
            batch.push(&row.request.prompt, &[])?;
        }
        let config = self.decoder.config();
        let layout = Layout::new(&batch, config.vocab_size, config.max_position_embeddings, |tokens| {
            padded_rows(tokens, config.intermediate_size as usize, self.threads)
        })?;
        let cache = &mut self.cache;
        let hidden = self
            .decoder
            .hidden(&layout, Some(&mut |block, key, value| cache.store(block, &layout, first, key, value)))?;
        let mut lasts = layout.lasts;
        lasts.resize(lasts.len().max(crate::batch::MIN_ROWS), 0);
        let hidden = hidden.f_index_select(0, &tensor::indices(&lasts, self.decoder.placement().device)?)?;
        self.draw(&hidden, first, |row| row.response.tokens.is_empty())
    }

    /// Caches what rows from slot `first` on have of their responses already, but for the last token, which the next step feeds.
    ///
    /// Tokens of one row run side by side in the shapes of [`Self::decode`], not as a prompt: keys and values thus have the bits
    /// that they had where the tokens were drawn one by one. Returns whether there were any.
    fn catch_up(&mut self, first: usize) -> Result<bool> {
        let mut any = false;
        for slot in first..self.slots.rows().len() {
            let Row { request, response, .. } = &self.slots.rows()[slot];
            let begun = request.prompt.len();
            let known = response.tokens.len().saturating_sub(1);
            let positions: Vec<i64> = (begun as i64..(begun + known) as i64).collect();
            let tokens = response.tokens[..known].to_vec();
            for (ids, positions) in tokens.chunks(CATCH_UP).zip(positions.chunks(CATCH_UP)) {
                // Nothing is drawn from these positions.
                let _ = self.forward(ids, positions, |cache, filled| cache.prepare_in(slot, filled, ids.len()))?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Feeds every running row its last token and draws the next.
    fn decode(&mut self) -> Result<()> {
        let rows = self.slots.rows();
        let ids: Vec<i64> = rows.iter().filter_map(|row| row.response.tokens.last().copied()).collect();
        let positions: Vec<i64> = rows.iter().map(|row| row.cached() as i64).collect();
        let hidden = self.forward(&ids, &positions, Cache::prepare)?;
        self.draw(&hidden, 0, |_| true)
    }

    /// Runs one token a row, filled up to a number of rows that keeps bits equal.
    fn forward(
        &mut self,
        ids: &[i64],
        positions: &[i64],
        prepare: impl Fn(&Cache, &[i64]) -> Result<Step>,
    ) -> Result<Tensor> {
        let filled = padded_rows(ids.len(), self.decoder.config().intermediate_size as usize, self.threads);
        let (mut ids, mut positions) = (ids.to_vec(), positions.to_vec());
        ids.resize(filled, 0);
        positions.resize(filled, 0);
        let device = self.decoder.placement().device;
        let (step, cache) = (prepare(&self.cache, &positions)?, &mut self.cache);
        self.decoder.decode(
            &tensor::indices(&ids, device)?,
            &tensor::indices(&positions, device)?,
            self.options.max_len,
            |block, query, key, value| cache.attend(block, &step, query, key, value),
        )
    }

    /// Draws a token for those rows from slot `first` on that `wants` names; row i's hidden state is `hidden[i]`.
    fn draw(&mut self, hidden: &Tensor, first: usize, wants: impl Fn(&Row) -> bool) -> Result<()> {
        let logits = score::logits(&self.decoder, hidden)?.f_to_kind(Kind::Float)?.f_contiguous()?;
        self.logits.resize(logits.numel(), 0.0);
        logits.f_copy_data(&mut self.logits, logits.numel())?;
        let vocab = self.decoder.config().vocab_size as usize;
        let rows = self.slots.rows_mut()[first..].iter_mut().zip(self.logits.chunks_exact(vocab));
        for (row, logits) in rows.filter(|(row, _)| wants(row)) {
            let (request, token) = (&row.request, row.response.tokens.len());
            let drawn = draw(logits, &request.sampling, request.seed, token as u64, &mut self.scratch).ok_or_else(|| {
                Error::Generation(format!(
                    "logits of request {} at its token {token} are not finite under weights version {}; the weights are broken",
                    request.id,
                    self.version
                ))
            })?;
            row.push(drawn.token as i64, drawn.log_prob, self.version);
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<Vec<Finished>> {
        let mut finished = Vec::new();
        if !self.slots.rows().is_empty() {
            self.decode()?;
            self.retire(&mut finished)?;
        }
        loop {
            let first = self.slots.enter(self.options.prefill_tokens);
            if first == self.slots.rows().len() {
                return Ok(finished);
            }
            self.prefill(first)?;
            let caught_up = self.catch_up(first)?;
            self.retire(&mut finished)?;
            // That takes a while: who waits enters with the next step, so that the caller may renew its leases between.
            if caught_up {
                return Ok(finished);
            }
        }
    }

    fn retire(&mut self, finished: &mut Vec<Finished>) -> Result<()> {
        let (ended, moves) = self.slots.leave(&self.options.stop_tokens);
        finished.extend(ended);
        self.cache.relocate(&moves)
    }
}

impl Generator for TorchGenerator {
    fn submit(&mut self, request: Request) -> Result<()> {
        self.admissible(&request)?;
        let id = request.id;
        if !self.slots.submit(request) {
            return Err(Error::Generation(format!("request {id} was submitted before and has not been returned yet")));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Vec<Finished>> {
        if self.failed {
            return Err(Error::Generation("an earlier step failed; make a new generator".into()));
        }
        let _guard = tch::no_grad_guard();
        self.failed = true;
        let finished = self.advance()?;
        self.failed = false;
        Ok(finished)
    }

    fn partials(&self) -> Vec<(u64, &Partial)> {
        self.slots.rows().iter().map(|row| (row.request.id, &row.response)).collect()
    }

    fn cancel(&mut self, id: u64) -> bool {
        let (found, moves) = self.slots.cancel(id);
        let _guard = tch::no_grad_guard();
        self.failed |= self.cache.relocate(&moves).is_err();
        found
    }

    fn set_weights(&mut self, version: u64, weights: &NamedTensors) -> Result<()> {
        self.decoder.load_named(weights)?;
        self.version = version;
        Ok(())
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn queued(&self) -> usize {
        self.slots.queued()
    }

    fn running(&self) -> usize {
        self.slots.rows().len()
    }
}
