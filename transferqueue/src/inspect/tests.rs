use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
};

use super::*;
use crate::{
    Column, Kind, NewRow, Options, Outputs, PartitionId, Rows,
    catalog::{
        definition::{Birth, Gate, Partition, Task},
        views::{CellState, RowTaskState},
    },
    testing::{self, soon, training},
};

fn served() -> (tempfile::TempDir, Store, Server) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(training(2), Options { incarnation: Some(7), ..Options::default() }).unwrap();
    let session = store.session("feeder").unwrap();
    testing::publish(&session, None, 0);
    testing::feed(&session, 0, 5);
    let server = serve(&store, &dir.path().join("control.sock")).unwrap();
    (dir, store, server)
}

fn get(server: &Server, request: &Request) -> Reply {
    Client::connect(server.path()).unwrap().get(request).unwrap()
}

#[test]
fn a_stalled_stage_shows_with_rows_holder_and_seconds() {
    let (_dir, store, server) = served();
    let stalled = store.session("rollout-0").unwrap();
    let _held = stalled.claim("rollout", 3, soon()).unwrap().lease().unwrap();
    let Reply::Tasks(tasks) = get(&server, &Request::Tasks) else { panic!("tasks") };
    let rollout = tasks.iter().find(|task| task.task == "rollout").unwrap();
    assert_eq!((rollout.backlog, rollout.leases[0].rows, rollout.leases[0].holder.as_str()), (8, 3, "rollout-0"));
    let shown = Reply::Tasks(tasks).table();
    let line = shown.lines().find(|line| line.starts_with("rollout")).unwrap();
    assert!(line.contains("rollout-0: 3 rows, lease") && line.contains("s"), "{line}");
}

#[test]
fn every_table_is_served_and_rendered() {
    let (_dir, store, server) = served();
    let session = store.session("rollout-0").unwrap();
    assert!(testing::step(&session, "rollout"));
    let cases = [
        (Request::Status, "0 of 2"),
        (Request::Tasks, "advantage"),
        (Request::Columns, "ragged i32"),
        (Request::Ledger, "balanced"),
        (Request::Partitions, "samples"),
        (Request::Sessions, "rollout-0"),
        (Request::Versions, "weights/policy/"),
        (Request::Peek { partition: "samples".into(), rows: Some("0,5".into()), columns: vec![] }, "absent"),
    ];
    for (request, expected) in cases {
        let shown = get(&server, &request).table();
        assert!(shown.contains(expected), "{request:?}: {shown}");
    }
    let Reply::Columns(columns) = get(&server, &Request::Columns) else { panic!("columns") };
    let response = columns.iter().find(|column| column.account.column == "response").unwrap();
    assert_eq!((response.account.cells, response.unit.cells), (3, 3));
    assert!(response.account.readers_owing.contains(&("reward".to_owned(), 8)), "{response:?}");
}

#[test]
fn peeking_shows_values_and_absent_cells_and_holds_nothing() {
    let (_dir, store, server) = served();
    let session = store.session("rollout-0").unwrap();
    assert!(testing::step(&session, "rollout"));
    let columns = vec!["prompt".to_owned(), "response".to_owned()];
    let request = Request::Peek { partition: "samples".into(), rows: None, columns };
    let Reply::Peek(peek) = get(&server, &request) else { panic!("peek") };
    assert_eq!(peek.rows.len(), 8);
    assert_eq!(peek.rows[2].cells["prompt"].value, serde_json::json!([1, 2]));
    assert_eq!(peek.rows[2].cells["response"].value, serde_json::json!([2, 4]));
    assert!(!peek.rows[3].cells.contains_key("response"));
    assert_eq!(store.units().stats().total().pinned, 0);
    let wrong = |partition: &str, rows: &str, column: &str| {
        let (partition, rows) = (partition.to_owned(), Some(rows.to_owned()));
        let request = Request::Peek { partition, rows, columns: vec![column.to_owned()] };
        Client::connect(server.path()).unwrap().get(&request).unwrap_err().to_string()
    };
    assert!(wrong("sample", "0", "prompt").contains("`samples`"));
    assert!(wrong("samples", "x", "prompt").contains("`x` is no set of rows"));
    assert!(wrong("samples", "0", "promt").contains("`prompt`"));
    assert!(wrong("samples", "99", "prompt").contains("99"));
}

#[test]
fn garbage_is_answered_and_the_connection_closed_while_others_go_on() {
    let (_dir, _store, server) = served();
    let mut good = Client::connect(server.path()).unwrap();
    let long = [b'x'; 70_000];
    for garbage in
        [&b"hello\n"[..], b"{\"get\":\"secrets\"}\n", b"{\"get\":\"tasks\",\"kill\":1}\n", b"\xff\xfe\n", &long]
    {
        let mut stream = UnixStream::connect(server.path()).unwrap();
        // The other side may hang up before it has read all of a line that is too long.
        drop(stream.write_all(garbage));
        drop(stream.shutdown(std::net::Shutdown::Write));
        let mut reply = String::new();
        let mut reader = BufReader::new(&mut stream);
        if reader.read_line(&mut reply).is_ok() {
            assert!(reply.starts_with("{\"error\":"), "{reply}");
            assert_eq!(reader.read(&mut [0; 1]).unwrap_or(0), 0, "closed");
        }
        assert!(matches!(good.get(&Request::Partitions).unwrap(), Reply::Partitions(_)));
    }
}

#[test]
fn the_socket_is_private_not_shared_by_two_and_gone_at_the_end() {
    let (dir, store, server) = served();
    let mode = std::fs::metadata(server.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(matches!(serve(&store, server.path()), Err(InspectError::Taken { .. })));
    let mut open = Client::connect(server.path()).unwrap();
    let path = server.path().to_owned();
    drop(server);
    assert!(!path.exists());
    assert!(open.get(&Request::Status).is_err(), "open connections end with the server");
    // What a killed process leaves behind is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(serve(&store, &path).unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_client_too_many_is_told_so() {
    let (_dir, _store, server) = served();
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(server.path()).unwrap()).collect();
    clients.iter_mut().for_each(|client| drop(client.get(&Request::Status).unwrap()));
    let mut late = BufReader::new(UnixStream::connect(server.path()).unwrap());
    let mut reply = String::new();
    late.read_line(&mut reply).unwrap();
    assert!(reply.contains("16 clients are connected already"), "{reply}");
}

/// What is answered about a row, as text.
fn why(server: &Server, row: u64) -> (Why, String) {
    let reply = get(server, &Request::Why { partition: None, row });
    let text = reply.table();
    let Reply::Why(why) = reply else { panic!("{reply:?}") };
    (*why, text)
}

#[test]
fn a_row_says_who_wrote_its_columns_who_has_to_and_who_holds_it() {
    let (_dir, store, server) = served();
    let session = store.session("rollout-0").unwrap();
    assert!(testing::step(&session, "rollout"));
    let rewarder = store.session("reward-0").unwrap();
    let held = rewarder.claim("reward", 2, soon()).unwrap().lease().unwrap();
    let (found, text) = why(&server, 0);
    let live = found.live.unwrap();
    assert_eq!((live.parent, live.batch, live.head.span.unwrap().last), (Some(("prompts".into(), RowId(0))), None, 0));
    let state = |name: &str| live.tasks.iter().find(|task| task.task == name).unwrap();
    assert_eq!(state("rollout").state, RowTaskState::Consumed);
    assert_eq!(
        (state("reward").state, state("reward").lease.as_ref().unwrap().holder.as_str()),
        (RowTaskState::Leased, "reward-0")
    );
    assert_eq!(
        (state("advantage").state, &state("advantage").missing[..]),
        (RowTaskState::Waiting, &["reward".to_owned()][..])
    );
    let column = |name: &str| live.columns.iter().find(|column| column.column == name).unwrap();
    assert_eq!(
        (column("response").state, &column("response").writers[..]),
        (CellState::Held, &["rollout".to_owned()][..])
    );
    assert_eq!(column("prompt").from, Some(("prompts".into(), RowId(0))));
    assert_eq!(found.cells["prompt"].value, serde_json::json!([0, 1]));
    let reward = text.lines().find(|line| line.starts_with("reward ")).unwrap();
    assert!(reward.contains("missing") && reward.contains("`reward`: held by reward-0 under lease"), "{text}");
    // A row of the same group that nobody has begun, one that is gone, and one that never was.
    assert_eq!(why(&server, 5).0.live.unwrap().tasks[0].state, RowTaskState::Ready);
    drop(held);
    session.drop_rows(PartitionId(1), &Rows::run(RowId(5), 1), "stale").unwrap();
    assert_eq!(why(&server, 5).0.live, None);
    let request = Request::Why { partition: Some("samples".into()), row: 999 };
    let wrong = Client::connect(server.path()).unwrap().get(&request).unwrap_err().to_string();
    assert!(wrong.contains("row 999 of `samples`"), "{wrong}");
}

#[test]
fn a_trained_row_says_that_the_publication_consumes_it() {
    let (_dir, store, server) = served();
    let session = store.session("all-0").unwrap();
    for task in ["rollout", "reward", "advantage"] {
        // Eight rows, three (or three groups) a claim.
        (0..3).take(if task == "advantage" { 2 } else { 3 }).for_each(|_| assert!(testing::step(&session, task)));
    }
    let lease = session.claim("actor", 1, soon()).unwrap().lease().unwrap();
    let row = lease.heads()[0].row;
    let actor =
        |server| why(server, row.0).0.live.unwrap().tasks.into_iter().find(|task| task.task == "actor").unwrap();
    assert_eq!(actor(&server).state, RowTaskState::Leased);
    lease.commit(Outputs::new()).unwrap();
    let done = actor(&server);
    assert_eq!(done.state, RowTaskState::Done);
    assert!(done.note.contains("version 1"), "{done:?}");
    assert_eq!(why(&server, row.0).0.live.unwrap().batch, Some((0, 0)));
}

#[test]
fn health_names_the_quiet_lease_the_silent_session_the_failed_row_and_the_wait() {
    let (_dir, store, server) = served();
    let health = |server| match get(server, &Request::Health) {
        Reply::Health(health) => *health,
        other => panic!("{other:?}"),
    };
    let session = store.session("rollout-0").unwrap();
    let first = session.claim("rollout", 3, soon()).unwrap().lease().unwrap();
    let rows = first.heads()[0].row;
    first.fail("no luck").unwrap();
    let _held = session.claim("rollout", 8, soon()).unwrap().lease().unwrap();
    let found = health(&server);
    assert_eq!((found.leases[0].task.as_str(), found.leases[0].lease.rows), ("rollout", 8));
    assert!(found.sessions.iter().any(|session| session.name == "rollout-0"));
    let failed = found.failed.iter().find(|row| row.row == rows).unwrap();
    assert_eq!((failed.failed, failed.attempts, found.failed.len()), (1, 3, 3));
    assert!(found.waits.iter().any(|wait| wait.task == "reward" && wait.wait.causes[0].task == "rollout"), "{found:?}");
    assert_eq!((found.poisoned, found.budget), (None, None));
    assert_eq!(failed.partition, "samples");
    let table = get(&server, &Request::Health).table();
    assert!(table.contains("quiet for") && table.contains("of `samples` failed 1 of 3 attempts"), "{table}");
}

#[test]
fn the_row_that_stops_the_run_is_named_with_its_partition() {
    let (_dir, store, server) = served();
    let session = store.session("rollout-0").unwrap();
    for _ in 0..3 {
        session.claim("rollout", 1, soon()).unwrap().lease().unwrap().fail("no luck").unwrap();
    }
    let Reply::Health(health) = get(&server, &Request::Health) else { panic!("health") };
    let poisoned = health.poisoned.as_ref().unwrap();
    assert_eq!((poisoned.task.as_str(), poisoned.partition.as_str(), poisoned.row), ("rollout", "samples", RowId(0)));
    let table = Reply::Health(health).table();
    assert!(table.contains("`rollout`: row 0 of `samples`: no luck"), "{table}");
}

#[test]
fn units_add_up_to_what_the_columns_say() {
    let (_dir, store, server) = served();
    assert!(testing::step(&store.session("rollout-0").unwrap(), "rollout"));
    let Reply::Units(units) = get(&server, &Request::Units) else { panic!("units") };
    let Reply::Columns(columns) = get(&server, &Request::Columns) else { panic!("columns") };
    let sum = |of: &dyn Fn(&ColumnBytesView) -> u64| columns.iter().map(of).sum::<u64>();
    assert_eq!((units[0].chunks, units[0].live), (sum(&|c| c.unit.chunks), sum(&|c| c.unit.live)));
    assert!(units[0].live > 0);
    assert_eq!(units[0].dead_in_chunk, Some(sum(&|c| c.account.bytes_dead_in_chunk)));
}

#[test]
fn several_units_are_listed_each_with_its_bytes() {
    let store = Store::create(training(1), Options { units: 2, ..Options::default() }).unwrap();
    let session = store.session("feeder").unwrap();
    testing::feed(&session, 0, 4);
    let Reply::Units(units) = answer(&store, &Request::Units) else { panic!("units") };
    let total = store.units().stats().total();
    assert_eq!(units.iter().map(|unit| unit.unit).collect::<Vec<_>>(), [0, 1]);
    assert!(units.iter().all(|unit| unit.live > 0 && unit.freed.is_none()), "{units:?}");
    assert_eq!(units.iter().map(|unit| unit.live).sum::<u64>(), total.live);
    let table = Reply::Units(units).table();
    assert_eq!(table.lines().count(), 3, "{table}");
}

#[test]
fn rows_are_dropped_only_once_that_is_confirmed() {
    let (_dir, store, server) = served();
    let session = store.session("rollout-0").unwrap();
    let _held = session.claim("rollout", 2, soon()).unwrap().lease().unwrap();
    let ask = |rows: &str, reason: &str, confirmed| {
        let (partition, rows, reason) = ("samples".to_owned(), rows.to_owned(), reason.to_owned());
        Client::connect(server.path()).unwrap().get(&Request::Drop { partition, rows, reason, confirmed })
    };
    let live = || store.with_state(|state, _| state.rows(PartitionId(1)).unwrap().to_string()).unwrap();
    let Ok(Reply::Drop(shown)) = ask("1,6-7", "broken", false) else { panic!("drop") };
    assert_eq!((shown.rows.to_string().as_str(), shown.done, live().as_str()), ("1,6-7", false, "0-7"));
    let loss = |discard: &Discard| (discard.losses[0].task.clone(), discard.losses[0].rows, discard.losses[0].leased);
    assert_eq!(loss(&shown), ("rollout".to_owned(), 3, 1));
    let Ok(Reply::Drop(done)) = ask("1,6-7", "broken", true) else { panic!("drop") };
    assert!(done.done && live().starts_with("0,2-5"), "{}", live());
    let dropped = store.with_state(|state, _| state.ledger()[0].dropped.clone()).unwrap();
    assert_eq!(dropped["broken"], 3);
    let Ok(Reply::Drop(again)) = ask("1", "broken", true) else { panic!("drop") };
    assert_eq!((again.rows.len(), again.gone.to_string().as_str()), (0, "1"));
    for (rows, reason, expected) in [
        ("0-9999", "broken", "too many rows"),
        ("0-18446744073709551614,0-18446744073709551614", "broken", "too many rows"),
        ("99", "broken", "never born"),
        ("0", "No Word!", "No Word!"),
    ] {
        let wrong = ask(rows, reason, true).unwrap_err().to_string();
        assert!(wrong.contains(expected), "{wrong}");
    }
}

#[test]
fn a_drop_says_when_others_moved_between_the_look_and_the_drop() {
    let (_dir, store, _server) = served();
    let session = store.session("cleaner").unwrap();
    let plan = |rows: &str| {
        let asked = peek::parse(rows, 10).unwrap();
        discard::Plan::look(&store, "samples", &asked, "broken").unwrap()
    };
    let others = |row| session.drop_rows(PartitionId(1), &Rows::run(RowId(row), 1), "stale").unwrap();
    let told = |discard: Discard| (discard.between, Reply::Drop(discard).table());
    let (between, text) = told(plan("1").carry_out(&store).unwrap());
    assert!(between == 0 && !text.contains("in between"), "{text}");

    let some = plan("2-3");
    others(3);
    let (between, text) = told(some.carry_out(&store).unwrap());
    assert!(between == 1 && text.contains("1 events of others came in between"), "{text}");
    // All of its rows left before: the drop itself wrote nothing.
    let all = plan("4");
    others(4);
    let (between, text) = told(all.carry_out(&store).unwrap());
    assert!(between == 1 && text.contains("tq-cli why samples ROW"), "{text}");
    let dropped = store.with_state(|state, _| state.ledger()[0].dropped.clone()).unwrap();
    assert_eq!((dropped["broken"], dropped["stale"]), (2, 2));
}

#[test]
fn the_trained_partition_is_meant_where_none_is_named() {
    // As the quick start: rows of `val` are born from those of another partition too.
    let mut definition = training(2);
    let birth = |from: &str| Birth::Expand {
        from: from.into(),
        n: 1,
        link: vec![],
        gate: Gate::Every { cycles: 1, first: true },
    };
    definition.partitions.push(Partition {
        name: "val_prompts".into(),
        columns: vec![Column::new("prompt", Kind::Utf8)],
        birth: Birth::Put { capacity: None },
    });
    let columns = vec![Column::new("response", Kind::Utf8)];
    definition.partitions.push(Partition { name: "val".into(), columns, birth: birth("val_prompts") });
    definition.tasks.push(Task { writes: vec!["response".into()], ..Task::new("validate", "val") });

    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(definition.clone(), Options::default()).unwrap();
    let session = store.session("feeder").unwrap();
    session.put(PartitionId(2), vec![NewRow::default()], Outputs::new().utf8("prompt", ["1 + 1"]), soon()).unwrap();
    session.close_partition(PartitionId(2)).unwrap();
    testing::publish(&session, None, 0);
    testing::feed(&session, 0, 5);
    let born = |id| store.with_state(|state, _| state.born(PartitionId(id)).unwrap()).unwrap();
    assert!(born(1) > 0 && born(3) > 0, "both hold samples");
    let server = serve(&store, &dir.path().join("control.sock")).unwrap();
    assert_eq!(why(&server, 0).0.partition, "samples");

    assert_eq!(samples(&definition).unwrap(), "samples");
    definition.schedule = None;
    let several = samples(&definition).unwrap_err().to_string();
    assert!(several.contains("name one") && several.contains("`val_prompts`, `val`"), "{several}");
    definition.partitions.retain(|partition| partition.name != "samples");
    assert_eq!(samples(&definition).unwrap(), "val");
}

#[test]
fn the_log_tells_what_became_of_rows_that_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(training(1), Options::at(dir.path())).unwrap();
    testing::run(&store, 1);
    let history = |row| history::read(&dir.path().join("events"), "samples", RowId(row)).unwrap();
    let told = history(3);
    let kinds: Vec<&str> = told.happenings.iter().map(|happening| happening.kind.as_str()).collect();
    let expected = [
        "born",
        "leased",
        "written",
        "committed",
        "leased",
        "written",
        "committed",
        "leased",
        "written",
        "committed",
        "cut",
        "leased",
        "committed",
        "published",
    ];
    assert_eq!(kinds, expected, "{told:#?}");
    let said = |kind: &str| told.happenings.iter().find(|h| h.kind == kind).map(|h| h.what.clone()).unwrap();
    assert_eq!(said("born"), "born in group 1 from row 1 of `prompts`, at version 0");
    assert!(
        said("written").starts_with("`rollout` (worker rollout-0) wrote `response`, sampled with version 0"),
        "{told:#?}"
    );
    assert_eq!(said("published"), "version 1 ended cycle 0 and consumed it");
    assert_eq!((told.dropped, history(99).happenings.len()), (None, 0));
    assert_eq!(history::definition(&dir.path().join("events")).unwrap().unwrap().1, training(1));
}

#[test]
fn the_log_tells_why_a_row_was_dropped_and_what_was_tried_before() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(training(2), Options::at(dir.path())).unwrap();
    let session = store.session("rollout-0").unwrap();
    testing::publish(&session, None, 0);
    testing::feed(&session, 0, 5);
    session.claim("rollout", 2, soon()).unwrap().lease().unwrap().fail("no luck").unwrap();
    drop(session.claim("rollout", 1, soon()).unwrap().lease().unwrap());
    session.drop_rows(PartitionId(1), &Rows::run(RowId(0), 1), "stale").unwrap();
    let told = history::read(&dir.path().join("events"), "samples", RowId(0)).unwrap();
    let text: Vec<&str> = told.happenings.iter().map(|happening| happening.what.as_str()).collect();
    assert!(text.iter().any(|line| line.contains("failed (counts an attempt): no luck")), "{text:?}");
    assert!(text.iter().any(|line| line.contains("given back")), "{text:?}");
    assert_eq!((told.dropped.as_deref(), text.last()), (Some("stale"), Some(&"dropped: stale")));
}

#[test]
fn clients_that_ask_nothing_do_not_keep_others_out() {
    let (_dir, _store, server) = served();
    let mut silent: Vec<UnixStream> = (0..16).map(|_| UnixStream::connect(server.path()).unwrap()).collect();
    for stream in &mut silent {
        // Far less than the two minutes an idle client has between requests.
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        stream.write_all(b"{").unwrap();
    }
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "closed by the server");
    }
    assert!(matches!(get(&server, &Request::Status), Reply::Status(_)));
}

#[test]
fn a_budget_that_alone_keeps_groups_out_is_named() {
    let mut definition = training(3);
    definition.partitions[1].columns[0].max_bytes = Some(8);
    // A cycle's 4 groups of 2 rows; the schedule would allow 4 groups more.
    definition.budget = Some(64);
    definition.schedule.as_mut().unwrap().ahead = 4;
    let store = Store::create(definition, Options::default()).unwrap();
    let session = store.session("feeder").unwrap();
    testing::publish(&session, None, 0);
    let budget = || store.with_state(|state, now| state.health(now).budget.unwrap()).unwrap();
    testing::feed(&session, 0, 4);
    assert_eq!((budget().used, budget().blocks), (64, false), "no row waits to be expanded");
    testing::feed(&session, 4, 5);
    assert!(budget().blocks);
}

#[test]
fn long_lists_are_shortened_and_say_so() {
    let (_dir, store, server) = served();
    let session = store.session("rollout-0").unwrap();
    let _held: Vec<_> = (0..3).map(|_| session.claim("rollout", 2, soon()).unwrap().lease().unwrap()).collect();
    let Reply::Tasks(mut tasks) = get(&server, &Request::Tasks) else { panic!("tasks") };
    tasks[0].shorten(2);
    assert_eq!((tasks[0].leases.len(), tasks[0].more_leases, tasks[0].leased), (2, 1, 6));
    assert!(Reply::Tasks(tasks).table().contains("1 more"));
    let Reply::Sessions(mut sessions) = get(&server, &Request::Sessions) else { panic!("sessions") };
    let rollout = sessions.iter_mut().find(|session| session.name == "rollout-0").unwrap();
    rollout.shorten(1);
    assert_eq!((rollout.leases.len(), rollout.more_leases, rollout.rows), (1, 2, 6));
}

#[test]
fn shared_memory_is_shown_with_what_of_it_is_given_out() {
    let store = Store::create(training(1), Options { shared: true, ..Options::default() }).unwrap();
    testing::feed(&store.session("feeder").unwrap(), 0, 4);
    let Reply::Units(units) = answer(&store, &Request::Units) else { panic!("units") };
    let memory = units[0].memory.unwrap();
    // Four prompts of 8 bytes behind offsets of 8, and four texts: each a range of whole cache lines.
    assert_eq!((memory.segments, memory.reserved), (1, 16 << 20));
    assert_eq!((memory.used, memory.longest), (1024, (16 << 20) - 1024));
    let table = Reply::Units(units).table();
    assert!(table.contains("1.0KiB of 16.0MiB in 1 segments, 16.0MiB free together"), "{table}");
}
