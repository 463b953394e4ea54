//! Store time: milliseconds since this life of the store began.

#[cfg(any(test, feature = "fuzzing"))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Instant;

use crate::ids::Millis;

#[derive(Clone)]
pub(crate) enum Clock {
    Running(Instant),
    /// Time as a simulation says.
    #[cfg(any(test, feature = "fuzzing"))]
    Set(Arc<AtomicU64>),
}

impl Clock {
    pub(super) fn start() -> Self {
        Self::Running(Instant::now())
    }

    pub(super) fn now(&self) -> Millis {
        match self {
            Self::Running(began) => Millis(began.elapsed().as_millis() as u64),
            #[cfg(any(test, feature = "fuzzing"))]
            Self::Set(now) => Millis(now.load(Ordering::SeqCst)),
        }
    }
}
