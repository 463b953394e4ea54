//! Ctrl-C, SIGTERM and SIGHUP: the first asks the run to stop after the step in progress, the second ends it at once.

use std::{
    process,
    sync::{
        Mutex, Once,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::exit;

static REQUESTED: AtomicBool = AtomicBool::new(false);
static INSTALL: Once = Once::new();
static WATCHER: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Whether the user asked to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Calls `then` once when the user asks to stop; replaces the one before.
pub(crate) fn watch(then: impl Fn() + Send + 'static) {
    *WATCHER.lock().unwrap_or_else(|e| e.into_inner()) = Some(Box::new(then));
    INSTALL.call_once(|| {
        let installed = ctrlc::set_handler(|| {
            if REQUESTED.swap(true, Ordering::SeqCst) {
                process::exit(i32::from(exit::INTERRUPTED));
            }
            if let Some(then) = WATCHER.lock().unwrap_or_else(|e| e.into_inner()).as_ref() {
                then();
            }
        });
        if let Err(error) = installed {
            tracing::warn!("Ctrl-C will end the run at once: {error}");
        }
    });
}
