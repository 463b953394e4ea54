//! What is sent, as a stock client reads it; where it lies, and when it is made.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use arrow::{
    array::{ArrayRef, RecordBatch},
    datatypes::Schema,
};
use arrow_flight::{decode::FlightRecordBatchStream, error::FlightError};
use futures::{FutureExt, TryStreamExt};
use http_body_util::BodyExt;
use prost::Message;

use super::*;
use crate::{
    arrow_map,
    fuzzing::world::World,
    link::Link,
    schema::{Column, Dtype, Kind},
    wire::Ticket as Named,
};

/// As arrow-flight's own client over tonic's own codec reads it.
fn stock(answer: Outgoing) -> Result<Vec<RecordBatch>, FlightError> {
    let decoder = ProstDecoder::<FlightData>::new(BufferSettings::default());
    let sent = Streaming::new_response(decoder, Body::new(answer), http::StatusCode::OK, None, None);
    let batches = FlightRecordBatchStream::new_from_flight_data(sent.map_err(FlightError::from));
    batches.try_collect().now_or_never().expect("nothing waits")
}

/// `rows` rows of `bytes` bytes each.
fn ragged(rows: usize, bytes: usize) -> RecordBatch {
    let column = Column::new("x", Kind::Ragged { dtype: Dtype::U8, inner: vec![] });
    let values: Vec<u8> = (0..rows * bytes).map(|at| at as u8).collect();
    let array = arrow_map::ragged_array("x", &column.kind, &vec![bytes; rows], values.into()).unwrap();
    let schema = Schema::new(vec![arrow_map::field(&column).unwrap()]);
    RecordBatch::try_new(Arc::new(schema), vec![array]).unwrap()
}

fn answer(
    schema: &RecordBatch,
    batches: impl Iterator<Item = Result<RecordBatch, Status>> + Send + 'static,
) -> Outgoing {
    Outgoing::new(Selection { schema: schema.schema(), batches: Box::new(batches) }).unwrap()
}

/// The next piece, or what is said behind the last one.
fn next(answer: &mut Outgoing) -> Frame<Bytes> {
    answer.frame().now_or_never().expect("nothing waits").expect("there is more").unwrap()
}

#[test]
fn a_stock_client_reads_columns_of_every_kind() {
    let world = World::of_columns(3);
    let id = world.store.partition("all").unwrap();
    let columns = world.store.describe(id).unwrap();
    let names: Vec<&str> = columns.columns.iter().map(|column| column.name.as_str()).collect();
    for names in names.iter().map(std::slice::from_ref).chain([&names[..]]) {
        let (pointer, _) = world.store.resolve(id, None, names).unwrap();
        let ticket = Named::from(&pointer).encode_to_vec();
        let selected = || reading::select(&world.service, &ticket).unwrap();
        let expected: Vec<RecordBatch> = selected().batches.map(Result::unwrap).collect();
        assert_eq!(expected.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
        assert_eq!(stock(Outgoing::new(selected()).unwrap()).unwrap(), expected, "{names:?}");
    }
}

#[test]
fn slices_and_nothing_at_all_come_as_they_are() {
    let batch = ragged(40, 1000);
    let slices = [batch.slice(0, 1), batch.slice(7, 20), batch.slice(39, 1)];
    assert_eq!(stock(answer(&batch, slices.clone().into_iter().map(Ok))).unwrap(), slices);
    assert_eq!(stock(answer(&batch, std::iter::empty())).unwrap(), []);
}

#[test]
fn large_buffers_are_sent_from_where_they_lie() {
    let batch = ragged(2, 3 << 20);
    let lies = |array: &ArrayRef| arrow_map::leaf_bytes(array).unwrap().as_ptr_range();
    let (place, mut sent) =
        (lies(batch.column(0)), answer(&batch, [Ok(batch.slice(1, 1)), Ok(batch.clone())].into_iter()));
    let (mut in_place, mut copied) = (0, 0);
    while let Ok(piece) = next(&mut sent).into_data() {
        match place.contains(&piece.as_ptr()) {
            true => in_place += piece.len(),
            false => copied += piece.len(),
        }
    }
    assert_eq!(in_place, 9 << 20, "the second row, and both");
    assert!(copied < 2_000, "{copied} bytes of headers");
}

#[test]
fn a_batch_is_made_when_its_turn_comes() {
    let (batch, made) = (ragged(1, 1 << 20), Arc::new(AtomicUsize::new(0)));
    let (counted, each) = (made.clone(), batch.clone());
    let batches = (0..100).map(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(each.clone())
    });
    let (mut sent, mut bytes) = (answer(&batch, batches), 0);
    while bytes < 10 << 20 {
        bytes += next(&mut sent).into_data().unwrap().len();
        assert!(made.load(Ordering::SeqCst) <= (bytes >> 20) + 1);
    }
}

#[test]
fn an_error_on_the_way_is_the_status_behind_what_was_sent() {
    let batch = ragged(1, 10);
    let broken = || [Ok(batch.clone()), Err(invalid("the disk is gone"))].into_iter();
    let said = stock(answer(&batch, broken())).unwrap_err().to_string();
    assert!(said.contains("the disk is gone"), "{said}");
    let mut sent = answer(&batch, broken());
    assert!(next(&mut sent).is_data());
    let trailers = next(&mut sent).into_trailers().unwrap();
    assert_eq!(Status::from_header_map(&trailers).unwrap().message(), "the disk is gone");
    assert!(http_body::Body::is_end_stream(&sent));
}
