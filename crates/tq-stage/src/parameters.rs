//! The parameter tree as a stage sees it: verl's vocabulary, read by dotted path into typed structs.

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tq_config::{Node, Origin, Refusal, extract};

/// The resolved parameter tree of the phase.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    tree: Value,
}

impl Parameters {
    /// Wraps a resolved tree.
    pub fn new(tree: Value) -> Self {
        Self { tree }
    }

    /// The value at a dotted path, if it is there and not null.
    ///
    /// ```
    /// use tq_stage::Parameters;
    /// let parameters = Parameters::new(serde_json::json!({"data": {"max_response_length": 32, "seed": null}}));
    /// assert_eq!(parameters.find("data.max_response_length").unwrap(), 32);
    /// assert!(parameters.find("data.seed").is_none());
    /// ```
    pub fn find(&self, path: &str) -> Option<&Value> {
        let value = path.split('.').try_fold(&self.tree, |tree, key| tree.get(key))?;
        (!value.is_null()).then_some(value)
    }

    /// Reads the value at `path` as `T`.
    ///
    /// # Errors
    /// A [`Refusal`] when the path is absent or null, or its value does not have the form of `T`; it names the very key.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let Some(value) = self.find(path) else {
            let action = format!("set it in configs/ or as `{path}=…`");
            return Err(Refusal::new(path, "nothing", "a value").action(action).into());
        };
        read(value, path)
    }

    /// Reads the value at `path`, or `default` when it is absent or null.
    ///
    /// # Errors
    /// When the value is there and does not have the form of `T`.
    pub fn get_or<T: DeserializeOwned>(&self, path: &str, default: T) -> Result<T> {
        if self.find(path).is_some() { self.get(path) } else { Ok(default) }
    }
}

/// Reads a JSON value as `T`; `path` is its key.
///
/// ```
/// let penalty = serde_json::json!({"weight": "heavy"});
/// let error = tq_stage::read::<std::collections::BTreeMap<String, f64>>(&penalty, "with").expect_err("text");
/// assert_eq!(error.to_string(), "with.weight: found string `heavy`; expected a number");
/// ```
///
/// # Errors
/// A [`Refusal`] that names the key, below `path`, of what does not fit.
pub fn read<T: DeserializeOwned>(value: &Value, path: &str) -> Result<T> {
    serde_json::from_value(value.clone()).map_err(|error| {
        // serde_json does not say which key it was at; the reader of the tree does.
        let node = Node::from_json(value, &Origin::code("the parameter tree"));
        let refusal = extract::<T>(&node, path).err();
        refusal.map_or_else(
            || Refusal::new(path, error.to_string(), "a value of another form").into(),
            |refusal| Refusal { at: None, ..refusal }.into(),
        )
    })
}

impl Parameters {
    /// The folder with the tokenizer: the first that is set of `data.tokenizer`, `actor_rollout_ref.model.tokenizer_path`
    /// and `actor_rollout_ref.model.path`.
    ///
    /// ```
    /// use tq_stage::Parameters;
    /// let model = serde_json::json!({"path": "m", "tokenizer_path": "t"});
    /// let parameters = |data| Parameters::new(serde_json::json!({"data": {"tokenizer": data}, "actor_rollout_ref": {"model": model}}));
    /// assert_eq!(parameters(None).tokenizer_path().unwrap().to_str(), Some("t"));
    /// assert_eq!(parameters(Some("d")).tokenizer_path().unwrap().to_str(), Some("d"));
    /// ```
    ///
    /// # Errors
    /// When none is set.
    pub fn tokenizer_path(&self) -> Result<std::path::PathBuf> {
        let keys = ["data.tokenizer", "actor_rollout_ref.model.tokenizer_path"];
        self.get(keys.into_iter().find(|key| self.find(key).is_some()).unwrap_or("actor_rollout_ref.model.path"))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "read, to see what is refused")]
    struct Optim {
        lr: f64,
        betas: (f64, f64),
    }

    fn refused(optim: Value) -> String {
        let parameters = Parameters::new(json!({"actor": {"optim": optim}}));
        parameters.get::<Optim>("actor.optim").expect_err("does not fit").to_string()
    }

    #[test]
    fn a_value_that_does_not_fit_is_named_without_the_section_around_it() {
        assert_eq!(
            refused(json!({"lr": "fast", "betas": [0.9, 0.99]})),
            "actor.optim.lr: found string `fast`; expected a number"
        );
        assert_eq!(
            refused(json!({"betas": [0.9, 0.99]})),
            "actor.optim.lr: found nothing; expected the key `lr`; add it"
        );
        assert!(refused(json!({"lr": 1, "betas": [0.9, 0.99, 0.5]})).starts_with("actor.optim: found "));
        assert_eq!(
            refused(Value::Null),
            "actor.optim: found nothing; expected a value; set it in configs/ or as `actor.optim=…`"
        );
    }
}
