use prost::Message;

use super::*;
use crate::{
    catalog::{Refusal, command::ColumnRef},
    error::Error,
    ids::SessionId,
};

#[test]
fn an_error_comes_out_as_it_went_in() {
    let errors = [
        Error::Refused(Refusal::SessionEnded { session: SessionId(3), timeout_ms: 30_000 }),
        Error::Stopped { reason: "interrupted".into() },
        Error::Broken { what: "event log: disk full".into() },
    ];
    for error in errors {
        let sent = Failure::of(&error).encode_to_vec();
        let heard = Failure::decode(sent.as_slice()).unwrap().into_error("grpc://here");
        assert_eq!(heard.to_string(), error.to_string());
        let status = Failure::of(&error).into_status(tonic::Code::FailedPrecondition);
        assert_eq!(refused(&status, "grpc://here").unwrap().to_string(), error.to_string());
    }
}

#[test]
fn a_refusal_that_is_too_long_for_a_header_keeps_its_words() {
    let known = "`name`, ".repeat(2_000);
    let error = Error::Refused(Refusal::Unknown { what: "task".into(), name: "x".into(), known });
    let status = Failure::of(&error).into_status(tonic::Code::FailedPrecondition);
    assert!(status.details().len() < 4_000 && status.message().starts_with("no task x"), "{status}");
}

#[test]
fn numbers_that_run_over_are_refused() {
    assert!(rows(&[Run { first: u64::MAX, len: 2 }]).is_none());
    assert!(rows(&[Run { first: 0, len: u64::MAX }, Run { first: 0, len: 2 }]).is_none());
    let cells = Cells { chunk: 1, generation: 0, slot: u32::MAX, len: 2 };
    let pointer = Pointer { name: "x".into(), partition: 0, column: 0, runs: vec![cells] };
    assert!(ColumnRef::try_from(pointer.clone()).unwrap_err().contains("run over"));
    assert!(ColumnRef::try_from(Pointer { column: 70_000, runs: vec![], ..pointer }).is_err());
    let placed = Placed { spot: Some(Spot { chunk: 1, slot: 0 }), uniform: None, each: vec![4; 3] };
    assert!(placed.clone().read(4).unwrap_err().contains("took 3 cells, 4 were sent"));
    assert!(placed.read(3).is_ok());
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let _ = decode::<Call>("call", &noise);
        let _ = decode::<Answer>("answer", &noise).map(|answer| match answer.outcome {
            Some(Outcome::Failure(failure)) => failure.into_error("x").to_string(),
            _ => String::new(),
        });
        let _ = decode::<Ticket>("ticket", &noise).map(|ticket| {
            ticket.columns.into_iter().map(ColumnRef::try_from).collect::<Result<Vec<_>, _>>()
        });
        let _ = decode::<Resolve>("resolve", &noise).map(|resolve| rows(&resolve.rows));
    }
}

/// What `docs/decisions/0006` quotes: a claim of 256 rows with four columns, written and read.
#[test]
#[ignore = "prints a measurement"]
fn what_json_costs() {
    use crate::{
        catalog::command::{BatchRef, CellRun, Claimed, Command, Reply, RowHead, Span, Tag},
        ids::*,
    };
    let runs = (0..64).map(|i| CellRun { chunk: ChunkId(7 + i), generation: 0, slot: 4 * i as u32, len: 4 }).collect();
    let column = |i: u16| ColumnRef {
        name: format!("column_{i}"),
        partition: PartitionId(1),
        column: ColumnId(i),
        runs: Vec::clone(&runs),
    };
    let head = |row: u64| RowHead {
        row: RowId(row),
        group: GroupId(row / 8),
        ordinal: row / 8,
        sample: (row % 8) as u32,
        version: 12,
        span: Some(Span { first: 12, last: 12 }),
        tags: [("level".to_owned(), Tag::Int(3))].into(),
    };
    let rows = Rows::run(RowId(0), 256);
    let batch = BatchRef {
        incarnation: 1,
        partition: PartitionId(1),
        rows,
        columns: (0..4).map(column).collect(),
        saved: vec![],
    };
    let claimed =
        Claimed { lease: LeaseId(9), batch, heads: (0..256).map(head).collect(), cut: None, lease_ms: 60_000 };
    let reply = Reply::Claimed(claimed);
    let command = Command::Claim { task: TaskId(1), limit: 256 };
    let median = |mut once: Box<dyn FnMut()>| {
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let begun = std::time::Instant::now();
                once();
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[100]
    };
    let (small, large) = (json(&command), json(&reply));
    println!("command: {} bytes; reply: {} bytes", small.len(), large.len());
    let (s, l, c, r) = (small, large, command, reply);
    println!("command: write {:?}", median(Box::new(move || drop(json(&c)))));
    println!("command: read {:?}", median(Box::new(move || drop(parse::<Command>("x", &s).unwrap()))));
    println!("reply: write {:?}", median(Box::new(move || drop(json(&r)))));
    println!("reply: read {:?}", median(Box::new(move || drop(parse::<Reply>("x", &l).unwrap()))));
}
