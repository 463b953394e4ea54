//! Puts to their place: every kind, what is wrong with what is announced, and what ends on the way.

use arrow::array::ArrayRef;
use bytes::Bytes;
use futures::FutureExt;
use http_body_util::BodyExt;

use super::*;
use crate::{
    fuzzing::world::{World, columns, values},
    ids::{ColumnId, PartitionId, RowId, Rows},
    store::{Options, Store},
    wire::{InPlace, Put},
};

/// Stores of every column, on the heap and in shared memory, whose session 1 may put cells.
fn worlds() -> [World; 2] {
    [World::of_columns(0), World::in_shared_memory(0)]
}

/// Three cells of every column.
fn encoded() -> Vec<(ColumnId, ArrayRef)> {
    let encoded = values(3).arrays("", &columns(), &Rows::run(RowId(0), 3)).unwrap();
    let encoded =
        encoded.into_iter().map(|(id, array)| (id, arrow_map::plain(&columns()[usize::from(id.0)], &array).unwrap()));
    encoded.collect()
}

fn of(column: ColumnId, number: u64) -> Put {
    Put { session: 1, partition: 0, column: column.0.into(), number, partial: false }
}

fn received(service: &Service, body: Body) -> Result<wire::Placed, Status> {
    put(service, body).now_or_never().expect("nothing waits")
}

fn whole(body: Body) -> Bytes {
    body.collect().now_or_never().expect("nothing waits").unwrap().to_bytes()
}

/// Bytes in pieces of a length.
fn body(bytes: &[u8], piece: usize) -> Body {
    outgoing::pieces_of(bytes.chunks(piece).map(Bytes::copy_from_slice).collect())
}

#[test]
fn cells_of_every_kind_lie_as_they_were_sent_in_pieces_of_any_length() {
    let (worlds, mut number) = (worlds(), 0);
    for (id, array) in &encoded() {
        for (world, piece) in worlds.iter().flat_map(|world| [1, 7, 64, 1 << 20].map(|piece| (world, piece))) {
            number += 1;
            let sent = whole(outgoing::put(of(*id, number), array).unwrap());
            let placed = received(&world.service, body(&sent, piece)).unwrap();
            let spot = placed.spot.unwrap();
            let run = crate::catalog::command::CellRun {
                chunk: crate::ids::ChunkId(spot.chunk),
                generation: 0,
                slot: spot.slot,
                len: 3,
            };
            let views = world.store.units().read(PartitionId(0), *id, &[run]).unwrap();
            let [view] = &views[..] else { panic!("{} views", views.len()) };
            assert_eq!(view.array().to_data(), array.to_data(), "column {id:?}, pieces of {piece}");
        }
    }
    worlds.iter().for_each(World::verify);
}

#[test]
fn what_ends_on_the_way_is_not_taken_and_its_room_is_free_again() {
    let world = World::in_shared_memory(0);
    let used = || -> usize { world.store.units().iter().map(|unit| unit.memory().unwrap().used as usize).sum() };
    let (id, array) = &encoded()[0];
    let sent = whole(outgoing::put(of(*id, 1), array).unwrap());
    for len in 0..sent.len() {
        let status = received(&world.service, body(&sent[..len], 7)).unwrap_err();
        assert!(["broke off", "without a message"].iter().any(|why| status.message().contains(why)), "{len}: {status}");
        assert_eq!((used(), world.store.units().stats().total().unsettled), (0, 0), "after {len} bytes");
    }
    received(&world.service, body(&sent, 7)).unwrap();
    assert!(used() > 0, "now it holds the cells");
}

#[test]
fn what_is_announced_wrongly_is_refused_by_what_is_wrong() {
    let worlds = worlds();
    let text = columns().iter().position(|column| column.kind == Kind::Utf8).unwrap();
    let id = ColumnId(text as u16);
    let said = |world: &World, announced: InPlace, bytes: &[u8]| {
        let descriptor = Some(FlightDescriptor::new_cmd(announced.encode_to_vec()));
        let mut message = BytesMut::new();
        let fields = arrow_flight::FlightData { flight_descriptor: descriptor, ..Default::default() };
        outgoing::head(&fields, bytes.len(), &mut message).unwrap();
        message.put_slice(bytes);
        received(&world.service, body(&message, 61)).unwrap_err().message().to_owned()
    };
    let right = InPlace { put: of(id, 1), rows: 1, offsets: 8, values: 2 };
    let cells = |offsets: [i32; 2], values: &[u8]| [&offsets.map(i32::to_le_bytes).concat(), values].concat();
    for (announced, bytes, why) in [
        (InPlace { values: 3, ..right }, cells([0, 2], b"ab"), "3 of values, and 10 in the message"),
        (InPlace { values: u64::MAX, ..right }, cells([0, 2], b"ab"), "put fewer rows"),
        (InPlace { values: 3 << 30, ..right }, cells([0, 2], b"ab"), "put fewer rows"),
        (right, cells([0, 3], b"ab"), "text"),
        (right, cells([2, 0], b"ab"), "text"),
        (right, cells([0, 2], &[0xff, 0xff]), "text"),
        (InPlace { rows: 2, ..right }, cells([0, 2], b"ab"), "text"),
        (InPlace { put: Put { column: 99, ..right.put }, ..right }, cells([0, 2], b"ab"), "has no such column"),
        (InPlace { put: Put { session: 99, ..right.put }, ..right }, cells([0, 2], b"ab"), "session"),
    ] {
        for world in &worlds {
            let said = said(world, announced, &bytes);
            assert!(said.contains(why), "expected `{why}`: {said}");
        }
    }
    worlds.iter().for_each(World::verify);
}

#[test]
fn a_put_waits_for_its_share_of_what_is_under_way() {
    let store = Store::create(crate::testing::training(1), Options::default()).unwrap();
    let service = Service::over(&store, 1, limits::MESSAGE_BYTES);
    let share = |bytes| service.under_way(bytes).now_or_never();
    let held = [limits::UNDER_WAY / 2, limits::UNDER_WAY / 2].map(|bytes| share(bytes).unwrap().unwrap());
    assert!(crate::client::runtime::block_on(async { share(1).is_none() }), "it waits");
    drop(held);
    assert!(share(1).is_some());
}
