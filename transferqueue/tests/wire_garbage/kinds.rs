//! Ten kinds of garbage. (Also part of `tests/tests/garbage.rs`, beside whole runs.)

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use arrow_flight::{Action, FlightData, FlightDescriptor, Ticket, flight_service_client::FlightServiceClient};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use transferqueue::wire;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A drip of one byte a second goes on for so long, beside the other kinds.
const DRIP: Duration = Duration::from_secs(4);

/// Where it goes.
pub enum Port {
    Net { address: String, token: String, ca: Option<PathBuf> },
    Control(PathBuf),
}

impl Port {
    fn open(&self) -> Option<Stream> {
        let pause = Some(Duration::from_millis(300));
        // The port may be too busy with garbage to take more of it.
        Some(match self {
            Self::Net { address, .. } => {
                let stream = TcpStream::connect(address).ok()?;
                stream.set_read_timeout(pause).ok()?;
                stream.set_write_timeout(pause).ok()?;
                Stream::Net(stream)
            }
            Self::Control(path) => {
                let stream = UnixStream::connect(path).ok()?;
                stream.set_read_timeout(pause).ok()?;
                stream.set_write_timeout(pause).ok()?;
                Stream::Control(stream)
            }
        })
    }

    /// Says it, and hears what comes for a moment.
    fn shout(&self, bytes: &[u8]) {
        let Some(mut stream) = self.open() else { return };
        // The other side may hang up in the middle of it.
        if stream.write(bytes) {
            stream.hear();
        }
    }
}

enum Stream {
    Net(TcpStream),
    Control(UnixStream),
}

impl Stream {
    fn write(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Net(stream) => stream.write_all(bytes).is_ok(),
            Self::Control(stream) => stream.write_all(bytes).is_ok(),
        }
    }

    fn hear(&mut self) {
        match self {
            Self::Net(stream) => {
                drop(stream.shutdown(Shutdown::Write));
                drop(stream.read(&mut [0; 4096]));
            }
            Self::Control(stream) => drop(stream.read(&mut [0; 4096])),
        }
    }
}

/// Bytes that differ from round to round.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

pub struct Kinds {
    port: Port,
    half_open: usize,
    runtime: tokio::runtime::Runtime,
}

impl Kinds {
    pub fn new(port: Port, half_open: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The control socket has few places: as many again wait in its queue.
        let half_open = if matches!(port, Port::Control(_)) { half_open.min(60) } else { half_open };
        Self { port, half_open, runtime }
    }

    /// Every kind once.
    pub fn round(&self, seed: u64, over: &AtomicBool) {
        let port = &self.port;
        let after = |frames: &[u8]| [PREFACE, frames].concat();
        thread::scope(|scope| {
            // 1: a byte a second, for as long as the other kinds take.
            let drip = scope.spawn(|| self.drip(seed, over));
            // 2: random bytes; 3: half a TLS greeting; 4: HTTP/1; 5: a line or a frame beyond every limit.
            port.shout(&noise(seed, 3_000));
            port.shout(&[&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &noise(seed, 300)].concat());
            port.shout(b"GET /status HTTP/1.1\r\nhost: x\r\n\r\n");
            port.shout(&after(&[&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1][..], &noise(seed, 70_000)].concat()));
            // 6: a greeting, and then nothing.
            let silent = port.open().map(|mut stream| (stream.write(PREFACE), stream));
            // 7: thousands of connections that say nothing at all.
            let half_open: Vec<Stream> = (0..self.half_open).map_while(|_| port.open()).collect();
            // 8, 9, 10: what only those can send who speak the protocol.
            match port {
                Port::Net { address, token, ca } => {
                    let spoken = speak(address, token, ca.as_ref(), seed);
                    // With too many connections open it is told so, which is an answer as well.
                    drop(self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), spoken).await }));
                }
                Port::Control(_) => {
                    drop(half_open);
                    port.shout(b"{\"get\":\"why\",\"row\":18446744073709551615}\n");
                    port.shout(&[&b"{\"get\":\"peek\",\"partition\":\""[..], &b"[".repeat(60_000), b"\n"].concat());
                    port.shout(b"{\"get\":\"drop\",\"partition\":\"samples\",\"rows\":\"18446744073709551615,3\",\"reason\":\"x\",\"confirmed\":true}\n");
                }
            }
            drop(silent);
            drip.join().unwrap();
        });
    }

    fn drip(&self, seed: u64, over: &AtomicBool) {
        let Some(mut stream) = self.port.open() else { return };
        let begun = Instant::now();
        for byte in [PREFACE, &noise(seed, 30)].concat() {
            if begun.elapsed() > DRIP || (seed > 1 && over.load(Ordering::SeqCst)) || !stream.write(&[byte]) {
                return;
            }
            thread::park_timeout(Duration::from_secs(1));
        }
    }
}

/// A path that is none, messages that are none behind the token, a stream of cells that breaks off.
async fn speak(address: &str, token: &str, ca: Option<&PathBuf>, seed: u64) -> Result<(), tonic::transport::Error> {
    let scheme = if ca.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::new(format!("{scheme}://{address}"))?;
    if let Some(ca) = ca {
        let pem = Certificate::from_pem(fs::read(ca).unwrap());
        endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(pem))?;
    }
    let channel = endpoint.connect().await?;
    let mut client = FlightServiceClient::new(channel.clone());
    drop(nowhere(channel, seed).await);
    let bearer: tonic::metadata::MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
    macro_rules! with_token {
        ($message:expr) => {{
            let mut request = tonic::Request::new($message);
            request.metadata_mut().insert("authorization", bearer.clone());
            request
        }};
    }
    for (action, _) in wire::action::ALL.into_iter().filter(|(action, _)| *action != wire::action::STOP) {
        let body = noise(seed, 200).into();
        drop(client.do_action(with_token!(Action { r#type: action.to_owned(), body })).await);
    }
    drop(client.do_get(with_token!(Ticket { ticket: noise(seed, 90).into() })).await);
    // The beginning of a stream of cells: the header claims a body that does not come.
    let schema = arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
        "text",
        arrow::datatypes::DataType::Binary,
        false,
    )]);
    let text = std::sync::Arc::new(arrow::array::BinaryArray::from_vec(vec![&[7_u8; 5_000][..]]));
    let batch = arrow::array::RecordBatch::try_new(std::sync::Arc::new(schema.clone()), vec![text]).unwrap();
    let mut sent: Vec<FlightData> = arrow_flight::utils::batches_to_flight_data(&schema, [&batch]).unwrap();
    sent[1].data_body.truncate(1_000 + seed as usize % 100);
    sent[0].flight_descriptor = Some(FlightDescriptor::new_path(vec!["probes".into()]));
    let status = client.do_put(with_token!(futures::stream::iter(sent))).await.err();
    assert!(status.is_some(), "half of a cell was taken");
    Ok(())
}

/// A well-formed call of a method that nobody has.
async fn nowhere(channel: Channel, seed: u64) -> Result<(), tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|error| tonic::Status::unknown(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<Ticket, Ticket>::default();
    let path = http::uri::PathAndQuery::from_static("/arrow.flight.protocol.FlightService/DoNothing");
    grpc.unary(tonic::Request::new(Ticket { ticket: noise(seed, 40).into() }), path, codec).await.map(drop)
}
