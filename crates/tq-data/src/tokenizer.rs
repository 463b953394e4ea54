//! A model folder's tokenizer, with the ids and the template its configuration files name.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::chat::{ChatTemplate, Message};
use crate::error::{Error, Result};

/// One token as text, the way a scorer wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The token's own text, special tokens included. Of a byte-level tokenizer a piece may be part of a character; it then holds U+FFFD.
    pub text: String,
    /// Whether this token ends a response (it is one of the model's end-of-sequence ids).
    pub end: bool,
}

/// A Hugging Face tokenizer loaded from a model folder.
///
/// Read from the folder: `tokenizer.json` (required); `tokenizer_config.json` (special tokens, chat template), `generation_config.json` and
/// `config.json` (end and padding ids), `chat_template.jinja` (wins over the one in `tokenizer_config.json`). Ids are `i64`, as columns hold them.
#[derive(Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    template: Option<ChatTemplate>,
    eos: Vec<i64>,
    pad: Option<i64>,
}

const SPECIAL: [&str; 7] = ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"];

impl Tokenizer {
    /// Loads the tokenizer of the model folder `folder`.
    ///
    /// The end-of-sequence ids are those of `generation_config.json`, else of `config.json`, plus the id of `eos_token` of
    /// `tokenizer_config.json`, which comes first. The padding id is looked up in the same files.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::ModelFile`] for a missing or malformed file, or a special token that the vocabulary lacks; [`Error::Template`]
    /// for a chat template that does not compile.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        // Read first: the tokenizers crate reports a missing file without naming it.
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let inner = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|e| Error::ModelFile { path: path.clone(), problem: format!("not a tokenizer: {e}") })?;
        let settings_path = folder.join("tokenizer_config.json");
        let settings = read_json(&settings_path)?;
        let generation = read_json(&folder.join("generation_config.json"))?;
        let config = read_json(&folder.join("config.json"))?;

        let mut special = Map::new();
        for name in SPECIAL {
            if let Some(token) = token_text(&settings[name]) {
                special.insert(name.into(), json!(token));
            }
        }
        let id_of = |name: &str| -> Result<Option<i64>> {
            let Some(token) = special.get(name).and_then(Value::as_str) else {
                return Ok(None);
            };
            match inner.token_to_id(token) {
                Some(id) => Ok(Some(i64::from(id))),
                None => Err(Error::ModelFile {
                    path: settings_path.clone(),
                    problem: format!(
                        "{name} {token:?} is not in the vocabulary of tokenizer.json; name a token it has"
                    ),
                }),
            }
        };
        let mut eos: Vec<i64> = id_of("eos_token")?.into_iter().collect();
        let listed =
            [&generation, &config].into_iter().map(|file| ids(&file["eos_token_id"])).find(|ids| !ids.is_empty());
        for id in listed.unwrap_or_default() {
            if !eos.contains(&id) {
                eos.push(id);
            }
        }
        let pad = id_of("pad_token")?
            .or_else(|| [&generation, &config].into_iter().find_map(|file| file["pad_token_id"].as_i64()));
        let template =
            template_source(folder, &settings)?.map(|source| ChatTemplate::new(&source, special)).transpose()?;
        Ok(Tokenizer { path, inner, template, eos, pad })
    }

    /// The ids of `text`, with no token added before or after.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if the tokenizer refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>> {
        self.encode_as(text, false)
    }

    /// The ids of `text` with the special tokens that the tokenizer's post-processor adds (for example a leading BOS).
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<i64>> {
        self.encode_as(text, true)
    }

    fn encode_as(&self, text: &str, special: bool) -> Result<Vec<i64>> {
        let encoding = self.inner.encode_fast(text, special).map_err(|e| self.refused(format!("{text:?}: {e}")))?;
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
    }

    /// The text of `ids`; special tokens are left out if `skip_special`.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if an id is outside the vocabulary.
    pub fn decode(&self, ids: &[i64], skip_special: bool) -> Result<String> {
        let known = ids.iter().map(|id| self.known(*id)).collect::<Result<Vec<u32>>>()?;
        self.inner.decode(&known, skip_special).map_err(|e| self.refused(format!("ids {ids:?}: {e}")))
    }

    /// Each id as its own text, and whether it ends a response.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn pieces(&self, ids: &[i64]) -> Result<Vec<Piece>> {
        ids.iter()
            .map(|id| Ok(Piece { text: self.decode(std::slice::from_ref(id), false)?, end: self.eos.contains(id) }))
            .collect()
    }

    fn known(&self, id: i64) -> Result<u32> {
        let narrow = u32::try_from(id).ok().filter(|id| self.inner.id_to_token(*id).is_some());
        narrow.ok_or_else(|| self.refused(format!("id {id} is not in the vocabulary of {} tokens", self.vocab_size())))
    }

    fn refused(&self, problem: String) -> Error {
        Error::Tokenize { path: self.path.clone(), problem }
    }

    /// The id that ends a response and that training appends to an answer: the first of [`eos_ids`](Self::eos_ids).
    pub fn eos_id(&self) -> Option<i64> {
        self.eos.first().copied()
    }

    /// Every id at which generation stops.
    pub fn eos_ids(&self) -> &[i64] {
        &self.eos
    }

    /// The id used to fill rows where a model needs it.
    pub fn pad_id(&self) -> Option<i64> {
        self.pad
    }

    /// The id of one token given by its text, special tokens included.
    pub fn token_id(&self, token: &str) -> Option<i64> {
        self.inner.token_to_id(token).map(i64::from)
    }

    /// Tokens in the vocabulary, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The folder's chat template, if it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// A conversation as the text that a response continues: through the chat template with `add_generation_prompt`, or the contents one after
    /// the other if the folder has no template.
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails on these messages.
    pub fn prompt_text(&self, messages: &[Message]) -> Result<String> {
        match &self.template {
            Some(template) => {
                template.render(messages, &Map::from_iter([("add_generation_prompt".to_string(), Value::Bool(true))]))
            }
            None => Ok(messages.iter().map(|m| m.content.as_str()).collect()),
        }
    }
}

/// The JSON file at `path`, or null if there is none.
fn read_json(path: &Path) -> Result<Value> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|e| Error::ModelFile { path: path.into(), problem: format!("not valid JSON: {e}") }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(e) => Err(Error::io(path)(e)),
    }
}

/// A special token is written as a string or as `{"content": …}`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn ids(value: &Value) -> Vec<i64> {
    match value {
        Value::Array(many) => many.iter().filter_map(Value::as_i64).collect(),
        one => one.as_i64().into_iter().collect(),
    }
}

fn template_source(folder: &Path, settings: &Value) -> Result<Option<String>> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(source) => return Ok(Some(source)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io(path)(e)),
    }
    match &settings["chat_template"] {
        Value::String(source) => Ok(Some(source.clone())),
        Value::Array(named) => {
            let default = named.iter().find(|t| t["name"] == "default").and_then(|t| t["template"].as_str());
            default.map(|source| Some(source.to_string())).ok_or_else(|| Error::ModelFile {
                path: folder.join("tokenizer_config.json"),
                problem: "chat_template is a list without an entry named \"default\"; name one so".into(),
            })
        }
        _ => Ok(None),
    }
}
