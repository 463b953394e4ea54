//! Store time: milliseconds since this life of the store began.

use std::time::Instant;

use crate::ids::Millis;

#[derive(Clone, Copy)]
pub(super) struct Clock {
    began: Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { began: Instant::now() }
    }

    pub(super) fn now(&self) -> Millis {
        Millis(self.began.elapsed().as_millis() as u64)
    }
}
