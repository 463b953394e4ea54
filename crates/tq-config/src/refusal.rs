//! Refusals: what is wrong with a configuration, found before anything starts.

use std::fmt;

use crate::Origin;

/// One thing that is wrong, said so that it can be put right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// Where it was written.
    pub at: Option<Box<Origin>>,
    /// Dotted key it concerns; empty for a whole file or argument.
    pub key: String,
    /// What is there.
    pub found: String,
    /// What would be right.
    pub expected: String,
    /// What to do; may be empty when `expected` says it all.
    pub action: String,
}

impl Refusal {
    /// A refusal of `key`.
    #[must_use]
    pub fn new(key: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { at: None, key: key.into(), found: found.into(), expected: expected.into(), action: String::new() }
    }

    /// Where it was written.
    #[must_use]
    pub fn at(mut self, origin: &Origin) -> Self {
        self.at = Some(Box::new(origin.clone()));
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into();
        self
    }

    /// Adds "did you mean …" when one of `candidates` is near `word`.
    #[must_use]
    pub fn nearest<'a>(mut self, word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        if let Some(near) = crate::suggest::nearest(word, candidates) {
            let question = format!("did you mean `{near}`?");
            self.action = if self.action.is_empty() { question } else { format!("{question} {}", self.action) };
        }
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.at {
            write!(f, "{at}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "found {}", self.found)?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", self.expected)?;
        }
        if !self.action.is_empty() {
            write!(f, "; {}", self.action)?;
        }
        Ok(())
    }
}

/// Refusals that are printed; of more, the number is said.
const PRINTED: usize = 100;

/// Everything that is wrong, found in one pass. Never empty when it is an error.
#[derive(Debug, Clone, PartialEq, Eq, Default, thiserror::Error)]
pub struct Refusals(pub Vec<Refusal>);

impl Refusals {
    /// The refusals in the order they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Refusal> {
        self.0.iter()
    }

    /// Adds one.
    pub fn push(&mut self, refusal: Refusal) {
        self.0.push(refusal);
    }

    /// `Ok` when nothing was refused.
    ///
    /// # Errors
    /// The refusals, if there are any.
    pub fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, refusal) in self.0.iter().take(PRINTED).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{refusal}")?;
        }
        match self.0.len().checked_sub(PRINTED) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, "\n… and {more} more; mend these first"),
        }
    }
}

impl From<Refusal> for Refusals {
    fn from(refusal: Refusal) -> Self {
        Self(vec![refusal])
    }
}

impl Extend<Refusal> for Refusals {
    fn extend<I: IntoIterator<Item = Refusal>>(&mut self, refusals: I) {
        self.0.extend(refusals);
    }
}

impl IntoIterator for Refusals {
    type Item = Refusal;
    type IntoIter = std::vec::IntoIter<Refusal>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Refusals {
    type Item = &'a Refusal;
    type IntoIter = std::slice::Iter<'a, Refusal>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
