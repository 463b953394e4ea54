//! `${a.b.c}`: a value that is read from elsewhere in the tree.

use crate::node::{Map, Node, Value, join};
use crate::{Refusal, Refusals};

/// A copy of `node` in which every `${path}` is replaced by what `root` has at `path`, itself resolved.
///
/// A string that is one reference takes the value referred to, whatever its kind, and the place where that was
/// written ([`Node::key`] keeps the place of the reference). A reference inside other text must be to a scalar, and
/// becomes part of the text. `\${` writes a literal `${`.
///
/// # Errors
/// All references that fail: to a key that is not there (with the nearest one), in a circle (with the chain), to a
/// list or map from inside text, or of a kind that is not supported (`${.sibling}`, `${oc.env:…}`).
///
/// ```
/// let tree = tq_config::yaml::parse("n: 8\nrows: ${n}\nname: run-${n}\n", "demo.yaml")?;
/// let resolved = tq_config::interpolate::resolve(&tree, &tree)?;
/// assert_eq!(resolved.to_json()["rows"], 8);
/// assert_eq!(resolved.to_json()["name"], "run-8");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn resolve(node: &Node, root: &Node) -> Result<Node, Refusals> {
    let mut resolver = Resolver { root, chain: Vec::new(), followed: 0, refusals: Refusals::default() };
    let resolved = resolver.node(node, "");
    resolver.refusals.into_result()?;
    Ok(resolved)
}

/// More references than any configuration has: a limit on what they can unfold to.
const MOST_REFERENCES: usize = 100_000;

enum Part<'a> {
    Text(String),
    Reference(&'a str),
}

struct Resolver<'a> {
    root: &'a Node,
    chain: Vec<String>,
    followed: usize,
    refusals: Refusals,
}

impl Resolver<'_> {
    fn node(&mut self, node: &Node, path: &str) -> Node {
        let value = match &node.value {
            Value::Str(text) if text.contains("${") => return self.text(node, text, path),
            Value::List(items) => {
                Value::List(items.iter().enumerate().map(|(i, n)| self.node(n, &format!("{path}[{i}]"))).collect())
            }
            Value::Map(map) => {
                let entries: Map = map.iter().map(|(k, n)| (k.clone(), self.node(n, &join(path, k)))).collect();
                Value::Map(entries)
            }
            scalar => scalar.clone(),
        };
        Node { value, at: node.at.clone(), key: node.key.clone() }
    }

    fn text(&mut self, node: &Node, text: &str, path: &str) -> Node {
        let parts = match split(text) {
            Ok(parts) => parts,
            Err((found, action)) => {
                self.refuse(Refusal::new(path, found, "`${a.b.c}`").at(node.place()).action(action));
                return node.clone();
            }
        };
        if let [Part::Reference(target)] = parts.as_slice() {
            let found = self.reference(node, target, path);
            return found.map_or_else(|| node.clone(), |found| Node { key: node.key.clone(), ..found });
        }
        let mut joined = String::new();
        for part in &parts {
            match part {
                Part::Text(text) => joined.push_str(text),
                Part::Reference(target) => match self.reference(node, target, path) {
                    None => return node.clone(),
                    Some(Node { value: Value::List(_) | Value::Map(_), .. }) => {
                        self.refuse(
                            Refusal::new(path, format!("a list or map in the text `{text}`"), "a single value")
                                .at(node.place())
                                .action(format!("refer to a scalar, or write `${{{target}}}` alone")),
                        );
                        return node.clone();
                    }
                    Some(Node { value: Value::Str(text), .. }) => joined.push_str(&text),
                    Some(scalar) => joined.push_str(&scalar.to_json().to_string()),
                },
            }
        }
        Node { value: Value::Str(joined), at: node.at.clone(), key: node.key.clone() }
    }

    fn reference(&mut self, node: &Node, target: &str, path: &str) -> Option<Node> {
        self.followed += 1;
        if self.followed > MOST_REFERENCES {
            if self.followed == MOST_REFERENCES + 1 {
                let found = format!("more than {MOST_REFERENCES} references");
                let refusal = Refusal::new(path, found, "a configuration").at(node.place());
                self.refuse(refusal.action("references to references multiply: write the values"));
            }
            return None;
        }
        if let Some(start) = self.chain.iter().position(|seen| seen == target) {
            let circle: Vec<_> = self.chain[start..].iter().chain([&target.to_owned()]).cloned().collect();
            self.refuse(
                Refusal::new(path, format!("a circle {}", circle.join(" → ")), "a value")
                    .at(node.place())
                    .action("give one of these keys a value of its own"),
            );
            return None;
        }
        let Some(found) = self.root.get(target) else {
            let paths = self.root.paths();
            self.refuse(
                Refusal::new(path, format!("`${{{target}}}`"), "a key of the parameter tree")
                    .at(node.place())
                    .nearest(target, paths.iter().map(String::as_str)),
            );
            return None;
        };
        self.chain.push(target.to_owned());
        let before = self.refusals.0.len();
        let resolved = self.node(&found.clone(), target);
        self.chain.pop();
        (self.refusals.0.len() == before).then_some(resolved)
    }

    /// A node that several others refer to is reported once, where it is.
    fn refuse(&mut self, refusal: Refusal) {
        if !self.refusals.iter().any(|r| r.at == refusal.at && r.key == refusal.key) {
            self.refusals.push(refusal);
        }
    }
}

/// Splits text at its references. The error is (what was found, what to do).
fn split(text: &str) -> Result<Vec<Part<'_>>, (String, &'static str)> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if let Some(before) = rest[..start].strip_suffix('\\') {
            literal.push_str(before);
            literal.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        literal.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let end = inside.find('}').ok_or_else(|| (format!("`{text}`, which is not closed"), "add the `}`"))?;
        let target = inside[..end].trim();
        if target.contains("${") {
            return Err((format!("`{text}`, a reference inside a reference"), "write the path out"));
        }
        if let Some((resolver, _)) = target.split_once(':') {
            return Err((
                format!("the resolver `{resolver}` in `{text}`"),
                "resolvers are not supported: write the value",
            ));
        }
        if target.starts_with('.') {
            return Err((
                format!("the relative reference `{text}`"),
                "relative references are not supported: write the full path",
            ));
        }
        if target.is_empty() || target.split('.').any(str::is_empty) {
            return Err((format!("`{text}`"), "write the path of a key"));
        }
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        parts.push(Part::Reference(target));
        rest = &inside[end + 1..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<Node, Refusals> {
        let tree = crate::yaml::parse(text, "x.yaml").unwrap();
        resolve(&tree, &tree)
    }

    #[test]
    fn a_reference_takes_the_value_of_its_target_and_tells_both_places() {
        let tree = resolved("a: {b: [1, 2]}\nc: ${a.b}\nd: ${c}\n").unwrap();
        assert_eq!(tree.to_json()["d"], serde_json::json!([1, 2]));
        let d = tree.get("d").unwrap();
        assert_eq!((d.place().line(), d.at.line()), (Some(3), Some(1)));
    }

    #[test]
    fn references_join_text_and_can_be_escaped() {
        let tree = resolved("n: 2\nx: a${n}-${n}\ny: 'cost \\${n}'\n").unwrap();
        assert_eq!(tree.to_json()["x"], "a2-2");
        assert_eq!(tree.to_json()["y"], "cost ${n}");
    }

    #[test]
    fn a_circle_is_refused_with_its_chain() {
        let error = resolved("a: ${b}\nb: ${c}\nc: ${b}\n").unwrap_err();
        assert!(error.to_string().contains("b → c → b"), "{error}");
        assert!(resolved("a: ${a}\n").unwrap_err().to_string().contains("a → a"));
        assert!(resolved("a: {b: '${a}'}\n").unwrap_err().to_string().contains("a → a"));
    }

    #[test]
    fn a_missing_target_is_refused_with_the_nearest() {
        let error = resolved("data: {seed: 1}\nx: ${data.sead}\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "x.yaml:2:1: x: found `${data.sead}`; expected a key of the parameter tree; did you mean `data.seed`?"
        );
    }

    #[test]
    fn references_that_multiply_are_refused() {
        let mut text = String::from("a0: x\n");
        for i in 1..64 {
            text.push_str(&format!("a{i}: '${{a{0}}}${{a{0}}}'\n", i - 1));
        }
        let error = resolved(&text).unwrap_err();
        assert!(error.to_string().contains("more than 100000 references"), "{error}");
    }

    #[test]
    fn all_failures_are_found_at_once_and_each_once() {
        let error = resolved("a: ${nowhere}\nb: ${a}\nc: ${oc.env:HOME}\nd: ${.x}\ne: 'p${f}'\nf: [1]\n").unwrap_err();
        assert_eq!(error.0.len(), 4, "{error}");
        assert!(error.to_string().contains("resolver `oc.env`"));
        assert!(error.to_string().contains("relative reference"));
        assert!(error.to_string().contains("a list or map in the text"));
    }
}
