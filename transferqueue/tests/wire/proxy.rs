//! A TCP proxy that swallows answers and cuts connections when it is told to.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    swallow: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// In front of a server; it ends with the test's process.
    pub(crate) fn to(url: &str) -> Self {
        let server: SocketAddr = url.strip_prefix("grpc://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::<Shared>::default());
        let serving = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let ends = [client.try_clone().unwrap(), server.try_clone().unwrap()];
                serving.streams.lock().unwrap().extend(ends);
                let pairs = [(client.try_clone().unwrap(), server.try_clone().unwrap(), false), (server, client, true)];
                for (from, to, answers) in pairs {
                    let shared = serving.clone();
                    thread::spawn(move || pump(from, to, &shared, answers));
                }
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("grpc://{}", self.address)
    }

    /// From now on nothing of what the server says arrives.
    pub(crate) fn swallow_answers(&self) {
        self.shared.swallow.store(true, Ordering::SeqCst);
    }

    /// Ends every connection; new ones work.
    pub(crate) fn cut(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
        self.shared.swallow.store(false, Ordering::SeqCst);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, shared: &Shared, answers: bool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if answers && shared.swallow.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}
