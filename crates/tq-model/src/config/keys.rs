//! Typed access to `config.json`.

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Typed access to a JSON object, where `null` counts as absent and a wrong type is an error with the key's name.
pub(super) struct Keys<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(super) prefix: &'static str,
}

impl<'a> Keys<'a> {
    pub(super) fn of(value: &'a Value) -> Result<Self> {
        let map = value.as_object().ok_or_else(|| Error::Config("config.json does not hold an object".into()))?;
        Ok(Self { map, prefix: "" })
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, key: &str, expected: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| Error::Config(format!("{}{key} is {value}; expected {expected}", self.prefix))),
        }
    }

    fn missing(&self, key: &str) -> Error {
        Error::Config(format!("{}{key} is missing", self.prefix))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>> {
        self.typed(key, "an integer", Value::as_i64)
    }

    /// Refuses a size that no model has.
    pub(super) fn at_most(&self, key: &str, most: i64) -> Result<()> {
        match self.get(key).and_then(Value::as_number) {
            Some(value) if value.as_f64().is_some_and(|number| number > most as f64) => {
                Err(Error::Config(format!("{}{key} is {value}; expected at most {most}", self.prefix)))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(super) fn map(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.typed(key, "an object", Value::as_object)
    }

    pub(super) fn required(&self, key: &str) -> Result<f64> {
        self.number(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn positive(&self, key: &str) -> Result<i64> {
        match self.integer(key)? {
            Some(value) if value > 0 => Ok(value),
            Some(value) => Err(Error::Config(format!("{}{key} is {value}; expected a positive integer", self.prefix))),
            None => Err(self.missing(key)),
        }
    }
}
