//! Cells of the store to memory of a CUDA device and back, at the speed of pinned memory.
//!
//! Cells that are read without a copy lie in a segment of the store that this process has mapped. The first copy from or to a
//! segment registers it with CUDA, once for all of its cells; the device then reads and writes it by itself, and between the store
//! and the device no byte passes through other memory. A registration goes before its segment does.
//!
//! ```no_run
//! use std::time::{Duration, Instant};
//! use tq_cuda::Device;
//! use transferqueue::{Outputs, Session, transport::Lens};
//!
//! # fn example(session: &Session) -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open(0)?;
//! let soon = || Instant::now() + Duration::from_secs(60);
//! let lease = session.claim("square", 64, soon())?.lease().expect("rows");
//!
//! // The numbers, from where they lie in the store to the device.
//! let numbers = device.upload(lease.batch()?.views("number")?)?.wait(soon())?;
//! // … something is computed there …
//! let squares = numbers;
//! // And back to where they are to lie.
//! let room = lease.reserve("square", Lens::Equal(64))?;
//! let (_, room) = device.download(squares, room)?.wait(soon())?;
//! lease.commit(Outputs::new().room("square", room))?;
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//! - A copy owns what it reads and writes until it is done, whether anybody waits for it or not.
//! - Copies run on streams of their own, one for each direction, beside whatever else the device does. Before one begins, what was
//!   given to the device's legacy default stream (where libtorch computes unless told otherwise) is done; work on other streams
//!   the caller waits for.
//! - The device's primary context is used, as libtorch does: addresses of one are those of the other.
//! - Whatever cannot be registered, or lies outside of any segment (on the heap, received over the network), is copied through
//!   the driver's own memory, at a fraction of the speed: [`Device::traffic`] says how often, a warning says why.
//!
//! CUDA's library is looked for at run time. Where there is none, or no device, [`Device::open`] says what is missing, and nothing
//! else of this crate can be reached.

mod context;
mod copies;
mod device;
mod error;
mod memory;
mod pending;
mod pins;

pub use copies::{Traffic, Ways};
pub use device::Device;
pub use error::Error;
pub use memory::{Memory, Pinned, Region};
pub use pending::Pending;
