//! The parameter tree: verl's vocabulary, its defaults, and what becomes of keys that are not in it.

mod classes;

use serde_json::Value as Json;

use crate::node::{Map, Node, Value, join};
use crate::{Action, Origin, Override, Refusal, Refusals, home, interpolate, yaml};
use classes::{Class, Classes};

/// The name of the built-in file in messages.
const DEFAULTS_FILE: &str = "configs/parameters.yaml";

const DEFAULTS: &str = include_str!("../../../configs/parameters.yaml");
/// Refusals that get a nearest key: looking through the whole tree for each of many thousand takes minutes, and nobody
/// reads them.
const LOOKED_UP: usize = 100;

const KEYS: &str = include_str!("../../../configs/keys.yaml");

/// A key that was accepted and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Dotted key.
    pub key: String,
    /// Where it was set.
    pub at: Origin,
    /// One line: why it has no effect.
    pub reason: String,
}

/// The parameter tree while it is put together.
///
/// Every key falls into one of three classes: *honoured* (it is in the tree), *noted* (accepted, without effect, with
/// a reason), or *refused* (with the nearest key, or the reason). Values must be of the default's kind: text where a
/// number belongs is refused at once, not when it is used.
#[derive(Debug, Clone)]
pub struct Parameters {
    tree: Node,
    defaults: Node,
    classes: Classes,
    notes: Vec<Note>,
    home: Option<String>,
    /// Refusals for which the nearest key was looked for.
    looked_up: usize,
}

impl Parameters {
    /// The tree of `configs/parameters.yaml`, as it was when the program was built.
    ///
    /// # Panics
    /// Never: the built-in files are read in this crate's tests.
    #[must_use]
    pub fn builtin() -> Self {
        let tree = yaml::parse(DEFAULTS, DEFAULTS_FILE).expect("the built-in parameters are valid YAML");
        let keys = yaml::parse(KEYS, "configs/keys.yaml").expect("the built-in key classes are valid YAML");
        let classes = Classes::read(&keys).expect("the built-in key classes have reasons");
        Self { defaults: tree.clone(), tree, classes, notes: Vec::new(), home: home::folder(), looked_up: 0 }
    }

    /// The folder that `~/` stands for, instead of the environment's `HOME`.
    #[must_use]
    pub fn home(mut self, folder: Option<&str>) -> Self {
        self.home = folder.map(str::to_owned);
        self
    }

    /// Adds a section with its defaults, as a stage declares it; `whose` says whose defaults these are.
    ///
    /// # Errors
    /// A key of the section that the tree already has.
    pub fn declare(&mut self, path: &str, defaults: &Json, whose: &str) -> Result<(), Refusal> {
        let at = Origin::code(whose);
        if let Some(there) = self.defaults.get(path) {
            return Err(Refusal::new(path, format!("a section that {} has already", there.at), "a section of its own")
                .at(&at)
                .action("give the stage's section another name"));
        }
        let node = Node { key: Some(at.clone()), ..Node::from_json(defaults, &at) };
        self.tree.put(path, node.clone());
        self.defaults.put(path, node);
        Ok(())
    }

    /// Sets every key of `layer`, a map whose keys may be dotted (`data.seed: 1`).
    ///
    /// # Errors
    /// Every key that is refused.
    pub fn layer(&mut self, layer: &Node) -> Result<(), Refusals> {
        let mut refusals = Refusals::default();
        match &layer.value {
            Value::Null => {}
            Value::Map(map) => {
                for (key, node) in map {
                    self.set(key, node, Action::Set, &mut refusals);
                }
            }
            _ => refusals.push(Refusal::new("", layer.show(), "a map of parameters").at(layer.place())),
        }
        refusals.into_result()
    }

    /// Applies one override.
    ///
    /// # Errors
    /// A key that is refused; `+` of a key that exists; `~` of one that does not.
    pub fn apply(&mut self, argument: &Override) -> Result<(), Refusals> {
        let mut refusals = Refusals::default();
        if argument.action == Action::Delete {
            if self.tree.take(&argument.key).is_none() {
                let refusal = Refusal::new(&argument.key, "a key that does not exist", "a key to delete");
                let refusal = self.near(refusal.at(&argument.origin()), &argument.key);
                refusals.push(refusal);
            }
        } else {
            self.set(&argument.key, &argument.value, argument.action, &mut refusals);
        }
        refusals.into_result()
    }

    /// The tree with every `${…}` resolved and `~/` at the start of a text replaced by the home folder.
    ///
    /// # Errors
    /// Every reference that fails; every `~/` that somebody set while there is no home folder (a default stays as it
    /// is: whoever uses it says so).
    pub fn resolve(&self) -> Result<Node, Refusals> {
        let mut tree = interpolate::resolve(&self.tree, &self.tree)?;
        let mut refusals = Refusals::default();
        let set = |node: &Node| match &node.at {
            Origin::File { file, .. } => **file != *DEFAULTS_FILE,
            Origin::Override(_) => true,
            Origin::Code(_) => false,
        };
        home::each(&mut tree, "", self.home.as_deref(), &set, &mut refusals);
        refusals.into_result().map(|()| tree)
    }

    /// The tree as it was put together, references unresolved.
    #[must_use]
    pub fn tree(&self) -> &Node {
        &self.tree
    }

    /// Keys that were accepted without effect, in the order they were set.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    fn set(&mut self, key: &str, node: &Node, action: Action, refusals: &mut Refusals) {
        let at = node.place().clone();
        let entries = node.as_map().filter(|map| !map.is_empty());
        if let Some(there) = self.tree.get(key) {
            let inner = there.as_map().filter(|map| !map.is_empty());
            match (inner, entries) {
                (Some(_), Some(entries)) => self.set_all(key, &entries.clone(), action, refusals),
                (Some(inner), None) => {
                    let keys: Vec<_> = inner.keys().map(|k| format!("`{k}`")).collect();
                    refusals.push(
                        Refusal::new(key, node.show(), format!("a map of {}", keys.join(", ")))
                            .at(&at)
                            .action("set the keys below it"),
                    );
                }
                (None, _) if action == Action::Add => refusals.push(
                    Refusal::new(key, "a key that exists already", "a new key after `+`")
                        .at(&at)
                        .action(format!("leave the `+` out; it is set at {}", there.place())),
                ),
                (None, _) => match fitted(self.defaults.get(key), node) {
                    Ok(value) => self.tree.put(key, Node { value, at: node.at.clone(), key: Some(at) }),
                    Err(expected) => refusals.push(Refusal::new(key, node.show(), expected).at(&at)),
                },
            }
            return;
        }
        match self.classes.class(key, node) {
            Some(Class::Noted(reason)) => {
                self.notes.push(Note { key: key.to_owned(), at, reason: reason.to_owned() });
            }
            Some(Class::Refused(reason, unless)) => {
                refusals.push(Refusal::new(key, node.show(), unless).at(&at).action(reason));
            }
            // A whole section of which some keys may be known, each by itself.
            None if entries.is_some() && self.classes.has_below(key) => {
                self.set_all(key, &entries.expect("checked").clone(), action, refusals);
            }
            None if action == Action::Set => {
                let refusal = Refusal::new(key, "a key that is not in the parameter tree", "a key of it").at(&at);
                let refusal = self.near(refusal, key);
                refusals.push(refusal);
            }
            None => {
                self.notes.push(Note {
                    key: key.to_owned(),
                    at,
                    reason: "added by hand: only stages that ask for it read it".into(),
                });
                self.tree.put(key, node.clone());
            }
        }
    }

    fn set_all(&mut self, key: &str, entries: &Map, action: Action, refusals: &mut Refusals) {
        for (name, entry) in entries {
            self.set(&join(key, name), entry, action, refusals);
        }
    }

    fn near(&mut self, refusal: Refusal, key: &str) -> Refusal {
        self.looked_up += 1;
        if self.looked_up > LOOKED_UP {
            return refusal;
        }
        let paths = self.tree.paths();
        let known = paths.iter().map(String::as_str).chain(self.classes.keys());
        let refusal = refusal.nearest(key, known);
        if refusal.action.is_empty() {
            refusal.action("see configs/parameters.yaml; `+key=value` adds a key")
        } else {
            refusal
        }
    }
}

/// The value as it goes into the tree, or what kind of value the default asks for.
fn fitted(default: Option<&Node>, node: &Node) -> Result<Value, &'static str> {
    let is_reference = |value: &Value| matches!(value, Value::Str(text) if text.contains("${"));
    let value = node.value.clone();
    let Some(default) = default else {
        return Ok(value);
    };
    if is_reference(&value) || is_reference(&default.value) || value == Value::Null {
        return Ok(value);
    }
    match (&default.value, value) {
        (Value::Bool(_), value @ Value::Bool(_)) | (Value::Int(_), value @ Value::Int(_)) => Ok(value),
        (Value::Float(_), value @ (Value::Int(_) | Value::Float(_))) => Ok(value),
        (Value::Bool(_), _) => Err("true or false"),
        (Value::Int(_), _) => Err("a whole number"),
        (Value::Float(_), _) => Err("a number"),
        (Value::Map(_), value @ Value::Map(_)) => Ok(value),
        (Value::Map(_), _) => Err("a map"),
        // As verl does, one name may stand for a list of one.
        (Value::List(_), Value::Str(_)) => Ok(Value::List(vec![Node { key: None, ..node.clone() }])),
        (Value::List(_), value @ Value::List(_)) => Ok(value),
        (Value::List(_), _) => Err("a list"),
        (Value::Str(_), value @ (Value::Str(_) | Value::List(_))) => Ok(value),
        (Value::Str(_), _) => Err("text (quote it)"),
        (Value::Null, value) => Ok(value),
    }
}

#[cfg(test)]
mod tests;
