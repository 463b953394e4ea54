//! Requests that are well formed and mean harm: few bytes that ask for very many rows, pointers into other columns, cells
//! that were never put. Each is refused in words, and the store goes on.

use arrow::array::{Float32Array, RecordBatch, RecordBatchOptions};
use arrow_flight::{FlightData, FlightDescriptor, utils::batches_to_flight_data};
use futures::{FutureExt, StreamExt, stream};
use prost::Message;
use tonic::Status;

use super::*;
use crate::{
    bulk::outgoing,
    catalog::command::{CellWrite, Command, Reply, Sizes},
    fuzzing::world::World,
    ids::{ChunkId, ColumnId, LeaseId, PartitionId, RowId, Rows, SessionId},
    inspect,
    link::Link,
    wire::{Call, Outcome, Resolve, Run, Ticket, action},
};

/// A worker of another process, by hand.
struct Client {
    world: World,
    session: u64,
    seq: u64,
}

impl Client {
    fn of(world: World) -> Self {
        let mut client = Self { world, session: 0, seq: 0 };
        let open =
            Call { command: wire::json(&Command::OpenSession { name: "x".into(), here: false }), ..Call::default() };
        let Outcome::Reply(reply) = client.act(action::CALL, &open) else { panic!("a session") };
        let Ok(Reply::Session(SessionId(session))) = wire::parse("reply", &reply) else { panic!("a session") };
        client.session = session;
        client
    }

    fn act(&self, name: &str, message: &impl Message) -> Outcome {
        self.world.act(name, message.encode_to_vec()).expect("a request")
    }

    fn send(&self, seq: u64, command: &Command) -> Result<Reply, String> {
        self.say(seq, command, Call::default())
    }

    /// A command, with what `beside` says beside it.
    fn say(&self, seq: u64, command: &Command, beside: Call) -> Result<Reply, String> {
        let call = Call { session: Some(self.session), seq, command: wire::json(command), ..beside };
        match self.act(action::CALL, &call) {
            Outcome::Reply(reply) => wire::parse("reply", &reply),
            Outcome::Failure(failure) => Err(failure.into_error("here").to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, command: &Command) -> Result<Reply, String> {
        let reply = self.send(self.seq + 1, command)?;
        self.seq += 1;
        Ok(reply)
    }

    fn claim(&mut self) -> (LeaseId, Rows) {
        let Ok(Reply::Claimed(claimed)) = self.call(&Command::Claim { task: crate::TaskId(1), limit: 2 }) else {
            panic!("rows to score")
        };
        (claimed.lease, claimed.batch.rows)
    }

    /// Puts rewards; where they lie.
    fn put(&self, number: u64, rewards: &[f32]) -> Result<(u64, u32), Status> {
        let array: arrow::array::ArrayRef = Arc::new(Float32Array::from(rewards.to_vec()));
        let put = wire::Put { session: self.session, partition: 1, column: 1, number, partial: false };
        let sent = outgoing::put(put, &array).unwrap();
        let placed = receiving::put(&self.world.service, sent).now_or_never().expect("nothing waits")?;
        let spot = placed.spot.unwrap();
        Ok((spot.chunk, spot.slot))
    }

    /// Rewards that come along with a command, for the first cells that it names.
    fn along(&self, number: u64, rewards: &[f32]) -> Call {
        let put = wire::Put { session: self.session, partition: 1, column: 1, number, partial: false };
        let array: arrow::array::ArrayRef = Arc::new(Float32Array::from(rewards.to_vec()));
        Call { along: vec![wire::Along::new(put, &array)], ..Call::default() }
    }

    fn unsettled(&self) -> u64 {
        self.world.store.units().stats().total().unsettled
    }
}

fn put_stream(world: &World, sent: Vec<FlightData>) -> Result<Option<arrow_flight::PutResult>, Status> {
    let answered = writing::put(&world.service, stream::iter(sent.into_iter().map(Ok)));
    answered.now_or_never().expect("nothing waits")?.next().now_or_never().expect("nothing waits").transpose()
}

fn rewards(chunk: u64, slot: u32, rows: &Rows) -> CellWrite {
    let (column, sizes) = (ColumnId(1), Sizes::Uniform(4));
    CellWrite { column, rows: rows.clone(), chunk: ChunkId(chunk), slot, sizes, seal: true, replaces: None }
}

fn commit(lease: LeaseId, rows: &Rows, cells: Vec<CellWrite>) -> Command {
    Command::Commit { lease, rows: rows.clone(), cells, notes: vec![], drops: vec![] }
}

#[test]
fn a_question_for_more_rows_than_there_are_is_refused_before_memory_is_taken() {
    let client = Client::of(World::training());
    let ask = |rows: Vec<Run>| match client
        .act(action::RESOLVE, &Resolve { partition: 1, rows, all: false, columns: vec!["response".into()] })
    {
        Outcome::Failure(failure) => failure.into_error("here").to_string(),
        other => panic!("{other:?}"),
    };
    let said = ask(vec![Run { first: 0, len: 1 << 60 }]);
    assert!(said.contains("row 8 of `samples` does not exist"), "{said}");
    let said = ask(vec![Run { first: 0, len: 3 }; 4]);
    assert!(said.contains("12 rows are named, 8 are live"), "{said}");
    client.world.verify();
}

#[test]
fn rows_beyond_what_a_lease_holds_are_refused_without_looking_at_each() {
    let mut client = Client::of(World::training());
    let (lease, _) = client.claim();
    let endless = Rows::run(RowId(0), 1 << 60);
    for command in [
        Command::Release { lease, rows: endless.clone() },
        Command::Fail { lease, rows: endless.clone(), error: "x".into() },
        commit(lease, &endless, vec![]),
        Command::Write { lease, cells: vec![rewards(1, u32::MAX, &endless)], notes: vec![] },
    ] {
        let said = client.call(&command).unwrap_err();
        assert!(said.contains("are not under lease") || said.contains("cells of `samples`"), "{said}");
    }
    let drop = |rows| Command::Drop {
        partition: PartitionId(1),
        rows: crate::catalog::command::DropRows { rows, reason: "unwanted".into() },
    };
    assert!(client.call(&drop(endless)).unwrap_err().contains("8 were ever born"));
    client.world.verify();
}

#[test]
fn a_claim_of_everything_is_served_by_every_sampler() {
    use crate::catalog::definition::Sampling;
    for sampling in [Sampling::Sequential, Sampling::Shuffled, Sampling::Balanced] {
        let mut definition = crate::testing::training(2);
        definition.tasks[0].sampling = sampling;
        let store = Store::still(definition, crate::store::Options::default(), Arc::default()).unwrap();
        let session = store.session("worker").unwrap();
        crate::testing::publish(&session, None, 0);
        crate::testing::feed(&session, 0, 4);
        let lease = session.claim("rollout", u64::MAX, crate::testing::soon()).unwrap().lease().unwrap();
        assert_eq!(lease.rows().len(), 8, "{sampling:?}");
    }
}

#[test]
fn the_last_id_of_all_is_no_row() {
    let world = World::training();
    let ask = |text: &str| {
        let request = inspect::server::parse(text.as_bytes()).unwrap();
        match inspect::answer(&world.store, &request) {
            inspect::Reply::Error(said) => said,
            other => panic!("{other:?}"),
        }
    };
    assert!(ask(r#"{"get":"why","row":18446744073709551615}"#).contains("does not exist"));
    for rows in ["18446744073709551615", "18446744073709551615,3"] {
        let said = ask(&format!(r#"{{"get":"drop","partition":"samples","rows":"{rows}","reason":"x"}}"#));
        assert!(said.contains("is no set of rows"), "{said}");
        let said = ask(&format!(r#"{{"get":"peek","partition":"samples","rows":"{rows}"}}"#));
        assert!(said.contains("is no set of rows"), "{said}");
    }
    world.verify();
}

#[test]
fn a_ticket_that_names_cells_of_another_column_is_refused() {
    let world = World::of_columns(3);
    let id = world.store.partition("all").unwrap();
    let (pointer, _) = world.store.resolve(id, None, &["tokens"]).unwrap();
    let ticket = |column: u32| {
        let mut ticket = Ticket::from(&pointer);
        ticket.columns[0].column = column;
        reading::select(&world.service, &ticket.encode_to_vec()).err().map(|status| status.message().to_owned())
    };
    assert_eq!(ticket(4), None, "its own column");
    let said = ticket(0).unwrap();
    assert!(said.contains("holds column 4 of partition 0, not column 0"), "{said}");
}

#[test]
fn a_ticket_that_names_few_bytes_often_takes_no_memory_before_it_is_read() {
    let world = World::of_columns(3);
    let id = world.store.partition("all").unwrap();
    let (pointer, _) = world.store.resolve(id, None, &["scalar"]).unwrap();
    let mut ticket = Ticket::from(&pointer);
    let cells = ticket.columns[0].runs[0];
    ticket.columns[0].runs = vec![cells; 100_000];
    ticket.rows = 300_000;
    let selection = reading::select(&world.service, &ticket.encode_to_vec()).unwrap();
    assert_eq!(selection.batches.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 300_000);
    // Side by side everything would be in memory at once.
    ticket.columns = vec![ticket.columns[0].clone(); 2];
    ticket.columns.iter_mut().for_each(|column| column.runs = vec![cells; 2_000_000]);
    ticket.rows = 6_000_000;
    assert!(reading::select(&world.service, &ticket.encode_to_vec()).is_ok(), "48 MB are gathered");
}

#[test]
fn a_batch_of_rows_without_columns_is_bounded() {
    let world = World::of_columns(0);
    let schema = Arc::new(arrow::datatypes::Schema::empty());
    let put = |rows: usize| {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema.clone(), vec![], &options).unwrap();
        let mut sent = batches_to_flight_data(&schema, [&batch]).unwrap();
        sent[0].flight_descriptor = Some(FlightDescriptor::new_path(vec!["bare".into()]));
        put_stream(&world, sent).map(drop).map_err(|status| status.message().to_owned())
    };
    assert_eq!((put(3), put(limits::FREE_ROWS)), (Ok(()), Ok(())));
    for rows in [limits::FREE_ROWS + 1, limits::PUT_ROWS, 1 << 40] {
        let said = put(rows).unwrap_err();
        assert!(said.contains("put at most 4096 at once") || said.contains("a length of"), "{said}");
    }
}

#[test]
fn a_shape_that_runs_over_is_refused_when_its_partition_is_created() {
    let mut client = Client::of(World::training());
    for (axes, fits) in [(vec![1 << 40, 1 << 40], false), (vec![0, usize::MAX], false), (vec![1 << 20, 3], true)] {
        let kind = crate::Kind::Dense { dtype: crate::Dtype::F32, shape: axes };
        let columns = vec![crate::Column::new("x", kind)];
        let birth = crate::catalog::definition::Birth::Put { capacity: None };
        let partition = crate::catalog::definition::Partition { name: "large".into(), columns, birth };
        match client.call(&Command::CreatePartition(partition)) {
            Ok(_) => assert!(fits),
            Err(said) => assert!(!fits && said.contains("more than 2^31 bytes"), "{said}"),
        }
    }
}

#[test]
fn a_command_names_only_cells_that_its_own_session_has_put() {
    let mut client = Client::of(World::training());
    let (lease, rows) = client.claim();
    let refused = |client: &mut Client, cells: Vec<CellWrite>| {
        let said = client.call(&commit(lease, &rows, cells)).unwrap_err();
        assert!(said.contains("cells of column 1 in chunk") && said.contains("has put them"), "{said}");
    };
    refused(&mut client, vec![rewards(999, 0, &rows)]);
    let (chunk, slot) = client.put(1, &[0.5, 1.0]).unwrap();
    // Another place, another number of cells, other sizes, twice.
    refused(&mut client, vec![rewards(chunk, slot + 1, &rows)]);
    refused(&mut client, vec![rewards(chunk, slot, &Rows::run(RowId(0), 1))]);
    refused(&mut client, vec![CellWrite { sizes: Sizes::Uniform(8), ..rewards(chunk, slot, &rows) }]);
    refused(&mut client, vec![rewards(chunk, slot, &rows), rewards(chunk, slot, &rows)]);
    let right = commit(lease, &rows, vec![rewards(chunk, slot, &rows)]);
    let seq = client.seq + 1;
    let reply = client.call(&right).unwrap();
    assert_eq!(client.send(seq, &right), Ok(reply), "the same call again hears the same reply");
    client.world.verify();
    // What another session has put.
    let theirs = client.put(2, &[0.5, 1.0]).unwrap();
    let mut stranger = Client::of(client.world);
    let (lease, rows) = stranger.claim();
    let said = stranger.call(&commit(lease, &rows, vec![rewards(theirs.0, theirs.1, &rows)])).unwrap_err();
    assert!(said.contains("has put them"), "{said}");
}

#[test]
fn cells_that_come_along_with_a_command_are_put_once_and_named_by_it() {
    let mut client = Client::of(World::training());
    let (lease, rows) = client.claim();
    let seq = client.seq + 1;
    let right = commit(lease, &rows, vec![rewards(wire::ALONG.0, 1, &rows)]);
    // Without the cells, and with too few of them.
    for beside in [Call::default(), client.along(1, &[0.5])] {
        let said = client.say(seq, &right, beside).unwrap_err();
        assert!(said.contains("has put them"), "{said}");
    }
    let reply = client.say(seq, &right, client.along(2, &[0.5, 1.0])).unwrap();
    assert!(matches!(reply, Reply::Committed { .. }), "{reply:?}");
    assert_eq!(client.say(seq, &right, client.along(2, &[0.5, 1.0])), Ok(reply), "sent again, it hears the same");
    client.seq = seq;
    client.say(seq + 1, &Command::Heartbeat, Call { unwanted: vec![1], ..Call::default() }).unwrap();
    assert_eq!(client.unsettled(), 0, "nothing is left of any copy");
    let named = client.world.store.resolve(PartitionId(1), Some(&rows), &["reward"]).unwrap().0;
    let views = crate::transport::Local::new(client.world.store.units().clone());
    let views = crate::transport::Transport::get(&views, &named.columns[0]).unwrap();
    assert_eq!(views[0].values(), bytemuck::cast_slice::<f32, u8>(&[0.5, 1.0]));
    client.world.verify();
}

#[test]
fn cells_that_came_along_with_a_command_that_was_refused_go_when_nobody_wants_them() {
    let mut client = Client::of(World::training());
    let (lease, rows) = client.claim();
    client.call(&Command::Release { lease, rows: rows.clone() }).unwrap();
    let late = commit(lease, &rows, vec![rewards(wire::ALONG.0, 7, &rows)]);
    let said = client.say(client.seq + 1, &late, client.along(7, &[0.5, 1.0])).unwrap_err();
    assert!(said.contains("lease"), "{said}");
    assert!(client.unsettled() > 0, "the session may name them still");
    let unwanted = Call { unwanted: vec![7, 8], ..Call::default() };
    client.say(client.seq + 1, &Command::Heartbeat, unwanted).unwrap();
    assert_eq!(client.unsettled(), 0);
    // What comes late, and what was never heard of, is not wanted either.
    for number in [7, 8] {
        let said = client.say(client.seq + 2, &late, client.along(number, &[0.5, 1.0])).unwrap_err();
        assert!(said.contains(&format!("put {number} of session")) && said.contains("let go before"), "{said}");
    }
    // Of another session, and without cells in the command that they could be.
    let mut stranger = client.along(9, &[0.5, 1.0]);
    stranger.along[0].put.session += 1;
    for (command, beside) in [(&late, stranger), (&Command::Heartbeat, client.along(9, &[0.5, 1.0]))] {
        let said = client.say(client.seq + 2, command, beside).unwrap_err();
        assert!(said.contains("put 9 came along with a command that does not name it"), "{said}");
    }
    client.world.verify();
}

/// A claim that has to wait gives its number to a heartbeat; a copy of the claim that comes late must not take it.
#[test]
fn a_late_copy_of_a_call_that_gave_its_number_back_takes_no_other_calls_number() {
    let client = Client::of(World::training());
    let send = |attempt: u64, command: &Command| {
        let call = Call {
            session: Some(client.session),
            seq: 1,
            command: wire::json(command),
            attempt: Some(attempt),
            ..Call::default()
        };
        client.act(action::CALL, &call)
    };
    let claim = Command::Claim { task: crate::TaskId(2), limit: 1 };
    assert!(matches!(send(1, &claim), Outcome::Later(_)), "nothing is scored yet");
    let session = client.world.store.session("reward").unwrap();
    assert!(crate::testing::step(&session, "reward"));
    // The copy comes first: it hears the same again, although there are rows by now.
    assert!(matches!(send(1, &claim), Outcome::Later(_)));
    let Outcome::Reply(reply) = send(2, &Command::Heartbeat) else { panic!("an answer") };
    assert_eq!(wire::parse::<Reply>("reply", &reply), Ok(Reply::Done));
    let Outcome::Failure(failure) = send(1, &claim) else { panic!("a refusal") };
    let said = failure.into_error("here").to_string();
    assert!(said.contains("call 1 of session") && said.contains("was overtaken"), "{said}");
}

#[test]
fn a_put_that_comes_twice_is_stored_once_and_a_late_one_not_at_all() {
    let mut client = Client::of(World::training());
    let (lease, rows) = client.claim();
    let first = client.put(1, &[0.5, 1.0]).unwrap();
    let once = client.unsettled();
    assert_eq!(client.put(1, &[0.5, 1.0]).unwrap(), first);
    assert_eq!(client.unsettled(), once, "the second copy is not kept");
    client.call(&commit(lease, &rows, vec![rewards(first.0, first.1, &rows)])).unwrap();
    let late = client.put(1, &[0.5, 1.0]).unwrap_err();
    assert!(late.message().contains("was named by a command or let go before"), "{late}");
    assert_eq!(client.unsettled(), 0);
    // Numbers may come in any order.
    assert!(client.put(3, &[1.0]).is_ok() && client.put(2, &[1.0]).is_ok());
}
