//! The page over HTTP: one request a connection, few bytes, little time, loopback unless told otherwise.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use transferqueue::inspect::Client;

use super::exposition;
use crate::views::Views;

/// A request and its answer take this long at most, each.
const PATIENCE: Duration = Duration::from_secs(5);
/// A request is not longer than this.
const MAX_HEAD: usize = 8 << 10;
/// After an accept that failed (no file descriptors left) the next one waits this long.
const PAUSE: Duration = Duration::from_millis(200);

/// Opens the address.
///
/// # Errors
/// When it is taken, or reaches further than this machine without `insecure`.
pub(crate) fn listen(address: SocketAddr, insecure: bool) -> Result<TcpListener> {
    if !address.ip().is_loopback() && !insecure {
        bail!(
            "{address} can be reached from other machines, and nothing is encrypted; use 127.0.0.1, or add --insecure"
        );
    }
    TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))
}

/// Serves, one connection after the other; `times`: so many, for tests.
pub(crate) fn serve(listener: &TcpListener, socket: &Path, times: Option<u64>) {
    let mut served = 0;
    while times.is_none_or(|times| served < times) {
        match listener.accept() {
            Ok((stream, _)) => {
                // Whoever hangs up has only itself to tell.
                drop(answer(&stream, socket));
                served += 1;
            }
            Err(_) => std::thread::park_timeout(PAUSE),
        }
    }
}

fn answer(mut stream: &TcpStream, socket: &Path) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let (code, body) = match head(stream)? {
        None => ("400 Bad Request", "one GET of /metrics is expected\n".to_owned()),
        Some(line) => match line.split(' ').collect::<Vec<_>>()[..] {
            ["GET", "/metrics", _] => page(socket),
            ["GET", ..] => ("404 Not Found", "the numbers are at /metrics\n".to_owned()),
            _ => ("405 Method Not Allowed", "one GET of /metrics is expected\n".to_owned()),
        },
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code}\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

fn page(socket: &Path) -> (&'static str, String) {
    let views = Client::connect(socket).map_err(Into::into).and_then(|mut client| Views::get(&mut client));
    match views {
        Ok(views) => ("200 OK", exposition(&views)),
        // A run that was interrupted may go on: the next scrape asks again.
        Err(error) => ("503 Service Unavailable", format!("{error:#}\n")),
    }
}

/// The request's first line, once all of its head is here; `None` for what is no request.
fn head(mut stream: &TcpStream) -> io::Result<Option<String>> {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    let until = Instant::now() + PATIENCE;
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() >= MAX_HEAD {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            read => head.extend_from_slice(&buffer[..read]),
        }
    }
    let text = String::from_utf8_lossy(&head);
    Ok(text.lines().next().map(str::to_owned))
}
