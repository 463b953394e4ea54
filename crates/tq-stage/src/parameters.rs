//! The parameter tree as a stage sees it: verl's vocabulary, read by dotted path into typed structs.

use anyhow::{Context, Result, anyhow};
use serde::de::DeserializeOwned;
use serde_json::Value;

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
    /// When the path is absent or null, or its value does not have the form of `T`; both name the path.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let value = self
            .find(path)
            .ok_or_else(|| anyhow!("parameter `{path}` is not set; set it in configs/ or as `{path}=…`"))?;
        serde_json::from_value(value.clone())
            .with_context(|| format!("parameter `{path}` has an unexpected form: {value}"))
    }

    /// Reads the value at `path`, or `default` when it is absent or null.
    ///
    /// # Errors
    /// When the value is there and does not have the form of `T`.
    pub fn get_or<T: DeserializeOwned>(&self, path: &str, default: T) -> Result<T> {
        if self.find(path).is_some() { self.get(path) } else { Ok(default) }
    }
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
