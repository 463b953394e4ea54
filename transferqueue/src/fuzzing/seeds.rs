//! Real messages, as each target takes them: where a fuzzer begins.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow_flight::{FlightData, utils::batches_to_flight_data};
use futures::FutureExt;
use http_body_util::BodyExt;
use prost::Message;
use tonic::body::Body;

use super::{
    files::snapshot_files,
    frames,
    world::{World, columns, values},
};
use crate::{
    arrow_map,
    bulk::{outgoing, pool::Pool},
    catalog::{
        command::{CellWrite, Command, DropRows, NewRow, RowNote, Sampled, SavedRow, Sizes, Span, Tag, Tags},
        definition::{Birth, Partition},
        event::{Event, Record},
    },
    ids::*,
    inspect::Request,
    link::Link,
    schema::{Column, Kind},
    server::{reading, sending::Outgoing},
    testing,
    wire::*,
};

/// Target, name, bytes.
pub(super) type Seed = (&'static str, String, Vec<u8>);

pub(super) fn all() -> Vec<Seed> {
    [
        messages(),
        actions(),
        tickets(),
        puts(),
        gets(),
        answers(),
        neighbours(),
        log(),
        snapshot(),
        spills(),
        inspect(),
        arena(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn named(target: &'static str, seeds: impl IntoIterator<Item = Vec<u8>>) -> Vec<Seed> {
    seeds.into_iter().enumerate().map(|(at, bytes)| (target, format!("seed-{at:02}"), bytes)).collect()
}

fn behind(kind: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    [&[kind], bytes.as_ref()].concat()
}

fn commands() -> Vec<Command> {
    let (partition, task, lease) = (PartitionId(1), TaskId(0), LeaseId(2));
    let rows = Rows::run(RowId(3), 2);
    let tags: Tags = [("a".to_owned(), Tag::Bool(true)), ("b".to_owned(), Tag::Float(0.5))].into();
    let notes = vec![RowNote { row: RowId(3), tags: tags.clone(), span: Some(Span { first: 0, last: 0 }) }];
    let cells = |column, rows: &Rows, sizes| CellWrite {
        column: ColumnId(column),
        rows: rows.clone(),
        chunk: ChunkId(8),
        slot: 0,
        sizes,
        seal: true,
        replaces: None,
    };
    let written = vec![cells(0, &rows, Sizes::Uniform(4))];
    let drops = vec![DropRows { rows: Rows::run(RowId(3), 1), reason: "unwanted".into() }];
    let name = "weights/policy/0.1".to_owned();
    let data =
        Partition { name, columns: vec![Column::new("data", Kind::Binary)], birth: Birth::Put { capacity: None } };
    let put = NewRow { key: Some("k".into()), tags };
    vec![
        Command::Heartbeat,
        Command::OpenSession { name: "x".into(), here: false },
        Command::Claim { task, limit: 2 },
        Command::ClaimAny { tasks: vec![TaskId(1), task, TaskId(3)], limit: 1 },
        Command::Renew { lease, progress: 3 },
        Command::Write { lease, cells: written.clone(), notes: notes.clone() },
        Command::Save {
            lease,
            cells: vec![CellWrite { seal: false, ..written[0].clone() }],
            rows: vec![SavedRow { row: RowId(3), sampled: vec![Sampled { version: 0, tokens: 2 }] }],
        },
        Command::Commit { lease, rows: rows.clone(), cells: written, notes, drops: drops.clone() },
        Command::Release { lease, rows: rows.clone() },
        Command::Fail { lease, rows, error: "it broke".into() },
        Command::Drop { partition, rows: drops[0].clone() },
        Command::CreatePartition(data),
        Command::Put {
            partition: PartitionId(0),
            rows: vec![put; 1],
            cells: vec![
                cells(0, &Rows::run(RowId(0), 1), Sizes::Each(vec![4])),
                cells(1, &Rows::run(RowId(0), 1), Sizes::Uniform(1)),
            ],
        },
        Command::ClosePartition(PartitionId(0)),
        Command::DeletePartition(PartitionId(3)),
        Command::Offer { model: ModelId(0), cycle: Some(0), weights: Some(PartitionId(3)), state: None },
        Command::EndSchedule { cycle: 0 },
        Command::Pin { model: ModelId(0), version: None },
        Command::Unpin { model: ModelId(0), version: 0 },
        Command::CloseSession,
    ]
}

fn messages() -> Vec<Seed> {
    let world = World::training();
    let (pointer, heads) = world.store.resolve(PartitionId(0), None, &["prompt", "truth"]).unwrap();
    let refusal = world.store.resolve(PartitionId(9), None, &[]).unwrap_err();
    let put = Put { session: 3, partition: 1, column: 0, number: 6, partial: false };
    let tokens: ArrayRef = Arc::new(arrow::array::Int32Array::from(vec![3, 4]));
    let call = Call {
        session: Some(3),
        seq: 2,
        command: json(&Command::Heartbeat),
        wait_ms: Some(1_000),
        released: vec![Spot { chunk: 4, slot: 2 }],
        attempt: Some(3),
        along: vec![Along::new(put, &tokens)],
        unwanted: vec![5],
    };
    let run = Run { first: 3, len: 2 };
    let resolve = Resolve { partition: 1, rows: vec![run], all: false, columns: vec!["response".into()] };
    let resolved = Resolved { pointer: json(&pointer), heads: json(&heads) };
    let failure = Failure::of(&refusal);
    let reply = crate::catalog::command::Reply::Put(Rows::run(RowId(4), 2));
    let placed = Placed { spot: Some(Spot { chunk: 4, slot: 2 }), uniform: None, each: vec![1, 2, 3] };
    let definition = json(&*world.store.definition());
    let mut seeds = vec![
        behind(0, Hello { protocol: 1, features: vec!["flight".into()] }.encode_to_vec()),
        behind(
            1,
            Welcome { protocol: 1, incarnation: 7, features: vec![], message_bytes: 1 << 20, shm: None, ucx: None }
                .encode_to_vec(),
        ),
        behind(2, call.encode_to_vec()),
        behind(3, Answer::new(Outcome::Reply(json(&reply))).encode_to_vec()),
        behind(3, Answer::new(Outcome::Failure(failure.clone())).encode_to_vec()),
        behind(4, failure.encode_to_vec()),
        behind(5, Name { name: "samples".into() }.encode_to_vec()),
        behind(6, resolve.encode_to_vec()),
        behind(7, resolved.encode_to_vec()),
        behind(8, Ticket::from(&pointer).encode_to_vec()),
        behind(9, Put { session: 1, partition: 0, column: 1, number: 3, partial: true }.encode_to_vec()),
        behind(10, placed.encode_to_vec()),
        behind(12, json(&reply)),
        behind(12, definition),
        behind(13, b"Bearer right"),
    ];
    seeds.extend(commands().iter().map(|command| behind(11, json(command))));
    named("messages", seeds)
}

fn step(kind: u8, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let len = u16::try_from(bytes.as_ref().len()).unwrap().to_le_bytes();
    [&[kind], &len[..], bytes.as_ref()].concat()
}

fn actions() -> Vec<Seed> {
    let mut seeds: Vec<Vec<u8>> = commands().iter().map(|command| step(0, json(command))).collect();
    // A whole life: claim, put, commit; prompts come in; time passes.
    let of = |at: usize| step(0, json(&commands()[at]));
    seeds.push([of(2), step(255, [1, 0, 2]), of(4), of(6)].concat());
    seeds.push([step(255, [0, 0, 1]), step(255, [0, 1, 1]), of(11), of(12)].concat());
    seeds.push([of(3), of(7), of(2), of(8), step(160, [0, 0, 0x75, 0x30]), of(0), of(16), of(17)].concat());
    let number = Number { number: 1 }.encode_to_vec();
    let resolve = Resolve { partition: 1, rows: vec![Run { first: 0, len: 2 }], all: false, columns: vec![] };
    let bodies: [Vec<u8>; 11] = [
        Hello { protocol: 1, features: vec![] }.encode_to_vec(),
        Call { command: json(&Command::OpenSession { name: "y".into(), here: false }), ..Call::default() }
            .encode_to_vec(),
        resolve.encode_to_vec(),
        Name { name: "samples".into() }.encode_to_vec(),
        number.clone(),
        Number { number: 0 }.encode_to_vec(),
        number,
        vec![],
        Name { name: "enough".into() }.encode_to_vec(),
        br#"{"get":"status"}"#.to_vec(),
        vec![],
    ];
    seeds.extend((128..).zip(bodies).map(|(kind, body)| step(kind, body)));
    named("actions", seeds)
}

fn tickets() -> Vec<Seed> {
    let world = World::of_columns(3);
    let id = world.store.partition("all").unwrap();
    let names: Vec<String> = columns().into_iter().map(|column| column.name).collect();
    let ticket = |names: &[&str]| {
        let (pointer, _) = world.store.resolve(id, None, names).unwrap();
        behind_ticket(&Ticket::from(&pointer))
    };
    let mut seeds: Vec<Vec<u8>> = names.iter().map(|name| ticket(&[name])).collect();
    seeds.push(ticket(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    seeds.push(behind(1, "all/tokens/text"));
    seeds.push(behind(1, "bare"));
    named("tickets", seeds)
}

fn neighbours() -> Vec<Seed> {
    named("neighbours", super::neighbours::seeds())
}

fn behind_ticket(ticket: &Ticket) -> Vec<u8> {
    behind(0, ticket.encode_to_vec())
}

/// The messages of each column alone, and of all of them.
fn streams() -> Vec<(u8, Vec<FlightData>)> {
    let encoded = values(3).arrays("all", &columns(), &Rows::run(RowId(0), 3)).unwrap();
    let fields: Vec<_> = columns().iter().map(|column| arrow_map::field(column).unwrap()).collect();
    let sent = |columns: &[usize]| {
        let schema = arrow::datatypes::Schema::new(columns.iter().map(|at| fields[*at].clone()).collect::<Vec<_>>());
        let arrays = columns.iter().map(|at| encoded[*at].1.clone()).collect();
        let batch = arrow::array::RecordBatch::try_new(Arc::new(schema.clone()), arrays).unwrap();
        batches_to_flight_data(&schema, [&batch]).unwrap()
    };
    let every: Vec<usize> = (0..fields.len()).collect();
    vec![(33, sent(&every))]
}

/// Three cells of each column, as they are put to their place.
fn in_place() -> Vec<Vec<u8>> {
    let columns = columns();
    let encoded = values(3).arrays("", &columns, &Rows::run(RowId(0), 3)).unwrap();
    let one = |(column, (_, array)): (&Column, &(ColumnId, ArrayRef))| {
        let at = columns.iter().position(|known| known == column).unwrap();
        let put = Put { session: 1, partition: 0, column: at as u32, number: 1, partial: false };
        behind(0, whole(outgoing::put(put, &arrow_map::plain(column, array).unwrap()).unwrap()))
    };
    columns.iter().zip(&encoded).map(one).collect()
}

fn whole(body: Body) -> bytes::Bytes {
    body.collect().now_or_never().expect("nothing waits").unwrap().to_bytes()
}

fn puts() -> Vec<Seed> {
    let mut seeds: Vec<Vec<u8>> = streams().iter().map(|(kind, messages)| frames::written(*kind, messages)).collect();
    seeds.extend(in_place());
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(2));
    let schema = Arc::new(arrow::datatypes::Schema::empty());
    let bare = arrow::array::RecordBatch::try_new_with_options(schema.clone(), vec![], &options).unwrap();
    seeds.push(frames::written(32, &batches_to_flight_data(&schema, [&bare]).unwrap()));
    named("puts", seeds)
}

/// What a get of each column is answered with.
fn answered() -> Vec<Body> {
    let world = World::of_columns(3);
    let id = world.store.partition("all").unwrap();
    let answer = |column: Column| {
        let (pointer, _) = world.store.resolve(id, None, &[&column.name]).unwrap();
        let selection = reading::select(&world.service, &Ticket::from(&pointer).encode_to_vec()).unwrap();
        Body::new(Outgoing::new(selection).unwrap())
    };
    columns().into_iter().map(answer).collect()
}

fn gets() -> Vec<Seed> {
    let seeds = answered().into_iter().map(|body| {
        let (mut incoming, mut messages) = (frames::incoming(body), Vec::new());
        while let Some(message) = incoming.next(&Pool::default()).now_or_never().expect("nothing waits").unwrap() {
            let (data_header, data_body) = (message.header.into(), message.body);
            messages.push(FlightData { data_header, data_body, ..FlightData::default() });
        }
        behind(3, frames::written(0, &messages))
    });
    named("gets", seeds.collect::<Vec<_>>())
}

fn answers() -> Vec<Seed> {
    named("answers", answered().into_iter().map(|body| behind(3, behind(100, whole(body)))))
}

fn log() -> Vec<Seed> {
    let folder = tempfile::tempdir().unwrap();
    let store = crate::Store::create(testing::training(1), crate::Options::at(folder.path())).unwrap();
    testing::run(&store, 1);
    let whole = std::fs::read(folder.path().join("events/000000.jsonl")).unwrap();
    // Records of every kind, each once: longer than this they say nothing new.
    let mut kinds = std::collections::BTreeSet::new();
    let short = whole.split(|byte| *byte == b'\n').filter(|line| {
        let Ok(Record { events, .. }) = crate::log::line::parse(line) else { return false };
        let kind = |event: &Event| serde_json::to_value(event).unwrap().as_object().map(|o| o.keys().next().cloned());
        line.len() < 1_500 && kinds.insert(events.iter().map(kind).collect::<Vec<_>>())
    });
    let lines: Vec<Vec<u8>> = short.map(<[u8]>::to_vec).collect();
    let joined = lines[..6.min(lines.len())].join(&b'\n');
    let torn = [&joined[..], b"\n\0", &lines[0], b"\n{\"version\":1,"].concat();
    named("log", lines.into_iter().chain([joined, torn]))
}

fn snapshot() -> Vec<Seed> {
    named("snapshot", (0..).zip(snapshot_files()).map(|(at, (_, bytes))| behind(at, bytes)))
}

fn spills() -> Vec<Seed> {
    named("spills", super::spills::real())
}

fn arena() -> Vec<Seed> {
    // Stored; let go; the next life; stored again.
    let lives: Vec<u8> = (0..60_u8).flat_map(|step| [step.wrapping_mul(5), step, 7 * (step % 30)]).collect();
    named("arena", super::arena::real().into_iter().chain([behind(1, lives)]))
}

fn inspect() -> Vec<Seed> {
    let peek =
        Request::Peek { partition: "samples".into(), rows: Some("0-3,9".into()), columns: vec!["reward".into()] };
    let (partition, reason) = ("samples".to_owned(), "unwanted".to_owned());
    let requests = [
        Request::Status,
        Request::Tasks,
        Request::Columns,
        Request::Ledger,
        Request::Partitions,
        Request::Sessions,
        Request::Versions,
        peek,
        Request::Units,
        Request::Health,
        Request::Why { partition: Some("samples".into()), row: 1 },
        Request::Drop { partition, rows: "2,5-6".into(), reason, confirmed: true },
    ];
    let world = World::training();
    let asked = requests.iter().map(|request| behind(0, serde_json::to_vec(request).unwrap()));
    let answered = requests
        .iter()
        .map(|request| behind(1, serde_json::to_vec(&crate::inspect::answer(&world.store, request)).unwrap()));
    named("inspect", asked.chain(answered).collect::<Vec<_>>())
}
