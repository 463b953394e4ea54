//! Which scorer judges which task.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::digits::{DATA_SOURCE, DigitCompletion};
use crate::error::{Error, Result};
use crate::sample::{Sample, Score, Scorer};

/// Scorers by `data_source`.
#[derive(Clone, Default)]
pub struct Scorers {
    by_source: BTreeMap<String, Arc<dyn Scorer>>,
}

impl Scorers {
    /// No scorer at all.
    pub fn empty() -> Self {
        Scorers::default()
    }

    /// The scorers of this crate: `digit_completion`.
    pub fn builtin() -> Self {
        let mut scorers = Scorers::empty();
        scorers.replace(DATA_SOURCE, DigitCompletion);
        scorers
    }

    /// Adds the scorer of a task.
    ///
    /// # Errors
    /// [`Error::AlreadyRegistered`] if the task has one.
    pub fn register(&mut self, data_source: impl Into<String>, scorer: impl Scorer + 'static) -> Result<()> {
        let data_source = data_source.into();
        if self.by_source.contains_key(&data_source) {
            return Err(Error::AlreadyRegistered(data_source));
        }
        self.by_source.insert(data_source, Arc::new(scorer));
        Ok(())
    }

    /// Sets the scorer of a task, whether it has one or not.
    pub fn replace(&mut self, data_source: impl Into<String>, scorer: impl Scorer + 'static) {
        self.by_source.insert(data_source.into(), Arc::new(scorer));
    }

    /// The registered data sources, sorted.
    pub fn names(&self) -> Vec<String> {
        self.by_source.keys().cloned().collect()
    }

    /// The scorer of a task.
    ///
    /// # Errors
    /// [`Error::UnknownSource`] with the known names.
    pub fn get(&self, data_source: &str) -> Result<&dyn Scorer> {
        let found = self.by_source.get(data_source);
        found.map(Arc::as_ref).ok_or_else(|| Error::UnknownSource { found: data_source.into(), known: self.names() })
    }

    /// Judges `sample` by the scorer of its data source.
    ///
    /// # Errors
    /// [`Error::UnknownSource`]; what the scorer reports; [`Error::WrongLength`] if it did not give one reward per token.
    pub fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let score = self.get(sample.data_source)?.score(sample)?;
        if score.rewards.len() != sample.response.len() {
            return Err(Error::WrongLength {
                data_source: sample.data_source.into(),
                found: score.rewards.len(),
                expected: sample.response.len(),
            });
        }
        Ok(score)
    }
}

impl fmt::Debug for Scorers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scorers").field(&self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Piece;

    struct Fixed(usize);

    impl Scorer for Fixed {
        fn score(&self, _: &Sample<'_>) -> Result<Score> {
            Ok(Score::outcome(1.0, self.0))
        }
    }

    #[test]
    fn an_unknown_source_is_refused_with_the_known_names() {
        let error = Scorers::builtin().score(&Sample::new("digit_completoin", "1", &[])).expect_err("no such source");
        assert_eq!(
            error.to_string(),
            "no scorer for data_source \"digit_completoin\"; known: [\"digit_completion\"]; register one with `Scorers::register` or correct the column"
        );
    }

    #[test]
    fn a_source_is_registered_once_and_replaced_on_purpose() {
        let mut scorers = Scorers::builtin();
        assert!(
            matches!(scorers.register("digit_completion", Fixed(1)), Err(Error::AlreadyRegistered(name)) if name == "digit_completion")
        );
        scorers.register("mine", Fixed(1)).expect("a new name");
        assert_eq!(scorers.names(), ["digit_completion", "mine"]);
        scorers.replace("digit_completion", Fixed(1));
        let score = scorers
            .score(&Sample::new("digit_completion", "anything", &[Piece::text("x")]))
            .expect("the replacement scores");
        assert_eq!(score.rewards, [1.0]);
    }

    #[test]
    fn a_scorer_that_miscounts_tokens_is_caught() {
        let mut scorers = Scorers::empty();
        scorers.register("mine", Fixed(2)).expect("a new name");
        let error =
            scorers.score(&Sample::new("mine", "", &[Piece::text("x")])).expect_err("two rewards for one token");
        assert!(matches!(error, Error::WrongLength { found: 2, expected: 1, .. }));
    }

    #[test]
    fn an_outcome_reward_sits_on_the_last_token() {
        assert_eq!(Score::outcome(0.5, 3).rewards, [0.0, 0.0, 0.5]);
        let nothing = Score::outcome(0.5, 0);
        assert!(nothing.rewards.is_empty() && nothing.total == 0.5);
    }
}
