//! Bytes of a store through UCX: they are read from where they lie, or sent as messages, into memory of the pool.
//!
//! A get is two questions over the control connection and, between them, the bytes: where cells lie, which the store holds
//! from then on; and, when they were fetched one-sidedly, whether it has held them until now (if not, its room may have been
//! given to other cells, and what was read is thrown away). Where the store sends, the second question names the tags of the messages
//! that are waited for.
//!
//! An answer that is lost takes the entry with it: the store lets go of all that this reader was told of, and the next get enters
//! again, also when the store has begun another life.

#[cfg(test)]
mod tests;

use std::{collections::HashMap, fmt, sync::Arc};

use arrow::{
    array::ArrayRef,
    buffer::{Buffer, MutableBuffer},
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use prost::Message;
use tokio::sync::Mutex;
use tq_ucx::{Address, Context, Endpoint, Filled, Key, Pending, RemoteKey, Space, Worker};

use super::{Inner, channel::Answers, granted, paths::Otherwise, runtime::block_on};
use crate::{
    arrow_map,
    catalog::command::ColumnRef,
    random,
    schema::{Column, Kind},
    server::limits::{PUT_BYTES, SENDS},
    transport::TransportError,
    ucx,
    wire::{
        self, Outcome, Pointer, action,
        shm::{Granted, Piece, Place},
        ucx::{Ask, Get, Located, Offer, Question, Release, Say, Send, Word},
    },
};

/// Reads that are under way at once.
const READS: usize = 64;

/// The way to a store through UCX.
pub(super) struct Ucx {
    fetched: bool,
    /// Before the worker, in the order of drops: what is left behind is left in good order.
    entry: Mutex<Option<Arc<Entry>>>,
    worker: Worker,
}

/// Where this reader has come in. Reads under way keep it.
struct Entry {
    reader: u64,
    endpoint: Endpoint,
    /// Of segments that are there.
    keys: Mutex<HashMap<u64, RemoteKey>>,
    /// The store lets go of everything when this ends.
    _stay: Answers,
}

impl From<tq_ucx::Error> for Otherwise {
    fn from(error: tq_ucx::Error) -> Self {
        Self::Lost(format!("UCX: {error}"))
    }
}

/// What one get, or one entry, waits for.
struct Trip<'a> {
    client: &'a Inner,
    column: &'a str,
}

impl Ucx {
    /// As a store offers it.
    pub(super) fn new(offer: &Offer) -> Result<Self, String> {
        let options = ucx::Ucx::taken(offer)?.options();
        let context = Context::new(&options).map_err(|error| error.to_string())?;
        let worker = Worker::start(&context).map_err(|error| error.to_string())?;
        Ok(Self { worker, fetched: offer.fetched, entry: Mutex::default() })
    }

    /// Enters, if it has not.
    pub(super) fn connect(&self, client: &Inner) -> Result<(), Otherwise> {
        let trip = Trip { client, column: "*" };
        block_on(async {
            let mut slot = trip.within("the turn to enter", self.entry.lock()).await?;
            self.entered(&trip, &mut slot).await.map(drop)
        })
    }

    /// The cells that a pointer names.
    pub(super) fn get(&self, client: &Inner, pointer: &ColumnRef) -> Result<Vec<ArrayRef>, Otherwise> {
        let trip = Trip { client, column: &pointer.name };
        block_on(async {
            let (entry, granted) = self.located(&trip, pointer).await?;
            let got = self.got(&trip, &entry, pointer, &granted).await;
            if got.is_err() {
                self.leave(&trip, &entry).await;
            }
            got
        })
    }

    async fn got(
        &self,
        trip: &Trip<'_>,
        entry: &Entry,
        pointer: &ColumnRef,
        granted: &Granted,
    ) -> Result<Vec<ArrayRef>, Otherwise> {
        let column: Column = wire::parse("column", &granted.column).map_err(|why| trip.refused(why))?;
        granted.pieces.iter().try_for_each(|piece| expected(&column, piece)).map_err(|why| trip.refused(why))?;
        let both = granted.pieces.iter().flat_map(|piece| [piece.offsets, piece.values]);
        let places: Vec<Place> = both.flatten().collect();
        let filled = match self.fetched {
            true => entry.fetched(trip, granted.grant, &places).await?,
            false => entry.sent(trip, granted.grant, &places).await?,
        };
        let mut filled = filled.into_iter().map(|filled| Buffer::from(Bytes::from_owner(filled)));
        let mut next = |place: Option<Place>| place.and_then(|_| filled.next()).unwrap_or_default();
        let buffers = |piece: &Piece| Ok([rebased(next(piece.offsets)), next(piece.values)]);
        granted::arrays(pointer, &column, &granted.pieces, buffers).map_err(|why| trip.refused(why))
    }

    /// Where cells lie. One question at a time: the keys that come with an answer are here before the next one.
    async fn located(&self, trip: &Trip<'_>, pointer: &ColumnRef) -> Result<(Arc<Entry>, Granted), Otherwise> {
        let mut slot = trip.within("the turn to ask", self.entry.lock()).await?;
        let entry = self.entered(trip, &mut slot).await?;
        match entry.located(trip, pointer).await {
            Ok(granted) => Ok((entry, granted)),
            Err(otherwise) => {
                if let Otherwise::Lost(_) = &otherwise {
                    *slot = None;
                }
                Err(otherwise)
            }
        }
    }

    async fn entered(&self, trip: &Trip<'_>, slot: &mut Option<Arc<Entry>>) -> Result<Arc<Entry>, Otherwise> {
        if let Some(entry) = slot {
            return Ok(entry.clone());
        }
        let enter = Question::Enter(self.worker.address().to_bytes().into());
        let (word, stay) = trip.ask(enter).await?;
        let welcome = match word {
            Word::Welcome(welcome) => welcome,
            // It may let this reader in when it is asked again.
            Word::Elsewhere(why) => return Err(Otherwise::Lost(format!("UCX: {why}"))),
            other => return Err(trip.unexpected(&other)),
        };
        let connected = self.worker.connect(&Address::from_bytes(&welcome.address)?);
        let endpoint = trip.within("a connection to the store", connected).await??;
        let entry = Entry { reader: welcome.reader, endpoint, keys: Mutex::default(), _stay: stay };
        Ok(slot.insert(Arc::new(entry)).clone())
    }

    /// The next get enters again.
    async fn leave(&self, trip: &Trip<'_>, entry: &Arc<Entry>) {
        // Who has the turn for so long has lost the entry, too.
        let Ok(mut slot) = trip.within("the turn to leave", self.entry.lock()).await else { return };
        if slot.as_ref().is_some_and(|there| Arc::ptr_eq(there, entry)) {
            *slot = None;
        }
    }
}

impl Entry {
    async fn located(&self, trip: &Trip<'_>, pointer: &ColumnRef) -> Result<Granted, Otherwise> {
        let get = Get { reader: self.reader, pointer: Pointer::from(pointer) };
        let Located { granted, keys } = match trip.ask(Question::Get(get)).await?.0 {
            Word::Located(located) => located,
            Word::Elsewhere(why) => return Err(Otherwise::Elsewhere(why)),
            other => return Err(trip.unexpected(&other)),
        };
        let mut known = self.keys.lock().await;
        for id in &granted.gone {
            known.remove(id);
        }
        for key in keys {
            let opened = self.endpoint.open(&Key::from_bytes(&key.key)?);
            known.insert(key.segment, trip.within("a key", opened).await??);
        }
        Ok(granted)
    }

    /// Reads places one-sidedly, and asks whether they were held until then.
    async fn fetched(&self, trip: &Trip<'_>, grant: u64, places: &[Place]) -> Result<Vec<Filled>, Otherwise> {
        let mut reads = Vec::with_capacity(places.len());
        let keys = self.keys.lock().await;
        for Place { segment, at, len } in places {
            let key = keys.get(segment).ok_or_else(|| trip.nonsense("a place in a segment whose key never came"))?;
            if at.checked_add(*len).is_none_or(|end| end > key.len()) {
                let (all, what) = (key.len(), format!("{len} bytes at {at}"));
                return Err(trip.nonsense(&format!("{what} as a place in segment {segment}, which has {all}")));
            }
            reads.push((key.clone(), *at, *len as usize));
        }
        drop(keys);
        let pool = &trip.client.pool;
        let read = |(key, at, len): (RemoteKey, u64, usize)| key.get(at, Space::over(pool.take(len)));
        let mut reads = stream::iter(reads.into_iter().map(read)).buffered(READS);
        let mut filled = Vec::with_capacity(places.len());
        while let Some(read) = trip.within("what is read", reads.next()).await? {
            filled.push(read?);
        }
        match trip.ask(Question::Release(Release { reader: self.reader, grant })).await?.0 {
            Word::Held(true) => Ok(filled),
            Word::Held(false) => Err(Otherwise::Lost("UCX: the store let go of what was being read".to_owned())),
            other => Err(trip.unexpected(&other)),
        }
    }

    /// Has places sent. Messages are waited for before they are asked for: they go straight to where they belong then.
    async fn sent(&self, trip: &Trip<'_>, grant: u64, places: &[Place]) -> Result<Vec<Filled>, Otherwise> {
        let mut filled = Vec::with_capacity(places.len());
        for some in places.chunks(SENDS) {
            let tags = random::numbers(some.len()).map_err(|error| Otherwise::Lost(format!("random tags: {error}")))?;
            let receive = |(tag, place): (&u64, &Place)| {
                self.endpoint.receive(*tag, Space::over(trip.client.pool.take(place.len as usize)))
            };
            let waiting: Vec<Pending<Filled>> = tags.iter().zip(some).map(receive).collect();
            let send = Send { reader: self.reader, grant, first: filled.len() as u64, tags };
            match trip.ask(Question::Send(send)).await?.0 {
                Word::Held(true) => {}
                Word::Held(false) => {
                    return Err(Otherwise::Lost("UCX: the store let go of what it was to send".into()));
                }
                other => return Err(trip.unexpected(&other)),
            }
            for (answer, place) in waiting.into_iter().zip(some) {
                let came = trip.within("what is sent", answer).await?;
                filled.push(trip.whole(came, place.len)?);
            }
        }
        Ok(filled)
    }
}

impl Trip<'_> {
    /// Waits for an answer, and no longer than an answer may travel.
    async fn within<T>(&self, what: &str, answer: impl Future<Output = T>) -> Result<T, Otherwise> {
        let travel = self.client.channels.options().travel;
        let late = |_| Otherwise::Lost(format!("UCX: {what} did not come within {travel:?}"));
        tokio::time::timeout(travel, answer).await.map_err(late)
    }

    /// Asks once: whether an answer that is lost was given, nobody knows.
    async fn ask(&self, question: Question) -> Result<(Word, Answers), Otherwise> {
        let channels = &self.client.channels;
        let body = Ask { question: Some(question) }.encode_to_vec().into();
        let (first, answers) = match self.within("an answer", channels.act_in_control(action::UCX, &body)).await? {
            Ok((Some(first), answers)) => (first, answers),
            Ok((None, _)) => return Err(Otherwise::Lost("UCX: the answer broke off".to_owned())),
            Err(status) => match channels.lost(&status) {
                Ok(why) => return Err(Otherwise::Lost(why)),
                Err(error) => return Err(self.refused(error)),
            },
        };
        match channels.outcome(action::UCX, &first).map_err(|error| self.refused(error))? {
            Outcome::Reply(bytes) => {
                let say: Say = wire::decode("answer", &bytes).map_err(|why| self.refused(why))?;
                let word = say.word.ok_or_else(|| self.nonsense("an answer that this client does not know"))?;
                Ok((word, answers))
            }
            Outcome::Failure(failure) => Err(granted::refused(self.column, failure, channels.url())),
            Outcome::Later(_) | Outcome::Woken(_) => Err(self.nonsense("a wait as its answer")),
        }
    }

    /// A message of as many bytes as were announced.
    fn whole(&self, message: Result<Filled, tq_ucx::Error>, announced: u64) -> Result<Filled, Otherwise> {
        match message {
            Ok(message) if message.len() as u64 == announced => Ok(message),
            Ok(short) => {
                let came = short.len();
                Err(self.nonsense(&format!("a message of {came} bytes, {announced} were announced")))
            }
            Err(longer @ tq_ucx::Error::Refused { .. }) => Err(self.refused(longer)),
            Err(error) => Err(error.into()),
        }
    }

    /// A word that is not the answer to what was asked.
    fn unexpected(&self, word: &Word) -> Otherwise {
        match word {
            Word::Stranger(_) => Otherwise::Lost("UCX: the store does not know this reader any more".to_owned()),
            _ => self.nonsense("an answer to something else"),
        }
    }

    fn nonsense(&self, what: &str) -> Otherwise {
        self.refused(format!("the store sent {what}"))
    }

    fn refused(&self, why: impl fmt::Display) -> Otherwise {
        Otherwise::Refused(TransportError::Travel { column: self.column.to_owned(), why: format!("UCX: {why}") })
    }
}

/// The bytes of a piece have lengths that its cells can have. Looked at before room is made for them.
fn expected(column: &Column, piece: &Piece) -> Result<(), String> {
    let len = |place: Option<Place>| place.map_or(0, |place| place.len);
    let (offsets, values) = (len(piece.offsets), len(piece.values));
    let (rows, unit) = (u64::from(piece.rows), arrow_map::step_bytes(&column.kind) as u64);
    let right = match &column.kind {
        Kind::Dense { .. } => offsets == 0 && values == rows.saturating_mul(unit),
        // Arrow's 32-bit offsets end there.
        _ => offsets == 4 * (rows + 1) && values <= (PUT_BYTES as u64).saturating_mul(unit),
    };
    let found =
        || format!("places of {offsets} bytes of offsets and {values} of values for {rows} cells of {}", column.kind);
    if right { Ok(()) } else { Err(found()) }
}

/// Offsets that count from the first cell's values.
fn rebased(offsets: Buffer) -> Buffer {
    let counts = offsets.typed_data::<i32>();
    let first = counts.first().copied().unwrap_or_default();
    if first == 0 {
        return offsets;
    }
    // Wrong ones stay wrong: they are checked with their values.
    let mut rebased = MutableBuffer::with_capacity(offsets.len());
    counts.iter().for_each(|count| rebased.push(count.wrapping_sub(first)));
    rebased.into()
}
