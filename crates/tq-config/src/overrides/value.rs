//! The value of an override: Hydra's primitives, quoted text, lists and maps.

use crate::node::{Map, Node, Value};
use crate::{Origin, Refusal, scalar};

/// Reads everything after the `=`.
pub(super) fn parse(text: &str, origin: &Origin) -> Result<Node, Refusal> {
    let mut reader = Reader { text, at: 0, origin };
    reader.blanks();
    if reader.rest().is_empty() {
        return Ok(Node::new(Value::Str(String::new()), origin.clone()));
    }
    let value = reader.value(Where::Top)?;
    reader.blanks();
    match reader.peek() {
        None => Ok(value),
        Some(',') => Err(reader
            .refuse("a list of alternatives (a sweep)", "one value")
            .action("write a list as [a,b], or quote the text; runs over several values are not supported")),
        Some(other) => Err(reader.refuse(&format!("`{other}` after the value"), "the end of the argument")),
    }
}

/// What ends a bare word.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    Top,
    List,
    Map,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    origin: &'a Origin,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) {
        self.at += self.peek().map_or(0, char::len_utf8);
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.bump();
        }
    }

    fn refuse(&self, found: &str, expected: &str) -> Refusal {
        Refusal::new("", found, expected).at(self.origin)
    }

    fn node(&self, value: Value) -> Node {
        Node::new(value, self.origin.clone())
    }

    fn value(&mut self, place: Where) -> Result<Node, Refusal> {
        self.blanks();
        match self.peek() {
            Some('[') => self.list(),
            Some('{') => self.map(),
            Some(quote @ ('\'' | '"')) => {
                let text = self.quoted(quote)?;
                Ok(self.node(Value::Str(text)))
            }
            _ => self.bare(place),
        }
    }

    fn list(&mut self) -> Result<Node, Refusal> {
        self.bump();
        let mut items = Vec::new();
        self.blanks();
        if self.peek() == Some(']') {
            self.bump();
            return Ok(self.node(Value::List(items)));
        }
        loop {
            items.push(self.value(Where::List)?);
            self.blanks();
            match self.peek() {
                Some(',') => self.bump(),
                Some(']') => {
                    self.bump();
                    return Ok(self.node(Value::List(items)));
                }
                _ => return Err(self.refuse("a list that is not closed", "`]`")),
            }
        }
    }

    fn map(&mut self) -> Result<Node, Refusal> {
        self.bump();
        let mut map = Map::new();
        self.blanks();
        if self.peek() == Some('}') {
            self.bump();
            return Ok(self.node(Value::Map(map)));
        }
        loop {
            self.blanks();
            let start = self.at;
            while self.peek().is_some_and(|c| !":,{}[]'\"".contains(c)) {
                self.bump();
            }
            let key = self.text[start..self.at].trim().to_owned();
            if key.is_empty() || self.peek() != Some(':') {
                return Err(self.refuse("a map without `key:`", "{key:value,key:value} with unquoted keys"));
            }
            self.bump();
            let mut value = self.value(Where::Map)?;
            value.key = Some(self.origin.clone());
            if map.insert(key.clone(), value).is_some() {
                return Err(self.refuse(&format!("the key `{key}` twice"), "each key once"));
            }
            self.blanks();
            match self.peek() {
                Some(',') => self.bump(),
                Some('}') => {
                    self.bump();
                    return Ok(self.node(Value::Map(map)));
                }
                _ => return Err(self.refuse("a map that is not closed", "`}`")),
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, Refusal> {
        self.bump();
        let mut text = String::new();
        while let Some(c) = self.peek() {
            self.bump();
            match c {
                c if c == quote => return Ok(text),
                '\\' if self.peek() == Some(quote) || self.peek() == Some('\\') => {
                    text.extend(self.peek());
                    self.bump();
                }
                c => text.push(c),
            }
        }
        Err(self.refuse("text whose quote is not closed", "a closing quote"))
    }

    fn bare(&mut self, place: Where) -> Result<Node, Refusal> {
        let mut text = String::new();
        let mut escaped = false;
        while let Some(c) = self.peek() {
            if self.rest().starts_with("${") {
                let end = self.rest().find('}').map(|end| self.at + end + 1);
                let end = end.ok_or_else(|| self.refuse("`${` that is not closed", "`${a.b.c}`"))?;
                text.push_str(&self.text[self.at..end]);
                self.at = end;
                continue;
            }
            match c {
                ',' => break,
                ']' if place == Where::List => break,
                '}' if place == Where::Map => break,
                '\\' if self.rest()[1..].starts_with([',', ' ', '=', ':', '[', ']', '{', '}', '(', ')', '\\']) => {
                    self.bump();
                    text.extend(self.peek());
                    escaped = true;
                }
                '(' | ')' => {
                    let name = text.trim();
                    return Err(match name {
                        "int" | "float" | "str" | "bool" | "json_str" => self
                            .refuse(&format!("the cast `{name}(…)`"), "a value")
                            .action("casts are not supported: write the value, or quote it to make it text"),
                        "choice" | "range" | "interval" | "glob" | "sort" | "shuffle" | "tag" | "extend_list" => self
                            .refuse(&format!("the function `{name}(…)`"), "a value")
                            .action("functions and sweeps are not supported: write the value"),
                        _ => self.refuse("a parenthesis", "a value").action("quote text that has parentheses"),
                    });
                }
                '=' | '[' | ']' | '{' | '}' | '\'' | '"' => {
                    return Err(self.refuse(&format!("`{c}` inside a bare value"), "a value").action("quote the text"));
                }
                '~' if text.trim().is_empty() && !self.rest().starts_with("~/") => {
                    return Err(self
                        .refuse("`~` at the start of a value", "a value")
                        .action("quote the text, or write null"));
                }
                c => text.push(c),
            }
            self.bump();
        }
        let word = text.trim();
        if word.is_empty() {
            return Err(self.refuse("an empty element", "a value").action("write '' for empty text"));
        }
        Ok(self.node(if escaped { Value::Str(word.to_owned()) } else { scalar::bare(word) }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<serde_json::Value, String> {
        parse(text, &Origin::Override("x".into())).map(|n| n.to_json()).map_err(|e| e.to_string())
    }

    #[test]
    fn primitives_quotes_lists_and_maps() {
        for (text, value) in [
            ("", json!("")),
            ("1", json!(1)),
            ("1e-6", json!(1e-6)),
            ("a b", json!("a b")),
            ("  a  ", json!("a")),
            ("a/b:c", json!("a/b:c")),
            ("'1'", json!("1")),
            ("\"a b\"", json!("a b")),
            ("'a\\'b'", json!("a'b")),
            ("a\\,b", json!("a,b")),
            ("a\\=b", json!("a=b")),
            ("[]", json!([])),
            ("[1, 2 ,3]", json!([1, 2, 3])),
            ("[a,\"b\",null,1.5,true]", json!(["a", "b", null, 1.5, true])),
            ("[[1],[2,3]]", json!([[1], [2, 3]])),
            ("{}", json!({})),
            ("{a:1,b:{c:[1,2]}}", json!({"a": 1, "b": {"c": [1, 2]}})),
            ("${a.b}", json!("${a.b}")),
            ("[${a.b},2]", json!(["${a.b}", 2])),
            ("0.5_5.0", json!("0.5_5.0")),
            ("[~/a,b~]", json!(["~/a", "b~"])),
        ] {
            assert_eq!(read(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (text, part) in [
            ("1,2", "sweep"),
            ("choice(1,2)", "function `choice(…)`"),
            ("range(1,4)", "function `range(…)`"),
            ("int(\"5\")", "cast `int(…)`"),
            ("f(x)", "parenthesis"),
            ("a=b", "`=` inside"),
            ("~", "`~` at the start"),
            ("~ada/x", "`~` at the start"),
            ("[1,2", "list that is not closed"),
            ("{a:1", "map that is not closed"),
            ("{a: 1, \"b c\": 2}", "without `key:`"),
            ("'abc", "quote is not closed"),
            ("[1,,2]", "empty element"),
            ("${a", "not closed"),
            ("'a'b", "after the value"),
            ("{a:1,a:2}", "twice"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
