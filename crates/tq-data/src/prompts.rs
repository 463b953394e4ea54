//! A data set as token ids.

use std::ops::Index;

use serde_json::Value;

use crate::dataset::{Dataset, Row};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// One prompt, ready for a `prompts` partition.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Token ids of the text.
    pub ids: Vec<i64>,
    /// The conversation through the chat template.
    pub text: String,
    /// Which task the prompt belongs to.
    pub data_source: String,
    /// The right answer.
    pub ground_truth: String,
    /// What else the file says about the row; null if nothing.
    pub extra_info: Value,
}

/// What to cut from a prompt that is too long. verl: `data.truncation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncation {
    /// Nothing: such a prompt is an error.
    #[default]
    Error,
    /// Its beginning: the last tokens stay.
    Left,
    /// Its end: the first tokens stay.
    Right,
    /// Its middle: half of the limit stays at the front, the rest at the back.
    Middle,
}

impl std::str::FromStr for Truncation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "error" => Ok(Truncation::Error),
            "left" => Ok(Truncation::Left),
            "right" => Ok(Truncation::Right),
            "middle" => Ok(Truncation::Middle),
            _ => Err(Error::Options(format!("data.truncation = {name:?}; expected error, left, right or middle"))),
        }
    }
}

/// How prompts become token ids.
#[derive(Debug, Clone)]
pub struct PromptOptions {
    /// Most tokens a prompt may have. verl: `data.max_prompt_length`.
    pub max_length: usize,
    /// Leave out prompts that are longer, counting them. verl: `data.filter_overlong_prompts`.
    pub filter_overlong: bool,
    /// What to do with longer prompts that are not left out.
    pub truncation: Truncation,
}

impl Default for PromptOptions {
    /// verl's defaults: 512 tokens, nothing filtered, an overlong prompt is an error.
    fn default() -> Self {
        PromptOptions { max_length: 512, filter_overlong: false, truncation: Truncation::Error }
    }
}

/// The prompts of a data set, in its order.
#[derive(Debug, Clone)]
pub struct PromptSet {
    prompts: Vec<Prompt>,
    filtered: usize,
}

impl PromptSet {
    /// Renders and tokenizes every row, and applies the rule for long prompts.
    ///
    /// # Errors
    /// What the template or the tokenizer refuses; [`Error::Overlong`]; [`Error::Empty`] if the filter leaves nothing.
    pub fn prepare(dataset: &Dataset, tokenizer: &Tokenizer, options: &PromptOptions) -> Result<Self> {
        let mut prompts = Vec::with_capacity(dataset.len());
        let mut filtered = 0;
        for row in dataset.rows() {
            let text = tokenizer.prompt_text(&row.messages)?;
            let ids = tokenizer.encode(&text)?;
            if ids.len() > options.max_length && options.filter_overlong {
                filtered += 1;
                continue;
            }
            let ids = shorten(ids, row, options)?;
            prompts.push(Prompt {
                ids,
                text,
                data_source: row.data_source.clone(),
                ground_truth: row.ground_truth.clone(),
                extra_info: row.extra_info.clone(),
            });
        }
        if prompts.is_empty() {
            return Err(Error::Empty(format!(
                "all {filtered} are longer than max_prompt_length = {}; raise it or set data.truncation",
                options.max_length
            )));
        }
        Ok(PromptSet { prompts, filtered })
    }

    /// Number of prompts kept; at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a set without prompts cannot be prepared")]
    pub fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Number of prompts left out as too long.
    pub fn filtered(&self) -> usize {
        self.filtered
    }

    /// Length of the longest prompt, in tokens.
    pub fn longest(&self) -> usize {
        self.prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0)
    }

    /// The prompts, in file order.
    pub fn iter(&self) -> std::slice::Iter<'_, Prompt> {
        self.prompts.iter()
    }
}

impl Index<usize> for PromptSet {
    type Output = Prompt;

    fn index(&self, row: usize) -> &Prompt {
        &self.prompts[row]
    }
}

fn shorten(mut ids: Vec<i64>, row: &Row, options: &PromptOptions) -> Result<Vec<i64>> {
    let limit = options.max_length;
    let Some(excess) = ids.len().checked_sub(limit).filter(|excess| *excess > 0) else {
        return Ok(ids);
    };
    match options.truncation {
        Truncation::Error => {
            return Err(Error::Overlong { path: row.file.to_path_buf(), row: row.number, length: ids.len(), limit });
        }
        Truncation::Left => drop(ids.drain(..excess)),
        Truncation::Right => ids.truncate(limit),
        Truncation::Middle => drop(ids.drain(limit / 2..limit / 2 + excess)),
    }
    Ok(ids)
}
