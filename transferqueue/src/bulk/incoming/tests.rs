//! Messages in pieces of every length, and what is no message.

use std::convert::Infallible;

use arrow_flight::{FlightData, FlightDescriptor};
use futures::{FutureExt, stream};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message as _;
use tonic::Code;

use super::*;

const LIMIT: usize = 1 << 20;

/// How an answer ends.
#[derive(Clone, Copy)]
enum End {
    Said(Code),
    Unsaid,
}

fn incoming(bytes: &[u8], piece: usize, end: End) -> Incoming {
    let pieces = bytes.chunks(piece).map(|piece| Frame::data(Bytes::copy_from_slice(piece)));
    let trailers = match end {
        End::Said(code) => {
            let code = HeaderValue::from(code as i32);
            Some(Frame::trailers(HeaderMap::from_iter([(Status::GRPC_STATUS, code)])))
        }
        End::Unsaid => None,
    };
    let frames: Vec<_> = pieces.chain(trailers).map(Ok::<_, Infallible>).collect();
    Incoming::new(Body::new(StreamBody::new(stream::iter(frames))), LIMIT)
}

/// Header and body of a message.
type Parts = (Vec<u8>, Vec<u8>);

/// Headers and bodies until the end.
fn all(mut incoming: Incoming) -> Result<Vec<Parts>, FlightError> {
    let mut messages = Vec::new();
    while let Some(message) = incoming.next(&Pool::default()).now_or_never().expect("nothing waits")? {
        assert!(message.body.is_empty() || message.body.as_ptr().align_offset(64) == 0);
        messages.push((message.header, message.body.to_vec()));
    }
    Ok(messages)
}

fn refused(bytes: &[u8]) -> String {
    match all(incoming(bytes, 7, End::Said(Code::Ok))) {
        Err(FlightError::ProtocolError(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn prefixed(message: &[u8]) -> Vec<u8> {
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
}

fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A message with every field, one without a body, an empty one, one with a large body.
fn messages() -> Vec<FlightData> {
    let header = FlightData { data_header: numbers(150).into(), ..FlightData::default() };
    let every = FlightData {
        flight_descriptor: Some(FlightDescriptor::new_path(vec!["a".into(), "b".into()])),
        app_metadata: numbers(200).into(),
        data_body: numbers(3000).into(),
        ..header.clone()
    };
    let large = FlightData { data_body: numbers(100_000).into(), ..header.clone() };
    vec![every, header, FlightData::default(), large]
}

fn sent(messages: &[FlightData]) -> Vec<u8> {
    messages.iter().flat_map(|message| prefixed(&message.encode_to_vec())).collect()
}

#[test]
fn messages_come_out_of_pieces_of_every_length() {
    let expected: Vec<_> =
        messages().iter().map(|message| (message.data_header.to_vec(), message.data_body.to_vec())).collect();
    let bytes = sent(&messages());
    for piece in (1..300).chain([1000, 3300, 65_536, bytes.len()]) {
        assert_eq!(all(incoming(&bytes, piece, End::Said(Code::Ok))).unwrap(), expected, "pieces of {piece}");
    }
}

#[test]
fn an_answer_that_breaks_off_anywhere_is_never_taken_for_a_whole_one() {
    let messages = &messages()[..2];
    let (bytes, first) = (sent(messages), sent(&messages[..1]).len());
    for len in 0..=bytes.len() {
        let Err(FlightError::Tonic(status)) = all(incoming(&bytes[..len], 100, End::Unsaid)) else {
            panic!("{len} bytes and no status are a lost connection")
        };
        assert_eq!((status.code(), status.message()), (Code::Unavailable, "the messages broke off"));
        let said = all(incoming(&bytes[..len], 100, End::Said(Code::Ok)));
        match [0, first, bytes.len()].iter().position(|end| *end == len) {
            Some(whole) => assert_eq!(said.unwrap().len(), whole),
            None => assert!(matches!(said, Err(FlightError::ProtocolError(_))), "{len}"),
        }
        let Err(FlightError::Tonic(status)) = all(incoming(&bytes[..len], 100, End::Said(Code::Aborted))) else {
            panic!("{len} bytes and a status")
        };
        assert_eq!(status.code(), Code::Aborted);
    }
}

#[test]
fn wrong_lengths_are_refused_in_words() {
    let body = |declared: usize, there: usize| {
        let mut message = vec![0xc2, 0x3e];
        prost::encode_length_delimiter(declared, &mut message).unwrap();
        message.extend(numbers(there));
        message
    };
    assert_eq!(all(incoming(&prefixed(&body(9, 9)), 4, End::Said(Code::Ok))).unwrap(), [(vec![], numbers(9))]);
    for (bytes, expected) in [
        (prefixed(&body(10, 9)), "a field of 10 bytes where 9 are left of its message"),
        (prefixed(&body(usize::MAX, 9)), "a field of 18446744073709551615 bytes where 9 are left of its message"),
        (prefixed(&body(8, 9)), "a field of 1 bytes where 0 are left of its message"),
        (prefixed(&[0x0a, 5, 1]), "a field of 5 bytes where 1 are left"),
        (prefixed(&[0x21, 1, 2]), "a field of 8 bytes where 2 are left"),
        (prefixed(&[0x10, 7]), "field 2 of a message is of kind 0, expected bytes"),
        (prefixed(&[0x1c]), "a field of kind 4, which protobuf does not have"),
        (prefixed(&[0xff; 11]), "a number of more than ten bytes"),
        (prefixed(&[0x80]), "a field of 1 bytes where 0 are left"),
        (vec![0, 0, 0, 1], "the answer ends in the middle of a message"),
        ([&[0, 0, 0, 1, 0][..], &body(200, 200)].concat(), "the answer ends in the middle of a message"),
        (vec![1, 0, 0, 0, 0], "a message whose first byte is 1"),
        (vec![0, 0, 0x10, 0, 1], "a message of 1048577 bytes, at most 1048576 are taken (`message_bytes`)"),
    ] {
        let said = refused(&bytes);
        assert!(said.starts_with(expected), "{said}, expected {expected}");
    }
}
