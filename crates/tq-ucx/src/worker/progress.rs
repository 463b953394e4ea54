//! The thread of a worker: does what it is asked and moves bytes; sleeps when there is nothing of either.

use std::hint;

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use super::{
    core::Core,
    line::{Command, Line},
};
use crate::Error;

/// Rounds in which nothing moves before it sleeps: a few microseconds, within which a small answer usually comes.
const ROUNDS: u32 = 200;

pub(super) fn run(mut core: Core, line: &Line) {
    if let Err(error) = turn(&mut core, line) {
        tracing::error!(%error, "a UCX worker ends");
    }
    core.end();
    line.end();
}

/// Until it is told to stop.
fn turn(core: &mut Core, line: &Line) -> Result<(), Error> {
    let mut idle = 0;
    loop {
        let commands = line.take();
        idle = if commands.is_empty() { idle + 1 } else { 0 };
        for command in commands {
            match command {
                Command::Start(request) => core.start(request),
                Command::Cancel(number) => core.cancel(number),
                Command::Forget(key) => core.forget(key),
                Command::Close { number, endpoint } => core.close(number, endpoint),
                Command::Stop => return Ok(()),
            }
        }
        if core.progress() {
            idle = 0;
        } else if idle < ROUNDS {
            hint::spin_loop();
        } else if core.arm()? {
            sleep(core, line)?;
            line.hush();
        }
    }
}

/// Until bytes have come or something was asked. (What was asked since the line was looked at last has made it readable.)
fn sleep(core: &Core, line: &Line) -> Result<(), Error> {
    let mut fds = [PollFd::new(core, PollFlags::IN), PollFd::from_borrowed_fd(line.fd(), PollFlags::IN)];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::system("waiting for UCX's events", error)),
    }
}
