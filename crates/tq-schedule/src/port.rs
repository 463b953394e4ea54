//! What a stage reads and writes, as the planner needs to know it.
//!
//! The planner never sees a stage's code: it asks a [`StageCatalog`] to describe the stage a pipeline names, under the
//! parameters in force, and binds the answer's ports to columns.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub use transferqueue::schema::{Dtype, Kind};

/// The longest a cell may be along its varying axis (ragged) or in bytes (utf8, binary, json). Dense cells need none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Extent {
    /// At most `data.max_prompt_length` elements.
    Prompt,
    /// At most `data.max_response_length` elements.
    Response,
    /// At most `data.max_prompt_length + data.max_response_length` elements.
    Sequence,
    /// At most this many elements (ragged) or bytes (utf8, binary, json).
    Fixed(u64),
}

/// Facts a column carries and its readers check, such as `distribution: full`.
pub type Attributes = BTreeMap<String, String>;

/// What an archived file says of each row besides its columns; a column of such a name cannot be archived.
pub const ROW_COLUMNS: [&str; 8] =
    ["row", "group", "ordinal", "sample", "version", "first_version", "last_version", "tags"];

/// A column a stage reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The port's logical name; `bind:` in a pipeline maps it to a column.
    pub name: String,
    /// Expected type.
    pub column_type: Kind,
    /// Without it the stage works too: bound only when the column exists.
    pub optional: bool,
    /// Columns that can serve the port when `bind` names none, best first; the first one produced wins. Empty means
    /// the port's own name.
    pub candidates: Vec<String>,
    /// Facts the column must carry.
    pub requires: Attributes,
}

impl Input {
    /// A required input bound to the column of its own name.
    #[must_use]
    pub fn new(name: &str, column_type: Kind) -> Self {
        Self { name: name.into(), column_type, optional: false, candidates: Vec::new(), requires: Attributes::new() }
    }

    /// The stage also works without this column.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Columns that can serve this port, best first.
    #[must_use]
    pub fn from_first_of(mut self, columns: &[&str]) -> Self {
        self.candidates = columns.iter().map(|c| (*c).to_owned()).collect();
        self
    }

    /// A fact the column must carry.
    #[must_use]
    pub fn requires(mut self, attribute: &str, value: &str) -> Self {
        self.requires.insert(attribute.into(), value.into());
        self
    }
}

/// A column a stage writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The port's logical name; `bind:` in a pipeline maps it to a column.
    pub name: String,
    /// Type of the column.
    pub column_type: Kind,
    /// Longest cell, for the memory reservation.
    pub extent: Extent,
    /// Written only when somebody reads it (or the pipeline keeps it); a required output that nobody reads is refused.
    pub optional: bool,
    /// Unfinished cells of it can be saved, and gone on with by another worker (`on_lost: resume`).
    #[serde(default)]
    pub resumable: bool,
    /// Facts the column carries.
    pub carries: Attributes,
}

impl Output {
    /// An output written always; a cell is at most as long as a response unless [`Output::extent`] says otherwise.
    #[must_use]
    pub fn new(name: &str, column_type: Kind) -> Self {
        Self {
            name: name.into(),
            column_type,
            extent: Extent::Response,
            optional: false,
            resumable: false,
            carries: Attributes::new(),
        }
    }

    /// Unfinished cells of it can be saved, and gone on with by another worker.
    #[must_use]
    pub fn resumable(mut self) -> Self {
        self.resumable = true;
        self
    }

    /// Written only when somebody reads it.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Longest cell.
    #[must_use]
    pub fn extent(mut self, extent: Extent) -> Self {
        self.extent = extent;
        self
    }

    /// A fact the column carries.
    #[must_use]
    pub fn carries(mut self, attribute: &str, value: &str) -> Self {
        self.carries.insert(attribute.into(), value.into());
        self
    }
}

/// What a task claims at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// Single rows, as they become ready.
    Row,
    /// Whole groups (all rows of one prompt).
    Group,
    /// One mini-batch of a cycle, cut once by the schedule.
    Mini,
    /// The whole cycle.
    Cycle,
}

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Row => "row",
            Self::Group => "group",
            Self::Mini => "mini",
            Self::Cycle => "cycle",
        })
    }
}

/// How a training stage consumes a cycle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Training {
    /// Groups per optimiser update.
    pub mini_batch: u64,
    /// The parameter that `mini_batch` came from, named in refusals.
    pub mini_batch_key: String,
    /// Passes over each mini-batch (`ppo_epochs`).
    pub epochs: u64,
    /// Inputs whose lengths, added up, are the size of a row in tokens; ranks get shares of nearly equal size.
    pub lengths: Vec<String>,
}

/// What one stage reads, writes, and needs, under given parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// What it reads.
    pub inputs: Vec<Input>,
    /// What it writes.
    pub outputs: Vec<Output>,
    /// What it claims when the pipeline does not say.
    pub per: Per,
    /// Set for a stage that trains its model.
    pub training: Option<Training>,
    /// The kind of model it needs (`causal-lm`, `value-lm`), if any.
    pub model: Option<String>,
    /// Subtrees of the parameter tree it is configured by, such as `actor_rollout_ref.rollout`.
    pub parameters: Vec<String>,
}

impl Ports {
    /// A stage without model that claims rows.
    #[must_use]
    pub fn new(inputs: Vec<Input>, outputs: Vec<Output>) -> Self {
        Self { inputs, outputs, per: Per::Row, training: None, model: None, parameters: Vec::new() }
    }

    /// What it claims when the pipeline does not say.
    #[must_use]
    pub fn per(mut self, per: Per) -> Self {
        self.per = per;
        self
    }

    /// The kind of model it needs.
    #[must_use]
    pub fn model(mut self, kind: &str) -> Self {
        self.model = Some(kind.into());
        self
    }

    /// It trains its model: `mini_batch` groups an update (read from `key`), each mini-batch `epochs` times.
    #[must_use]
    pub fn trains(mut self, mini_batch: u64, key: &str, epochs: u64) -> Self {
        self.training = Some(Training { mini_batch, mini_batch_key: key.into(), epochs, lengths: Vec::new() });
        self.per = Per::Mini;
        self
    }

    /// The inputs whose lengths, added up, are the size of a row in tokens, for a stage that trains.
    #[must_use]
    pub fn sized_by(mut self, inputs: &[&str]) -> Self {
        if let Some(training) = &mut self.training {
            training.lengths = inputs.iter().map(|input| (*input).to_owned()).collect();
        }
        self
    }

    /// Subtrees of the parameter tree it is configured by.
    #[must_use]
    pub fn configured_by(mut self, paths: &[&str]) -> Self {
        self.parameters = paths.iter().map(|p| (*p).to_owned()).collect();
        self
    }
}

/// What the catalog is asked: one `use` name, under the parameters in force.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The name after `use:`.
    pub stage: &'a str,
    /// The whole parameter tree of the phase, interpolation resolved.
    pub parameters: &'a Json,
    /// The stage's own `with:` map of the pipeline (an empty object when absent).
    pub with: &'a Json,
}

/// Why a stage cannot be described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescribeError {
    /// No stage is registered under the name.
    #[error("unknown stage")]
    Unknown,
    /// A parameter does not suit the stage.
    #[error("{key}: found {found}, expected {expected}")]
    Parameter {
        /// Dotted key in the parameter tree, or `with.<key>`; `stages.<name>` when the stage names none.
        key: String,
        /// What is there.
        found: String,
        /// What would be right.
        expected: String,
    },
}

/// The stages and models a program can use. The runner implements it from its registry.
pub trait StageCatalog {
    /// Describes the stage `query.stage` under `query.parameters`.
    ///
    /// # Errors
    /// [`DescribeError::Unknown`] for a name that is not registered, [`DescribeError::Parameter`] for a bad setting.
    fn describe(&self, query: &Query<'_>) -> Result<Ports, DescribeError>;

    /// Every name `describe` knows, for "did you mean".
    fn stages(&self) -> Vec<String>;

    /// Every kind of model (`models: {policy: {use: KIND}}`).
    fn model_kinds(&self) -> Vec<String>;

    /// Whether workers can be told to compute on this device.
    ///
    /// # Errors
    /// The devices that can be named.
    fn check_device(&self, _name: &str) -> Result<(), String> {
        Ok(())
    }

    /// Defaults of the stages' own parameter sections, merged into the parameter tree: `(path, value)`.
    fn sections(&self) -> Vec<(String, Json)> {
        Vec::new()
    }

    /// The stage that fills partitions with `files:`; its outputs are the columns a source can have.
    fn source(&self) -> &str {
        "dataset"
    }

    /// `with:` of the source stage, for one that needs to know more than its partition's files.
    fn source_settings(&self) -> Json {
        Json::Object(serde_json::Map::new())
    }

    /// The stage that reads every partition with `every:` (validation), if the program has one.
    fn evaluation(&self) -> Option<&str> {
        Some("validation")
    }

    /// The stage that writes the columns with `keep: archive`.
    fn archive(&self) -> &str {
        "archive"
    }
}
