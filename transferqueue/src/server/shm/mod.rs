//! Workers on this host: they are told where cells lie, or are to lie, and given the segments to map; no byte of them travels.
//!
//! A worker is a process of the same user, on a socket in the abstract namespace. A get of its session is answered with
//! places in segments; the views behind it are held until it releases them or its socket ends, which the kernel sees to
//! however its process ends. A worker that is stopped keeps what it was granted, and nothing else. What it puts it writes in
//! place (`rooms`).

mod rooms;

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener as Blocking},
    },
    sync::Arc,
};

use prost::Message;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncReadExt, Interest},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
};

use self::rooms::Rooms;
use super::{
    control, gate,
    granting::{self, Grants, Unlocated},
    limits,
    service::Service,
};
use crate::{
    arrow_map,
    error::Error,
    unit::arena::{Backed, Watch},
    wire::{
        self, Answer, Failure, Nothing,
        shm::{Ask, DESCRIPTORS, Enter, FIRST_ROOM, Place, Question, Reserve, Room, Say, Segments, Word},
    },
};

/// Where a store that listens on this port is found.
pub(crate) fn address(incarnation: u64, port: u16) -> String {
    format!("transferqueue/{incarnation:016x}/{port}")
}

/// The address as the system takes it.
pub(crate) fn abstract_name(address: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(address)
}

/// Listens. To be called within the runtime.
pub(super) fn listen(address: &str) -> io::Result<UnixListener> {
    let listener = Blocking::bind_addr(&abstract_name(address)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Serves whoever comes, until the runtime ends.
pub(super) async fn serve(listener: UnixListener, service: Service, token: String, connections: usize) {
    let places = Arc::new(Semaphore::new(connections));
    loop {
        match listener.accept().await {
            Ok((stream, _)) if is_ours(&stream) => {
                let Ok(place) = places.clone().try_acquire_owned() else {
                    tracing::warn!(connections, "too many workers on this host: closed unheard");
                    continue;
                };
                let mut neighbour = Neighbour::new(stream, service.clone());
                let token = token.clone();
                tokio::spawn(async move {
                    if let Err(error) = neighbour.serve(&token).await {
                        tracing::debug!(%error, "a worker on this host has left");
                    }
                    drop(place);
                });
            }
            Ok(_) => tracing::warn!("a process of another user asked for this store's memory"),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a worker on this host");
                tokio::time::sleep(limits::ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the other end is a process of this user.
fn is_ours(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

/// A worker on this host.
pub(crate) struct Neighbour {
    stream: UnixStream,
    service: Service,
    grants: Grants,
    /// Where it is writing.
    rooms: Rooms,
    /// Segments it has been sent, to be read and to be filled.
    sent: [BTreeMap<u64, Watch>; 2],
}

/// What a segment is sent for.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Fill,
}

impl Neighbour {
    pub(crate) fn new(stream: UnixStream, service: Service) -> Self {
        let rooms = Rooms::new(service.store.units().clone());
        Self { stream, service, grants: Grants::default(), rooms, sent: Default::default() }
    }

    /// Answers until it leaves, or is sent away.
    pub(crate) async fn serve(&mut self, token: &str) -> io::Result<()> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no valid token within {:?}", limits::SILENCE));
        if !tokio::time::timeout(limits::SILENCE, self.comes_in(token)).await.map_err(late)?? {
            return Ok(());
        }
        while let Some(len) = self.length().await? {
            if len > self.service.message_bytes {
                // What follows cannot be told apart from a frame. What is granted stays granted until the reader has gone.
                tokio::io::copy(&mut self.stream, &mut tokio::io::sink()).await?;
                return Ok(());
            }
            let frame = self.frame(len).await?;
            let ask: Ask = wire::decode("question", &frame).map_err(io::Error::other)?;
            let word = match ask.question {
                Some(Question::Enter(enter)) => self.enter(&enter, token),
                Some(Question::Release(room @ FIRST_ROOM..)) => {
                    self.rooms.release(room);
                    continue;
                }
                Some(Question::Release(grant)) => {
                    self.grants.release(grant);
                    continue;
                }
                Some(Question::Get(pointer)) => self.get(pointer).await?,
                Some(Question::Reserve(ask)) => match self.reserve(ask).await? {
                    Ok(word) => word,
                    Err(error) => Word::Failure(Failure::of(&error)),
                },
                Some(Question::Fill(fill)) => match self.rooms.fill(&self.service, fill) {
                    Ok(placed) => Word::Placed(placed),
                    Err(error) => Word::Failure(Failure::of(&error)),
                },
                Some(Question::Call(call)) => {
                    Word::Answer(Answer { outcome: Some(control::asked_once(&self.service, call)) })
                }
                None => Word::Failure(Failure::other("a question that this server does not know; use one version")),
            };
            self.say(word, &[]).await?;
        }
        Ok(())
    }

    /// Hears it until it has shown the token; `false`: it has left, or said more than that takes.
    async fn comes_in(&mut self, token: &str) -> io::Result<bool> {
        while let Some(len) = self.length().await? {
            if len > limits::ENTER_BYTES {
                let why = format!("{len} bytes before the token, expected at most {}", limits::ENTER_BYTES);
                self.say(Word::Failure(Failure::other(why)), &[]).await?;
                return Ok(false);
            }
            let frame = self.frame(len).await?;
            let ask: Ask = wire::decode("question", &frame).map_err(io::Error::other)?;
            let word = match ask.question {
                Some(Question::Enter(enter)) => self.enter(&enter, token),
                _ => Word::Failure(Failure::other("enter with the token first")),
            };
            let welcome = matches!(word, Word::Welcome(_));
            self.say(word, &[]).await?;
            if welcome {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn enter(&self, enter: &Enter, token: &str) -> Word {
        let (expected, found) = (enter.incarnation, self.service.incarnation);
        if !gate::same(enter.token.as_bytes(), token.as_bytes()) {
            return Word::Failure(Failure::other("no valid token: it is in the server's token file"));
        }
        if expected != found {
            return Word::Failure(Failure::incarnation(expected, found));
        }
        Word::Welcome(Nothing {})
    }

    async fn get(&mut self, pointer: wire::Pointer) -> io::Result<Word> {
        let mut located = match self.grants.locate(&self.service, pointer, arrow_map::leaf_bytes) {
            Ok(located) => located,
            Err(Unlocated::Elsewhere(why)) => return Ok(Word::Elsewhere(why)),
            Err(Unlocated::Failure(failure)) => return Ok(Word::Failure(failure)),
        };
        self.introduce(std::mem::take(&mut located.segments), Access::Read).await?;
        let gone = self.gone();
        Ok(Word::Granted(self.grants.hold(located, gone)))
    }

    /// Room for the cells of a put.
    async fn reserve(&mut self, ask: Reserve) -> io::Result<Result<Word, Error>> {
        let backed = match self.rooms.reserve(&self.service, ask) {
            Ok(Some(backed)) => backed,
            Ok(None) => return Ok(Ok(Word::Elsewhere("the store's bytes lie outside of shared memory".to_owned()))),
            Err(error) => return Ok(Err(error)),
        };
        let place = Place { segment: backed.id(), at: backed.at as u64, len: ask.offsets + ask.values };
        self.introduce(BTreeMap::from([(place.segment, backed)]), Access::Fill).await?;
        Ok(Ok(Word::Room(Room { place, gone: self.gone() })))
    }

    /// Sends the segments that this worker has not seen.
    async fn introduce(&mut self, segments: BTreeMap<u64, Backed>, access: Access) -> io::Result<()> {
        let sent = &self.sent[access as usize];
        let new: Vec<(u64, Backed)> = segments.into_iter().filter(|(id, _)| !sent.contains_key(id)).collect();
        for some in new.chunks(DESCRIPTORS) {
            let file = |(_, segment): &(u64, Backed)| match access {
                Access::Read => segment.readable(),
                Access::Fill => segment.writable(),
            };
            let files = some.iter().map(file).collect::<io::Result<Vec<File>>>()?;
            let (ids, bytes) = some.iter().map(|(id, segment)| (*id, segment.len() as u64)).unzip();
            let to_fill = matches!(access, Access::Fill);
            self.say(Word::Segments(Segments { ids, bytes, to_fill }), &files).await?;
            self.sent[access as usize].extend(some.iter().map(|(id, segment)| (*id, segment.watch())));
        }
        Ok(())
    }

    /// Segments it has been sent that are gone.
    fn gone(&mut self) -> Vec<u64> {
        self.sent.iter_mut().flat_map(granting::gone).collect()
    }

    /// How long the next frame is; `None` at the end.
    async fn length(&mut self) -> io::Result<Option<usize>> {
        let mut len = [0; 4];
        match self.stream.read_exact(&mut len).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            read => read.map(|_| Some(u32::from_le_bytes(len) as usize)),
        }
    }

    async fn frame(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; len];
        self.stream.read_exact(&mut frame).await?;
        Ok(frame)
    }

    /// Sends a frame, and files beside its first bytes.
    async fn say(&self, word: Word, files: &[File]) -> io::Result<()> {
        let say = Say { word: Some(word) };
        let mut frame = (say.encoded_len() as u32).to_le_bytes().to_vec();
        say.encode(&mut frame).expect("invariant: a vector grows");
        let mut sent = 0;
        while sent < frame.len() {
            let files = if sent == 0 { files } else { &[] };
            sent += self.stream.async_io(Interest::WRITABLE, || send(&self.stream, &frame[sent..], files)).await?;
        }
        Ok(())
    }
}

fn send(stream: &UnixStream, bytes: &[u8], files: &[File]) -> io::Result<usize> {
    let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("more descriptors than one frame takes"));
    }
    Ok(sendmsg(stream, &[io::IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?)
}
