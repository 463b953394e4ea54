//! Bytes in messages of Flight, without joining what is sent or cutting up what comes: the pieces of HTTP/2's bodies are the
//! memory that cells lie in, and they are copied once, to where they are to lie. Used by both ends.

pub(crate) mod incoming;
pub(crate) mod outgoing;
pub(crate) mod pool;
