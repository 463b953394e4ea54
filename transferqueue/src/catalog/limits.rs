//! Limits that hold for every catalog.

/// A session that shows no life for this long is lost.
pub const SESSION_TIMEOUT_MS: u64 = 30_000;
/// Signs of life are recorded at most this often, so a session is lost between `SESSION_TIMEOUT_MS − SEEN_EVERY_MS` and
/// `SESSION_TIMEOUT_MS` after its last call.
pub const SEEN_EVERY_MS: u64 = 1_000;
/// A gap between two calls beyond this is a jump of the clock (or a stopped process), not time that workers had.
pub const CLOCK_JUMP_MS: u64 = 10_000;
/// A step backwards up to this is two threads reading the clock in the other order, and is ignored.
pub const CLOCK_SLACK_MS: u64 = 1_000;
/// Replies of a session kept for retries.
pub const KEPT_REPLIES: usize = 8;
/// Columns of one partition: their bits fit one word per row.
pub const MAX_COLUMNS: usize = 64;
/// Tasks of one partition: their bits fit one word per row.
pub const MAX_TASKS: usize = 64;
/// Ranks of one gang.
pub const MAX_RANKS: u32 = 1_024;
/// A balanced claim looks at this many times the rows it takes.
pub const BALANCE_WINDOW: u64 = 4;
/// Causes named in a wait.
pub const MAX_CAUSES: usize = 6;
