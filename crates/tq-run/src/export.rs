//! Final weights as a model folder that anything reads: `config.json`, tokenizer files, `model.safetensors`.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use tq_model::{ModelConfig, weights};
use tq_model_stage::convert::to_engine;
use tq_stage::Weights;
use transferqueue::Store;

/// Files of a model folder beside weights and `config.json`.
const COMPANIONS: [&str; 5] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];
const MAX_SHARD_BYTES: usize = 4 << 30;

/// Writes the newest weights of `model` to `to`, whole or not at all; what is not weights comes from `from`.
///
/// # Errors
/// When no version is published or a file cannot be written.
pub(crate) fn model(store: &Store, model: &str, from: &Path, to: &Path) -> Result<()> {
    let weights = Weights::new(store.session("export")?, model, Duration::from_secs(10));
    let newest = weights.newest()?.version.context("no version is published")?;
    let named = to_engine(&weights.read_version(&newest)?)?;
    let config = ModelConfig::from_folder(from)?;
    let parent = to.parent().context("a model folder has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create `{}`", parent.display()))?;
    let tmp = to.with_extension("tmp");
    if tmp.exists() {
        fs::remove_dir_all(&tmp).with_context(|| format!("cannot delete `{}`", tmp.display()))?;
    }
    weights::write_folder(&tmp, &config, &named, MAX_SHARD_BYTES)?;
    for name in COMPANIONS {
        let file = from.join(name);
        if file.exists() {
            fs::copy(&file, tmp.join(name)).with_context(|| format!("cannot copy `{}`", file.display()))?;
        }
    }
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot delete `{}`", to.display()))?;
    }
    fs::rename(&tmp, to).with_context(|| format!("cannot rename `{}`", tmp.display()))
}
