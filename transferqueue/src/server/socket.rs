//! Accepted connections, counted, and closed when they say nothing.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures::{FutureExt, Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::Sleep,
};
use tonic::transport::server::Connected;

use super::limits::{ACCEPT_PAUSE, SILENCE};

/// Whether a connection is one of those that may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Served,
    /// Too many are open: its requests are told so.
    Over,
}

/// A connection.
pub(super) struct Socket {
    stream: TcpStream,
    admission: Admission,
    /// Until the first byte comes.
    silence: Option<Pin<Box<Sleep>>>,
    open: Arc<AtomicUsize>,
}

/// Connections as they come; at most twice `limit` of them.
pub(super) fn incoming(listener: TcpListener, limit: usize) -> impl Stream<Item = io::Result<Socket>> {
    let open = Arc::new(AtomicUsize::new(0));
    stream::unfold(listener, move |listener| {
        let open = open.clone();
        async move {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let before = open.load(Ordering::SeqCst);
                        if before >= 2 * limit {
                            tracing::warn!(%peer, before, "too many connections: closed unheard");
                            continue;
                        }
                        if let Err(error) = stream.set_nodelay(true) {
                            tracing::debug!(%peer, %error, "connection not served");
                            continue;
                        }
                        open.fetch_add(1, Ordering::SeqCst);
                        let admission = if before >= limit { Admission::Over } else { Admission::Served };
                        let silence = Some(Box::pin(tokio::time::sleep(SILENCE)));
                        return Some((Ok(Socket { stream, admission, silence, open }), listener));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    })
}

impl Connected for Socket {
    type ConnectInfo = Admission;

    fn connect_info(&self) -> Admission {
        self.admission
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.silence = None;
        } else if polled.is_pending()
            && let Some(silence) = &mut self.silence
            && silence.poll_unpin(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
