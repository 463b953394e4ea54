//! What a worker of the same host says, on its socket.

use std::{io, sync::LazyLock};

use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixStream, unix::OwnedReadHalf},
    runtime::{Builder, Runtime},
};

use super::world::World;
use crate::{
    server::shm::Neighbour,
    wire::{
        decode,
        shm::{Ask, Enter, Question, Say},
    },
};

/// One that waits is served by another thread than those that go on.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

/// Room that is asked for beyond this would only cost memory: how much there may be is the server's limit, and tested there.
const ROOM: u64 = 1 << 18;

/// A worker that has come in and says anything: it is answered in words that a client knows, and what it leaves behind goes.
pub fn neighbours(bytes: &[u8]) {
    let world = World::in_shared_memory(3);
    let before = memory(&world);
    let Said { questions, changes } = modest(bytes);
    RUNTIME.block_on(talk(&world, &questions)).unwrap();
    // Cells that were put are held for session 1, and those of a put that was refused lie in their chunk until it closes.
    assert!(changes || memory(&world) == before, "reserved room is free again");
    world.verify();
}

fn memory(world: &World) -> u64 {
    world.store.units().iter().map(|unit| unit.memory().unwrap().used).sum()
}

async fn talk(world: &World, said: &[u8]) -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut neighbour = Neighbour::new(theirs, world.service.clone());
    let serving = tokio::spawn(async move { drop(neighbour.serve("token").await) });
    let (answers, mut questions) = ours.into_split();
    let hearing = tokio::spawn(hear(answers));
    let enter = Enter { token: "token".into(), incarnation: world.service.incarnation };
    let mut sent = frame(&Ask { question: Some(Question::Enter(enter)) });
    sent.extend_from_slice(said);
    // A server that hangs up does not hear the rest.
    drop(questions.write_all(&sent).await);
    drop(questions);
    serving.await?;
    hearing.await?
}

/// Every word that comes is one that a client knows.
async fn hear(mut answers: OwnedReadHalf) -> io::Result<()> {
    loop {
        let mut len = [0; 4];
        if answers.read_exact(&mut len).await.is_err() {
            return Ok(());
        }
        let mut frame = vec![0; u32::from_le_bytes(len) as usize];
        answers.read_exact(&mut frame).await?;
        let say: Say = decode("answer", &frame).unwrap();
        say.word.unwrap();
    }
}

fn frame(ask: &Ask) -> Vec<u8> {
    let mut frame = (ask.encoded_len() as u32).to_le_bytes().to_vec();
    ask.encode(&mut frame).unwrap();
    frame
}

struct Said {
    questions: Vec<u8>,
    /// Whether a put or a command is among them.
    changes: bool,
}

/// The same bytes, with less room asked for.
fn modest(mut bytes: &[u8]) -> Said {
    let mut sent = Vec::with_capacity(bytes.len());
    let mut changes = false;
    while let Some((len, rest)) = bytes.split_first_chunk::<4>()
        && let Some((body, rest)) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)
    {
        match decode::<Ask>("question", body) {
            Ok(Ask { question: Some(Question::Reserve(mut reserve)) }) => {
                (reserve.offsets, reserve.values) = (reserve.offsets % ROOM, reserve.values % ROOM);
                sent.extend(frame(&Ask { question: Some(Question::Reserve(reserve)) }));
            }
            Ok(Ask { question }) => {
                changes |= matches!(question, Some(Question::Fill(_) | Question::Call(_)));
                sent.extend_from_slice(&bytes[..bytes.len() - rest.len()]);
            }
            // The server hangs up here.
            Err(_) => break,
        }
        bytes = rest;
    }
    sent.extend_from_slice(bytes);
    Said { questions: sent, changes }
}

#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    use crate::{
        catalog::command::{CellWrite, Command, NewRow, Sizes},
        ids::{ColumnId, RowId, Rows},
        link::Link,
        wire::{
            ALONG, Along, Call, Pointer, Put, json,
            shm::{Fill, Reserve},
        },
    };
    let world = World::in_shared_memory(3);
    let id = world.store.partition("all").unwrap();
    let names: Vec<String> = super::world::columns().into_iter().map(|column| column.name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (pointer, _) = world.store.resolve(id, None, &names).unwrap();
    let ask = |question| frame(&Ask { question: Some(question) });
    let mut seeds: Vec<Vec<u8>> =
        pointer.columns.iter().map(|column| ask(Question::Get(Pointer::from(column)))).collect();
    // All of them, and what they grant is let go.
    let releases = (1..=seeds.len() as u64).map(|grant| ask(Question::Release(grant)));
    seeds.push(seeds.iter().cloned().chain(releases).flatten().collect());
    let reserve = Reserve { room: 1, partition: id.0, column: 0, rows: 3, offsets: 0, values: 12 };
    let put = Put { session: 1, partition: id.0, column: 0, number: 1, partial: false };
    seeds.push(ask(Question::Reserve(reserve)));
    seeds.push(ask(Question::Reserve(Reserve { column: 4, rows: 2, offsets: 12, values: 8, ..reserve })));
    let fill = |room| ask(Question::Fill(Fill { room, put }));
    // What lies in fresh room are zeros: three numbers, and the same put again.
    seeds.push([ask(Question::Reserve(reserve)), fill(1), ask(Question::Reserve(reserve)), fill(1)].concat());
    seeds.push([ask(Question::Reserve(reserve)), fill(2)].concat());
    // A put that is refused: no session has this number.
    seeds.push(
        [ask(Question::Reserve(reserve)), ask(Question::Fill(Fill { room: 1, put: Put { session: 9, ..put } }))]
            .concat(),
    );
    // A row whose cells come along with the command.
    let array: arrow::array::ArrayRef = std::sync::Arc::new(arrow::array::Float32Array::from(vec![0.5]));
    let along = vec![Along::new(Put { number: 9, ..put }, &array)];
    let (column, rows, sizes) = (ColumnId(0), Rows::run(RowId(0), 1), Sizes::Uniform(4));
    let cell = CellWrite { column, rows, chunk: ALONG, slot: 9, sizes, seal: true, replaces: None };
    let command = Command::Put { partition: id, rows: vec![NewRow::default()], cells: vec![cell] };
    let call = Call { session: Some(1), seq: 1, command: json(&command), along, ..Call::default() };
    seeds.push(ask(Question::Call(call)));
    // Commands: a number that is put, and the session's end.
    let call = |command: &Command| Call { session: Some(1), seq: 1, command: json(command), ..Call::default() };
    seeds.push(ask(Question::Call(call(&Command::Heartbeat))));
    seeds.push([ask(Question::Reserve(reserve)), fill(1), ask(Question::Call(call(&Command::CloseSession)))].concat());
    seeds.push(vec![0xff; 64]);
    seeds
}
