//! The tree of values, each with the place it came from.

use indexmap::IndexMap;
use serde_json::Value as Json;

use crate::Origin;

/// An ordered map from keys to nodes.
pub type Map = IndexMap<String, Node>;

/// A value of the tree.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a point or an exponent.
    Float(f64),
    /// Text, possibly with `${…}`.
    Str(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order it was written.
    Map(Map),
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where the value was written. After interpolation: where the value that was referred to was written.
    pub at: Origin,
    /// Where the key in front of it was written, for a value of a map.
    pub key: Option<Origin>,
}

impl Node {
    /// A node without key.
    #[must_use]
    pub fn new(value: Value, at: Origin) -> Self {
        Self { value, at, key: None }
    }

    /// An empty map.
    #[must_use]
    pub fn map(at: Origin) -> Self {
        Self::new(Value::Map(Map::new()), at)
    }

    /// The place to name in a message: that of the key, else that of the value.
    #[must_use]
    pub fn place(&self) -> &Origin {
        self.key.as_ref().unwrap_or(&self.at)
    }

    /// The entries, if this is a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map> {
        if let Value::Map(map) = &self.value { Some(map) } else { None }
    }

    /// The entries, if this is a map.
    pub fn as_map_mut(&mut self) -> Option<&mut Map> {
        if let Value::Map(map) = &mut self.value { Some(map) } else { None }
    }

    /// The text, if this is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Value::Str(text) = &self.value { Some(text) } else { None }
    }

    /// Whether this is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.value == Value::Null
    }

    /// The node at a dotted path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, key| node.as_map()?.get(key))
    }

    /// The node at a dotted path.
    pub fn get_mut(&mut self, path: &str) -> Option<&mut Self> {
        path.split('.').try_fold(self, |node, key| node.as_map_mut()?.get_mut(key))
    }

    /// Puts `node` at a dotted path, making maps on the way; whatever was in the way is replaced.
    pub fn put(&mut self, path: &str, node: Self) {
        let at = node.at.clone();
        let mut here = self;
        for key in path.split('.') {
            if here.as_map().is_none() {
                here.value = Value::Map(Map::new());
            }
            let map = here.as_map_mut().expect("made a map above");
            here = map.entry(key.to_owned()).or_insert_with(|| Self {
                value: Value::Map(Map::new()),
                at: at.clone(),
                key: Some(at.clone()),
            });
        }
        *here = node;
    }

    /// Takes the node at a dotted path out of the tree.
    pub fn take(&mut self, path: &str) -> Option<Self> {
        let (parent, key) = match path.rsplit_once('.') {
            Some((parent, key)) => (self.get_mut(parent)?, key),
            None => (self, path),
        };
        parent.as_map_mut()?.shift_remove(key)
    }

    /// Every leaf with its dotted path, in order; an empty map or a list is a leaf.
    #[must_use]
    pub fn leaves(&self) -> Vec<(String, &Self)> {
        let mut leaves = Vec::new();
        self.collect("", &mut |path, node| {
            if node.as_map().is_none_or(Map::is_empty) {
                leaves.push((path.to_owned(), node));
            }
        });
        leaves
    }

    /// The dotted paths of every node below this one, in order.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut |path, _| paths.push(path.to_owned()));
        paths
    }

    fn collect<'a>(&'a self, prefix: &str, visit: &mut impl FnMut(&str, &'a Self)) {
        for (key, node) in self.as_map().into_iter().flatten() {
            let path = join(prefix, key);
            visit(&path, node);
            node.collect(&path, visit);
        }
    }

    /// The value as JSON. Floats that JSON has no number for become strings (`"nan"`, `"inf"`, `"-inf"`).
    #[must_use]
    pub fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(b) => Json::Bool(*b),
            Value::Int(i) => Json::from(*i),
            Value::Float(x) if x.is_finite() => Json::from(*x),
            Value::Float(x) => Json::String(x.to_string().to_lowercase()),
            Value::Str(s) => Json::String(s.clone()),
            Value::List(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Value::Map(map) => Json::Object(map.iter().map(|(k, v)| (k.clone(), v.to_json())).collect()),
        }
    }

    /// A tree of the JSON value, all of it from one place. Whole numbers beyond i64 become floats.
    #[must_use]
    pub fn from_json(json: &Json, at: &Origin) -> Self {
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Int),
            Json::String(s) => Value::Str(s.clone()),
            Json::Array(items) => Value::List(items.iter().map(|i| Self::from_json(i, at)).collect()),
            Json::Object(map) => Value::Map(
                map.iter()
                    .map(|(k, v)| (k.clone(), Self { key: Some(at.clone()), ..Self::from_json(v, at) }))
                    .collect(),
            ),
        };
        Self::new(value, at.clone())
    }

    /// The value as a message shows it: kind and content.
    #[must_use]
    pub fn show(&self) -> String {
        match &self.value {
            Value::Null => "null".into(),
            Value::Bool(b) => format!("boolean `{b}`"),
            Value::Int(i) => format!("integer `{i}`"),
            Value::Float(x) => format!("number `{x:?}`"),
            Value::Str(s) => format!("string `{s}`"),
            Value::List(_) => format!("a list `{}`", self.to_json()),
            Value::Map(_) => "a map".into(),
        }
    }
}

/// Joins a dotted path and a key.
#[must_use]
pub fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}
