//! Proves each way to a store: reads some cells that lie there, and says how fast that was beside what the host can do.

use std::{
    cmp::Reverse,
    hint::black_box,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::{Choice, Options, Remote};
use crate::{
    arrow_map,
    catalog::{command::ColumnRef, views::ColumnView},
    error::Error,
    ids::{RowId, SessionId},
    inspect::{Reply, Request},
    link::Link,
    transport::{Transport, TransportError, View},
};

/// No more than about this many bytes are read at once: enough to be sure of the speed, little enough to be no burden.
const BYTES: u64 = 64 << 20;
/// Times are medians of so many.
const ROUNDS: usize = 5;
/// Cells that are gone before they are read are looked for again, so often.
const TRIES: usize = 5;
/// The newest rows of a partition, among which cells are looked for, and questions until there are enough of them.
const ROWS: u64 = 1 << 13;
const QUESTIONS: usize = 64;

/// One way to the store.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Which.
    pub way: Choice,
    /// How fast it was; or why nothing comes this way.
    pub outcome: Result<Speed, String>,
}

/// What was read, and in which time. Every byte is looked at, on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// `partition.column`.
    pub column: String,
    /// Payload bytes of the cells.
    pub bytes: u64,
    /// Median seconds of a get.
    pub seconds: f64,
    /// What the host does with as many bytes, in median seconds: memory that is read, a bare TCP connection over loopback. `None`
    /// for a store on another host, and for UCX.
    pub limit: Option<f64>,
}

/// Reads the largest column of the store over shared memory and through UCX, if it offers them, and over Flight. The store is left as it was. `options.transport` does not
/// count; `Ok(None)`: nothing is found to be read.
///
/// # Errors
/// As [`Remote::connect`] and any call.
pub fn probe(url: &str, token: &str, options: &Options) -> Result<Option<Vec<Probe>>, Error> {
    let over = |transport| Remote::connect(url, token, Options { transport, ..options.clone() });
    let remote = over(Choice::Flight)?;
    let Some(column) = readable(&remote)? else { return Ok(None) };
    let here =
        url.split("://").nth(1).is_some_and(|address| address.starts_with("127.") || address.starts_with("[::1]"));
    let mut probes = Vec::new();
    if remote.inner.offers_memory {
        let outcome = match over(Choice::Shm) {
            Ok(near) => measure(&near, &column, |bytes| Some(memory(bytes)))?,
            Err(error) => Err(error.to_string()),
        };
        probes.push(Probe { way: Choice::Shm, outcome });
    }
    if remote.inner.offers_ucx && Choice::Ucx.is_built() {
        let outcome = match over(Choice::Ucx) {
            Ok(through) => measure(&through, &column, |_| None)?,
            Err(error) => Err(error.to_string()),
        };
        probes.push(Probe { way: Choice::Ucx, outcome });
    }
    // A host without a port to spare has no limit to be compared with.
    let outcome = measure(&remote, &column, |bytes| here.then(|| bare(bytes).ok()).flatten())?;
    probes.push(Probe { way: Choice::Flight, outcome });
    Ok(Some(probes))
}

/// The column with most bytes in memory of which cells are found.
fn readable(remote: &Remote) -> Result<Option<ColumnView>, Error> {
    let columns = match remote.inspect(&Request::Columns)? {
        Reply::Columns(columns) => columns,
        other => return Err(Error::Protocol { command: "columns", found: format!("{other:?}") }),
    };
    let in_memory = |column: &ColumnView| column.bytes_live.saturating_sub(column.bytes_spilled);
    let mut found: Vec<ColumnView> = columns.into_iter().map(|column| column.account).collect();
    found.retain(|column| column.cells > 0 && in_memory(column) > 0);
    found.sort_by_key(|column| Reverse(in_memory(column)));
    for column in found {
        if some(remote, &column)?.is_some() {
            return Ok(Some(column));
        }
    }
    Ok(None)
}

/// Reads over one way; an error of the way itself is told, not returned.
fn measure(
    remote: &Remote,
    column: &ColumnView,
    limit: impl Fn(u64) -> Option<f64>,
) -> Result<Result<Speed, String>, Error> {
    let paths = remote.paths(SessionId(0));
    let mut gone = String::new();
    for _ in 0..TRIES {
        let Some(pointer) = some(remote, column)? else { break };
        let read = || -> Result<(u64, Duration), TransportError> {
            let begun = Instant::now();
            let views = paths.get(&pointer)?;
            let bytes = views.iter().map(look).sum();
            Ok((bytes, begun.elapsed()))
        };
        // The first maps the segments, or opens the connections.
        match read().and_then(|_| (0..ROUNDS).map(|_| read()).collect::<Result<Vec<_>, _>>()) {
            Ok(all) => {
                let (bytes, seconds) = (all[0].0, median(all.into_iter().map(|(_, time)| time).collect()));
                let column = format!("{}.{}", column.partition, column.column);
                return Ok(Ok(Speed { column, bytes, seconds, limit: limit(bytes) }));
            }
            Err(error) if error.is_gone() => gone = error.to_string(),
            Err(error) => return Ok(Err(error.to_string())),
        }
    }
    Ok(Err(format!("cells of `{}` are gone as soon as they are found ({gone}); ask again", column.column)))
}

/// Some cells of a column, of whichever rows have one.
fn some(remote: &Remote, column: &ColumnView) -> Result<Option<ColumnRef>, Error> {
    let partition = remote.partition(&column.partition)?;
    // Not all live rows: there may be millions.
    let born = remote.born(partition)?;
    let rows = (born.saturating_sub(ROWS)..born).map(RowId);
    let mut left = (BYTES / (column.bytes_live / column.cells).max(1)).max(1);
    let mut found: Option<ColumnRef> = None;
    let mut parts: Vec<Vec<RowId>> = vec![rows.collect()];
    for _ in 0..QUESTIONS {
        let Some(part) = parts.pop().filter(|_| left > 0) else { break };
        match remote.resolve(partition, Some(&part.iter().copied().take(left as usize).collect()), &[&column.column]) {
            Ok((pointer, _)) => {
                left -= pointer.rows.len();
                for part in pointer.columns {
                    match &mut found {
                        Some(found) => found.runs.extend(part.runs),
                        None => found = Some(part),
                    }
                }
            }
            // One of them is gone, or has no cell: each half by itself.
            Err(Error::Refused(_)) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second.to_vec(), first.to_vec()]);
            }
            Err(Error::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Looks at every byte of a view; how many there are.
fn look(view: &View) -> u64 {
    let (offsets, values) =
        (arrow_map::offset_bytes(view.array()), arrow_map::leaf_bytes(view.array()).unwrap_or_default());
    black_box(sum(offsets).wrapping_add(sum(values)));
    values.len() as u64
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(words, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// Reading as many bytes of this process's own memory.
fn memory(bytes: u64) -> f64 {
    let own = vec![1_u8; bytes as usize];
    let timed = || {
        let begun = Instant::now();
        black_box(sum(black_box(&own)));
        begun.elapsed()
    };
    median((0..ROUNDS).map(|_| timed()).collect())
}

/// Sending as many bytes over loopback, into memory that is there, and reading them.
fn bare(bytes: u64) -> io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let (sent, mut received) = (vec![1_u8; bytes as usize], vec![0_u8; bytes as usize]);
    let mut times = Vec::with_capacity(ROUNDS);
    thread::scope(|scope| -> io::Result<()> {
        let mut asking = TcpStream::connect(address)?;
        let (mut sending, _) = listener.accept()?;
        let sent = &sent;
        let sender = scope.spawn(move || -> io::Result<()> {
            let mut question = [0];
            while sending.read(&mut question)? > 0 {
                sending.write_all(sent)?;
            }
            Ok(())
        });
        for _ in 0..=ROUNDS {
            let begun = Instant::now();
            asking.write_all(&[1])?;
            asking.read_exact(&mut received)?;
            black_box(sum(&received));
            times.push(begun.elapsed());
        }
        drop(asking);
        sender.join().unwrap_or_else(|_| Err(io::Error::other("the sender panicked")))
    })?;
    // The first one brings the pages.
    Ok(median(times.split_off(1)))
}
