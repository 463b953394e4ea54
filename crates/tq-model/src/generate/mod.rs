//! Generation: prompts in, sampled responses out, many rows at a time.

mod cache;
mod sample;
mod slots;
mod torch;

pub use torch::TorchGenerator;

use crate::weights::NamedTensors;
use crate::{Error, Result};

/// How a token is drawn from a distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this. 0 takes the likeliest token (the lowest id among equals).
    pub temperature: f64,
    /// Only the `top_k` likeliest tokens are drawn from.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens whose probabilities together reach this are drawn from (after `top_k`); 1 keeps all.
    pub top_p: f64,
}

impl Sampling {
    /// The likeliest token always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: None, top_p: 1.0 };

    /// The full distribution at a temperature.
    pub fn full(temperature: f64) -> Self {
        Self { temperature, ..Self::GREEDY }
    }

    /// Whether tokens are drawn from less than the full distribution, so that their log-probs under the full one are not those they were
    /// drawn with.
    pub fn restricted(&self) -> bool {
        self.temperature > 0.0 && (self.top_k.is_some() || self.top_p < 1.0)
    }

    fn check(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(Error::Generation(format!(
                "temperature is {}; expected 0 (greedy) or a positive number",
                self.temperature
            )));
        }
        if self.top_k == Some(0) {
            return Err(Error::Generation("top_k is 0; expected at least 1 token, or none for all".into()));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::Generation(format!("top_p is {}; expected above 0 and at most 1", self.top_p)));
        }
        Ok(())
    }
}

/// One response to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The caller's name for it, unique among those submitted and not yet returned.
    pub id: u64,
    /// Token ids; at least one.
    pub prompt: Vec<i64>,
    /// The response ends after this many tokens at the latest.
    pub max_new_tokens: usize,
    /// Token t of the response is drawn with the t-th number of this seed, whatever else runs.
    pub seed: u64,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The beginning of the response, where an earlier generator has made it; empty for one that begins.
    pub partial: Partial,
}

/// The beginning of a response: as many log-probs and versions as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partial {
    /// Its tokens.
    pub tokens: Vec<i64>,
    /// Their log-probs, as in [`Finished::log_probs`].
    pub log_probs: Vec<f32>,
    /// The version of the weights that each was drawn with.
    pub versions: Vec<u64>,
}

impl Partial {
    pub(crate) fn with_capacity(tokens: usize) -> Self {
        let (tokens, log_probs, versions) =
            (Vec::with_capacity(tokens), Vec::with_capacity(tokens), Vec::with_capacity(tokens));
        Self { tokens, log_probs, versions }
    }

    pub(crate) fn extend(&mut self, more: Self) {
        self.tokens.extend(more.tokens);
        self.log_probs.extend(more.log_probs);
        self.versions.extend(more.versions);
    }
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// Its last token is one of the generator's stop tokens.
    Stop,
    /// It has `max_new_tokens` tokens.
    Length,
}

/// A finished response.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The request's id.
    pub id: u64,
    /// The response, its stop token included.
    pub tokens: Vec<i64>,
    /// ln p of each token under the *full* distribution at the request's temperature (at 1 for greedy requests), whatever top-k and top-p kept.
    pub log_probs: Vec<f32>,
    /// The version of the weights that each token was drawn with.
    pub versions: Vec<u64>,
    /// Why it ended.
    pub reason: FinishReason,
    /// Whether top-k or top-p was in force: see [`Sampling::restricted`].
    pub restricted: bool,
}

/// The size of a generator.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratorOptions {
    /// Responses generated at a time.
    pub slots: usize,
    /// Tokens of the longest prompt and response together: the length of every slot's cache.
    pub max_len: usize,
    /// Tokens that end a response.
    pub stop_tokens: Vec<i64>,
    /// Tokens of prompts and partial responses run at a time when new rows enter (one longer row is run alone).
    pub prefill_tokens: usize,
}

impl GeneratorOptions {
    /// Slots and length, no stop tokens, 8,192 prompt tokens at a time.
    pub fn new(slots: usize, max_len: usize) -> Self {
        Self { slots, max_len, stop_tokens: Vec::new(), prefill_tokens: 8192 }
    }
}

/// A source of responses with continuous batching: rows enter as others finish, and weights can be exchanged between steps.
///
/// What a request returns (tokens, and log-probs to the last bit) depends on its prompt, seed and sampling, on the weights, and on
/// the generator's options, never on which rows run beside it, when it enters, or which slot it gets. A request that goes on from the
/// [`Partial`] of another generator with these options and weights returns what it would have returned there.
pub trait Generator: Send {
    /// Queues a request.
    ///
    /// # Errors
    /// The prompt is empty; it or the partial response has ids outside the vocabulary; it does not fit together with `max_new_tokens`; the
    /// partial response is longer than that, or not of one length; a sampling option is out of range; the id is in use.
    fn submit(&mut self, request: Request) -> Result<()>;

    /// Draws one token for every running row; rows that end leave, queued requests take free slots and draw their first token at once
    /// (those with a partial response draw their next one with the next step; they enter `prefill_tokens` tokens a step).
    /// Returns the responses that ended.
    ///
    /// # Errors
    /// Logits are not finite (the weights are broken), or memory is short. The generator cannot be used after an error.
    fn step(&mut self) -> Result<Vec<Finished>>;

    /// What requests in slots have so far, by id.
    fn partials(&self) -> Vec<(u64, &Partial)>;

    /// Takes a queued or running request back, dropping what it has generated; false when there is none of that id.
    fn cancel(&mut self, id: u64) -> bool;

    /// Exchanges the weights. Running rows go on with them from their next token, over the keys and values they have.
    ///
    /// # Errors
    /// Names or shapes are not the model's; the old weights stay then.
    fn set_weights(&mut self, version: u64, weights: &NamedTensors) -> Result<()>;

    /// The version of the weights in use.
    fn version(&self) -> u64;

    /// Requests that wait for a slot.
    fn queued(&self) -> usize;

    /// Requests in slots.
    fn running(&self) -> usize;

    /// Whether nothing is queued and nothing runs.
    fn is_idle(&self) -> bool {
        self.queued() == 0 && self.running() == 0
    }
}
