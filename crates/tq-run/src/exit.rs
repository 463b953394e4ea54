//! Exit codes of `tq-run`; `tq-run --help` prints them.

/// The run finished.
pub const FINISHED: u8 = 0;
/// The run failed; what was named before is kept and can be resumed.
pub const FAILED: u8 = 1;
/// Refused before anything started: arguments, pipeline or files.
pub const REFUSED: u8 = 2;
/// Stopped by Ctrl-C; the last line says which state is saved.
pub const INTERRUPTED: u8 = 130;
