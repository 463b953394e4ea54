//! What a scorer is given and what it returns.

use serde_json::Value;

use crate::error::Result;

/// One token of a response, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The token's text, special tokens included.
    pub text: String,
    /// Whether the token ends the response.
    pub end: bool,
}

impl Piece {
    /// A token that does not end the response.
    pub fn text(text: impl Into<String>) -> Self {
        Piece { text: text.into(), end: false }
    }

    /// A token that ends the response.
    pub fn end(text: impl Into<String>) -> Self {
        Piece { text: text.into(), end: true }
    }
}

/// A response to be judged.
#[derive(Debug, Clone)]
pub struct Sample<'a> {
    /// Which task the row belongs to.
    pub data_source: &'a str,
    /// The right answer, in the form the task's scorer reads.
    pub ground_truth: &'a str,
    /// The response, token by token. Empty if nothing was generated.
    pub response: &'a [Piece],
    /// What else the data set says about the row; null if nothing.
    pub extra_info: &'a Value,
}

impl<'a> Sample<'a> {
    /// A sample without extra information.
    pub fn new(data_source: &'a str, ground_truth: &'a str, response: &'a [Piece]) -> Self {
        Sample { data_source, ground_truth, response, extra_info: &Value::Null }
    }

    /// The response as one text, end tokens left out.
    pub fn text(&self) -> String {
        self.response.iter().filter(|piece| !piece.end).map(|piece| piece.text.as_str()).collect()
    }
}

/// A judged response.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// One reward per token of the response: the column `token_level_scores`.
    pub rewards: Vec<f32>,
    /// The response's reward as the task defines it. Equal to the sum of `rewards` up to rounding; kept apart so that a perfect answer is exactly
    /// the task's maximum, and so that an empty response has a reward too.
    pub total: f32,
    /// Further numbers for metrics, by name (`acc`, …). A task reports the same names for every sample.
    pub extra: Vec<(&'static str, f64)>,
}

impl Score {
    /// A reward for the response as a whole, placed on its last token.
    pub fn outcome(total: f32, tokens: usize) -> Self {
        let mut rewards = vec![0.0; tokens];
        if let Some(last) = rewards.last_mut() {
            *last = total;
        }
        Score { rewards, total, extra: Vec::new() }
    }
}

/// Judges responses of one kind of task. A pure function of the sample: the same sample always gets the same score.
pub trait Scorer: Send + Sync {
    /// The score of `sample`, with one reward per token of its response.
    ///
    /// # Errors
    /// [`Error::BadSample`](crate::Error::BadSample) if the sample cannot be judged at all.
    fn score(&self, sample: &Sample<'_>) -> Result<Score>;
}
