//! Arguments of the command line: `a.b=3`, `+a.b=3`, `++a.b=3`, `~a.b`, and the pipeline file.

mod value;

use std::path::PathBuf;
use std::sync::Arc;

use crate::node::Node;
use crate::{Origin, Refusal, Refusals};

/// What an override does to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `a.b=v`: the key must exist.
    Set,
    /// `+a.b=v`: the key must not exist.
    Add,
    /// `++a.b=v`: either.
    Force,
    /// `~a.b`: the key must exist and goes.
    Delete,
}

/// One override.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// What to do.
    pub action: Action,
    /// Dotted key.
    pub key: String,
    /// The value; null for a deletion.
    pub value: Node,
    /// The argument as it was typed.
    pub text: Arc<str>,
}

impl Override {
    /// Reads one argument.
    ///
    /// # Errors
    /// What is not in the grammar, by name: sweeps, functions and casts, group selection, a key without value.
    ///
    /// ```
    /// use tq_config::{Override, Value};
    ///
    /// let lr = Override::parse("actor_rollout_ref.actor.optim.lr=1e-6")?;
    /// assert_eq!(lr.value.value, Value::Float(1e-6));
    /// # Ok::<(), tq_config::Refusal>(())
    /// ```
    pub fn parse(argument: &str) -> Result<Self, Refusal> {
        let origin = Origin::Override(argument.into());
        let refuse = |found: &str, expected: &str| Refusal::new("", found, expected).at(&origin);
        let (action, rest) = if let Some(rest) = argument.strip_prefix("++") {
            (Action::Force, rest)
        } else if let Some(rest) = argument.strip_prefix('+') {
            (Action::Add, rest)
        } else if let Some(rest) = argument.strip_prefix('~') {
            (Action::Delete, rest)
        } else {
            (Action::Set, argument)
        };
        let (key, text) = match rest.split_once('=') {
            Some((_, _)) if action == Action::Delete => {
                return Err(refuse("a deletion with a value", "`~key`").action("leave the value out"));
            }
            Some((key, text)) => (key, Some(text)),
            None if action == Action::Delete => (rest, None),
            None => {
                return Err(refuse("an argument without `=`", "`key=value`, or a pipeline file that ends in .yaml"));
            }
        };
        if key.contains('@') || key.contains('/') {
            return Err(refuse(&format!("the config group `{key}`"), "a dotted key")
                .action("config groups are not supported: set the keys themselves"));
        }
        let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
        if !key.split('.').all(word) {
            return Err(refuse(&format!("the key `{key}`"), "names of letters, digits, `_` and `-`, joined by dots"));
        }
        let value = match text {
            None => Node::new(crate::Value::Null, origin.clone()),
            Some(text) => value::parse(text, &origin).map_err(|refusal| Refusal { key: key.into(), ..refusal })?,
        };
        Ok(Self { action, key: key.into(), value: Node { key: Some(origin), ..value }, text: argument.into() })
    }

    /// Where it was written: the argument itself.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::Override(self.text.clone())
    }
}

/// The command line after the program's own flags: at most one pipeline, and overrides.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Arguments {
    /// The argument that ends in `.yaml` or `.yml`.
    pub pipeline: Option<PathBuf>,
    /// All others, in order; a later one wins.
    pub overrides: Vec<Override>,
}

impl Arguments {
    /// Sorts arguments into pipeline and overrides.
    ///
    /// # Errors
    /// Every argument that is neither, and a second pipeline.
    pub fn parse<S: AsRef<str>>(arguments: impl IntoIterator<Item = S>) -> Result<Self, Refusals> {
        let mut parsed = Self::default();
        let mut refusals = Refusals::default();
        for argument in arguments {
            let argument = argument.as_ref();
            let is_file = !argument.contains('=') && (argument.ends_with(".yaml") || argument.ends_with(".yml"));
            if is_file {
                if let Some(first) = &parsed.pipeline {
                    refusals.push(
                        Refusal::new("", format!("a second pipeline `{argument}`"), "one pipeline file")
                            .action(format!("leave it or `{}` out", first.display())),
                    );
                } else {
                    parsed.pipeline = Some(argument.into());
                }
                continue;
            }
            match Override::parse(argument) {
                Ok(parsed_override) => parsed.overrides.push(parsed_override),
                Err(refusal) => refusals.push(refusal),
            }
        }
        refusals.into_result()?;
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms_are_told_apart() {
        for (text, action, key) in [
            ("a.b=1", Action::Set, "a.b"),
            ("+a.b=1", Action::Add, "a.b"),
            ("++a.b=1", Action::Force, "a.b"),
            ("~a.b", Action::Delete, "a.b"),
        ] {
            let parsed = Override::parse(text).unwrap();
            assert_eq!((parsed.action, parsed.key.as_str()), (action, key));
        }
    }

    #[test]
    fn what_is_no_override_is_refused_by_name() {
        for (text, part) in [
            ("foo", "without `=`"),
            ("~a=1", "deletion with a value"),
            ("model@pkg=x", "config group"),
            ("db/mysql=x", "config group"),
            ("a..b=1", "the key `a..b`"),
            ("=1", "the key ``"),
        ] {
            let error = Override::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_yaml_file_is_the_pipeline_and_all_else_an_override() {
        let parsed =
            Arguments::parse(["pipelines/grpo.yaml", "schedule=on_policy", "data.train_files=a.yaml"]).unwrap();
        assert_eq!(parsed.pipeline, Some("pipelines/grpo.yaml".into()));
        assert_eq!(parsed.overrides.len(), 2);
        let error = Arguments::parse(["a.yaml", "b.yaml", "junk"]).unwrap_err();
        assert_eq!(error.0.len(), 2);
    }
}
