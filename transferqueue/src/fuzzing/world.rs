//! A small store behind a server's service, without threads or a port, and the actions that come to it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arrow_flight::Action;
use futures::{FutureExt, StreamExt};
use prost::Message;

use crate::{
    Outputs, Rows,
    bulk::outgoing,
    catalog::{
        command::{Command, NewRow, Reply},
        definition::{Birth, Definition, Partition, Task},
    },
    ids::{PartitionId, RowId},
    link::Link,
    schema::{Column, Dtype, Kind},
    server::{Service, control, receiving},
    session::Session,
    store::{Options, Store},
    testing,
    wire::{self, Answer, Call, Outcome, action},
};

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) service: Service,
    now: Arc<AtomicU64>,
    /// Session 1, open for as long as this lives.
    _session: Option<Session>,
}

/// One column of every kind.
pub(crate) fn columns() -> Vec<Column> {
    let dense = |name: &str, dtype, shape: &[usize]| Column::new(name, Kind::Dense { dtype, shape: shape.to_vec() });
    let ragged = |name: &str, dtype, inner: &[usize]| Column::new(name, Kind::Ragged { dtype, inner: inner.to_vec() });
    vec![
        dense("scalar", Dtype::F32, &[]),
        dense("tensor", Dtype::I64, &[2, 3]),
        dense("flag", Dtype::Bool, &[]),
        dense("half", Dtype::Bf16, &[2]),
        ragged("tokens", Dtype::I32, &[]),
        ragged("pairs", Dtype::U8, &[2]),
        Column::new("text", Kind::Utf8),
        Column::new("bytes", Kind::Binary),
        Column::new("document", Kind::Json),
    ]
}

/// Values of those columns.
pub(crate) fn values(rows: usize) -> Outputs {
    Outputs::new()
        .dense("scalar", vec![0.5_f32; rows])
        .dense("tensor", vec![7_i64; 6 * rows])
        .dense("flag", vec![true; rows])
        .dense("half", vec![half::bf16::ONE; 2 * rows])
        .ragged("tokens", (0..rows).map(|row| vec![row as i32; row]))
        .ragged("pairs", (0..rows).map(|row| vec![1_u8; 2 * row]))
        .utf8("text", (0..rows).map(|row| "é".repeat(row)))
        .binary("bytes", (0..rows).map(|row| vec![row as u8; row]))
        .json("document", (0..rows).map(|row| serde_json::json!({ "row": row })))
}

impl World {
    fn new(definition: Definition, options: Options) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let store = Store::still(definition, options, now.clone()).unwrap();
        let service = Service::over(&store, 7, 1 << 20);
        Self { store, service, now, _session: None }
    }

    /// A table `all` of every kind of column with some rows, a table `bare` without columns, and a session.
    pub(crate) fn of_columns(rows: usize) -> Self {
        Self::over(Options::default(), rows)
    }

    /// The same with bytes that other processes of the host can map.
    pub(crate) fn in_shared_memory(rows: usize) -> Self {
        Self::over(Options { shared: true, arena_segment_bytes: 1 << 20, ..Options::default() }, rows)
    }

    fn over(options: Options, rows: usize) -> Self {
        let birth = || Birth::Put { capacity: None };
        let all = Partition { name: "all".into(), columns: columns(), birth: birth() };
        let bare = Partition { name: "bare".into(), columns: vec![], birth: birth() };
        let reads = columns().into_iter().map(|column| column.name).collect();
        let tasks = vec![Task { reads, ..Task::new("read", "all") }];
        let world = Self::new(Definition { partitions: vec![all, bare], tasks, ..Definition::default() }, options);
        let session = world.store.session("feeder").unwrap();
        if rows > 0 {
            session.put(PartitionId(0), vec![NewRow::default(); rows], values(rows), testing::soon()).unwrap();
        }
        Self { _session: Some(session), ..world }
    }

    /// A run that trains, with some prompts put and rows sampled.
    pub(crate) fn training() -> Self {
        let world = Self::new(testing::training(2), Options::default());
        let session = world.store.session("feeder").unwrap();
        testing::publish(&session, None, 0);
        testing::feed(&session, 0, 4);
        assert!(testing::step(&session, "rollout"));
        world
    }

    pub(crate) fn verify(&self) {
        self.store.with_state(|state, _| state.verify()).unwrap().expect("the state is whole");
        drop(self.store.capture().unwrap());
    }

    /// The first answer to an action; `None`: it was no request.
    pub(crate) fn act(&self, name: &str, body: Vec<u8>) -> Option<Outcome> {
        let action = Action { r#type: name.to_owned(), body: body.into() };
        let answers = control::act(&self.service, action).now_or_never().expect("nothing waits");
        let first = answers.ok()?.next().now_or_never().expect("the first answer comes at once")?;
        Answer::decode(first.ok()?.body.as_ref()).expect("an answer").outcome
    }
}

/// What a client does, step by step: `[kind][length u16][bytes]`, repeated.
///
/// | kind | bytes |
/// |---|---|
/// | 0–127 | JSON of a command, sent as the session's next call |
/// | 128–159 | the body of an action by its position |
/// | 160–191 | a clock that moves by so many milliseconds, and a tick |
/// | others | a put of `[partition][column][rows]`, whose place a command may name |
pub fn actions(bytes: &[u8]) {
    let world = World::training();
    let open =
        Call { command: wire::json(&Command::OpenSession { name: "worker".into(), here: false }), ..Call::default() };
    let Some(Outcome::Reply(reply)) = world.act(action::CALL, open.encode_to_vec()) else { panic!("a session") };
    let Ok(Reply::Session(session)) = wire::parse("reply", &reply) else { panic!("a session") };
    let (mut seq, mut puts, mut left) = (1, 0, bytes);
    while let Some((&[kind, a, b], rest)) = left.split_first_chunk() {
        let (step, rest) = rest.split_at(usize::from(u16::from_le_bytes([a, b])).min(rest.len()));
        left = rest;
        match kind {
            0..128 => {
                let command = step.to_vec().into();
                let call = Call { session: Some(session.0), seq, command, ..Call::default() };
                if let Some(Outcome::Reply(_)) = world.act(action::CALL, call.encode_to_vec()) {
                    seq += 1;
                }
            }
            128..160 => {
                let (name, _) = action::ALL[usize::from(kind - 128) % action::ALL.len()];
                drop(world.act(name, step.to_vec()));
            }
            160..192 => {
                let number = step.iter().take(4).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
                world.now.fetch_add(number, Ordering::SeqCst);
                drop(world.store.call(None, Command::Tick, None));
            }
            _ => {
                puts += 1;
                world.put(session.0, step, puts);
            }
        }
        world.verify();
    }
}

impl World {
    /// Puts some cells of zeros for a session.
    fn put(&self, session: u64, step: &[u8], number: u64) {
        let &[partition, column, rows, ..] = step else { return };
        let Ok(described) = self.store.describe(PartitionId(partition.into())) else { return };
        let Some(of) = described.columns.get(usize::from(column)) else { return };
        let (rows, name) = (usize::from(rows % 8), &of.name);
        let outputs = match &of.kind {
            Kind::Ragged { dtype: Dtype::I32, .. } => Outputs::new().ragged(name, vec![vec![1_i32]; rows]),
            Kind::Ragged { .. } => Outputs::new().ragged(name, vec![vec![1_f32]; rows]),
            Kind::Json => Outputs::new().json(name, vec![0; rows]),
            Kind::Binary => Outputs::new().binary(name, vec![[0_u8]; rows]),
            _ => Outputs::new().dense(name, vec![1_f32; rows]),
        };
        let Ok(encoded) = outputs.arrays("", &described.columns, &Rows::run(RowId(0), rows as u64)) else { return };
        let put = wire::Put { session, partition: partition.into(), column: column.into(), number, partial: false };
        let sent = outgoing::put(put, &encoded[0].1).expect("it is small");
        drop(receiving::put(&self.service, sent).now_or_never().expect("nothing waits"));
    }
}
