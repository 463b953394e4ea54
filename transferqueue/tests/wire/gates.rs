//! Who is let in, and how much.

use std::time::{Duration, Instant};

use transferqueue::{
    NewRow, Outputs,
    client::{self, Remote},
    inspect,
    server::{self, ServerError},
};

use crate::{connect, serve, soon, store};

#[test]
fn a_wrong_token_is_refused_with_what_to_send() {
    let store = store();
    let server = serve(&store);
    for wrong in ["", "0", &"f".repeat(64)] {
        let begun = Instant::now();
        let error = Remote::connect(server.url(), wrong, client::Options::default()).unwrap_err().to_string();
        assert!(error.contains("no valid token") && error.contains("authorization"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30), "a refusal is not tried again");
    }
    connect(&server);
}

#[test]
fn the_token_file_is_for_this_user_alone_and_goes_with_the_server() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let store = store();
    let options = server::Options { token_file: Some(path.clone()), ..server::Options::default() };
    let server = server::serve(&store, &options).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&path).unwrap();
    Remote::connect(server.url(), &token, client::Options::default()).unwrap();
    drop(server);
    assert!(!path.exists());
}

#[test]
fn an_open_address_must_be_asked_for() {
    let store = store();
    let open = server::Options { listen: ([0, 0, 0, 0], 0).into(), ..server::Options::default() };
    let error = server::serve(&store, &open).err().unwrap();
    assert!(matches!(error, ServerError::Insecure { .. }) && error.to_string().contains("insecure"), "{error}");
    server::serve(&store, &server::Options { insecure: true, ..open }).unwrap();
}

#[test]
fn a_message_beyond_the_limit_is_refused_and_the_session_goes_on() {
    let store = store();
    let options = server::Options { message_bytes: 1 << 20, ..server::Options::default() };
    let server = server::serve(&store, &options).unwrap();
    let session = connect(&server).session("feeder").unwrap();
    let papers = session.partition("papers").unwrap();
    let put = |bytes: usize| {
        let cells = Outputs::new().binary("text", [vec![1_u8; bytes]]);
        session.put(papers, vec![NewRow::default()], cells, soon())
    };
    let error = put(4 << 20).unwrap_err().to_string();
    assert!(error.contains("`text`") && error.contains("1048576"), "{error}");
    assert_eq!(put(1 << 19).unwrap().to_string(), "0");
    assert_eq!(session.read(papers, None, &["text"]).unwrap().binary("text").unwrap().row(0).len(), 1 << 19);
}

#[test]
fn one_connection_too_many_is_told_so() {
    let store = store();
    let options = server::Options { connections: 1, ..server::Options::default() };
    let server = server::serve(&store, &options).unwrap();
    let first = connect(&server);
    let error = Remote::connect(server.url(), server.token(), client::Options::default()).unwrap_err().to_string();
    assert!(error.contains("1 connections are open already"), "{error}");
    assert!(first.inspect(&inspect::Request::Status).is_ok(), "the first one is served as before");
}

#[test]
fn names_and_commands_have_limits() {
    let store = store();
    let server = serve(&store);
    let remote = connect(&server);
    let error = remote.session("x".repeat(1000)).unwrap_err().to_string();
    assert!(error.contains("1000 bytes") && error.contains("256"), "{error}");
    let session = remote.session("worker").unwrap();
    let error = session.claim_any(&["take"; 100], 1, soon()).unwrap_err().to_string();
    assert!(error.contains("100 tasks") && error.contains("64"), "{error}");
    assert!(session.claim("take", 1, Instant::now()).unwrap_err().is_deadline());
}

#[test]
fn status_is_the_same_from_afar() {
    let store = store();
    let server = serve(&store);
    let remote = connect(&server);
    let here = inspect::answer(&store, &inspect::Request::Tasks);
    assert_eq!(remote.inspect(&inspect::Request::Tasks).unwrap(), here);
}
