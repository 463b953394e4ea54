//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use transferqueue::inspect::Request;

/// Looks inside a running job. Read-only.
#[derive(Clone, Debug, Parser)]
#[command(name = "tq-cli", version)]
pub struct Cli {
    /// What to show.
    #[command(subcommand)]
    pub what: What,
    /// How to show it.
    #[arg(long, value_enum, default_value_t = Format::Table, global = true)]
    pub format: Format,
    /// Folder of the run (holds `control.sock`). Without it: the newest live run in `runs/` under the current folder.
    #[arg(long, value_name = "DIR", global = true, conflicts_with = "socket")]
    pub run: Option<PathBuf>,
    /// The job's control socket.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
}

/// Output for people or programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns.
    Table,
    /// One JSON value a line.
    Json,
}

/// Once or again and again.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: its variants carry the help")]
    Look(Look),
    /// Show something again and again, until the run ends.
    Watch {
        /// Seconds between two looks.
        #[arg(long, default_value_t = 2.0, value_parser = seconds)]
        every: f64,
        /// Look this many times.
        #[arg(long)]
        times: Option<u64>,
        /// What to show.
        #[command(subcommand)]
        look: Look,
    },
}

/// What can be shown.
#[derive(Clone, Debug, Subcommand)]
pub enum Look {
    /// The run at a glance.
    Status,
    /// Backlog, leases, holders, and what each task waits for.
    Tasks,
    /// Bytes by column, and who still has to read them.
    Columns,
    /// Rows owed = consumed + live + dropped, for each task.
    Ledger,
    /// Tables and their rows.
    Partitions,
    /// Workers.
    Sessions,
    /// Live weight versions.
    Versions,
    /// Some rows, cell by cell.
    Peek {
        /// Name of the partition.
        partition: String,
        /// Row ids and ranges, such as 4-6,9; the first live ones without it.
        #[arg(long)]
        rows: Option<String>,
        /// Columns, linked ones included; all own ones without it.
        #[arg(long, value_delimiter = ',')]
        columns: Vec<String>,
    },
}

impl Look {
    pub(crate) fn request(&self) -> Request {
        match self {
            Self::Status => Request::Status,
            Self::Tasks => Request::Tasks,
            Self::Columns => Request::Columns,
            Self::Ledger => Request::Ledger,
            Self::Partitions => Request::Partitions,
            Self::Sessions => Request::Sessions,
            Self::Versions => Request::Versions,
            Self::Peek { partition, rows, columns } => {
                Request::Peek { partition: partition.clone(), rows: rows.clone(), columns: columns.clone() }
            }
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.1 to 3600".to_owned()),
    }
}
