//! UCX, safely: one-sided reads and messages between processes, over whatever UCX speaks.
//!
//! A [`Context`] says which transports may be used. A [`Worker`] has a thread that moves bytes and sleeps while there is
//! nothing to do; its [`Address`] goes to other processes by any other way. [`Worker::connect`] gives an [`Endpoint`] there:
//! it sends and receives messages by tag, and it opens the key of a [`Memory`] that the other side has shared, to read from
//! it one-sidedly.
//!
#![cfg_attr(feature = "ucx", doc = "```")]
#![cfg_attr(not(feature = "ucx"), doc = "```ignore")]
//! use std::time::{Duration, Instant};
//! use tq_ucx::{Context, Memory, Options, Space, Transport, Worker};
//!
//! let context = Context::new(&Options::over([Transport::Shm]))?;
//! let (near, far) = (Worker::start(&context)?, Worker::start(&context)?);
//! let memory = Memory::share(&context, vec![7u8; 4096])?;
//!
//! let soon = || Instant::now() + Duration::from_secs(10);
//! let endpoint = near.connect(far.address()).wait(soon())?;
//! let remote = endpoint.open(&memory.key()).wait(soon())?;
//! let read = remote.get(96, Space::new(4)).wait(soon())?;
//! assert_eq!(&read[..], [7; 4]);
//! # Ok::<(), tq_ucx::Error>(())
//! ```
//!
//! # What holds
//! - A request owns its buffer until UCX is done with it, whether anybody waits for it or not.
//! - Whatever is asked of an endpoint ends: well, with the reason for which the peer is gone, or at the caller's deadline.
//! - Handles may be dropped in any order. A worker that ends takes its endpoints with it; they answer [`Error::Ended`] then.
//! - Every call into UCX on behalf of a worker is made by its thread.
//!
//! # What it is not
//! UCX itself trusts its peers: a process that can reach a worker of a context with [`Options::one_sided`] can read and write
//! *any* memory of this one where the transport has UCX emulate one-sided access (TCP). So one-sided access is for peers that
//! could do that anyway (processes of the same user, over shared memory), and contexts that others can reach have messages
//! alone: both TCP and one-sided access are refused without [`Options::insecure`]. An [`Address`] and a [`Key`] are to be taken
//! from connections that are trusted already.
//!
//! Connect both ways where both sides live long: a worker keeps its half of a connection that only the other side has made until
//! that side closes it.
//!
//! The environment (`UCX_*`) still applies to what [`Options`] do not name. UCX prints nothing unless `UCX_LOG_LEVEL` asks for it.
#![cfg(feature = "ucx")]

mod buffer;
mod context;
mod envelope;
mod error;
mod memory;
mod options;
mod raw;
mod request;
mod worker;

pub use buffer::{Filled, Space};
pub use context::Context;
pub use envelope::{Address, Key};
pub use error::Error;
pub use memory::{Memory, Region};
pub use options::{Options, Transport};
pub use request::Pending;
pub use worker::{Endpoint, RemoteKey, Worker};
