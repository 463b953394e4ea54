//! Typed values out of the tree, through serde; an error names the key and its place.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};

use crate::node::{Node, Value, join};
use crate::{Origin, Refusal};

/// Reads `node` as a `T`; `path` is the node's own dotted key, for messages.
///
/// # Errors
/// The first thing that does not fit, with its full key and place: a wrong kind of value, a number out of range, a
/// missing field, a field or a name that `T` does not know (with the nearest one it does).
///
/// ```
/// #[derive(serde::Deserialize, Debug)]
/// #[serde(deny_unknown_fields)]
/// struct Optim { lr: f64 }
///
/// let tree = tq_config::yaml::parse("optim: {lr: fast}\n", "demo.yaml")?;
/// let node = tree.get("optim").expect("just written");
/// let refusal = tq_config::extract::<Optim>(node, "optim").expect_err("not a number");
/// assert_eq!(refusal.to_string(), "demo.yaml:1:9: optim.lr: found string `fast`; expected a number");
/// # Ok::<(), tq_config::Refusal>(())
/// ```
pub fn extract<'a, T: Deserialize<'a>>(node: &'a Node, path: &str) -> Result<T, Refusal> {
    T::deserialize(Reader { node, path: path.to_owned() }).map_err(|fault| *fault.0)
}

/// serde's error: a refusal whose key and place are filled in by the innermost reader that sees it.
#[derive(Debug)]
struct Fault(Box<Refusal>);

impl Fault {
    fn locate(mut self, path: &str, at: &Origin) -> Self {
        if self.0.at.is_none() {
            self.0.at = Some(Box::new(at.clone()));
            self.0.key = if self.0.key.is_empty() { path.to_owned() } else { join(path, &self.0.key) };
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Fault {}

fn found(unexpected: Unexpected<'_>) -> String {
    match unexpected {
        Unexpected::Unit => "null".into(),
        Unexpected::Str(text) => format!("string `{text}`"),
        Unexpected::Map => "a map".into(),
        Unexpected::Seq => "a list".into(),
        other => other.to_string(),
    }
}

fn expected(text: String) -> String {
    match text.as_str() {
        "u64" | "u32" | "usize" => "a whole number of 0 or more".into(),
        "i64" | "i32" => "a whole number".into(),
        "f64" | "f32" => "a number".into(),
        "a boolean" => "true or false".into(),
        _ => text,
    }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "no key".into(),
        [name] => format!("`{name}`"),
        names => format!("one of {}", names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")),
    }
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(Box::new(Refusal::new("", message.to_string(), "")))
    }

    fn invalid_type(unexpected: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self(Box::new(Refusal::new("", found(unexpected), expected(wanted.to_string()))))
    }

    fn invalid_value(unexpected: Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::invalid_type(unexpected, wanted)
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self(Box::new(
            Refusal::new(field, "a key that is not known here", one_of(known)).nearest(field, known.iter().copied()),
        ))
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        Self(Box::new(Refusal::new("", format!("`{variant}`"), one_of(known)).nearest(variant, known.iter().copied())))
    }

    fn missing_field(field: &'static str) -> Self {
        Self(Box::new(Refusal::new(field, "nothing", format!("the key `{field}`")).action("add it")))
    }
}

struct Reader<'a> {
    node: &'a Node,
    path: String,
}

impl<'a> Reader<'a> {
    fn read<T>(self, read: impl FnOnce(&'a Node, &str) -> Result<T, Fault>) -> Result<T, Fault> {
        read(self.node, &self.path).map_err(|fault| fault.locate(&self.path, self.node.place()))
    }
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.read(|node, path| match &node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Int(i) => visitor.visit_i64(*i),
            Value::Float(x) => visitor.visit_f64(*x),
            Value::Str(s) => visitor.visit_borrowed_str(s),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter().enumerate(), path }),
            Value::Map(map) => visitor.visit_map(Entries { entries: map.iter(), value: None, path }),
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.read(|node, path| match &node.value {
            Value::Str(name) => visitor.visit_enum(Variant { name, content: None, path: join(path, name) }),
            Value::Map(map) if map.len() == 1 => {
                let (name, content) = map.iter().next().expect("one entry");
                visitor.visit_enum(Variant { name, content: Some(content), path: join(path, name) })
            }
            _ => Err(Fault(Box::new(Refusal::new("", node.show(), one_of(variants))))),
        })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct Items<'a, 'p> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    path: &'p str,
}

impl<'de> SeqAccess<'de> for Items<'de, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some((index, node)) = self.items.next() else {
            return Ok(None);
        };
        seed.deserialize(Reader { node, path: format!("{}[{index}]", self.path) }).map(Some)
    }
}

struct Entries<'a, 'p> {
    entries: indexmap::map::Iter<'a, String, Node>,
    value: Option<(&'a str, &'a Node)>,
    path: &'p str,
}

impl<'de> MapAccess<'de> for Entries<'de, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, node)) = self.entries.next() else {
            return Ok(None);
        };
        self.value = Some((key, node));
        let word: StrDeserializer<'_, Fault> = key.as_str().into_deserializer();
        seed.deserialize(word).map(Some).map_err(|fault| fault.locate(self.path, node.place()))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let (key, node) = self.value.take().ok_or_else(|| Fault::custom("a value was read before its key"))?;
        seed.deserialize(Reader { node, path: join(self.path, key) })
    }
}

struct Variant<'a> {
    name: &'a str,
    content: Option<&'a Node>,
    path: String,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Fault> {
        let word: StrDeserializer<'_, Fault> = self.name.into_deserializer();
        seed.deserialize(word).map(|value| (value, self))
    }
}

impl<'de> Variant<'de> {
    fn content(self) -> Result<Reader<'de>, Fault> {
        match self.content {
            Some(node) => Ok(Reader { node, path: self.path }),
            None => Err(Fault(Box::new(Refusal::new(
                "",
                format!("`{}` alone", self.name),
                format!("`{{{}: …}}`", self.name),
            )))),
        }
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        match self.content {
            None => Ok(()),
            Some(node) => Err(Fault(Box::new(Refusal::new("", node.show(), "nothing after this name")))
                .locate(&self.path, node.place())),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        seed.deserialize(self.content()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.content()?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Fault> {
        self.content()?.deserialize_map(visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Order {
        Admission,
        Sized(u64),
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        n: u64,
        #[serde(default)]
        rate: Option<f64>,
        #[serde(default)]
        order: Option<Order>,
        #[serde(default)]
        tags: BTreeMap<String, Vec<i64>>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        inner: Inner,
    }

    fn read(text: &str) -> Result<Outer, String> {
        let tree = crate::yaml::parse(text, "x.yaml").unwrap();
        extract(&tree, "").map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn structs_options_enums_and_maps_are_read() {
        let outer = read("inner: {n: 3, rate: 1, order: admission, tags: {a: [1, 2]}}").unwrap();
        assert_eq!(outer.inner.n, 3);
        assert_eq!(outer.inner.rate, Some(1.0));
        assert_eq!(outer.inner.order, Some(Order::Admission));
        assert_eq!(outer.inner.tags["a"], [1, 2]);
        assert_eq!(read("inner: {n: 3, order: {sized: 4}}").unwrap().inner.order, Some(Order::Sized(4)));
        assert_eq!(read("inner: {n: 3, rate: null}").unwrap().inner.rate, None);
    }

    #[test]
    fn what_does_not_fit_names_its_key_and_place() {
        for (text, message) in [
            ("inner:\n  n: -1", "x.yaml:2:3: inner.n: found integer `-1`; expected a whole number of 0 or more"),
            ("inner: {n: '3'}", "x.yaml:1:9: inner.n: found string `3`; expected a whole number of 0 or more"),
            ("inner: {rate: 1}", "x.yaml:1:1: inner.n: found nothing; expected the key `n`; add it"),
            (
                "inner:\n  n: 1\n  raet: 2",
                "x.yaml:3:3: inner.raet: found a key that is not known here; expected one of `n`, `rate`, `order`, `tags`; did you mean `rate`?",
            ),
            (
                "inner: {n: 1, order: admision}",
                "x.yaml:1:15: inner.order: found `admision`; expected one of `admission`, `sized`; did you mean `admission`?",
            ),
            ("inner: {n: 1, order: sized}", "x.yaml:1:15: inner.order: found `sized` alone; expected `{sized: …}`"),
            (
                "inner: {n: 1, tags: {a: [1, x]}}",
                "x.yaml:1:29: inner.tags.a[1]: found string `x`; expected a whole number",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message, "{text}");
        }
    }
}
