//! `tq-run data`: data sets and models that a run can start from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Subcommand;
use tq_model::{ModelConfig, init_random, weights};

/// What can be made.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Data {
    /// Digit completion: prompts `a,b:M,N`, and a Llama of 0.8 M random parameters.
    Digits {
        /// Folder to write to.
        #[arg(long, default_value = "data/digits")]
        out: PathBuf,
        /// Seed of the split and of the model's weights.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Prompts held out for validation, of 810.
        #[arg(long, default_value_t = 160)]
        held_out: usize,
    },
}

/// Writes it.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(data: &Data) -> Result<String> {
    match data {
        Data::Digits { out, seed, held_out } => digits(out, *seed, *held_out),
    }
}

fn digits(out: &Path, seed: u64, held_out: usize) -> Result<String> {
    let written = tq_data::digits::write(out, &tq_data::digits::Options { seed, held_out })?;
    let config = ModelConfig::from_folder(&written.model).context("the model just written")?;
    let named = init_random(&config, weights::Head::Lm, seed)?;
    weights::write_folder(&written.model, &config, &named, usize::MAX)?;
    Ok(format!(
        "{}: {} training and {} held-out prompts, model of {} parameters in {}",
        out.display(),
        written.train_rows,
        written.test_rows,
        named.bytes() / 4,
        written.model.display()
    ))
}
