//! The decoders of bytes from outside, each under the name of its fuzz target (`make fuzz`; `docs/fuzzing.md`). A target
//! takes any bytes; what is wrong with them must be an error, and never a panic, a hang, or memory that the bytes do not
//! account for. The tests of this module replay `fuzz/corpus` on every run of the suite.
//!
//! Checksums would keep a fuzzer out: where bytes carry one, the target sets it right first.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a target says what it finds by panicking")]

mod arena;
mod files;
mod frames;
mod neighbours;
#[cfg(test)]
mod seeds;
mod spills;
#[cfg(test)]
mod tests;
mod texts;
pub(crate) mod world;

use bytes::Bytes;
use futures::{FutureExt, stream};
use tonic::{body::Body, metadata::MetadataValue, service::Interceptor};

pub use self::{
    arena::arena,
    files::{log, snapshot},
    neighbours::neighbours,
    spills::spills,
    texts::{inspect, messages},
    world::actions,
};
use self::{frames::Frames, world::World};
use crate::{
    arrow_map,
    bulk::pool::Pool,
    client::flight,
    ids::Rows,
    ipc::Messages,
    link::Link,
    server::{gate::Gate, listing, reading, receiving, sending::Outgoing, writing},
    wire::INCARNATION,
};

/// A target: any bytes in, a panic for a finding.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: [(&str, Target); 12] = [
    ("messages", messages),
    ("actions", actions),
    ("tickets", tickets),
    ("puts", puts),
    ("gets", gets),
    ("answers", answers),
    ("neighbours", neighbours),
    ("log", log),
    ("snapshot", snapshot),
    ("spills", spills),
    ("inspect", inspect),
    ("arena", arena),
];

/// First bytes of puts of cells to their place.
const IN_PLACE: u8 = 32;
/// Messages sent for one ticket that are looked at.
const ANSWERS: usize = 64;

/// A ticket, or (behind a first byte of 1) the path of a descriptor: what comes back for it is a stream that a client
/// understands.
pub fn tickets(bytes: &[u8]) {
    let Some((&kind, rest)) = bytes.split_first() else { return };
    let world = World::of_columns(3);
    if kind == 1 {
        let path = String::from_utf8_lossy(rest).split('/').map(str::to_owned).collect();
        let descriptor = arrow_flight::FlightDescriptor::new_path(path);
        drop(listing::info(&world.service, &descriptor).and(listing::schema(&world.service, &descriptor)));
        return;
    }
    let Ok(selection) = reading::select(&world.service, rest) else { return };
    let pool = Pool::default();
    let (mut answer, mut messages) =
        (frames::incoming(Body::new(Outgoing::new(selection).unwrap())), Messages::default());
    for _ in 0..ANSWERS {
        let Ok(Some(message)) = answer.next(&pool).now_or_never().expect("nothing is waited for") else { return };
        messages.take(&message.header, &message.body).expect("the server sends what a client takes");
    }
}

/// A put: behind a first byte below [`IN_PLACE`] the bytes of one of cells to their place, otherwise the messages of the
/// stream of one of rows. Rows that were taken can be read, and cells that were taken go with their session.
pub fn puts(bytes: &[u8]) {
    let world = World::of_columns(0);
    if let Some((..IN_PLACE, rest)) = bytes.split_first() {
        drop(receiving::put(&world.service, frames::body(rest, 61)).now_or_never().expect("nothing waits"));
        world.verify();
        return;
    }
    let sent: Vec<_> = Frames::of(bytes).collect();
    drop(writing::put(&world.service, stream::iter(sent.into_iter().map(Ok))).now_or_never().expect("nothing waits"));
    let id = world.store.partition("all").unwrap();
    let columns = world.store.describe(id).unwrap();
    let rows = world.store.with_state(|state, _| state.rows(id)).unwrap().unwrap();
    for column in columns.columns.iter().filter(|_| !rows.is_empty()) {
        let some: Rows = rows.iter().take(1_000).collect();
        world.store.read(id, Some(&some), &[&column.name]).unwrap().gather().unwrap();
    }
    world.verify();
}

/// What a server answers a get of so many rows (the first byte) with: messages under their prefixes.
pub fn gets(bytes: &[u8]) {
    let Some((&rows, rest)) = bytes.split_first() else { return };
    let sent: Vec<u8> = Frames::of(rest).flat_map(|message| frames::prefixed(&message)).collect();
    answered(rows, frames::body(&sent, 61));
}

/// The bytes of such an answer, in pieces of a length (the second byte).
pub fn answers(bytes: &[u8]) {
    let Some((&[rows, piece], rest)) = bytes.split_first_chunk() else { return };
    answered(rows, frames::body(rest, piece.max(1).into()));
}

fn answered(rows: u8, body: Body) {
    let received = flight::received(frames::incoming(body), &Pool::default()).now_or_never().expect("nothing waits");
    let Ok((schema, arrays)) = received else { return };
    let column = schema.as_ref().and_then(|schema| arrow_map::column(schema.fields().first()?).ok());
    if let (Ok(arrays), Some(column)) = (flight::checked(schema, &arrays, rows.into()), column) {
        let whole = arrow_map::copy(&column, &arrays).unwrap();
        assert_eq!(whole.len(), usize::from(rows));
        drop(arrow_map::sizes(&column, &whole));
        assert_eq!(arrow_map::column(&arrow_map::field(&column).unwrap()).unwrap(), column);
    }
}

/// What a client sends before its message is read: the token and the incarnation.
fn gate(bytes: &[u8]) {
    let mut gate = Gate::new("right", 7, 1);
    for name in ["authorization", INCARNATION] {
        let Ok(value) = MetadataValue::try_from(Bytes::copy_from_slice(bytes)) else { return };
        let mut request = tonic::Request::new(());
        request.metadata_mut().insert(name, value);
        assert!(gate.call(request).is_err() || bytes == b"Bearer right");
    }
}
