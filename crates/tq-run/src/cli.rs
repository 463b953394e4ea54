//! The command line of `tq-run`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use transferqueue::client::Choice;

use crate::data::Data;

/// Runs reinforcement-learning pipelines through the store.
///
/// Arguments: one pipeline file (`*.yaml`), and overrides such as `schedule=one_step_off` or
/// `actor_rollout_ref.actor.optim.lr=1e-6` (`+key=value` adds a key, `~key` deletes one).
#[derive(Debug, Parser)]
#[command(
    name = "tq-run",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Exit codes: 0 finished; 1 failed (named states are kept, go on with --resume); 2 refused before the start; \
                  130 stopped by Ctrl-C (the last line says what is saved).\n\
                  Example: tq-run data digits && tq-run pipelines/quickstart.yaml schedule=one_step_off"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Pipeline file and overrides.
    #[arg(value_name = "PIPELINE.yaml | KEY=VALUE")]
    pub arguments: Vec<String>,
    /// Print the plan and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Go on where the run in the folder was (with `store.durability`), or from its last named state.
    #[arg(long, conflicts_with_all = ["overwrite", "dry_run"])]
    pub resume: bool,
    /// Delete a run that is in the way.
    #[arg(long)]
    pub overwrite: bool,
    /// No progress bar.
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a data set, and a model to start from.
    Data {
        #[command(subcommand)]
        data: Data,
    },
    /// List the stages that pipelines can name, with the JSON schema of their settings.
    Stages,
    /// Feed the archived rows of a recorded run (`keep: archive`) to some of its stages again, without names to those that
    /// train: with overrides, this is offline training. Writes a run of its own, `FOLDER-replay` unless
    /// `trainer.experiment_name` says otherwise.
    Replay(Replay),
    /// Serve a pipeline's store without workers: they join with `tq-run worker`, here or on other hosts. A pipeline with
    /// `store: {kind: process}` starts it itself.
    Store(Store),
    /// Run one worker of a running pipeline. The runner starts it itself for `workers: {NAME: {kind: processes}}`.
    Worker(Worker),
    /// Draw the curves of runs again: one series a folder.
    Curve {
        /// Folders of runs.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// SVG file to write; none: terminal only.
        #[arg(long)]
        svg: Option<PathBuf>,
    },
}

/// Which recording, and what to do with it.
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// Folder of the recorded run, such as runs/NAME.
    pub folder: PathBuf,
    /// Stages that stay as they were, and overrides.
    #[arg(value_name = "STAGE | KEY=VALUE")]
    pub arguments: Vec<String>,
    /// The recorded phase; else the last one that archived what it trained on.
    #[arg(long)]
    pub phase: Option<String>,
    /// Print the plan and stop. The archive is looked through all the same.
    #[arg(long)]
    pub dry_run: bool,
    /// Go on where the replay in the folder was.
    #[arg(long, conflicts_with_all = ["overwrite", "dry_run"])]
    pub resume: bool,
    /// Delete a run that is in the way.
    #[arg(long)]
    pub overwrite: bool,
    /// No progress bar.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Which run's store.
#[derive(Debug, clap::Args)]
pub(crate) struct Store {
    /// Pipeline file and overrides.
    #[arg(value_name = "PIPELINE.yaml | KEY=VALUE")]
    pub arguments: Vec<String>,
    /// Go on where the run's store was, or from its last named state.
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Delete a run that is in the way.
    #[arg(long)]
    pub overwrite: bool,
    /// No progress bar.
    #[arg(long, short)]
    pub quiet: bool,
    /// The runner starts the workers; end when standard input, whose other end it holds, ends.
    #[arg(long, hide = true)]
    pub kept: bool,
}

/// Which worker, and where its run is.
#[derive(Debug, clap::Args)]
pub(crate) struct Worker {
    /// Where the runner's store is served: `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`.
    #[arg(long, value_name = "URL")]
    pub connect: String,
    /// File with the token that the store asks for.
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// The pipeline's name of the stage.
    #[arg(long)]
    pub stage: String,
    /// Which worker of the stage, from 0; one that joins takes a number that is free.
    #[arg(long)]
    pub index: u64,
    /// Which way bytes come: `auto` (shared memory on the store's host, else the network), or `flight`, `shm` or `ucx` alone.
    #[arg(long, value_name = "WAY", default_value_t)]
    pub transport: Choice,
    /// PEM file with the roots that an encrypted store's certificate must lead to.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// PEM file with this worker's certificate, for a store that wants one.
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    pub cert: Option<PathBuf>,
    /// PEM file with the key of `--cert`.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The name in the store's certificate, when it is not the URL's host.
    #[arg(long, requires = "ca")]
    pub domain: Option<String>,
    /// End when standard input ends: the runner holds the other end, and is gone then.
    #[arg(long, hide = true)]
    pub follow: bool,
}
