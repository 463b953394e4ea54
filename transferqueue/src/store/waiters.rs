//! Who waits for what. A waiter registers first and asks afterwards: whatever happens in between wakes it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use event_listener::{Event, EventListener};

use crate::catalog::{Wake, command::Command};

#[derive(Default)]
pub(super) struct Waiters {
    events: Mutex<HashMap<Wake, Arc<Event>>>,
    /// Woken together with the waiters of any task: a worker that serves several waits here.
    tasks: Event,
    /// Ranks that have come to a round of their gang.
    gangs: Event,
}

impl Waiters {
    /// Registers a waiter for what a command waits for; `None` for one that never waits.
    pub(super) fn listen(&self, command: &Command) -> Option<EventListener> {
        let wake = match command {
            Command::ClaimAny { .. } => return Some(self.tasks.listen()),
            Command::Claim { task, .. } => Wake::Task(*task),
            Command::Put { partition, .. } => Wake::Put(*partition),
            Command::Pin { model, .. } | Command::Offer { model, .. } => Wake::Version(*model),
            _ => return None,
        };
        let mut events = self.events.lock().expect("invariant: nothing panics under this lock");
        Some(events.entry(wake).or_default().listen())
    }

    /// Whether a command may have to wait.
    pub(super) fn may_wait(command: &Command) -> bool {
        matches!(
            command,
            Command::Claim { .. }
                | Command::ClaimAny { .. }
                | Command::Put { .. }
                | Command::Pin { .. }
                | Command::Offer { .. }
        )
    }

    /// Wakes everyone who waits for this: what one takes the others may not get, and ask again.
    pub(super) fn wake(&self, wake: Wake) {
        if wake == Wake::Stopped {
            return self.wake_all();
        }
        if matches!(wake, Wake::Task(_)) {
            self.tasks.notify(usize::MAX);
        }
        let events = self.events.lock().expect("invariant: nothing panics under this lock");
        if let Some(event) = events.get(&wake) {
            event.notify(usize::MAX);
        }
    }

    /// Registers a rank that has come to a round.
    pub(super) fn listen_gangs(&self) -> EventListener {
        self.gangs.listen()
    }

    /// Wakes every rank that waits in a round.
    pub(super) fn wake_gangs(&self) {
        self.gangs.notify(usize::MAX);
    }

    /// Wakes everyone.
    pub(super) fn wake_all(&self) {
        let events = self.events.lock().expect("invariant: nothing panics under this lock");
        for event in events.values() {
            event.notify(usize::MAX);
        }
        self.tasks.notify(usize::MAX);
        self.wake_gangs();
    }
}
