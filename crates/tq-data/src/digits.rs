//! The "digit completion" task: continue an arithmetic sequence, one character a token.
//!
//! A prompt `a,b:M,N` gives the first two members of a sequence modulo M; the answer is its next N members, separated by commas. With M = 9,
//! a in 0–9, b in 0–8 and N in 1–9 there are 810 prompts. It is verl's own end-to-end task, small enough for a policy of 0.8 M parameters.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde_json::{Value, json};

use crate::chat::Message;
use crate::error::{Error, Result};
use crate::rng::SplitMix64;
use crate::write::{Record, write_parquet};

/// The name in the column `data_source`.
pub const DATA_SOURCE: &str = "digit_completion";

/// The modulus of the generated prompts.
pub const MODULUS: u32 = 9;

/// A problem of the task.
///
/// ```
/// use tq_data::digits::Problem;
/// let problem: Problem = "1,3:9,5".parse()?;
/// assert_eq!(problem.answer(), "5,7,0,2,4");
/// assert_eq!(problem.to_string(), "1,3:9,5");
/// # Ok::<(), tq_data::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// First member, a.
    pub first: u32,
    /// Second member, b.
    pub second: u32,
    /// The modulus M: every later member is below it.
    pub modulus: u32,
    /// How many members to write, N.
    pub count: u32,
}

impl Problem {
    /// The 810 problems with M = 9, a in 0–9, b in 0–8, N in 1–9, in that order of significance.
    pub fn all() -> Vec<Problem> {
        let mut problems = Vec::with_capacity(810);
        for first in 0..=9 {
            for second in 0..=8 {
                problems.extend((1..=9).map(|count| Problem { first, second, modulus: MODULUS, count }));
            }
        }
        problems
    }

    /// The right answer: `count` members after the second, separated by commas, without the end symbol.
    pub fn answer(&self) -> String {
        let modulus = u64::from(self.modulus);
        let step = (u64::from(self.second) + modulus - u64::from(self.first) % modulus) % modulus;
        let members = (1..=u64::from(self.count)).map(|k| ((u64::from(self.second) + k * step) % modulus).to_string());
        members.collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}:{},{}", self.first, self.second, self.modulus, self.count)
    }
}

impl FromStr for Problem {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (pair, rule) = text.split_once(':')?;
            let (first, second) = pair.split_once(',')?;
            let (modulus, count) = rule.split_once(',')?;
            let number = |digits: &str| digits.parse::<u32>().ok();
            let modulus = number(modulus).filter(|m| *m > 0)?;
            Some(Problem { first: number(first)?, second: number(second)?, modulus, count: number(count)? })
        };
        parse().ok_or_else(|| {
            Error::Options(format!("{text:?} is no digits problem; expected `a,b:M,N` with M at least 1"))
        })
    }
}

/// How the problems are divided.
#[derive(Debug, Clone)]
pub struct Options {
    /// Decides which problems are held out, and the order of both files.
    pub seed: u64,
    /// Problems held out for validation; at least 1 and fewer than 810.
    pub held_out: usize,
}

impl Default for Options {
    /// 160 held out, seed 1.
    fn default() -> Self {
        Options { seed: 1, held_out: 160 }
    }
}

/// What [`write()`] left on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// `train.parquet`: the problems to learn from.
    pub train: PathBuf,
    /// `test.parquet`: the held-out problems, none of which is in `train`.
    pub test: PathBuf,
    /// `model/`: tokenizer and configuration. Weights are the model crate's matter.
    pub model: PathBuf,
    /// Rows of `train`.
    pub train_rows: usize,
    /// Rows of `test`.
    pub test_rows: usize,
}

/// Divides the 810 problems by `options.seed` into (train, held out).
///
/// # Errors
/// [`Error::Options`] if a part would be empty.
pub fn split(options: &Options) -> Result<(Vec<Problem>, Vec<Problem>)> {
    let mut problems = Problem::all();
    if options.held_out == 0 || options.held_out >= problems.len() {
        return Err(Error::Options(format!("held_out = {}; expected 1 to {}", options.held_out, problems.len() - 1)));
    }
    SplitMix64::new(options.seed).shuffle(&mut problems);
    let held_out = problems.split_off(problems.len() - options.held_out);
    Ok((problems, held_out))
}

/// Writes the task into `folder`: `train.parquet`, `test.parquet` and `model/` with `config.json`, `generation_config.json`, `tokenizer.json` and
/// `tokenizer_config.json`. The same options give the same bytes.
///
/// # Errors
/// [`Error::Options`] as for [`split`]; [`Error::Io`] or [`Error::Parquet`] if writing fails.
pub fn write(folder: &Path, options: &Options) -> Result<Written> {
    let (train, test) = split(options)?;
    let written = Written {
        train: folder.join("train.parquet"),
        test: folder.join("test.parquet"),
        model: folder.join("model"),
        train_rows: train.len(),
        test_rows: test.len(),
    };
    std::fs::create_dir_all(&written.model).map_err(Error::io(&written.model))?;
    write_parquet(&written.train, &records(&train, "train"))?;
    write_parquet(&written.test, &records(&test, "test"))?;
    for (name, content) in model_files() {
        let path = written.model.join(name);
        let text = serde_json::to_string_pretty(&content).expect("JSON values always print") + "\n";
        std::fs::write(&path, text).map_err(Error::io(&path))?;
    }
    Ok(written)
}

fn records(problems: &[Problem], split: &str) -> Vec<Record> {
    let record = |(index, problem): (usize, &Problem)| Record {
        prompt: vec![Message::user(problem.to_string())],
        data_source: DATA_SOURCE.into(),
        ability: "digits".into(),
        ground_truth: problem.answer(),
        split: split.into(),
        index: index as i64,
    };
    problems.iter().enumerate().map(record).collect()
}

/// The model folder's JSON files by name: a Llama of 0.8 M parameters and a tokenizer of 16 symbols.
pub fn model_files() -> [(&'static str, Value); 4] {
    [
        ("config.json", config()),
        ("generation_config.json", json!({"eos_token_id": 1, "pad_token_id": 2})),
        ("tokenizer.json", tokenizer()),
        ("tokenizer_config.json", tokenizer_config()),
    ]
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 16,
        "hidden_size": 128,
        "intermediate_size": 344,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": false,
        "initializer_range": 0.02,
        "bos_token_id": null,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        "use_cache": true
    })
}

/// The four special symbols come first: separator, end, padding, unknown.
const SYMBOLS: [&str; 16] = ["S", "E", "P", "U", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", ",", ":"];

fn tokenizer() -> Value {
    let special = |id: usize| json!({"id": id, "content": SYMBOLS[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let vocabulary: serde_json::Map<String, Value> =
        SYMBOLS.iter().enumerate().map(|(id, symbol)| (symbol.to_string(), json!(id))).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(0), special(1), special(2), special(3)],
        "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?s:.)"}, "behavior": "Isolated", "invert": false},
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "U"}
    })
}

fn tokenizer_config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "E",
        "pad_token": "P",
        "unk_token": "U",
        "sep_token": "S",
        "model_max_length": 2048,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}{{ sep_token }}{% endif %}"
    })
}
