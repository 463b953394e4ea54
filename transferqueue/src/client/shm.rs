//! Bytes of a store on the same host: its segments are mapped once, a get brings places in them, and a put writes where its
//! cells are to lie. No byte is copied after that.
//!
//! A view's buffers keep its grant, so that the store keeps the bytes for as long as anything here can read them. When the
//! store's process ends, shared memory stays as it is; files are held by leases and pins alone from then on (`docs/decisions/0015`).

use std::{
    collections::HashMap,
    fs::File,
    io::{self, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow::{array::ArrayRef, buffer::Buffer};
use prost::Message;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{granted, paths::Otherwise};
use crate::{
    arrow_map,
    catalog::command::ColumnRef,
    schema::Column,
    server::shm::abstract_name,
    transport::{TransportError, View},
    unit::arena::{Fillable, Foreign, Layout, Lent},
    wire::{
        self, Call, Outcome, Pointer,
        shm::{
            Ask, DESCRIPTORS, Enter, FIRST_ROOM, Fill, Granted, Piece, Place, Question, Reserve, Room, Say, Segments,
            Word,
        },
    },
};

/// Connections for commands: as many threads as this may have one under way, others ask over the network.
const CALLS: usize = 4;

/// The way to a store's segments.
pub(super) struct Shm {
    address: String,
    enter: Enter,
    patience: Duration,
    message_bytes: usize,
    connection: Mutex<Option<Connection>>,
    /// For commands, which may wait for the disk, and are not to wait behind bytes.
    calls: [Mutex<Option<Connection>>; CALLS],
    /// Number of the next room that is reserved, on whichever connection.
    rooms: AtomicU64,
}

impl From<io::Error> for Otherwise {
    fn from(error: io::Error) -> Self {
        Self::Lost(format!("shared memory: {error}"))
    }
}

/// A socket, and the segments that came over it.
struct Connection {
    reading: UnixStream,
    writing: Arc<Writing>,
    segments: HashMap<u64, Arc<Foreign>>,
    /// Segments that this process alone fills.
    to_fill: HashMap<u64, Arc<Fillable>>,
}

/// The half that questions and releases are written to, a whole frame at a time.
struct Writing(Mutex<UnixStream>);

/// What the store holds for one get, until this is dropped.
struct Grant {
    number: u64,
    writing: Arc<Writing>,
}

impl Drop for Grant {
    fn drop(&mut self) {
        // A store that does not hear this has ended, and holds nothing any more.
        drop(self.writing.ask(Question::Release(self.number)));
    }
}

/// Room that a store has given to this process, until it is put; dropped, it is free again.
pub(crate) struct Claim {
    number: u64,
    /// `None` once it is not this process's any more.
    lent: Option<Lent>,
    writing: Arc<Writing>,
    of: Weak<Shm>,
}

impl Claim {
    fn lent(&mut self) -> &mut Lent {
        self.lent.as_mut().expect("invariant: a claim that is gone is not shown")
    }

    /// Writes the offsets of cells whose values are written in place.
    pub(super) fn fill_offsets(&mut self, offsets: &[u8]) {
        self.lent().fill_offsets(offsets);
    }

    /// The values' bytes, to be written in place.
    pub(crate) fn values_mut(&mut self) -> &mut [u8] {
        self.lent().values_mut()
    }

    /// Whether it was given over this way.
    pub(super) fn is_of(&self, shm: &Arc<Shm>) -> bool {
        std::ptr::eq(self.of.as_ptr(), Arc::as_ptr(shm))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.lent.take().is_some() {
            // A store that does not hear this has ended, and its rooms with it.
            drop(self.writing.ask(Question::Release(self.number)));
        }
    }
}

impl Writing {
    fn ask(&self, question: Question) -> io::Result<()> {
        let ask = Ask { question: Some(question) };
        let mut frame = (ask.encoded_len() as u32).to_le_bytes().to_vec();
        ask.encode(&mut frame).expect("invariant: a vector grows");
        let mut stream = self.0.lock().expect("invariant: nothing panics under this lock");
        stream.write_all(&frame).inspect_err(|_| {
            // Half a frame may have gone: nothing that follows would be understood.
            drop(stream.shutdown(Shutdown::Both));
        })
    }
}

impl Shm {
    pub(super) fn new(address: &str, enter: Enter, patience: Duration, message_bytes: usize) -> Self {
        Self {
            address: address.to_owned(),
            enter,
            patience,
            message_bytes,
            connection: Mutex::default(),
            calls: Default::default(),
            rooms: AtomicU64::new(FIRST_ROOM),
        }
    }

    /// Connects, if it is not connected.
    pub(super) fn connect(&self) -> Result<(), Otherwise> {
        self.connected(&mut self.lock()).map(drop)
    }

    /// Views of the cells that a pointer names.
    pub(super) fn get(&self, pointer: &ColumnRef) -> Result<Vec<View>, Otherwise> {
        let mut there = self.lock();
        match self.asked(&mut there, Question::Get(Pointer::from(pointer)))? {
            Word::Granted(granted) => self.views(&mut there, pointer, granted),
            other => Err(self.otherwise(&pointer.name, other)),
        }
    }

    /// Puts checked cells: writes them where the store wants them.
    pub(super) fn put(
        self: &Arc<Self>,
        put: wire::Put,
        column: &Column,
        array: &ArrayRef,
    ) -> Result<wire::Placed, Otherwise> {
        let refused = |why| Otherwise::Refused(TransportError::Travel { column: column.name.clone(), why });
        let array = arrow_map::plain(column, array).map_err(|error| refused(error.to_string()))?;
        let mut claim = self.room((put.partition, put.column), &column.name, Layout::of(&array))?;
        // Others use the connection meanwhile.
        claim.lent().fill(&array);
        self.fill(claim, put, &column.name)
    }

    /// What a command brings that does not wait; `None`: no answer came, it is to be sent another way.
    pub(super) fn call(&self, call: &Call) -> Option<Outcome> {
        let mut there = self.calls.iter().find_map(|connection| connection.try_lock().ok())?;
        match self.asked(&mut there, Question::Call(call.clone())) {
            Ok(Word::Answer(answer)) => answer.outcome,
            _ => None,
        }
    }

    /// Room for the cells of a put into a column, by its position in a partition.
    pub(super) fn room(
        self: &Arc<Self>,
        (partition, id): (u32, u32),
        column: &str,
        layout: Layout,
    ) -> Result<Claim, Otherwise> {
        let room = self.rooms.fetch_add(1, Ordering::Relaxed);
        let (rows, offsets, values) = (layout.rows as u32, layout.offsets as u64, layout.values as u64);
        let reserve = Reserve { room, partition, column: id, rows, offsets, values };
        let mut there = self.lock();
        let Room { place, gone } = match self.asked(&mut there, Question::Reserve(reserve))? {
            Word::Room(room) => room,
            other => return Err(self.otherwise(column, other)),
        };
        let connection = there.as_mut().expect("invariant: it has just answered");
        let segment = connection.to_fill.get(&place.segment).cloned();
        connection.forget(&gone);
        let segment = segment.ok_or_else(|| nonsense("room in a segment that never came"))?;
        let lent = segment.lend(place.at, layout).ok_or_else(|| {
            let why = format!("{} bytes at {} are not in the segment, or in use", layout.bytes(), place.at);
            Otherwise::Refused(TransportError::Travel { column: column.to_owned(), why })
        })?;
        Ok(Claim { number: room, lent: Some(lent), writing: connection.writing.clone(), of: Arc::downgrade(self) })
    }

    /// Puts the cells that room was filled with.
    pub(super) fn fill(&self, mut claim: Claim, put: wire::Put, column: &str) -> Result<wire::Placed, Otherwise> {
        // Not this process's any more: refused, it is free again, and another put may be given it.
        claim.lent = None;
        self.placed(column, Question::Fill(Fill { room: claim.number, put }))
    }

    /// Where cells count as put.
    fn placed(&self, column: &str, question: Question) -> Result<wire::Placed, Otherwise> {
        match self.asked(&mut self.lock(), question)? {
            Word::Placed(placed) => Ok(placed),
            other => Err(self.otherwise(column, other)),
        }
    }

    /// The answer to a question. When none comes, the next question connects again.
    fn asked(&self, there: &mut Option<Connection>, question: Question) -> Result<Word, Otherwise> {
        let answered = self.connected(there)?.ask(question, self.message_bytes);
        Ok(answered.inspect_err(|error| {
            tracing::debug!(%error, "shared memory");
            *there = None;
        })?)
    }

    /// What is not the answer that was hoped for.
    fn otherwise(&self, column: &str, word: Word) -> Otherwise {
        match word {
            Word::Elsewhere(why) => Otherwise::Elsewhere(why),
            Word::Failure(failure) => granted::refused(column, failure, &self.address),
            _ => Otherwise::Refused(TransportError::Travel {
                column: column.to_owned(),
                why: "shared memory: the store sent an answer to something else".to_owned(),
            }),
        }
    }

    /// What this process has written at a place in a segment of its own.
    #[cfg(test)]
    pub(super) fn wrote(&self, place: Place) -> Vec<u8> {
        let there = self.lock();
        there.as_ref().unwrap().to_fill[&place.segment].bytes(place.at, place.len).to_vec()
    }

    /// Waits until the store has heard of every view that was dropped.
    #[cfg(test)]
    pub(super) fn settle(&self) -> io::Result<()> {
        let mut there = self.lock();
        let Some(connection) = there.as_mut() else { return Ok(()) };
        connection.writing.ask(Question::Enter(self.enter.clone()))?;
        connection.hear(self.message_bytes).map(drop)
    }

    fn connected<'a>(&self, there: &'a mut Option<Connection>) -> Result<&'a mut Connection, Otherwise> {
        if there.is_none() {
            *there = Some(Connection::open(&self.address, &self.enter, self.patience, self.message_bytes)?);
        }
        Ok(there.as_mut().expect("invariant: it was just made"))
    }

    fn views(
        &self,
        there: &mut Option<Connection>,
        pointer: &ColumnRef,
        granted: Granted,
    ) -> Result<Vec<View>, Otherwise> {
        let connection = there.as_mut().expect("invariant: it has just answered");
        let grant = Arc::new(Grant { number: granted.grant, writing: connection.writing.clone() });
        let views = connection.views(pointer, &granted, &grant);
        connection.forget(&granted.gone);
        views.map_err(|why| {
            Otherwise::Refused(TransportError::Travel {
                column: pointer.name.clone(),
                why: format!("shared memory: {why}"),
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        self.connection.lock().expect("invariant: nothing panics under this lock")
    }
}

impl Connection {
    fn open(address: &str, enter: &Enter, patience: Duration, most: usize) -> Result<Self, Otherwise> {
        let reading = UnixStream::connect_addr(&abstract_name(address)?)?;
        reading.set_read_timeout(Some(patience))?;
        reading.set_write_timeout(Some(patience))?;
        let writing = Arc::new(Writing(Mutex::new(reading.try_clone()?)));
        let mut connection = Self { reading, writing, segments: HashMap::new(), to_fill: HashMap::new() };
        match connection.ask(Question::Enter(enter.clone()), most)? {
            Word::Welcome(_) => Ok(connection),
            Word::Failure(failure) => Err(Otherwise::Elsewhere(failure.into_error(address).to_string())),
            _ => Err(nonsense("another answer to the first word").into()),
        }
    }

    /// Segments that nobody will speak of again.
    fn forget(&mut self, gone: &[u64]) {
        for id in gone {
            self.segments.remove(id);
            self.to_fill.remove(id);
        }
    }

    fn ask(&mut self, question: Question, most: usize) -> io::Result<Word> {
        self.writing.ask(question)?;
        loop {
            match self.hear(most)? {
                Word::Segments(_) => {}
                answer => return Ok(answer),
            }
        }
    }

    /// The next message; segments that come with it are mapped.
    fn hear(&mut self, most: usize) -> io::Result<Word> {
        let mut len = [0; 4];
        let (read, files) = receive(&self.reading, &mut len)?;
        self.reading.read_exact(&mut len[read..])?;
        let len = u32::from_le_bytes(len) as usize;
        if len > most {
            return Err(nonsense("a message longer than any"));
        }
        let mut frame = vec![0; len];
        self.reading.read_exact(&mut frame)?;
        let say: Say = wire::decode("answer", &frame).map_err(io::Error::other)?;
        let word = say.word.ok_or_else(|| nonsense("an answer that this client does not know"))?;
        if let Word::Segments(Segments { ids, bytes, to_fill }) = &word {
            if ids.len() != files.len() || bytes.len() != files.len() {
                return Err(nonsense("another number of descriptors than it says"));
            }
            for ((id, bytes), file) in ids.iter().zip(bytes).zip(&files) {
                if *to_fill {
                    self.to_fill.insert(*id, Fillable::over(file, *bytes)?);
                } else {
                    self.segments.insert(*id, Foreign::over(file, *bytes)?);
                }
            }
        }
        Ok(word)
    }

    fn views(&self, pointer: &ColumnRef, granted: &Granted, grant: &Arc<Grant>) -> Result<Vec<View>, String> {
        let column: Column = wire::parse("column", &granted.column)?;
        let buffer = |place: Option<Place>| {
            let Some(Place { segment, at, len }) = place else { return Ok(Buffer::default()) };
            let found = self.segments.get(&segment).ok_or_else(|| format!("segment {segment} never came"))?;
            let buffer = found.buffer(at, len, grant);
            buffer.ok_or_else(|| format!("{len} bytes at {at} are not in segment {segment}"))
        };
        let buffers = |piece: &Piece| Ok([buffer(piece.offsets)?, buffer(piece.values)?]);
        let arrays = granted::arrays(pointer, &column, &granted.pieces, buffers)?;
        Ok(arrays.into_iter().map(|array| View::new(array, grant.clone())).collect())
    }
}

/// Reads what is there, and the files beside it.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Vec<File>)> {
    let mut space = [const { MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let files = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files.map(File::from)),
        _ => None,
    });
    Ok((received.bytes, files.flatten().collect()))
}

fn nonsense(what: &str) -> io::Error {
    io::Error::other(format!("the store sent {what}"))
}
