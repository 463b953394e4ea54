//! Which keys outside the tree are noted and which are refused (`configs/keys.yaml`).

use indexmap::IndexMap;

use crate::node::{Node, Value};
use crate::{Refusal, extract};

/// What becomes of a key that is not in the tree.
#[derive(Debug, PartialEq)]
pub(super) enum Class<'a> {
    /// Accepted without effect, for this reason.
    Noted(&'a str),
    /// Not accepted, for this reason; the second text says which values would be.
    Refused(&'a str, String),
}

/// The two lists. A pattern is a key, or `a.b.*` for every key below `a.b`.
#[derive(Debug, Clone)]
pub(super) struct Classes {
    noted: IndexMap<String, String>,
    refused: IndexMap<String, Reason>,
}

#[derive(Debug, Clone)]
struct Reason {
    unless: Vec<Value>,
    reason: String,
}

impl Classes {
    pub(super) fn read(keys: &Node) -> Result<Self, Refusal> {
        let section = |name: &str| keys.get(name).and_then(Node::as_map).into_iter().flatten();
        let mut classes = Self { noted: IndexMap::new(), refused: IndexMap::new() };
        for (key, node) in section("noted") {
            classes.noted.insert(key.clone(), extract(node, key)?);
        }
        for (key, node) in section("refused") {
            let entry = |name: &str| {
                let map = node.as_map().and_then(|map| map.get(name));
                map.ok_or_else(|| Refusal::new(key, "nothing", format!("`{name}`")).at(node.place()))
            };
            let unless = match &entry("unless")?.value {
                Value::List(items) => items.iter().map(|n| n.value.clone()).collect(),
                _ => {
                    return Err(Refusal::new(key, node.show(), "a list after `unless`").at(node.place()));
                }
            };
            classes.refused.insert(key.clone(), Reason { unless, reason: extract(entry("reason")?, key)? });
        }
        Ok(classes)
    }

    /// The class of a key that is to be set to `node`; `None` for a key nobody has heard of.
    pub(super) fn class(&self, key: &str, node: &Node) -> Option<Class<'_>> {
        let below = |key: &str| {
            std::iter::successors(key.rsplit_once('.'), |(parent, _)| parent.rsplit_once('.'))
                .find_map(|(parent, _)| self.refused.get(&format!("{parent}.*")))
        };
        if let Some(reason) = self.refused.get(key).or_else(|| below(key)) {
            if reason.unless.contains(&node.value) {
                return Some(Class::Noted("it asks for nothing"));
            }
            let shown: Vec<_> = reason.unless.iter().map(|v| Node::new(v.clone(), node.at.clone()).show()).collect();
            let shown = if shown.is_empty() { "nothing: the key cannot be set".to_owned() } else { shown.join(" or ") };
            return Some(Class::Refused(&reason.reason, shown));
        }
        if let Some(reason) = self.noted.get(key) {
            return Some(Class::Noted(reason));
        }
        // A section given as a map is looked at key by key: one of them may be refused.
        if node.as_map().is_some_and(|map| !map.is_empty()) {
            return None;
        }
        let mut parent = key;
        while let Some((shorter, _)) = parent.rsplit_once('.') {
            parent = shorter;
            if let Some(reason) = self.noted.get(&format!("{parent}.*")) {
                return Some(Class::Noted(reason));
            }
        }
        None
    }

    /// Whether some key below `key` is in the lists, or all are.
    pub(super) fn has_below(&self, key: &str) -> bool {
        let covered = std::iter::successors(Some(key), |k| k.rsplit_once('.').map(|(parent, _)| parent))
            .any(|parent| self.noted.contains_key(&format!("{parent}.*")));
        let prefix = format!("{key}.");
        covered || self.keys().any(|known| known.starts_with(&prefix))
    }

    /// Every pattern.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.noted.keys().chain(self.refused.keys()).map(String::as_str)
    }
}
