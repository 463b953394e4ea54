//! Ten kinds of nonsense on the port, while a client works.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use arrow_flight::{Action, FlightData, FlightDescriptor, Ticket, flight_service_client::FlightServiceClient};
use transferqueue::{NewRow, Outputs, wire};

use crate::{connect, serve, soon, store};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection says, before anything is known of a token.
fn nonsense() -> Vec<Vec<u8>> {
    let after = |frames: &[u8]| [PREFACE, frames].concat();
    vec![
        Vec::new(),
        b"hello".to_vec(),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        // The beginning of a TLS handshake.
        [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat(),
        PREFACE[..10].to_vec(),
        after(&[0xff; 300]),
        // Settings of a wrong length, a frame far beyond the limit, headers that are none, a flood of pings.
        after(&[0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]),
        after(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]),
        after(&[0, 0, 4, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]),
        after(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(20_000)),
    ]
}

/// Says it, and hears whatever comes until the other side ends or a second has passed.
fn shout(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // The server may hang up in the middle of it.
    if stream.write_all(bytes).is_ok() {
        drop(stream.shutdown(Shutdown::Write));
        drop(stream.read_to_end(&mut Vec::new()));
    }
}

#[test]
fn garbage_harms_nobody_else() {
    let store = store();
    let server = serve(&store);
    let address: SocketAddr = server.url().strip_prefix("grpc://").unwrap().parse().unwrap();
    let session = connect(&server).session("worker").unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let working = {
        let over = over.clone();
        thread::spawn(move || {
            let [jobs, papers] = ["jobs", "papers"].map(|name| session.partition(name).unwrap());
            let mut rounds = 0;
            while rounds < 20 || !over.load(Ordering::SeqCst) {
                session.put(jobs, vec![NewRow::default()], Outputs::new(), soon()).unwrap();
                let text = Outputs::new().binary("text", [b"x"]);
                session.put(papers, vec![NewRow::default()], text, soon()).unwrap();
                let lease = session.claim("read", 1, soon()).unwrap().lease().unwrap();
                assert_eq!(lease.batch().unwrap().binary("text").unwrap().row(0), b"x");
                lease.commit(Outputs::new()).unwrap();
                rounds += 1;
            }
        })
    };
    nonsense().iter().for_each(|bytes| shout(address, bytes));
    // And with the token: messages that are none.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(behind_the_gate(&format!("http://{address}"), server.token()));
    over.store(true, Ordering::SeqCst);
    working.join().unwrap();
    let ledger = store.with_state(|state, _| state.ledger()).unwrap();
    assert!(ledger.iter().all(|entry| entry.balanced()) && ledger[1].live == 0, "{ledger:?}");
}

async fn behind_the_gate(url: &str, token: &str) {
    let endpoint = tonic::transport::Endpoint::new(url.to_owned()).unwrap();
    let mut client = FlightServiceClient::new(endpoint.connect().await.unwrap());
    let bearer: tonic::metadata::MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
    macro_rules! with_token {
        ($message:expr) => {{
            let mut request = tonic::Request::new($message);
            request.metadata_mut().insert("authorization", bearer.clone());
            request
        }};
    }
    let noise = || vec![0xfe_u8; 40];
    for (action, _) in wire::action::ALL {
        let request = with_token!(Action { r#type: action.to_owned(), body: noise().into() });
        let status = client.do_action(request).await.err();
        assert!(action == wire::action::DEFINITION || status.is_some(), "`{action}` took noise");
    }
    assert!(client.do_action(with_token!(Action { r#type: "no".into(), body: noise().into() })).await.is_err());
    assert!(client.do_get(with_token!(Ticket { ticket: noise().into() })).await.is_err());
    assert!(client.get_flight_info(with_token!(FlightDescriptor::new_cmd(noise()))).await.is_err());
    assert!(client.get_schema(with_token!(FlightDescriptor::new_path(vec!["no".into()]))).await.is_err());
    let mut request = with_token!(Action { r#type: wire::action::DEFINITION.into(), body: Default::default() });
    request.metadata_mut().insert("tq-incarnation", "1".parse().unwrap());
    let other = client.do_action(request).await.err().unwrap();
    assert!(other.message().contains("another store than before"), "{other}");
    for descriptor in [FlightDescriptor::new_cmd(noise()), FlightDescriptor::new_path(vec!["jobs".into()])] {
        let data = FlightData::new().with_descriptor(descriptor).with_data_header(noise()).with_data_body(noise());
        assert!(client.do_put(with_token!(futures::stream::iter([data]))).await.is_err());
    }
}
