//! TLS: who is believed, and what is said otherwise.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use transferqueue::{
    NewRow, Outputs, Store,
    client::{self, ClientTls, Remote},
    server::{self, Server, ServerTls},
};

use crate::{office::Office, soon, store};

fn serve(store: &Store, (cert, key): (PathBuf, PathBuf), client_ca: Option<PathBuf>) -> Server {
    let tls = Some(ServerTls { cert, key, client_ca });
    server::serve(store, &server::Options { tls, ..server::Options::default() }).unwrap()
}

fn trusting(ca: &Path) -> ClientTls {
    ClientTls { ca: ca.to_owned(), identity: None, domain: None }
}

fn connect(server: &Server, tls: ClientTls) -> Result<Remote, transferqueue::Error> {
    let options = client::Options { tls: Some(tls), ..client::Options::default() };
    Remote::connect(server.url(), server.token(), options)
}

/// The refusal, which comes at once rather than after many attempts.
fn refused(server: &Server, tls: ClientTls) -> String {
    let begun = Instant::now();
    let error = connect(server, tls).unwrap_err().to_string();
    assert!(begun.elapsed() < Duration::from_secs(20), "a refusal is not tried again: {error}");
    assert!(error.contains("TLS: "), "{error}");
    error
}

#[test]
fn rows_travel_encrypted() {
    let (office, store) = (Office::new(), store());
    let server = serve(&store, office.issue("127.0.0.1", 4000), None);
    assert!(server.url().starts_with("grpc+tls://127.0.0.1:"), "{}", server.url());
    let session = connect(&server, trusting(&office.ca())).unwrap().session("feeder").unwrap();
    let papers = session.partition("papers").unwrap();
    session.put(papers, vec![NewRow::default()], Outputs::new().binary("text", [b"secret"]), soon()).unwrap();
    assert_eq!(session.read(papers, None, &["text"]).unwrap().binary("text").unwrap().row(0), b"secret");
}

#[test]
fn a_server_of_another_root_an_expired_one_and_one_of_another_name_are_not_believed() {
    let (office, other, store) = (Office::new(), Office::new(), store());
    let server = serve(&store, office.issue("127.0.0.1", 4000), None);
    let foreign = refused(&server, trusting(&other.ca()));
    assert!(foreign.contains("invalid peer certificate"), "{foreign}");
    let expired = serve(&store, office.issue("127.0.0.1", 2020), None);
    let late = refused(&expired, trusting(&office.ca()));
    assert!(late.contains("expired"), "{late}");
    let elsewhere = serve(&store, office.issue("example.org", 4000), None);
    let misnamed = refused(&elsewhere, trusting(&office.ca()));
    assert!(misnamed.contains("not valid for"), "{misnamed}");
    let named = ClientTls { domain: Some("example.org".into()), ..trusting(&office.ca()) };
    connect(&elsewhere, named).unwrap();
}

#[test]
fn a_server_that_wants_certificates_takes_those_of_its_root_alone() {
    let (office, other, store) = (Office::new(), Office::new(), store());
    let server = serve(&store, office.issue("127.0.0.1", 4000), Some(office.ca()));
    refused(&server, trusting(&office.ca()));
    let with = |from: &Office, year| ClientTls { identity: Some(from.issue("worker", year)), ..trusting(&office.ca()) };
    refused(&server, with(&other, 4000));
    refused(&server, with(&office, 2020));
    connect(&server, with(&office, 4000)).unwrap();
}

#[test]
fn the_token_is_wanted_all_the_same() {
    let (office, store) = (Office::new(), store());
    let server = serve(&store, office.issue("127.0.0.1", 4000), None);
    let options = client::Options { tls: Some(trusting(&office.ca())), ..client::Options::default() };
    let error = Remote::connect(server.url(), "wrong", options).unwrap_err().to_string();
    assert!(error.contains("no valid token"), "{error}");
}

#[test]
fn one_connection_too_many_is_told_so_when_encrypted() {
    let (office, store) = (Office::new(), store());
    let (cert, key) = office.issue("127.0.0.1", 4000);
    let tls = Some(ServerTls { cert, key, client_ca: None });
    let server = server::serve(&store, &server::Options { tls, connections: 1, ..server::Options::default() }).unwrap();
    let _first = connect(&server, trusting(&office.ca())).unwrap();
    let error = connect(&server, trusting(&office.ca())).unwrap_err().to_string();
    assert!(error.contains("1 connections are open already"), "{error}");
}

#[test]
fn a_url_and_certificates_that_do_not_go_together_are_refused() {
    let (office, store) = (Office::new(), store());
    let server = serve(&store, office.issue("127.0.0.1", 4000), None);
    let error = Remote::connect(server.url(), server.token(), client::Options::default()).unwrap_err().to_string();
    assert!(error.contains("needs the roots to trust"), "{error}");
    let options = client::Options { tls: Some(trusting(&office.ca())), ..client::Options::default() };
    let plain = server.url().replace("grpc+tls", "grpc");
    let error = Remote::connect(&plain, server.token(), options).unwrap_err().to_string();
    assert!(error.contains("does not say grpc+tls"), "{error}");
    let missing = ClientTls { ca: office.folder().join("none.pem"), ..trusting(&office.ca()) };
    let error = connect(&server, missing).unwrap_err().to_string();
    assert!(error.contains("none.pem"), "{error}");
    let (cert, _) = office.issue("127.0.0.1", 4000);
    let tls = Some(ServerTls { key: cert.clone(), cert, client_ca: None });
    let error =
        server::serve(&store, &server::Options { tls, ..server::Options::default() }).err().unwrap().to_string();
    assert!(error.contains("PRIVATE KEY"), "{error}");
}
