//! RDMA verbs, safely: one-sided reads over reliable connections.
//!
//! A [`Listener`] invites guests, each with a [`Ticket`] that goes to another process by any other way. There
//! [`Connection::connect`] comes with it. What the listener's side shares with its [`Guest`] is read by whoever has the [`Key`], over
//! that guest's connection and over no other.
//!
#![cfg_attr(feature = "verbs", doc = "```no_run")]
#![cfg_attr(not(feature = "verbs"), doc = "```ignore")]
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use tq_verbs::{Connection, Listener, Read};
//!
//! let soon = || Instant::now() + Duration::from_secs(10);
//! let listener = Listener::start("10.9.0.1:0".parse().unwrap())?;
//! let ticket = [7; 16]; // drawn at random
//! let guest = listener.invite(ticket)?;
//!
//! // The other process:
//! let mut connection = Connection::connect(listener.address(), None, &ticket, soon())?;
//!
//! let key = guest.share(Arc::new(vec![7u8; 4096]))?;
//! let mut bytes = [0; 4];
//! connection.read(&mut [Read { key, at: 96, into: &mut bytes }], soon())?;
//! assert_eq!(bytes, [7; 4]);
//! # Ok::<(), tq_verbs::Error>(())
//! ```
//!
//! # What holds
//! - A read ends well, or with the reason for which the peer is gone, or at its deadline. It borrows its buffers: the device has
//!   let go of them when it returns, however it ends.
//! - A read that fails takes its connection with it (that is so in the hardware); connect again, with another ticket.
//! - Each guest has a protection domain of its own. A key opens nothing over another guest's connection.
//! - A guest's keys end when it is dropped, when its process ends, when it disconnects, or when they are revoked. A read that comes
//!   after that is [`Error::NotShared`] or [`Error::PeerGone`], and never the bytes.
//!
//! # What it is not
//! Encryption: whoever sees the network sees tickets and bytes. And it says nothing of *when* bytes may change: who shares memory and
//! uses it again must hear from its readers that they are done.
#![cfg(feature = "verbs")]

mod connection;
mod error;
mod events;
mod key;
mod listener;
mod memory;
mod queue;

pub use connection::{Connection, Read};
pub use error::Error;
pub use key::{Key, Ticket};
pub use listener::{Guest, Listener};
pub use memory::Region;
