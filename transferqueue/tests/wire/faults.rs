//! Connections, clients and servers that go away.

use std::{
    thread,
    time::{Duration, Instant},
};

use transferqueue::{
    Error, NewRow, Outputs,
    client::{self, Remote},
    server,
};

use crate::{connect, proxy::Proxy, serve, soon, store};

fn rows(n: usize) -> Vec<NewRow> {
    vec![NewRow::default(); n]
}

#[test]
fn a_lost_reply_is_heard_again_and_nothing_is_done_twice() {
    let store = store();
    let server = serve(&store);
    let proxy = Proxy::to(server.url());
    // A heartbeat whose answer is swallowed would be in the way of the put.
    let quiet = client::Options { heartbeat: Duration::from_secs(3600), ..client::Options::default() };
    let remote = Remote::connect(&proxy.url(), server.token(), quiet).unwrap();
    let session = remote.session("feeder").unwrap();
    let jobs = session.partition("jobs").unwrap();
    session.put(jobs, rows(1), Outputs::new(), soon()).unwrap();
    let worker = store.session("worker").unwrap();
    worker.claim("take", 1, soon()).unwrap().lease().unwrap().commit(Outputs::new()).unwrap();
    proxy.swallow_answers();
    let putting = {
        let session = session.clone();
        thread::spawn(move || session.put(jobs, rows(3), Outputs::new(), soon()))
    };
    // The put has happened once a worker in the store's own process gets its rows.
    let lease = worker.claim("take", 3, soon()).unwrap().lease().unwrap();
    assert_eq!(lease.rows().to_string(), "1-3");
    proxy.cut();
    assert_eq!(putting.join().unwrap().unwrap().to_string(), "1-3");
    assert_eq!(session.born(jobs).unwrap(), 4, "nothing was put twice");
    assert_eq!(session.put(jobs, rows(1), Outputs::new(), soon()).unwrap().to_string(), "4");
}

#[test]
fn a_wait_goes_on_over_a_new_connection() {
    let store = store();
    let server = serve(&store);
    let proxy = Proxy::to(server.url());
    let remote = Remote::connect(&proxy.url(), server.token(), client::Options::default()).unwrap();
    let session = remote.session("worker").unwrap();
    let jobs = session.partition("jobs").unwrap();
    let waiting = thread::spawn(move || session.claim("take", 1, soon()).unwrap().lease().unwrap().rows().clone());
    proxy.cut();
    store.session("feeder").unwrap().put(jobs, rows(1), Outputs::new(), soon()).unwrap();
    assert_eq!(waiting.join().unwrap().to_string(), "0");
}

#[test]
fn what_a_dead_client_held_goes_to_the_next_and_its_late_commit_is_refused() {
    let store = store();
    let server = serve(&store);
    let silent = client::Options { heartbeat: Duration::from_secs(3600), ..client::Options::default() };
    let dead = Remote::connect(server.url(), server.token(), silent).unwrap();
    let worker = dead.session("dead").unwrap();
    let jobs = worker.partition("jobs").unwrap();
    worker.put(jobs, rows(2), Outputs::new(), soon()).unwrap();
    let lease = worker.claim("take", 2, soon()).unwrap().lease().unwrap();
    // Nothing is heard of it any more; its lease runs out.
    let next = connect(&server).session("next").unwrap();
    let again = next.claim("take", 2, soon()).unwrap().lease().unwrap();
    assert_eq!(again.rows(), lease.rows());
    let error = lease.commit(Outputs::new()).unwrap_err();
    assert!(error.is_gone() && error.to_string().contains("has ended"), "{error}");
    again.commit(Outputs::new()).unwrap();
}

#[test]
fn bytes_that_no_commit_named_go_with_their_session() {
    let store = store();
    let server = serve(&store);
    let remote = connect(&server);
    let session = remote.session("feeder").unwrap();
    let papers = session.partition("papers").unwrap();
    session.close_partition(papers).unwrap();
    let cells = Outputs::new().binary("text", [[7_u8; 1000]]);
    let error = session.put(papers, rows(1), cells, soon()).unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    session.close().unwrap();
    assert_eq!(store.units().stats().total().unsettled, 0);
}

#[test]
fn a_server_that_is_gone_is_named_with_what_was_asked_and_how_long() {
    let store = store();
    let server = serve(&store);
    let options = client::Options { travel: Duration::from_millis(300), ..client::Options::default() };
    let remote = Remote::connect(server.url(), server.token(), options).unwrap();
    let session = remote.session("worker").unwrap();
    let url = server.url().to_owned();
    drop(server);
    let error = session.claim("take", 1, Instant::now()).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::Unreachable { .. }), "{said}");
    assert!(said.contains(&url) && said.contains("`claim`") && said.contains("within"), "{said}");
    let error = session.claim("take", 1, Instant::now()).unwrap_err().to_string();
    assert!(error.contains("open a new session"), "{error}");
}

#[test]
fn another_store_behind_the_same_address_is_not_taken_for_the_first() {
    let first = store();
    let server = serve(&first);
    let address = server.url().strip_prefix("grpc://").unwrap().parse().unwrap();
    let token = server.token().to_owned();
    let options = client::Options { patience: Duration::from_secs(5), ..client::Options::default() };
    let remote = Remote::connect(server.url(), &token, options).unwrap();
    let session = remote.session("worker").unwrap();
    drop(server);
    let other = store();
    let options = server::Options { listen: address, ..server::Options::default() };
    let again = server::serve(&other, &options).unwrap();
    // It has another token as well: the client is told that first.
    let error = session.claim("take", 1, soon()).unwrap_err().to_string();
    assert!(error.contains("token"), "{error}");
    drop(again);
}

#[test]
fn waiting_calls_occupy_no_thread_of_the_server() {
    let store = store();
    let server = serve(&store);
    let remote = connect(&server);
    let jobs = store.session("feeder").unwrap().partition("jobs").unwrap();
    let waiting: Vec<_> = (0..40)
        .map(|i| {
            let session = remote.session(format!("worker-{i}")).unwrap();
            thread::spawn(move || {
                let lease = session.claim_any(&["take"], 1, soon()).unwrap().lease().unwrap();
                let row = lease.rows().clone();
                lease.commit(Outputs::new()).unwrap();
                row.iter().next().unwrap()
            })
        })
        .collect();
    let feeder = store.session("feeder").unwrap();
    (0..40).for_each(|_| drop(feeder.put(jobs, rows(1), Outputs::new(), soon()).unwrap()));
    let mut taken: Vec<_> = waiting.into_iter().map(|worker| worker.join().unwrap().0).collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..40).collect::<Vec<u64>>());
}
