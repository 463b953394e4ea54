//! What is under way, by the time when it arrives.

use std::collections::BTreeMap;

use arrow::array::ArrayRef;

use super::random::Random;
use crate::{
    catalog::command::{Reply, Request},
    error::Error,
    store::held::Spot,
    wire,
};

/// A request, as a client sends it.
#[derive(Clone)]
pub(super) enum Body {
    Call { request: Request, attempt: u64, along: Vec<wire::Along> },
    Put { put: wire::Put, array: ArrayRef },
}

/// Cells that nobody will name.
#[derive(Clone, Default)]
pub(super) struct Unwanted {
    pub(super) spots: Vec<Spot>,
    pub(super) puts: Vec<u64>,
}

/// What came of it.
#[derive(Clone)]
pub(super) enum Heard {
    Reply(Reply),
    Later,
    Placed(wire::Placed),
    /// The error's words and what it is, since errors are not copied.
    Failed(wire::Failure),
}

impl Heard {
    pub(super) fn of(error: &Error) -> Self {
        Self::Failed(wire::Failure::of(error))
    }
}

#[derive(Clone)]
pub(super) enum Arrival {
    Request {
        worker: usize,
        call: u64,
        body: Body,
        unwanted: Unwanted,
    },
    Answer {
        worker: usize,
        call: u64,
        heard: Heard,
    },
    /// A worker looks at its own clock.
    Alarm {
        worker: usize,
        alarm: u64,
    },
    Tick,
}

#[derive(Default)]
pub(super) struct Network {
    queue: BTreeMap<(u64, u64), Arrival>,
    sent: u64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
}

impl Network {
    /// Something that happens at its time for certain.
    pub(super) fn at(&mut self, time: u64, arrival: Arrival) {
        self.sent += 1;
        self.queue.insert((time, self.sent), arrival);
    }

    /// Something that travels: with trouble it may be lost, come twice, or come much later than what was sent after it.
    pub(super) fn send(&mut self, now: u64, random: &mut Random, trouble: u64, arrival: Arrival) {
        if random.chance(trouble) {
            self.lost += 1;
            return;
        }
        let copies = if random.chance(trouble) { 2 } else { 1 };
        self.repeated += copies - 1;
        for _ in 0..copies {
            let delay = if random.chance(trouble) { random.range(100, 8_000) } else { random.range(1, 20) };
            self.at(now + delay, arrival.clone());
        }
    }

    /// The store's process has ended, and every connection with it: what is on its way, there or back, never arrives. (A
    /// client that has sent its call again over a new connection hears nothing from the old one.)
    pub(super) fn cut(&mut self) {
        let before = self.queue.len();
        self.queue.retain(|_, arrival| matches!(arrival, Arrival::Alarm { .. } | Arrival::Tick));
        self.lost += (before - self.queue.len()) as u64;
    }

    pub(super) fn next(&mut self) -> Option<(u64, Arrival)> {
        self.queue.pop_first().map(|((time, _), arrival)| (time, arrival))
    }
}
