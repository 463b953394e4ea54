//! The one runtime of this process that carries clients.

use std::{future::Future, sync::OnceLock};

use tokio::runtime::{Builder, Runtime};

pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let built = Builder::new_multi_thread().worker_threads(2).thread_name("tq-client").enable_all().build();
        built.expect("invariant: the process can start threads")
    })
}

/// Runs a future on the calling thread; connections are driven by the runtime's own.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    runtime().block_on(future)
}
