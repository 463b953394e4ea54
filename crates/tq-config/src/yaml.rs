//! YAML files into trees that remember lines and columns.
//!
//! The parser's event stream is read directly: every event carries its position, which a typed deserialiser would lose
//! for keys and for values it buffers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span};

use crate::node::{Map, Node, Value, join};
use crate::{Origin, Refusal, scalar};

/// More nodes than any configuration has: a limit on what repeated aliases can unfold to.
const MOST_NODES: usize = 100_000;

/// Reads a file as one YAML document.
///
/// # Errors
/// A [`Refusal`] naming the file when it cannot be read, and the position when it is not YAML.
pub fn load(path: &Path) -> Result<Node, Refusal> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Refusal::new("", format!("`{name}`, which cannot be read ({error})"), "a readable YAML file")
            .action("check the path, relative to the current directory")
    })?;
    parse(&text, &name)
}

/// Reads `text` as one YAML document; positions name it `name`. An empty document is an empty map.
///
/// # Errors
/// A [`Refusal`] with the position of what is not YAML or not supported: several documents, custom tags, `<<` merge
/// keys, a key given twice, keys that are not text.
///
/// ```
/// let tree = tq_config::yaml::parse("data:\n  train_batch_size: 64\n", "demo.yaml")?;
/// let size = tree.get("data.train_batch_size").expect("just written");
/// assert_eq!(size.place().to_string(), "demo.yaml:2:3");
/// # Ok::<(), tq_config::Refusal>(())
/// ```
pub fn parse(text: &str, name: &str) -> Result<Node, Refusal> {
    let mut reader =
        Reader { events: Parser::new_from_str(text), file: name.into(), anchors: HashMap::new(), nodes: 0 };
    let mut root = None;
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd | Event::StreamEnd => {}
            _ if root.is_some() => {
                return Err(Refusal::new("", "a second document", "one document a file")
                    .at(&reader.origin(span))
                    .action("remove everything after the first `---` or `...`"));
            }
            event => root = Some(reader.node(event, span, "")?),
        }
    }
    let start = Origin::File { file: name.into(), line: 1, column: 1 };
    match root {
        None => Ok(Node::map(start)),
        Some(node) if node.is_null() => Ok(Node::map(start)),
        Some(node) => Ok(node),
    }
}

struct Reader<'a> {
    events: Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>,
    file: Arc<str>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn origin(&self, span: Span) -> Origin {
        Origin::File { file: self.file.clone(), line: span.start.line(), column: span.start.col() + 1 }
    }

    /// The next event that is data.
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Refusal> {
        loop {
            match self.events.next() {
                None => return Ok(None),
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(event)) => return Ok(Some(event)),
                Some(Err(error)) => {
                    let mark = error.marker();
                    let at = Origin::File { file: self.file.clone(), line: mark.line(), column: mark.col() + 1 };
                    return Err(Refusal::new("", format!("`{}`", error.kind()), "YAML").at(&at));
                }
            }
        }
    }

    fn inside(&mut self, at: &Origin) -> Result<(Event<'a>, Span), Refusal> {
        self.next()?.ok_or_else(|| Refusal::new("", "the end of the file", "the end of a list or map").at(at))
    }

    fn node(&mut self, event: Event<'a>, span: Span, path: &str) -> Result<Node, Refusal> {
        let at = self.origin(span);
        let tag = event.tag().map(ToString::to_string);
        if let Some(tag) = tag {
            return Err(Refusal::new(path, format!("the tag `{tag}`"), "a value without tag")
                .at(&at)
                .action("quote the value if it is text"));
        }
        let (anchor, value) = match event {
            Event::Alias(id) => {
                let target = self.anchors.get(&id).ok_or_else(|| {
                    Refusal::new(path, "an alias to a value that is still open", "an alias to a finished value").at(&at)
                })?;
                let value = target.value.clone();
                self.count(size(&value), &at)?;
                return Ok(Node::new(value, at));
            }
            Event::Scalar(text, style, anchor, _) => {
                let value = match style {
                    ScalarStyle::Plain => scalar::plain(&text),
                    _ => Value::Str(text.into_owned()),
                };
                (anchor, value)
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.inside(&at)? {
                        (Event::SequenceEnd, _) => break,
                        (event, span) => {
                            let path = format!("{path}[{}]", items.len());
                            items.push(self.node(event, span, &path)?);
                        }
                    }
                }
                (anchor, Value::List(items))
            }
            Event::MappingStart(_, anchor, _) => (anchor, Value::Map(self.entries(&at, path)?)),
            other => {
                return Err(Refusal::new(path, format!("{other:?}"), "a value").at(&at));
            }
        };
        self.count(1, &at)?;
        let node = Node::new(value, at);
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn entries(&mut self, at: &Origin, path: &str) -> Result<Map, Refusal> {
        let mut map = Map::new();
        loop {
            let (event, span) = self.inside(at)?;
            let place = self.origin(span);
            let key = match event {
                Event::MappingEnd => return Ok(map),
                Event::Scalar(key, ..) => key.into_owned(),
                _ => {
                    return Err(Refusal::new(path, "a key that is not text", "a plain key").at(&place));
                }
            };
            let path = join(path, &key);
            if key == "<<" {
                return Err(Refusal::new(path, "a merge key `<<`", "the keys themselves")
                    .at(&place)
                    .action("write the keys out, or refer to single values with `${…}`"));
            }
            if let Some(first) = map.get(&key) {
                let first: &Node = first;
                return Err(Refusal::new(path, "the key a second time", "each key once")
                    .at(&place)
                    .action(format!("it is already set at {}", first.place())));
            }
            let (event, span) = self.inside(at)?;
            let mut node = self.node(event, span, &path)?;
            node.key = Some(place);
            map.insert(key, node);
        }
    }

    fn count(&mut self, nodes: usize, at: &Origin) -> Result<(), Refusal> {
        self.nodes += nodes;
        if self.nodes > MOST_NODES {
            return Err(Refusal::new("", format!("more than {MOST_NODES} values"), "a configuration").at(at));
        }
        Ok(())
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::List(items) => 1 + items.iter().map(|n| size(&n.value)).sum::<usize>(),
        Value::Map(map) => 1 + map.values().map(|n| size(&n.value)).sum::<usize>(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text, "x.yaml").expect_err("should be refused").to_string()
    }

    #[test]
    fn every_key_and_value_knows_its_place() {
        let tree = parse("# first\na: 1\nb:\n  - x\n  - {c: 2.5,\n     d: 'q'}\n", "x.yaml").unwrap();
        let place = |path: &str| tree.get(path).unwrap().place().to_string();
        assert_eq!(place("a"), "x.yaml:2:1");
        assert_eq!(tree.get("a").unwrap().at.to_string(), "x.yaml:2:4");
        let Value::List(items) = &tree.get("b").unwrap().value else { panic!("a list") };
        assert_eq!(items[0].at.to_string(), "x.yaml:4:5");
        assert_eq!(items[1].get("d").unwrap().place().to_string(), "x.yaml:6:6");
        assert_eq!(items[1].get("d").unwrap().value, Value::Str("q".into()));
    }

    #[test]
    fn quoted_scalars_stay_text() {
        let tree = parse("a: '1'\nb: \"true\"\nc: 1\nd:\n", "x.yaml").unwrap();
        assert_eq!(tree.get("a").unwrap().value, Value::Str("1".into()));
        assert_eq!(tree.get("b").unwrap().value, Value::Str("true".into()));
        assert_eq!(tree.get("c").unwrap().value, Value::Int(1));
        assert_eq!(tree.get("d").unwrap().value, Value::Null);
    }

    #[test]
    fn aliases_copy_the_value_and_keep_their_own_place() {
        let tree = parse("a: &x {b: 1}\nc: *x\n", "x.yaml").unwrap();
        assert_eq!(tree.get("c.b").unwrap().value, Value::Int(1));
        assert_eq!(tree.get("c").unwrap().at.to_string(), "x.yaml:2:4");
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = String::from("a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n");
        for i in 1..8 {
            let items = vec![format!("*a{}", i - 1); 10].join(",");
            text.push_str(&format!("a{i}: &a{i} [{items}]\n"));
        }
        assert!(refused(&text).contains("more than 100000 values"));
    }

    #[test]
    fn what_is_not_supported_is_named_with_its_line() {
        assert_eq!(
            refused("a: 1\nb: 2\na: 3\n"),
            "x.yaml:3:1: a: found the key a second time; expected each key once; it is already set at x.yaml:1:1"
        );
        assert!(refused("a: 1\n---\nb: 2\n").starts_with("x.yaml:3:1: found a second document"));
        assert!(refused("a: &x {b: 1}\nc: {<<: *x}\n").contains("merge key"));
        assert!(refused("a: !foo 1\n").contains("the tag `!foo`"));
        assert!(refused("a: {b: 1\n").starts_with("x.yaml:"));
        assert!(refused("? [a]\n: 1\n").contains("not text"));
    }

    #[test]
    fn an_empty_file_is_an_empty_map() {
        assert_eq!(parse("# nothing\n", "x.yaml").unwrap().as_map().map(Map::len), Some(0));
    }
}
