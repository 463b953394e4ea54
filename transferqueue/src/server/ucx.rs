//! Readers through UCX: they are told where cells lie and take them from there one-sidedly, or are sent them.
//!
//! A segment is registered when the first reader is told of it, and stays so until it goes. What a reader was told of is held
//! until it releases it, or until the stream that its entry was answered with ends: that is with its connection, however its
//! process ends. A reader that has lost its connection may go on reading meanwhile; it hears from its release that nothing was
//! held, and makes nothing of what it has read.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arrow_flight::Result as Sent;
use futures::{StreamExt, future, stream};
use prost::Message;
use tonic::Status;
use tq_ucx::{Address, Context, Endpoint, Memory, Worker};

use super::{
    control,
    granting::{self, Grants, Unlocated},
    limits,
    service::{Answers, Service, invalid},
};
use crate::{
    arrow_map, random,
    transport::View,
    ucx,
    unit::arena::{Backed, Watch},
    wire::{
        Nothing, Outcome, decode,
        ucx::{Ask, Entered, Get, Located, Offer, Question, Release, Say, SegmentKey, Send, Word},
    },
};

/// What a server gives away through UCX, and to whom.
pub(crate) struct Ucx {
    offer: Offer,
    worker: Worker,
    registered: Arc<Registered>,
    readers: Mutex<HashMap<u64, Arc<Reader>>>,
}

/// Segments that can be read, by number.
struct Registered {
    context: Context,
    memory: Mutex<HashMap<u64, Memory>>,
}

/// Somebody who has come in.
struct Reader {
    endpoint: Endpoint,
    held: Mutex<Held>,
    /// Shared by the messages that are on their way.
    on_the_way: Arc<()>,
}

#[derive(Default)]
struct Held {
    grants: Grants,
    /// Segments whose keys it has.
    told: BTreeMap<u64, Watch>,
}

/// A reader that is there: with this it has gone.
struct Stay {
    ucx: Arc<Ucx>,
    reader: u64,
}

impl Drop for Stay {
    fn drop(&mut self) {
        // Not dropped under the lock: what it held may take a while.
        let gone = lock(&self.ucx.readers).remove(&self.reader);
        drop(gone);
    }
}

/// The bytes of one place of a view, which they keep.
struct Part {
    view: View,
    kind: PartKind,
    _on_the_way: Arc<()>,
}

#[derive(Clone, Copy)]
enum PartKind {
    Offsets,
    Values,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        let array = self.view.array();
        match self.kind {
            PartKind::Offsets => arrow_map::offset_bytes(array),
            PartKind::Values => arrow_map::own_bytes(array).unwrap_or_default(),
        }
    }
}

/// What nothing panics under is not poisoned.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a server does about a question.
pub(super) async fn act(service: &Service, body: &[u8]) -> Result<Answers<Sent>, Status> {
    let Some(ucx) = &service.ucx else {
        return Err(invalid("this server gives nothing away through UCX; start it with `ucx` options"));
    };
    let ask: Ask = decode("question", body).map_err(invalid)?;
    let outcome = match ask.question {
        Some(Question::Enter(address)) => return ucx.clone().enter(&address).await,
        Some(Question::Get(get)) => ucx.get(service, get),
        Some(Question::Send(send)) => ucx.send(&send)?,
        Some(Question::Release(release)) => ucx.release(release),
        None => return Err(invalid("a question that this server does not know; use one version")),
    };
    Ok(once(outcome))
}

fn once(outcome: Outcome) -> Answers<Sent> {
    stream::iter([Ok(control::answer(outcome))]).boxed()
}

fn say(word: Word) -> Outcome {
    Outcome::Reply(Say { word: Some(word) }.encode_to_vec().into())
}

impl Ucx {
    /// Gets ready for readers.
    pub(crate) fn start(options: &ucx::Ucx) -> Result<Arc<Self>, String> {
        options.check()?;
        let context = Context::new(&options.options()).map_err(|error| error.to_string())?;
        let worker = Worker::start(&context).map_err(|error| error.to_string())?;
        let registered = Arc::new(Registered { context, memory: Mutex::default() });
        Ok(Arc::new(Self { offer: options.offer(), worker, registered, readers: Mutex::default() }))
    }

    pub(super) fn offer(&self) -> &Offer {
        &self.offer
    }

    fn reader(&self, number: u64) -> Option<Arc<Reader>> {
        lock(&self.readers).get(&number).cloned()
    }

    /// Lets a reader in for as long as its stream lasts. Both sides connect: each notices then that the other has ended.
    async fn enter(self: Arc<Self>, address: &[u8]) -> Result<Answers<Sent>, Status> {
        let address = Address::from_bytes(address).map_err(|error| invalid(error.to_string()))?;
        let there = lock(&self.readers).len();
        if there >= limits::READERS {
            let why = format!("{there} readers are there through UCX already; at most {}", limits::READERS);
            return Ok(once(say(Word::Elsewhere(why))));
        }
        let unreached = |why: String| once(say(Word::Elsewhere(format!("the store cannot reach this reader: {why}"))));
        let endpoint = match tokio::time::timeout(limits::CONNECT, self.worker.connect(&address)).await {
            Ok(Ok(endpoint)) => endpoint,
            Ok(Err(error)) => return Ok(unreached(error.to_string())),
            Err(_) => return Ok(unreached(format!("no answer in {:?}", limits::CONNECT))),
        };
        let drawn = random::bytes().map_err(|error| Status::internal(format!("cannot draw a number: {error}")))?;
        let reader = u64::from_le_bytes(drawn);
        lock(&self.readers)
            .insert(reader, Arc::new(Reader { endpoint, held: Mutex::default(), on_the_way: Arc::default() }));
        let entered = Entered { reader, address: self.worker.address().to_bytes().into() };
        let stay = Stay { ucx: self, reader };
        // It says nothing more, and ends when nobody listens any more.
        let on = stream::once(async move {
            let _stay = stay;
            future::pending().await
        });
        Ok(once(say(Word::Welcome(entered))).chain(on).boxed())
    }

    fn get(&self, service: &Service, get: Get) -> Outcome {
        let Some(reader) = self.reader(get.reader) else { return say(Word::Stranger(Nothing {})) };
        let mut held = lock(&reader.held);
        let located = match held.grants.locate(service, get.pointer, arrow_map::own_bytes) {
            Ok(located) => located,
            Err(Unlocated::Elsewhere(why)) => return say(Word::Elsewhere(why)),
            Err(Unlocated::Failure(failure)) => return Outcome::Failure(failure),
        };
        let mut keys = Vec::new();
        let untold = located.segments.values().filter(|segment| !held.told.contains_key(&segment.id()));
        for segment in untold.filter(|_| self.offer.fetched) {
            match service.aside_for(segment.len(), || self.registered.key(segment)) {
                Ok(key) => keys.push((segment.watch(), SegmentKey { segment: segment.id(), key: key.into() })),
                Err(error) => return say(Word::Elsewhere(format!("a segment cannot be registered: {error}"))),
            }
        }
        let tell = |(watch, key): (Watch, SegmentKey)| {
            held.told.insert(key.segment, watch);
            key
        };
        let keys = keys.into_iter().map(tell).collect();
        let gone = granting::gone(&mut held.told).collect();
        let granted = held.grants.hold(located, gone);
        say(Word::Located(Located { granted, keys }))
    }

    /// Sends places of a grant, which goes with the last of them: messages keep their bytes.
    fn send(&self, send: &Send) -> Result<Outcome, Status> {
        let Some(reader) = self.reader(send.reader) else { return Ok(say(Word::Stranger(Nothing {}))) };
        let mut held = lock(&reader.held);
        let Some(views) = held.grants.held(send.grant) else { return Ok(say(Word::Held(false))) };
        let waiting = reader.on_the_way();
        let parts: Vec<Part> = views.iter().flat_map(|view| parts(view, &reader.on_the_way)).collect();
        let first = usize::try_from(send.first).ok().filter(|first| *first <= parts.len());
        let end = first.and_then(|first| first.checked_add(send.tags.len())).filter(|end| *end <= parts.len());
        let (Some(first), Some(end)) = (first, end) else {
            let (count, from, there) = (send.tags.len(), send.first, parts.len());
            return Err(invalid(format!("{count} places from {from} on of a grant that has {there}")));
        };
        if waiting > limits::SENDING || send.tags.len() > limits::SENDS {
            let (asked, most, most_asked) = (send.tags.len(), limits::SENDING, limits::SENDS);
            let why = format!("{waiting} messages are on their way to this reader, which asks for {asked} more");
            return Err(invalid(format!("{why}; at most {most} and {most_asked}")));
        }
        if end == parts.len() {
            held.grants.release(send.grant);
        }
        for (tag, part) in send.tags.iter().zip(parts.into_iter().skip(first)) {
            // Whoever waits for it notices if it does not come.
            drop(reader.endpoint.send(*tag, part));
        }
        Ok(say(Word::Held(true)))
    }

    fn release(&self, release: Release) -> Outcome {
        let Some(reader) = self.reader(release.reader) else { return say(Word::Stranger(Nothing {})) };
        let held = lock(&reader.held).grants.release(release.grant);
        say(Word::Held(held))
    }

    /// Segments that are registered.
    #[cfg(test)]
    pub(crate) fn registered(&self) -> usize {
        lock(&self.registered.memory).len()
    }

    /// Messages that are on their way.
    #[cfg(test)]
    pub(crate) fn on_the_way(&self) -> usize {
        lock(&self.readers).values().map(|reader| reader.on_the_way()).sum()
    }

    /// Forgets who is there, as if their connections had ended.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        let all = std::mem::take(&mut *lock(&self.readers));
        drop(all);
    }

    /// Readers that are there.
    #[cfg(test)]
    pub(crate) fn readers(&self) -> usize {
        lock(&self.readers).len()
    }
}

/// The places of a view, in their order.
fn parts(view: &View, on_the_way: &Arc<()>) -> impl Iterator<Item = Part> + use<> {
    let part = |kind| Part { view: view.clone(), kind, _on_the_way: on_the_way.clone() };
    [part(PartKind::Offsets), part(PartKind::Values)].into_iter().filter(|part| !part.as_ref().is_empty())
}

impl Reader {
    /// Messages that are on their way.
    fn on_the_way(&self) -> usize {
        Arc::strong_count(&self.on_the_way) - 1
    }
}

impl Registered {
    /// What opens a segment.
    fn key(self: &Arc<Self>, segment: &Backed) -> Result<Vec<u8>, tq_ucx::Error> {
        let id = segment.id();
        let mut memory = lock(&self.memory);
        if let Some(there) = memory.get(&id) {
            return Ok(there.key().to_bytes());
        }
        let shared = Memory::share(&self.context, segment.region())?;
        let key = shared.key().to_bytes();
        memory.insert(id, shared);
        drop(memory);
        let all = Arc::downgrade(self);
        segment.when_gone(move || {
            let Some(all) = all.upgrade() else { return };
            // Not given back under the lock: UCX takes its time.
            let gone = lock(&all.memory).remove(&id);
            drop(gone);
        });
        Ok(key)
    }
}
