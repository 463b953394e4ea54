//! `why`: one row, from the running store, the event log and the audit.

use std::{io::Write, path::Path};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use transferqueue::{
    Definition, RowId,
    audit::{self, Line},
    inspect::{
        self, Client, Reply, Request, Status, Why,
        history::{self, History},
    },
};

use crate::{
    Cli, Format, find,
    folder::{self, Phase},
    views::another_version,
};

/// All that is known of a row.
#[derive(Serialize)]
struct Answer {
    /// What the running store says; none when no job runs.
    live: Option<Why>,
    /// What the event log says; none without the run's folder.
    history: Option<History>,
    /// The training steps that used it.
    trained: Vec<Line>,
}

pub(crate) fn run(cli: &Cli, words: &[String], out: &mut dyn Write, notes: &mut dyn Write) -> Result<()> {
    let (partition, row) = match words {
        [row] => (None, row),
        [partition, row] => (Some(partition.as_str()), row),
        _ => bail!("expected PARTITION ROW, or ROW"),
    };
    let Ok(row) = row.parse().map(RowId) else {
        bail!("`{row}` is no row; expected its id, such as 17 (tq-cli peek PARTITION lists some)");
    };
    let socket = find::socket(cli, notes)?;
    let folder = find::folder(cli, &socket);
    let answer = match (Client::connect(&socket), &folder) {
        (Ok(mut client), _) => running(&mut client, partition, row, folder.as_deref(), notes)?,
        (Err(_), Some(folder)) if folder.is_dir() => {
            writeln!(notes, "no job answers at {}; this is from its files", socket.display())?;
            ended(folder, partition, row)?
        }
        (Err(error), _) => return Err(error).with_context(|| format!("no job answers at {}", socket.display())),
    };
    match cli.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string(&answer)?)?,
        Format::Table => write!(out, "{}", text(&answer))?,
    }
    Ok(())
}

fn running(
    client: &mut Client,
    partition: Option<&str>,
    row: RowId,
    folder: Option<&Path>,
    notes: &mut dyn Write,
) -> Result<Answer> {
    let request = Request::Why { partition: partition.map(str::to_owned), row: row.0 };
    let (Reply::Why(why), Reply::Status(status)) = (client.get(&request)?, client.get(&Request::Status)?) else {
        return Err(another_version());
    };
    let phase = folder.and_then(|folder| folder::phase_of(folder, first_life(&status)));
    let mut answer = match &phase {
        Some(phase) => written(phase, phase.definition().map(|(_, definition)| definition), &why.partition, row)?,
        None => {
            writeln!(notes, "the run's event log is not found: give its folder with --run to see the row's history")?;
            Answer { live: None, history: None, trained: Vec::new() }
        }
    };
    answer.live = Some(*why);
    Ok(answer)
}

/// The incarnation that the catalog's log begins with; each restore adds one.
pub(crate) fn first_life(status: &Status) -> u64 {
    status.incarnation.wrapping_sub(status.lineage)
}

fn ended(folder: &Path, partition: Option<&str>, row: RowId) -> Result<Answer> {
    let phase = folder::phases(folder).into_iter().find(|phase| phase.events().is_dir());
    let Some(phase) = phase else { bail!("`{}` holds no event log, and no job answers", folder.display()) };
    let definition = phase.definition().map(|(_, definition)| definition);
    let partition = match (partition, &definition) {
        (Some(partition), _) => partition.to_owned(),
        (None, Some(definition)) => inspect::samples(definition)?.to_owned(),
        (None, None) => bail!("the event log begins with a restored state: give the partition's name"),
    };
    let answer = written(&phase, definition, &partition, row)?;
    if answer.history.as_ref().is_none_or(|history| history.happenings.is_empty()) {
        bail!("the event log in `{}` knows no row {row} of `{partition}`", phase.events().display());
    }
    Ok(answer)
}

/// What the files of a phase say.
fn written(phase: &Phase, definition: Option<Definition>, partition: &str, row: RowId) -> Result<Answer> {
    let history = history::read(&phase.events(), partition, row).context("the row's history")?;
    let schedule = definition.and_then(|definition| definition.schedule);
    let is_trained = schedule.is_some_and(|schedule| schedule.partition == partition);
    let lines = match is_trained && phase.audit().exists() {
        true => audit::surviving(&phase.audit())?,
        false => Vec::new(),
    };
    let trained = lines.into_iter().filter(|line| line.row == row).collect();
    Ok(Answer { live: None, history: Some(history), trained })
}

fn text(answer: &Answer) -> String {
    let mut text = answer.live.clone().map_or_else(String::new, |why| Reply::Why(Box::new(why)).table());
    for line in &answer.trained {
        let (first, last) = (line.versions.first, line.versions.last);
        text.push_str(&format!(
            "trained    step {}: `{}` used it at version {}, tokens of versions {first} to {last}, lag {}\n",
            line.step, line.task, line.version, line.lag
        ));
    }
    if let Some(history) = &answer.history {
        if !text.is_empty() {
            text.push('\n');
        }
        let rows = history.happenings.iter().map(|h| {
            let life = if h.lineage > 0 { format!(" (life {})", h.lineage) } else { String::new() };
            [h.seq.to_string(), format!("{}{life}", inspect::seconds(h.at_ms)), h.what.clone()]
        });
        text.push_str(&inspect::grid(&["event", "at", "what happened"], rows));
        if history.more > 0 {
            text.push_str(&format!("and {} events more\n", history.more));
        }
    }
    text
}
