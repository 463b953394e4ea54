//! Chat templates: how a conversation becomes the text a model was trained on.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Message { role: "user".into(), content: content.into() }
    }
}

/// A compiled Jinja chat template, with the settings and functions that Hugging Face templates count on: block trimming, Python's string methods,
/// `tojson` without HTML escapes, `raise_exception`, and the special tokens (`bos_token`, `eos_token`, …) as variables.
///
/// ```
/// use serde_json::{Map, json};
/// use tq_data::{ChatTemplate, Message};
///
/// # fn main() -> tq_data::Result<()> {
/// let template = ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}", Map::from_iter([
///     ("eos_token".to_string(), json!("</s>")),
/// ]))?;
/// assert_eq!(template.render(&[Message::user("hi")], &Map::new())?, "<user>hi</s>");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: Map<String, Value>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles `source`. `special` are variables present in every rendering.
    ///
    /// # Errors
    /// [`Error::Template`] with line and reason if the template does not compile.
    pub fn new(source: &str, special: Map<String, Value>) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the standard delimiters are valid"));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, source.to_string()).map_err(explain)?;
        Ok(ChatTemplate { environment, special })
    }

    /// The text of `messages`. `variables` are what the caller passes on: `add_generation_prompt`, `tools`, and whatever else the template reads.
    /// A key of a message whose value is null counts as absent.
    ///
    /// # Errors
    /// [`Error::Template`] if there is no message, or if the template fails or calls `raise_exception`.
    pub fn render<M: Serialize>(&self, messages: &[M], variables: &Map<String, Value>) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::Template("an empty conversation has no text; give at least one message".into()));
        }
        let mut messages = serde_json::to_value(messages).map_err(|e| Error::Template(format!("messages: {e}")))?;
        drop_nulls(&mut messages);
        let mut context = self.special.clone();
        context.extend(variables.clone());
        context.insert("messages".into(), messages);
        let template = self.environment.get_template(NAME).expect("added in `new`");
        template.render(Serde(&context)).map_err(explain)
    }
}

fn drop_nulls(messages: &mut Value) {
    for message in messages.as_array_mut().into_iter().flatten() {
        if let Value::Object(fields) = message {
            fields.retain(|_, value| !value.is_null());
        }
    }
}

fn explain(error: minijinja::Error) -> Error {
    let place = error.line().map_or(String::new(), |line| format!("line {line}: "));
    let detail = error.detail().map_or_else(|| error.to_string(), str::to_string);
    Error::Template(format!("{place}{detail}"))
}

/// Python's `json.dumps(value, ensure_ascii=False)`: separators `", "` and `": "`, no HTML escapes; `indent` as in Python.
fn tojson(value: Jinja, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let json = serde_json::to_value(&value)
        .map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, format!("tojson: {e}")))?;
    let mut text = String::new();
    crate::json::python_dumps(&json, indent, 0, &mut text);
    Ok(text)
}
