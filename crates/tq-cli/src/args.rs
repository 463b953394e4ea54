//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Parser, Subcommand, ValueEnum};
use transferqueue::inspect::Request;

/// Looks inside a running job. Nothing but `drop` changes anything.
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

impl Cli {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// What is wrong with it, or the help that it asks for.
    pub fn read<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, clap::Error> {
        Self::try_parse_from(words)
    }
}

/// Output for people or programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns.
    Table,
    /// One JSON value a line.
    Json,
}

/// What to do.
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
    /// A live screen: schedule, tasks, columns, sessions, waits. q ends it.
    Top {
        /// Seconds between two looks.
        #[arg(long, default_value_t = 1.0, value_parser = seconds)]
        every: f64,
    },
    /// Everything about one row: who wrote what, who has to, who holds it, what became of it.
    Why {
        /// Name of the partition (without it the trained one, or the only one with samples), then the row's id.
        #[arg(num_args = 1..=2, required = true, value_names = ["PARTITION", "ROW"])]
        row: Vec<String>,
    },
    /// Check folder, disk, socket, event log and named states, and say what holds the run up. Exit code 1 when a check
    /// failed.
    Doctor {
        /// Seconds that a worker may show no progress, and the run no movement, before that is worth a warning.
        #[arg(long, default_value_t = 15.0, value_parser = seconds)]
        patience: f64,
        /// Read every byte of the event log and the named states, however long that takes.
        #[arg(long)]
        deep: bool,
    },
    /// Drop rows for good. Without --yes: say which, and exit with code 2.
    Drop {
        /// Name of the partition.
        partition: String,
        /// Row ids and ranges, such as 5,7-9.
        rows: String,
        /// One word in lower case, kept in the ledger and the event log.
        #[arg(long)]
        reason: String,
        /// Do it.
        #[arg(long)]
        yes: bool,
    },
    /// Numbers in Prometheus' text format, once or over HTTP.
    Metrics {
        /// Serve them at this address until the program is ended.
        #[arg(long, value_name = "ADDRESS:PORT")]
        listen: Option<SocketAddr>,
        /// Allow an address that other machines reach. Nothing is encrypted, and nobody is asked who they are.
        #[arg(long, requires = "listen")]
        insecure: bool,
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
    /// Workers: seen how long ago, their leases and rows.
    Sessions,
    /// Live weight versions.
    Versions,
    /// Bytes by state: live, dead in their chunk, pinned, open, freed.
    Units,
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
            Self::Units => Request::Units,
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
