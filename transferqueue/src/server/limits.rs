//! What a server takes. Each limit is named in the refusal of what goes beyond it.

use std::time::Duration;

/// Largest message, unless the options say otherwise: a weights part of 256 MiB and its envelope.
pub const MESSAGE_BYTES: usize = 320 << 20;
/// Connections, unless the options say otherwise. As many again are told so; beyond that they are closed unheard.
pub const CONNECTIONS: usize = 1024;
/// Streams of one connection at once: its waiting calls, gets and puts.
pub const STREAMS: u32 = 1024;
/// Bytes of the cells of one put: Arrow's 32-bit offsets end there.
pub const PUT_BYTES: usize = i32::MAX as usize;
/// Bytes of the puts that are under way at once; a put waits for its share before it is read.
pub const UNDER_WAY: usize = 4 << 30;
/// Longest wait of a put for its share.
pub const PUT_WAIT: Duration = Duration::from_secs(30);
/// Rows of one record batch of a stock client's put.
pub const PUT_ROWS: usize = 1 << 22;
/// Rows beyond the bytes of their columns: a batch without columns names any number of them in none.
pub const FREE_ROWS: usize = 1 << 12;
/// Bytes of cells that a session has put and no command has named yet. One put more is refused.
pub const HELD_BYTES: u64 = 8 << 30;
/// Bytes of the columns of a ticket with several: they are gathered side by side in memory.
pub const GATHER_BYTES: usize = 2 << 30;
/// Bytes of a session's, partition's or column's name.
pub const NAME_BYTES: usize = 256;
/// Sessions that live at once.
pub const SESSIONS: usize = 4096;
/// Tasks of one claim, and columns of one ticket or pointer.
pub const COLUMNS: usize = 64;
/// Runs of cells or rows in one ticket or pointer.
pub const RUNS: usize = 1 << 22;
/// Longest wait of one call before it is told to ask again.
pub const WAIT: Duration = Duration::from_secs(600);
/// Longest wait of a stock client's put for room in its partition.
pub const STOCK_WAIT: Duration = Duration::from_secs(60);
/// A connection that says nothing (one of the same host: that has not shown the token) for this long after it was accepted is closed.
pub const SILENCE: Duration = Duration::from_secs(10);
/// Bytes a stream and a connection may have under way: the standard 64 KiB cost a factor of 2 to 4.
pub const WINDOW: u32 = 64 << 20;
/// Largest HTTP/2 frame.
pub const FRAME: u32 = (1 << 24) - 1;
/// Bytes of one record batch on the wire (a single cell may be larger).
pub const BATCH_BYTES: usize = 8 << 20;
/// Gets through shared memory, or through UCX, that one reader has open.
pub const GRANTS: usize = 65_536;
/// Readers through UCX at once.
pub const READERS: usize = 4096;
/// A reader through UCX that cannot be reached within this is not let in.
pub const CONNECT: Duration = Duration::from_secs(5);
/// Messages that a reader through UCX asks for at once.
pub const SENDS: usize = 1024;
/// Messages that are on their way to one reader through UCX, whether it takes them or not.
pub const SENDING: usize = 65_536;
/// Bytes of what a process of the host says before it has shown the token.
pub const ENTER_BYTES: usize = 4 << 10;
/// Puts that one process of the host has reserved room for and not filled.
pub const ROOMS: usize = 1024;
/// Work over more bytes than these is done aside, so that others of its thread go on.
pub const ASIDE_BYTES: usize = 1 << 20;
/// After an accept that failed (no file descriptors left) the next one waits this long.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
