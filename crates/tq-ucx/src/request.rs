//! What is asked of a worker and not answered yet: for threads that wait with a deadline, and for tasks.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::Instant,
};

use crate::Error;

/// An answer that is to come. Dropping it gives the request up: a message that is waited for is not waited for any more, and
/// whatever else is under way ends without anybody hearing of it. Its buffer is kept until then either way.
#[must_use = "a request whose answer is dropped is given up"]
pub struct Pending<T> {
    slot: Arc<Slot<T>>,
    what: String,
    asked: Instant,
    /// Called when it is given up.
    cancel: Option<Box<dyn FnOnce() + Send>>,
}

/// The other end of a [`Pending`]. Dropping it answers [`Error::Ended`].
pub(crate) struct Promise<T> {
    slot: Arc<Slot<T>>,
    what: String,
    kept: bool,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    answered: Condvar,
}

enum State<T> {
    Waiting(Option<Waker>),
    Answered(Result<T, Error>),
    Taken,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }
}

/// Both ends. `what`: the request in words, for its errors.
pub(crate) fn pending<T>(what: String, cancel: Option<Box<dyn FnOnce() + Send>>) -> (Promise<T>, Pending<T>) {
    let slot = Arc::new(Slot { state: Mutex::new(State::Waiting(None)), answered: Condvar::new() });
    let promise = Promise { slot: slot.clone(), what: what.clone(), kept: false };
    (promise, Pending { slot, what, asked: Instant::now(), cancel })
}

impl<T> Promise<T> {
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    pub(crate) fn keep(mut self, answer: Result<T, Error>) {
        self.kept = true;
        self.answer(answer);
    }

    fn answer(&self, answer: Result<T, Error>) {
        let before = std::mem::replace(&mut *self.slot.lock(), State::Answered(answer));
        self.slot.answered.notify_all();
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.kept {
            self.answer(Err(Error::Ended { what: self.what.clone() }));
        }
    }
}

impl<T> Pending<T> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// What became of the request; [`Error::Late`] when it is not done by `until`: it is given up then.
    pub fn wait(mut self, until: Instant) -> Result<T, Error> {
        let slot = self.slot.clone();
        let mut state = slot.lock();
        while let State::Waiting(_) = &*state {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return Err(Error::Late { what: self.what.clone(), waited: self.asked.elapsed() });
            };
            state = slot.answered.wait_timeout(state, left).expect("invariant: nothing panics under this lock").0;
        }
        self.taken(&mut state)
    }

    fn taken(&mut self, state: &mut State<T>) -> Result<T, Error> {
        self.cancel = None;
        match std::mem::replace(state, State::Taken) {
            State::Answered(answer) => answer,
            State::Waiting(_) | State::Taken => panic!("polled after it was ready"),
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = self.slot.clone();
        let mut state = slot.lock();
        if let State::Waiting(waker) = &mut *state {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(self.taken(&mut state))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            cancel();
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pending: {}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        task::Wake,
        time::Duration,
    };

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn an_answer_is_waited_for_and_a_deadline_ends_the_waiting() {
        let (promise, answer) = pending("one".into(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| promise.keep(Ok(7)));
            assert_eq!(answer.wait(soon()), Ok(7));
        });
        let given_up = Arc::new(AtomicU32::new(0));
        let count = given_up.clone();
        let cancel = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let (promise, answer) = pending::<()>("two".into(), Some(cancel));
        let error = answer.wait(Instant::now()).unwrap_err().to_string();
        assert!(error.starts_with("two: not done after"), "{error}");
        assert_eq!(given_up.load(Ordering::Relaxed), 1);
        promise.keep(Ok(()));
        let (promise, answer) = pending::<()>("three".into(), None);
        drop(promise);
        assert_eq!(answer.wait(soon()), Err(Error::Ended { what: "three".into() }));
    }

    #[test]
    fn a_task_is_woken_by_the_answer() {
        struct Count(AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(Count(AtomicU32::new(0)));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let (promise, mut answer) = pending("one".into(), None);
        assert!(Pin::new(&mut answer).poll(&mut cx).is_pending());
        promise.keep(Ok(5));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(Pin::new(&mut answer).poll(&mut cx), Poll::Ready(Ok(5)));
    }
}
