//! Rows of parquet files in verl's layout.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::chat::Message;
use crate::error::{Error, Result};

/// One row: a conversation to be continued and what its reward needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The conversation.
    pub messages: Vec<Message>,
    /// Which task the row belongs to; rewards and validation metrics are keyed by it.
    pub data_source: String,
    /// The right answer (`reward_model.ground_truth`); a value that is not a string is kept as its JSON text. Empty only if the file has no
    /// `reward_model` and [`ReadOptions::require_ground_truth`] is off.
    pub ground_truth: String,
    /// The skill that the row exercises, if given (`math`, …).
    pub ability: Option<String>,
    /// Whatever else the file says about the row; null if nothing.
    pub extra_info: Value,
    /// The file that the row was read from.
    pub file: Arc<Path>,
    /// Its number in that file, from 0.
    pub number: usize,
}

/// What to read, and what must be there.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Column with the conversation: a list of `{role, content}`, or a string, which becomes one message of the user. verl: `data.prompt_key`.
    pub prompt_key: String,
    /// Column with the task's name. verl: `data.reward_fn_key`.
    pub data_source_key: String,
    /// The task's name for files that have no such column.
    pub default_data_source: Option<String>,
    /// Whether every row must have `reward_model.ground_truth`.
    pub require_ground_truth: bool,
    /// Keep only this many rows, the first ones over all files. verl: `data.train_max_samples`, `data.val_max_samples`.
    pub limit: Option<usize>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            prompt_key: "prompt".into(),
            data_source_key: "data_source".into(),
            default_data_source: None,
            require_ground_truth: true,
            limit: None,
        }
    }
}

/// The rows of one or more files, in order.
#[derive(Debug, Clone)]
pub struct Dataset {
    rows: Vec<Row>,
}

impl Dataset {
    /// Reads `files` one after the other.
    ///
    /// # Errors
    /// Everything names the file: unreadable or not parquet, a column that is missing (with the columns found) or has a type that cannot be a
    /// conversation, a row without conversation or ground truth, no rows at all.
    pub fn read<P: AsRef<Path>>(files: &[P], options: &ReadOptions) -> Result<Self> {
        if files.is_empty() {
            return Err(Error::Empty("no file was named; set data.train_files or data.val_files".into()));
        }
        let mut rows = Vec::new();
        for file in files {
            let left = options.limit.map_or(usize::MAX, |limit| limit - rows.len());
            if left == 0 {
                break;
            }
            read_file(file.as_ref(), options, left, &mut rows)?;
        }
        if rows.is_empty() {
            let names: Vec<String> = files.iter().map(|f| f.as_ref().display().to_string()).collect();
            let limit = options.limit.map_or_else(String::new, |limit| format!(" within the limit of {limit}"));
            return Err(Error::Empty(format!(
                "found no row{limit} in {}; expected at least one prompt",
                names.join(", ")
            )));
        }
        Ok(Dataset { rows })
    }

    /// The rows, in file order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Number of rows.
    #[expect(clippy::len_without_is_empty, reason = "a data set without rows cannot be read")]
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

fn read_file(path: &Path, options: &ReadOptions, left: usize, rows: &mut Vec<Row>) -> Result<()> {
    let file = File::open(path).map_err(Error::io(path))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(Error::parquet(path))?;
    let found: Vec<String> = builder.schema().fields().iter().map(|f| f.name().clone()).collect();
    let columns = Columns { path, found: &found, options };
    columns.check()?;
    // Other columns may hold images: they are not read.
    let wanted =
        [options.prompt_key.as_str(), options.data_source_key.as_str(), "ability", "reward_model", "extra_info"];
    let roots = found.iter().enumerate().filter(|(_, name)| wanted.contains(&name.as_str())).map(|(i, _)| i);
    let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
    let reader = builder.with_projection(mask).with_limit(left).build().map_err(Error::parquet(path))?;
    let shared: Arc<Path> = path.into();
    let mut number = 0;
    for batch in reader {
        let batch = batch.map_err(|e| Error::parquet(path)(e.into()))?;
        for i in 0..batch.num_rows() {
            rows.push(columns.row(&batch, i, shared.clone(), number)?);
            number += 1;
        }
    }
    Ok(())
}

/// The columns of one file, and the options they are read under.
struct Columns<'a> {
    path: &'a Path,
    found: &'a [String],
    options: &'a ReadOptions,
}

impl Columns<'_> {
    fn check(&self) -> Result<()> {
        let has = |name: &str| self.found.iter().any(|found| found == name);
        let missing = |column: &str, hint| {
            Err(Error::MissingColumn {
                path: self.path.into(),
                column: column.into(),
                found: self.found.to_vec(),
                hint,
            })
        };
        if !has(&self.options.prompt_key) {
            return missing(&self.options.prompt_key, "set data.prompt_key to the column with the conversation");
        }
        if !has(&self.options.data_source_key) && self.options.default_data_source.is_none() {
            return missing(&self.options.data_source_key, "set data.reward_fn_key to the column that names the task");
        }
        if !has("reward_model") && self.options.require_ground_truth {
            return missing("reward_model", "a reward needs reward_model.ground_truth in each row");
        }
        Ok(())
    }

    fn row(&self, batch: &RecordBatch, i: usize, file: Arc<Path>, number: usize) -> Result<Row> {
        let column = |name: &str| batch.column_by_name(name).map(|array| array.as_ref());
        let options = self.options;
        let prompt = column(&options.prompt_key).expect("checked when the file was opened");
        let data_source = match column(&options.data_source_key) {
            Some(array) => self.text(array, i, &options.data_source_key, number)?,
            None => options.default_data_source.clone().expect("checked when the file was opened"),
        };
        let answer = column("reward_model").map(|array| self.json(array, i, "reward_model")).transpose()?;
        let ground_truth = match answer.as_ref().map(|a| &a["ground_truth"]) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None if options.require_ground_truth => {
                return Err(self.bad(number, "reward_model.ground_truth", "is missing".into()));
            }
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        Ok(Row {
            messages: self.messages(prompt, i, number)?,
            data_source,
            ground_truth,
            ability: column("ability")
                .map(|array| self.json(array, i, "ability"))
                .transpose()?
                .and_then(|a| a.as_str().map(str::to_string)),
            extra_info: column("extra_info").map_or(Ok(Value::Null), |array| self.json(array, i, "extra_info"))?,
            file,
            number,
        })
    }

    fn messages(&self, prompt: &dyn Array, i: usize, number: usize) -> Result<Vec<Message>> {
        let key = &self.options.prompt_key;
        match self.json(prompt, i, key)? {
            Value::String(text) => Ok(vec![Message::user(text)]),
            Value::Array(turns) if turns.is_empty() => Err(self.bad(number, key, "is an empty conversation".into())),
            Value::Array(turns) => turns.iter().map(|turn| self.message(turn, number)).collect(),
            Value::Null => Err(self.bad(number, key, "is null".into())),
            _ => Err(Error::ColumnType {
                path: self.path.into(),
                column: key.clone(),
                found: prompt.data_type().to_string(),
                expected: "a list of {role, content}, or a string",
            }),
        }
    }

    fn message(&self, turn: &Value, number: usize) -> Result<Message> {
        let field = |name: &str| match &turn[name] {
            Value::String(text) => Ok(text.clone()),
            other => {
                let found = serde_json::to_string(other).unwrap_or_default();
                Err(self.bad(
                    number,
                    &format!("{}.{name}", self.options.prompt_key),
                    format!("should be a string, found {found}"),
                ))
            }
        };
        Ok(Message { role: field("role")?, content: field("content")? })
    }

    fn text(&self, array: &dyn Array, i: usize, name: &str, number: usize) -> Result<String> {
        match self.json(array, i, name)? {
            Value::String(text) => Ok(text),
            Value::Null => Err(self.bad(number, name, "is null".into())),
            _ => Err(Error::ColumnType {
                path: self.path.into(),
                column: name.into(),
                found: array.data_type().to_string(),
                expected: "a string",
            }),
        }
    }

    fn json(&self, array: &dyn Array, i: usize, name: &str) -> Result<Value> {
        crate::json::from_arrow(array, i).map_err(|found| Error::ColumnType {
            path: self.path.into(),
            column: name.into(),
            found,
            expected: "strings, numbers, booleans, and lists or structs of them",
        })
    }

    fn bad(&self, row: usize, column: &str, problem: String) -> Error {
        Error::BadValue { path: self.path.into(), row, column: column.into(), problem }
    }
}
