//! Memory that bytes are received into: aligned, and used again, so that its pages are there.
//!
//! A page costs far more when it is touched for the first time than a copy into it does (`docs/performance.md`). Blocks come
//! back when the last view of them is gone. At most [`KEPT`] bytes wait here for the next message, and none for longer than [`IDLE`].

use std::{
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::{Duration, Instant},
};

use arrow::buffer::MutableBuffer;
use bytes::Bytes;

use crate::client::runtime::runtime;

/// Smaller blocks are the allocator's business, which keeps pages of that size itself.
const POOLED: usize = 64 << 10;
/// Bytes that wait at most.
const KEPT: usize = 256 << 20;
/// How long they wait at most.
const IDLE: Duration = Duration::from_secs(10);

/// Blocks that nobody uses; clones share them.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shelf>);

struct Shelf {
    kept: usize,
    idle: Duration,
    state: Mutex<State>,
}

/// The oldest first.
#[derive(Default)]
struct State {
    blocks: Vec<(Instant, MutableBuffer)>,
    /// Whether somebody will come and look.
    watched: bool,
}

impl State {
    fn bytes(&self) -> usize {
        self.blocks.iter().map(|(_, memory)| memory.len()).sum()
    }
}

/// Memory for the body of one message. It begins on 64 bytes.
pub(crate) struct Block {
    memory: MutableBuffer,
    len: usize,
    from: Weak<Shelf>,
}

impl Default for Pool {
    fn default() -> Self {
        Self::keeping(KEPT, IDLE)
    }
}

impl Pool {
    fn keeping(kept: usize, idle: Duration) -> Self {
        Self(Arc::new(Shelf { kept, idle, state: Mutex::default() }))
    }

    /// A block of so many bytes; what they are is to be overwritten.
    pub(crate) fn take(&self, len: usize) -> Block {
        let (memory, from) = match len {
            ..POOLED => return Block::alone(len),
            _ => {
                let fresh = || MutableBuffer::from_len_zeroed(rounded(len));
                (self.0.find(len).unwrap_or_else(fresh), Arc::downgrade(&self.0))
            }
        };
        Block { memory, len, from }
    }
}

/// Up to an eighth more, so that messages of about one size use each other's blocks.
fn rounded(len: usize) -> usize {
    len.next_multiple_of((len.next_power_of_two() / 8).max(1))
}

impl Shelf {
    /// The smallest block that is large enough, and at most twice as large as it need be.
    fn find(&self, len: usize) -> Option<MutableBuffer> {
        let mut state = self.lock();
        let fits = |memory: &MutableBuffer| (len..=2 * len).contains(&memory.len());
        let sizes = state.blocks.iter().enumerate().filter(|(_, (_, memory))| fits(memory));
        // Of equal ones the last: it is the warmest, and the others may go.
        let (at, _) = sizes.rev().min_by_key(|(_, (_, memory))| memory.len())?;
        Some(state.blocks.remove(at).1)
    }

    fn give(self: &Arc<Self>, memory: MutableBuffer) {
        let mut state = self.lock();
        state.blocks.push((Instant::now(), memory));
        let mut over = state.bytes().saturating_sub(self.kept);
        let gone = state.blocks.iter().take_while(|(_, memory)| {
            let goes = over > 0;
            over = over.saturating_sub(memory.len());
            goes
        });
        let gone = gone.count();
        let gone: Vec<_> = state.blocks.drain(..gone).collect();
        let watched = std::mem::replace(&mut state.watched, true);
        drop(state);
        // Not under the lock: the kernel takes its time.
        drop(gone);
        if !watched {
            runtime().spawn(watch(Arc::downgrade(self), self.idle));
        }
    }

    /// Lets go of what has waited long enough; whether anything is left to wait for.
    fn shrink(&self) -> bool {
        let mut state = self.lock();
        let gone = state.blocks.partition_point(|(since, _)| since.elapsed() >= self.idle);
        let gone: Vec<_> = state.blocks.drain(..gone).collect();
        state.watched = !state.blocks.is_empty();
        let watched = state.watched;
        drop(state);
        drop(gone);
        watched
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }
}

/// Looks from time to time, until there is nothing left, or no pool.
async fn watch(shelf: Weak<Shelf>, idle: Duration) {
    loop {
        tokio::time::sleep(idle / 2).await;
        if !shelf.upgrade().is_some_and(|shelf| shelf.shrink()) {
            return;
        }
    }
}

impl Block {
    /// Of no pool.
    pub(crate) fn alone(len: usize) -> Self {
        Self { memory: MutableBuffer::from_len_zeroed(len), len, from: Weak::new() }
    }

    /// To be filled.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.as_slice_mut()[..self.len]
    }

    /// Filled; the block goes back to its pool with the last clone and slice of these bytes.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes()
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.memory.as_slice()[..self.len]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(shelf) = self.from.upgrade() {
            shelf.give(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// How many blocks wait, and how many bytes.
    fn waiting(pool: &Pool) -> (usize, usize) {
        let state = pool.0.lock();
        (state.blocks.len(), state.bytes())
    }

    #[test]
    fn a_block_is_used_again_once_its_last_view_is_gone() {
        let pool = Pool::default();
        let mut block = pool.take(MIB);
        block.bytes().fill(7);
        let (start, bytes) = (block.as_ref().as_ptr(), block.freeze());
        assert!(bytes.iter().all(|byte| *byte == 7) && start.align_offset(64) == 0);
        let view = bytes.slice(5..6);
        drop(bytes);
        assert_eq!(waiting(&pool), (0, 0));
        drop(view);
        assert_eq!(waiting(&pool), (1, MIB));
        let again = pool.take(MIB - 1000);
        assert_eq!((again.as_ref().as_ptr(), again.as_ref().len(), waiting(&pool)), (start, MIB - 1000, (0, 0)));
        drop(again);
        assert_ne!(pool.take(MIB / 2 - 1).as_ref().as_ptr(), start, "more than half of it would lie idle");
        drop(pool.take(POOLED - 1));
        assert_eq!(waiting(&pool).0, 2, "small ones do not come here");
    }

    #[test]
    fn what_waits_is_bounded_and_the_oldest_go_first() {
        let pool = Pool::keeping(3 * MIB, IDLE);
        let blocks: Vec<Block> = [1, 2, 1, 1].map(|size| pool.take(size * MIB)).into();
        drop(blocks);
        assert_eq!(waiting(&pool), (2, 2 * MIB));
        drop(pool.take(4 * MIB));
        assert_eq!(waiting(&pool), (0, 0));
    }

    #[test]
    fn pages_go_back_when_nothing_comes() {
        let pool = Pool::keeping(KEPT, Duration::from_millis(20));
        drop([pool.take(MIB), pool.take(MIB)]);
        let until = Instant::now() + Duration::from_secs(60);
        while waiting(&pool).0 > 0 {
            assert!(Instant::now() < until, "two blocks wait for 60 s instead of 20 ms");
            std::thread::yield_now();
        }
        drop(pool.take(MIB));
        assert_eq!(waiting(&pool).0, 1, "it goes on");
    }

    #[test]
    fn blocks_outlive_their_pool() {
        let pool = Pool::default();
        let mut block = pool.take(MIB);
        block.bytes().fill(9);
        drop(pool);
        assert!(block.freeze().iter().all(|byte| *byte == 9));
    }
}
