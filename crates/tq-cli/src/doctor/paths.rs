//! The ways to the store of a running job, proved by reading from it.

use std::{fs, path::Path, time::Duration};

use transferqueue::{
    client::{self, Choice, Probe, Speed},
    inspect,
};

use super::Check;

const CHECK: &str = "paths";
/// How long a port may take to answer that is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// One check a way; one alone where no worker of another process can come in.
pub(super) fn checks(folder: &Path) -> Vec<Check> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (Some(url), Some(token)) = (read("url"), read("token")) else {
        return vec![Check::ok(CHECK, "the store serves no other process: bytes stay in its own")];
    };
    let options = client::Options { patience: PATIENCE, travel: PATIENCE, ..client::Options::default() };
    match client::probe(url.trim(), token.trim(), &options) {
        Ok(Some(probes)) => probes.into_iter().map(check).collect(),
        Ok(None) => vec![Check::ok(CHECK, "no cells lie in memory: nothing to read yet")],
        Err(error) => vec![Check::failed(
            CHECK,
            format!("nothing is read from the store at {}: {error}", url.trim()),
            "see whether its process has time to answer, and whether `url` and `token` are those of this run",
        )],
    }
}

fn check(Probe { way, outcome }: Probe) -> Check {
    match outcome {
        Ok(speed) => Check::ok(CHECK, said(way, &speed)),
        Err(why) if way == Choice::Shm => Check::warning(
            CHECK,
            format!("shm: {why}"),
            "workers of this host read over Flight instead, and copy: let them run as the store's user, in its network namespace",
        ),
        Err(why) => Check::failed(CHECK, format!("{way}: {why}"), "see the store's log"),
    }
}

fn said(way: Choice, speed: &Speed) -> String {
    let rate = |seconds: f64| speed.bytes as f64 / seconds.max(1e-9) / 1e9;
    let beside = match (speed.limit, way) {
        (Some(limit), Choice::Shm) => format!("; this host's memory is read at {:.2} GB/s", rate(limit)),
        (Some(limit), _) => format!("; a bare TCP connection over loopback: {:.2} GB/s", rate(limit)),
        (None, _) => String::new(),
    };
    let (read, column) = (inspect::bytes(speed.bytes), &speed.column);
    format!("{way}: {read} of `{column}` read at {:.2} GB/s{beside}", rate(speed.seconds))
}
