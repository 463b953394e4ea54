//! What a phase is planned from, and refusals that know their place in it.

use serde::de::DeserializeOwned;
use tq_config::{Node, Origin, Refusal, Refusals, extract};

/// The pipeline and the parameter tree of one phase, both resolved.
pub(crate) struct Scope {
    pub(crate) phase: String,
    pub(crate) pipeline: Node,
    pub(crate) tree: Node,
}

impl Scope {
    /// A refusal of a key of the pipeline, placed at it or at the nearest key above it that exists. When the value came
    /// from elsewhere (by `${…}`), the message says from where.
    pub(crate) fn refuse(&self, key: &str, found: impl Into<String>, expected: impl Into<String>) -> Refusal {
        placed(&self.pipeline, key, found.into(), expected)
    }

    /// A refusal of a key of the parameter tree.
    pub(crate) fn refuse_parameter(&self, key: &str, found: impl Into<String>, expected: impl Into<String>) -> Refusal {
        placed(&self.tree, key, found.into(), expected)
    }

    /// A parameter as a typed value; `None` when it does not fit, which is then refused.
    pub(crate) fn parameter<T: DeserializeOwned>(&self, key: &str, refusals: &mut Refusals) -> Option<T> {
        let Some(node) = self.tree.get(key) else {
            refusals.push(self.refuse_parameter(key, "nothing", "a value").action("it was deleted: set it again"));
            return None;
        };
        match extract(node, key) {
            Ok(value) => Some(value),
            Err(refusal) => {
                refusals.push(refusal);
                None
            }
        }
    }
}

fn placed(root: &Node, key: &str, found: String, expected: impl Into<String>) -> Refusal {
    let exact = root.get(key);
    let found = match exact {
        Some(node) if node.as_map().is_none() && came_from_elsewhere(node) => {
            format!("{found} (set at {})", node.at)
        }
        _ => found,
    };
    let refusal = Refusal::new(key, found, expected);
    let mut parent = Some(key);
    while let Some(path) = parent {
        if let Some(node) = root.get(path) {
            return refusal.at(node.place());
        }
        parent = path.rsplit_once('.').map(|(above, _)| above);
    }
    refusal.at(&root.at)
}

/// Whether a value was not written where its key is: it was referred to by `${…}`.
fn came_from_elsewhere(node: &Node) -> bool {
    match (node.place(), &node.at) {
        (Origin::File { file: key, .. }, Origin::File { file: value, .. }) => key != value,
        (key, value) => key != value,
    }
}
