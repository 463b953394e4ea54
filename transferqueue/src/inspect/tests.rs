use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
};

use super::*;
use crate::{
    Options,
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
    assert_eq!(store.unit().stats().total().pinned, 0);
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
