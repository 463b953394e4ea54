//! A channel whose requests do not get lost with its connection.
//!
//! hyper hands a request over a queue to the task that serves its connection. One that is queued while that task ends stays
//! there: tokio's `mpsc` drops what was sent beside the end of its receiver only with the last sender, and tonic keeps the sender until
//! somebody asks over the same channel again and finds the connection closed. A store that is killed under its clients does this to
//! one call in some ten thousand. So somebody asks again, and the lost request ends with an error, after which it is repeated.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Either, select},
};
use http::{
    HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_TYPE, TE},
};
use tonic::body::Body;
use tower_service::Service;

/// A request that has no answer after this is asked about; after twice as long once more, and so on.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// What is asked: nothing. Any server says that it does not know it, whoever asks.
const NOTHING: &str = "/tq.v1.Nothing/Nudge";

/// A service over a channel.
#[derive(Clone)]
pub(super) struct Nudged<S> {
    channel: S,
    first_pause: Duration,
}

impl<S> Nudged<S> {
    pub(super) fn new(channel: S) -> Self {
        Self { channel, first_pause: FIRST_PAUSE }
    }
}

impl<S> Service<Request<Body>> for Nudged<S>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (answer, channel, mut pause) = (self.channel.call(request), self.channel.clone(), self.first_pause);
        async move {
            tokio::pin!(answer);
            loop {
                if let Ok(answered) = tokio::time::timeout(pause, &mut answer).await {
                    return answered;
                }
                pause *= 2;
                let nudge = tokio::time::timeout(pause, nudge(channel.clone())).boxed();
                if let Either::Left((answered, _)) = select(&mut answer, nudge).await {
                    return answered;
                }
            }
        }
        .boxed()
    }
}

/// Asks something, so that the channel looks after its connection. What comes of it does not matter.
async fn nudge<S: Service<Request<Body>>>(mut channel: S) {
    if std::future::poll_fn(|cx| channel.poll_ready(cx)).await.is_ok() {
        drop(channel.call(request(NOTHING, Body::empty())).await);
    }
}

/// A gRPC request, not made by tonic.
pub(super) fn request(method: &'static str, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    (*request.method_mut(), *request.version_mut()) = (Method::POST, Version::HTTP_2);
    *request.uri_mut() = Uri::from_static(method);
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::sync::oneshot;

    use super::*;
    use crate::client::runtime::block_on;

    /// Keeps every request unanswered; the next one drops it, as a channel does that has found its connection closed.
    #[derive(Clone, Default)]
    struct Losing {
        kept: Arc<Mutex<Option<oneshot::Sender<&'static str>>>>,
        asked: Arc<AtomicUsize>,
    }

    impl Service<Request<Body>> for Losing {
        type Response = &'static str;
        type Error = oneshot::error::RecvError;
        type Future = oneshot::Receiver<&'static str>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            let (answer, answered) = oneshot::channel();
            self.asked.fetch_add(1, Ordering::Relaxed);
            *self.kept.lock().unwrap() = Some(answer);
            answered
        }
    }

    fn asked(channel: &Losing, first_pause: Duration) -> Result<&'static str, oneshot::error::RecvError> {
        let mut nudged = Nudged { channel: channel.clone(), first_pause };
        block_on(async move { tokio::time::timeout(Duration::from_secs(30), nudged.call(Request::default())).await })
            .expect("it ends")
    }

    #[test]
    fn a_request_that_went_with_its_connection_is_heard_of() {
        let channel = Losing::default();
        asked(&channel, Duration::from_millis(10)).unwrap_err();
        assert_eq!(channel.asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn an_answer_that_comes_soon_is_waited_for_in_peace() {
        let channel = Losing::default();
        let other = channel.clone();
        let answering = std::thread::spawn(move || {
            loop {
                if let Some(answer) = other.kept.lock().unwrap().take() {
                    return answer.send("answered");
                }
                std::thread::yield_now();
            }
        });
        assert_eq!(asked(&channel, Duration::from_secs(20)), Ok("answered"));
        answering.join().unwrap().unwrap();
        assert_eq!(channel.asked.load(Ordering::Relaxed), 1);
    }
}
