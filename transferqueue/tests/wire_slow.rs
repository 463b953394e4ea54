//! A reader that stops reading costs the server what HTTP/2 admits, and no more. Alone in its process, since it looks at the
//! process's memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    time::{Duration, Instant},
};

use arrow_flight::{Criteria, Ticket, flight_service_client::FlightServiceClient};
use prost::Message;
use tonic::{Request, transport::Endpoint};
use transferqueue::{
    Column, Definition, Kind, NewRow, Options, Outputs, Store,
    catalog::definition::{Birth, Partition},
    link::Link,
    server, wire,
};

/// What is asked for: gathered from small cells, so that each message is memory of its own.
const TIMES: usize = 4096;
const CELL: usize = 512 << 10;

/// Bytes of memory this process has touched.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_reader_that_stops_reading_costs_bounded_memory() {
    let column = Column::new("bytes", Kind::Binary);
    let papers = Partition { name: "papers".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
    let store = Store::create(Definition { partitions: vec![papers], ..Definition::default() }, Options::default());
    let store = store.unwrap();
    let (feeder, papers) = (store.session("feeder").unwrap(), store.partition("papers").unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    feeder.put(papers, vec![NewRow::default()], Outputs::new().binary("bytes", [vec![7; CELL]]), deadline).unwrap();
    let server = server::serve(&store, &server::Options::default()).unwrap();
    let (pointer, _) = store.resolve(papers, None, &["bytes"]).unwrap();
    let mut ticket = wire::Ticket::from(&pointer);
    let cell = ticket.columns[0].runs[0];
    ticket.columns[0].runs = vec![cell; TIMES];
    ticket.rows = TIMES as u64;
    let ticket = Ticket::new(ticket.encode_to_vec());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = server.url().replace("grpc://", "http://");
        // With a window of 8 MiB, and messages of as much.
        let endpoint = Endpoint::from_shared(url).unwrap().initial_stream_window_size(8 << 20);
        let channel = endpoint.initial_connection_window_size(16 << 20).connect().await.unwrap();
        let mut client = FlightServiceClient::new(channel).max_decoding_message_size(16 << 20);
        let token: tonic::metadata::MetadataValue<_> = format!("Bearer {}", server.token()).parse().unwrap();
        macro_rules! with_token {
            ($message:expr) => {{
                let mut request = Request::new($message);
                request.metadata_mut().insert("authorization", token.clone());
                request
            }};
        }
        let mut answer = client.do_get(with_token!(ticket)).await.unwrap().into_inner();
        answer.message().await.unwrap().expect("a schema");
        answer.message().await.unwrap().expect("cells");
        let before = resident();
        // Whatever the server does for that reader, it does while it answers a thousand questions of the same connection.
        for _ in 0..1000 {
            let mut flights = client.list_flights(with_token!(Criteria::default())).await.unwrap().into_inner();
            flights.message().await.unwrap().expect("a flight");
            let grown = resident().saturating_sub(before);
            assert!(grown < 64 << 20, "{grown} bytes more for an answer of {} that nobody reads", TIMES * CELL);
        }
        assert!(store.units().stats().total().pinned >= CELL as u64, "its bytes are held for it");
        drop(answer);
        let until = Instant::now() + Duration::from_secs(60);
        while store.units().stats().total().pinned > 0 {
            assert!(Instant::now() < until, "still held 60 s after the reader has gone");
            tokio::task::yield_now().await;
        }
    });
}
