//! The folder: there, writable, with space; its named states complete.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use rustix::fs::{Access, access, statvfs};
use transferqueue::{Manifest, inspect::bytes};

use super::Check;
use crate::folder;

/// With less than this the next named state, or the next event, cannot be counted on.
const SCARCE: u64 = 64 << 20;
/// With less than this a person should know.
const LITTLE: u64 = 1 << 30;

pub(super) fn checks(run: &Path, deep: bool) -> Vec<Check> {
    if !run.is_dir() {
        let found = format!("{} is no folder", run.display());
        return vec![Check::failed(
            "folder",
            found,
            "give the run's folder with --run: runs/<trainer.experiment_name>",
        )];
    }
    let (states, largest) = states(run, deep);
    vec![folder(run), disk(run, largest), states]
}

fn folder(run: &Path) -> Check {
    match access(run, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Check::ok("folder", format!("{} is there and writable", run.display())),
        Err(error) => Check::failed(
            "folder",
            format!("{}: {error}", run.display()),
            "give the user that runs the job the right to write there",
        ),
    }
}

/// `state`: bytes of the largest named state.
fn disk(run: &Path, state: u64) -> Check {
    match statvfs(run) {
        Ok(found) => space(found.f_bavail.saturating_mul(found.f_frsize), state),
        Err(error) => {
            Check::failed("disk", format!("{}: {error}", run.display()), "look at the file system's own tools")
        }
    }
}

pub(super) fn space(free: u64, state: u64) -> Check {
    let needed = if state > 0 { format!("; a named state takes {}", bytes(state)) } else { String::new() };
    let found = format!("{} free{needed}", bytes(free));
    let advice = "make room: a run that cannot write its events stops";
    match free {
        _ if free < SCARCE.max(state) => Check::failed("disk", found, advice),
        _ if free < LITTLE.max(3 * state) => Check::warning("disk", found, advice),
        _ => Check::ok("disk", found),
    }
}

/// Whether every named state is complete, and the bytes of the largest.
fn states(run: &Path, deep: bool) -> (Check, u64) {
    let (mut whole, mut largest, mut wrong) = (0, 0, Vec::new());
    for path in folder::phases(run).iter().flat_map(folder::Phase::states) {
        match complete(&path, deep) {
            Ok(bytes) => (whole, largest) = (whole + 1, u64::max(largest, bytes)),
            // A run takes old states away while it names new ones.
            Err(_) if !path.exists() => {}
            Err(found) => wrong.push(found),
        }
    }
    let read = if deep { ", every checksum holds" } else { "" };
    let check = match (wrong.as_slice(), whole) {
        ([], 0) => Check::ok("states", "no named state yet"),
        ([], _) => Check::ok("states", format!("{whole} named states are complete{read}")),
        ([first, ..], _) => Check::failed(
            "states",
            format!("{} of {} named states are damaged: {first}", wrong.len(), whole + wrong.len()),
            "delete that folder: tq-run --resume then goes on from the one before",
        ),
    };
    (check, largest)
}

/// The bytes of a state whose files are all there, or what is wrong with it.
fn complete(path: &Path, deep: bool) -> Result<u64, String> {
    let manifest = Manifest::load(path).map_err(|error| error.to_string())?;
    for entry in &manifest.files {
        let file = path.join(&entry.name);
        let found = fs::metadata(&file).map_err(|error| format!("{}: {error}", file.display()))?.len();
        if found != entry.bytes {
            return Err(format!("{} has {found} bytes, expected {}", file.display(), entry.bytes));
        }
        if deep {
            let crc = checksum(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            if crc != entry.crc32 {
                return Err(format!("{} has checksum {crc:08x}, expected {:08x}", file.display(), entry.crc32));
            }
        }
    }
    Ok(manifest.files.iter().map(|entry| entry.bytes).sum())
}

fn checksum(path: &Path) -> io::Result<u32> {
    let (mut file, mut crc, mut buffer) = (File::open(path)?, crc32fast::Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(crc.finalize()),
            read => crc.update(&buffer[..read]),
        }
    }
}
