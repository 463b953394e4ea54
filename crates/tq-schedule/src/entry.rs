//! The sections of a pipeline file as serde types, still unchecked against each other.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use indexmap::IndexMap;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use transferqueue::{Durability, client::Choice, server::ServerTls};

use crate::plan::{Keep, OnFailure, OnLost, Spill, StoreKind, WorkerKind};
use crate::port::{Dtype, Kind, Per};
use crate::schedule::{Grain, OnPublication, Order, Preset, WeightsRule};

/// The sections a pipeline file can have.
pub(crate) const SECTIONS: [&str; 8] =
    ["partitions", "models", "stages", "schedule", "workers", "phases", "parameters", "store"];

/// `partitions: {NAME: …}`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Partition {
    pub(crate) files: Option<Names>,
    pub(crate) expand: Option<Expand>,
    pub(crate) n: Option<u64>,
    pub(crate) every: Option<i64>,
    pub(crate) link: Option<Vec<String>>,
    pub(crate) columns: Option<IndexMap<String, PutColumn>>,
    pub(crate) keep: Keeps,
}

/// A column that clients put: `ids: ragged i64`, or `ids: {type: ragged i64, max: 512}`.
#[derive(Debug, Clone)]
pub(crate) struct PutColumn {
    pub(crate) kind: Kind,
    pub(crate) max: Option<u64>,
}

impl<'de> Deserialize<'de> for PutColumn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = PutColumn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a type such as `utf8`, `ragged i64` or `dense f32[3]`, or `{type: …, max: …}`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PutColumn, E> {
                match kind(text) {
                    Some(kind) => Ok(PutColumn { kind, max: None }),
                    None => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PutColumn, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Fields {
                    r#type: String,
                    #[serde(default)]
                    max: Option<u64>,
                }
                let fields = Fields::deserialize(de::value::MapAccessDeserializer::new(map))?;
                match kind(&fields.r#type) {
                    Some(kind) => Ok(PutColumn { kind, max: fields.max }),
                    None => Err(de::Error::invalid_value(de::Unexpected::Str(&fields.r#type), &self)),
                }
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// Reads a column type as it is displayed: `utf8`, `ragged i64`, `ragged f32[8]`, `dense f32[2, 3]`.
fn kind(text: &str) -> Option<Kind> {
    match text {
        "utf8" => return Some(Kind::Utf8),
        "binary" => return Some(Kind::Binary),
        "json" => return Some(Kind::Json),
        _ => {}
    }
    let (shape, rest) = text.split_once(' ')?;
    let (dtype, axes) = match rest.trim().split_once('[') {
        None => (rest.trim(), Vec::new()),
        Some((dtype, axes)) => {
            let axes = axes.strip_suffix(']')?;
            let axes =
                if axes.is_empty() { Ok(Vec::new()) } else { axes.split(',').map(|a| a.trim().parse()).collect() };
            (dtype, axes.ok()?)
        }
    };
    let dtype: Dtype = serde_json::from_value(Json::from(dtype)).ok()?;
    match shape {
        "dense" => Some(Kind::Dense { dtype, shape: axes }),
        "ragged" => Some(Kind::Ragged { dtype, inner: axes }),
        _ => None,
    }
}

/// `expand: prompts` or `expand: {files: …}`
#[derive(Debug, Clone)]
pub(crate) enum Expand {
    Partition(String),
    Files(Names),
}

impl<'de> Deserialize<'de> for Expand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = Expand;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a partition, or `{files: …}`")
            }

            fn visit_str<E>(self, name: &str) -> Result<Expand, E> {
                Ok(Expand::Partition(name.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Expand, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Files {
                    files: Names,
                }
                let Files { files } = Files::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Expand::Files(files))
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// One name or a list of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a list of names")
            }

            fn visit_str<E>(self, name: &str) -> Result<Names, E> {
                Ok(Names(vec![name.into()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = items.next_element()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// `keep: [a, b]`, `keep: {a: rows, b: archive}`, or `keep: archive` for every column
#[derive(Debug, Clone, Default)]
pub(crate) struct Keeps {
    pub(crate) columns: IndexMap<String, Keep>,
    /// All columns that stages read or write are archived.
    pub(crate) all_archived: bool,
}

impl Keeps {
    /// Whether any column is archived.
    pub(crate) fn archives(&self) -> bool {
        self.all_archived || self.columns.values().any(|keep| *keep == Keep::Archive)
    }
}

impl<'de> Deserialize<'de> for Keeps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = Keeps;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a list of columns, a map from columns to rows or archive, or the word `archive` for all of them",
                )
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Keeps, E> {
                match word {
                    "archive" => Ok(Keeps { columns: IndexMap::new(), all_archived: true }),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Keeps, A::Error> {
                let mut columns = IndexMap::new();
                while let Some(name) = items.next_element()? {
                    columns.insert(name, Keep::Rows);
                }
                Ok(Keeps { columns, all_archived: false })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keeps, A::Error> {
                let mut columns = IndexMap::new();
                while let Some((name, keep)) = map.next_entry()? {
                    columns.insert(name, keep);
                }
                Ok(Keeps { columns, all_archived: false })
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// `models: {NAME: …}`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    #[serde(rename = "use")]
    pub(crate) kind: String,
    pub(crate) path: String,
}

/// `stages: {NAME: …}`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stage {
    #[serde(rename = "use")]
    pub(crate) implementation: String,
    #[serde(default)]
    pub(crate) model: Option<String>,
    #[serde(default)]
    pub(crate) serve: Option<Names>,
    #[serde(default)]
    pub(crate) bind: IndexMap<String, String>,
    #[serde(default)]
    pub(crate) when: When,
    #[serde(default)]
    pub(crate) per: Option<Per>,
    #[serde(default)]
    pub(crate) from_cycle: Option<u64>,
    #[serde(default)]
    pub(crate) ranks: Option<u64>,
    #[serde(default, rename = "where")]
    pub(crate) filter: IndexMap<String, Json>,
    #[serde(default)]
    pub(crate) reuse: Option<u64>,
    #[serde(default)]
    pub(crate) attempts: Option<u64>,
    #[serde(default)]
    pub(crate) on_failure: Option<OnFailure>,
    #[serde(default)]
    pub(crate) on_lost: Option<OnLost>,
    #[serde(default)]
    pub(crate) with: IndexMap<String, Json>,
}

/// `when: true`, `when: need.critic`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always(bool),
    Critic,
    Reference,
    Old,
    Filter,
}

impl Default for When {
    fn default() -> Self {
        Self::Always(true)
    }
}

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl Visitor<'_> for Seen {
            type Value = When;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or need.{critic,reference,old,filter}")
            }

            fn visit_bool<E>(self, on: bool) -> Result<When, E> {
                Ok(When::Always(on))
            }

            fn visit_str<E: de::Error>(self, need: &str) -> Result<When, E> {
                const NEEDS: &[&str] = &["need.critic", "need.reference", "need.old", "need.filter"];
                match need {
                    "need.critic" => Ok(When::Critic),
                    "need.reference" => Ok(When::Reference),
                    "need.old" => Ok(When::Old),
                    "need.filter" => Ok(When::Filter),
                    other => Err(E::unknown_variant(other, NEEDS)),
                }
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// `schedule: NAME` or `schedule: {use: NAME, …}`
#[derive(Debug, Clone)]
pub(crate) struct Schedule(pub(crate) ScheduleFields);

/// The fields of a schedule that the pipeline sets itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScheduleFields {
    #[serde(rename = "use")]
    pub(crate) preset: Option<Preset>,
    pub(crate) lag: Option<f64>,
    pub(crate) order: Option<Order>,
    pub(crate) weights: Option<WeightsRule>,
    pub(crate) grain: Option<Grain>,
    pub(crate) on_publication: Option<OnPublication>,
    pub(crate) max_lag: Option<u64>,
    pub(crate) drop_beyond: Option<bool>,
    pub(crate) oversample: Option<f64>,
    pub(crate) state_every: Option<u64>,
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl<'de> Visitor<'de> for Seen {
            type Value = Schedule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("on_policy, one_step_off, fully_async, or a map with `use`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Schedule, E> {
                let preset = Preset::deserialize(de::value::StrDeserializer::new(name))?;
                Ok(Schedule(ScheduleFields { preset: Some(preset), ..ScheduleFields::default() }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Schedule, A::Error> {
                ScheduleFields::deserialize(de::value::MapAccessDeserializer::new(map)).map(Schedule)
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

/// `workers: {NAME: …}`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workers {
    pub(crate) stages: Names,
    #[serde(default)]
    pub(crate) count: Option<u64>,
    #[serde(default)]
    pub(crate) device: Option<String>,
    #[serde(default)]
    pub(crate) kind: Option<WorkerKind>,
}

/// `phases: {NAME: …}`; `schedule` and `parameters` are read apart, where their places are known.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Phase {
    pub(crate) stages: Option<Names>,
    pub(crate) init: Option<String>,
    pub(crate) until: Option<Until>,
    #[serde(rename = "schedule")]
    pub(crate) _schedule: Anything,
    #[serde(rename = "parameters")]
    pub(crate) _parameters: Anything,
}

/// `until: {steps: N, at_most: {METRIC: LEVEL}}`: the longest length, `steps` or `epochs`, and optionally a level.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Until {
    pub(crate) steps: Option<u64>,
    pub(crate) epochs: Option<u64>,
    pub(crate) at_most: IndexMap<String, f64>,
    pub(crate) at_least: IndexMap<String, f64>,
}

/// A value that is read elsewhere.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Anything(PhantomData<()>);

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        de::IgnoredAny::deserialize(deserializer).map(|_| Self::default())
    }
}

/// `with:` of a stage with `use: external`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct External {
    pub(crate) columns: Vec<String>,
}

/// `store: {budget: 512MiB, weights: 4GiB, spill: true, patience: 60, units: 2, durability: process, arena: /dev/shm/run, kind: process, transport: auto, listen: "10.0.0.5:7788", tls: {cert: server.pem, key: server.key}}`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    pub(crate) budget: Option<Bytes>,
    pub(crate) weights: Option<Bytes>,
    pub(crate) spill: Option<Spill>,
    pub(crate) patience: Option<u64>,
    pub(crate) units: Option<usize>,
    pub(crate) durability: Option<Durability>,
    pub(crate) arena: Option<PathBuf>,
    pub(crate) kind: StoreKind,
    pub(crate) transport: Choice,
    pub(crate) listen: Option<String>,
    pub(crate) insecure: bool,
    pub(crate) tls: Option<ServerTls>,
}

/// A number of bytes: `4096`, `64KiB`, `512MiB`, `2GiB`, `10MB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen;
        impl Visitor<'_> for Seen {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes, such as 4096, 64KiB, 512MiB or 2GiB")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Bytes, E> {
                u64::try_from(bytes).map(Bytes).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
                let unit: u64 = match &text[digits.len()..] {
                    "" | "B" => 1,
                    "KiB" => 1 << 10,
                    "MiB" => 1 << 20,
                    "GiB" => 1 << 30,
                    "TiB" => 1 << 40,
                    "kB" | "KB" => 1_000,
                    "MB" => 1_000_000,
                    "GB" => 1_000_000_000,
                    "TB" => 1_000_000_000_000,
                    _ => return Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                };
                let count = digits.trim().parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
                count.map(Bytes).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_type_reads_as_it_displays() {
        for text in ["utf8", "binary", "json", "ragged i64", "ragged bf16[8, 2]", "dense f32[]", "dense u8[3]"] {
            assert_eq!(kind(text).map(|k| k.to_string()).as_deref(), Some(text));
        }
        for text in ["", "text", "ragged", "ragged i65", "dense f32[x]", "dense f32[3", "sparse f32"] {
            assert_eq!(kind(text), None, "{text}");
        }
    }
}
