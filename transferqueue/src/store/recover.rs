//! A store whose process ended goes on exactly where it was: the log leads to the catalog, the arena holds the bytes.
//!
//! Sessions of other processes live on. Each may send its last call again and gets the answer it did not hear; cells it
//! had put and not named are held for it again. Sessions of the process that ended go, and what they held returns.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    Options, Store,
    core::{Core, Sender},
    held::Cells,
    options::Ground,
};
use crate::{
    arrow_map,
    catalog::{
        Publication, State,
        command::{CellWrite, Command, Request},
        event::{Event, Record},
    },
    error::Error,
    ids::{ChunkId, ColumnId, PartitionId, RowId, Rows, SessionId},
    log::{self, Log, Torn},
    unit::{
        self, Backing, SpillError, Unit, Units,
        arena::{ArenaError, Found},
    },
};

/// What a recovery found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Position in the log that the store goes on from.
    pub seq: u64,
    /// Payload bytes that live on.
    pub bytes: u64,
    /// Sessions of other processes that live on.
    pub sessions: usize,
    /// Cells that such sessions have put and not named.
    pub held: usize,
    /// Rows whose unfinished work was saved and cannot be had: they begin anew.
    pub forgotten: usize,
    /// An unfinished last record that was cut off: nobody had heard of it.
    pub torn: Option<Torn>,
}

impl Store {
    /// Whether an earlier store has left a log and bytes in the folders of `options`, to be recovered.
    pub fn is_left(options: &Options) -> bool {
        let (Some(dir), Ok(units)) = (options.events(), options.units_left()) else { return false };
        units > 0 && log::read(&dir).is_ok_and(|mut records| matches!(records.next(), Some(Ok(_))))
    }

    /// Goes on where an earlier store with [`Durability::Process`](super::Durability::Process) or more ended, however it
    /// ended. `options` name the folders it had. `replayed` hears of every publication on the way (with the state right
    /// after it), so that whoever keeps a record of them may close a gap.
    ///
    /// # Errors
    /// [`Error::Options`] when `options` ask for another number of units than the store had, or name no folder for cells that
    /// were spilled. [`Error::Log`], [`Error::Arena`] and [`Error::Spill`] by file, when what is needed is damaged, foreign or
    /// not there: nothing wrong is ever served. The last snapshot is the way on then ([`Store::restore`]).
    pub fn recover(
        options: &Options,
        replayed: impl FnMut(&Publication, &Record, &State),
    ) -> Result<(Self, Recovered), Error> {
        let (store, recovered) = Self::recover_on(options, Ground::machine(), replayed)?;
        Ok((store.ticking(), recovered))
    }

    /// The same on given ground, where nothing happens by itself.
    pub(super) fn recover_on(
        options: &Options,
        ground: Ground,
        mut replayed: impl FnMut(&Publication, &Record, &State),
    ) -> Result<(Self, Recovered), Error> {
        let dir = options.lasting()?.join("events");
        let mut arenas = options.open_arenas(&ground)?;
        let found: Vec<(usize, Found)> = arenas
            .iter_mut()
            .enumerate()
            .flat_map(|(unit, (_, found))| std::mem::take(found).into_iter().map(move |found| (unit, found)))
            .collect();
        let mut named = Named::of(&found);
        let mut resume = || {
            let (log, torn) = Log::resume(&dir, options.policy(&ground))?;
            let catalog = log::replay_with(&dir, |record, published, state| {
                named.read(record);
                if let Some(published) = published {
                    replayed(published, record, state);
                }
            })?;
            arenas.iter().try_for_each(|(arena, _)| arena.is_of(catalog.state().incarnation))?;
            Ok::<_, Error>((log, torn, catalog))
        };
        let (log, torn, mut catalog) = resume()?;
        catalog.go_on();
        let life = found.iter().map(|(_, found)| found.entry.chunk).chain(named.last).map(Unit::life).max();
        let life = life.map_or(0, |life| life + 1);
        let files = |number| catalog.state().tables.values().any(|table| table.spills.contains_key(&number));
        let (sizes, spills) = (options.chunk_bytes, options.spills(files)?);
        let arenas = arenas.into_iter().map(|(arena, _)| Backing::Files(arena)).enumerate();
        let over = |(number, files)| Unit::over(files, spills.clone(), sizes, life, number);
        let empty: Vec<Unit> = arenas.map(over).collect();
        let (seq, sessions) = (catalog.state().seq(), catalog.state().sessions.values().filter(|s| !s.here).count());
        let here: Vec<SessionId> =
            catalog.state().sessions.iter().filter(|(_, session)| session.here).map(|(&id, _)| id).collect();
        let Adopted { puts, moved, used, forgotten } = adopt(catalog.state(), &empty, found, &named, options)?;
        let units = Units::over(empty, moved);
        // Only now may anything go, and with it what nobody needs any more.
        units.go_on();
        drop(used);
        let held = puts.len();
        let mut core = Core::new(catalog, Some(log), options.durability);
        for (session, number, cells) in puts {
            // Whatever is over the limit was not held before either.
            drop(core.held.put(session, number, cells));
        }
        let store = Self::open(core, units, ground.clock, options);
        // The clock begins anew: whoever holds something has its full time again.
        let count = forgotten.values().map(BTreeSet::len).sum();
        let forget = forgotten.into_iter().map(|(partition, rows)| {
            let rows: Rows = rows.into_iter().collect();
            tracing::warn!(%partition, %rows, "what was saved of unfinished rows is damaged or gone: they begin anew");
            Command::Forget { partition, rows }
        });
        for command in [Command::Tick].into_iter().chain(forget).chain(here.into_iter().map(Command::Lose)) {
            store.shared.attempt(Sender::Here(None), &mut Request { caller: None, command }, false)?;
        }
        let bytes = store.units().stats().total().live;
        Ok((store, Recovered { seq, bytes, sessions, held, forgotten: count, torn }))
    }
}

/// Cells of the arena's chunks that events have named.
#[derive(Default)]
struct Named {
    chunks: BTreeSet<ChunkId>,
    /// By chunk and first slot: how many.
    cells: BTreeMap<(ChunkId, u32), u64>,
    /// The chunk with the highest number.
    last: Option<ChunkId>,
}

impl Named {
    fn of(found: &[(usize, Found)]) -> Self {
        Self { chunks: found.iter().map(|(_, found)| found.entry.chunk).collect(), ..Self::default() }
    }

    fn read(&mut self, record: &Record) {
        for event in &record.events {
            match event {
                Event::RowsPut { cells, .. } | Event::CellsWritten { cells, .. } | Event::RowsSaved { cells, .. } => {
                    cells.iter().for_each(|cell| self.add(cell));
                }
                _ => {}
            }
        }
    }

    fn add(&mut self, cell: &CellWrite) {
        if self.chunks.contains(&cell.chunk) {
            self.cells.insert((cell.chunk, cell.slot), cell.rows.len());
        }
        self.last = self.last.max(Some(cell.chunk));
    }

    /// Whether an event has named any of these cells.
    fn has(&self, chunk: ChunkId, slot: u32, rows: u32) -> bool {
        let end = u64::from(slot) + u64::from(rows);
        self.cells
            .range((chunk, 0)..=(chunk, u32::MAX))
            .take_while(|((_, first), _)| u64::from(*first) < end)
            .any(|((_, first), len)| u64::from(*first).saturating_add(*len) > u64::from(slot))
    }
}

/// Runs of live cells of a chunk, as `(first slot, length)`.
type Runs = Vec<(u32, u32)>;

/// Cells that were saved of unfinished rows: a store can do without them.
struct Saved {
    cells: BTreeMap<(ChunkId, u32), (PartitionId, RowId)>,
    forgotten: BTreeMap<PartitionId, BTreeSet<RowId>>,
}

impl Saved {
    fn of(state: &State) -> Self {
        let cells = state.saved_cells().map(|(row, run)| ((run.chunk, run.slot), (run.partition, row)));
        Self { cells: cells.collect(), forgotten: BTreeMap::new() }
    }

    /// Does without live cells of a chunk; the first that are no saved ones, if there are.
    fn forget(&mut self, chunk: ChunkId, runs: &[(u32, u32)]) -> Option<(u32, u32)> {
        for &(first, len) in runs {
            for slot in first..first + len {
                let Some(&(partition, row)) = self.cells.get(&(chunk, slot)) else { return Some((first, len)) };
                self.forgotten.entry(partition).or_default().insert(row);
            }
        }
        None
    }
}

/// What came of the arenas' payloads.
struct Adopted {
    /// Puts that live sessions have not named yet: of which session, its number, the cells.
    puts: Vec<(SessionId, u64, Cells)>,
    /// Chunks that lie elsewhere than their numbers say.
    moved: HashMap<ChunkId, usize>,
    /// All payloads.
    used: Vec<Found>,
    /// Rows of which something saved is not there.
    forgotten: BTreeMap<PartitionId, BTreeSet<RowId>>,
}

/// Gives each unit what still counts of its arena.
fn adopt(
    state: &State,
    units: &[Unit],
    found: Vec<(usize, Found)>,
    named: &Named,
    options: &Options,
) -> Result<Adopted, Error> {
    let mut live: BTreeMap<ChunkId, Runs> = BTreeMap::new();
    for run in state.live_cells() {
        live.entry(run.chunk).or_default().push((run.slot, run.len));
    }
    live.values_mut().for_each(join);
    let mut saved = Saved::of(state);
    let mut moved = HashMap::new();
    let spilled = adopt_spilled(state, units, &mut live, &mut moved, options)?;
    // Cells that are open are referred to, too, saved or not.
    let tables = state.tables.values();
    let referred: BTreeSet<ChunkId> =
        tables.flat_map(|table| table.pages.run_chunks().chain(table.open.values().map(|open| open.chunk))).collect();
    let mut chunks: BTreeMap<ChunkId, (usize, Vec<Found>)> = BTreeMap::new();
    for (unit, found) in found {
        let chunk = found.entry.chunk;
        let (home, payloads) = chunks.entry(chunk).or_insert_with(|| (unit, Vec::new()));
        if *home != unit {
            let (path, home) = (options.arena_dir()?, *home);
            let found = format!("chunk {chunk} lies in the arenas of unit {home} and of unit {unit}");
            return Err(ArenaError::Damaged { path, found }.into());
        }
        payloads.push(found);
    }
    // A copy of a put that came after the put was named is nobody's.
    let finished: BTreeSet<(SessionId, u64)> = chunks
        .values()
        .flat_map(|(_, payloads)| payloads)
        .filter(|found| named.has(found.entry.chunk, found.entry.slot, found.entry.place.rows))
        .filter_map(|found| found.entry.writer)
        .collect();
    let (mut puts, mut used) = (Vec::new(), Vec::new());
    for (chunk, (at, mut payloads)) in chunks {
        if spilled.contains(&chunk) {
            // What was left of it when the file took its place.
            used.extend(payloads);
            continue;
        }
        let unit = &units[at];
        payloads.sort_unstable_by_key(|found| found.entry.slot);
        let runs = live.remove(&chunk).unwrap_or_default();
        let (mut pieces, mut waiting, mut missing) = (Vec::new(), Vec::new(), runs.clone());
        let mut key: Option<(PartitionId, ColumnId)> = None;
        for found in &payloads {
            let entry = &found.entry;
            let live = take(&mut missing, entry.slot, entry.place.rows);
            let needed = !live.is_empty();
            let writer =
                entry.writer.filter(|writer| !needed && !finished.contains(writer) && state.has_session(writer.0));
            let column = state.describe(entry.partition).ok();
            let column = column.as_ref().and_then(|known| known.columns.get(usize::from(entry.column.0)));
            let maybe = writer.is_some() || referred.contains(&chunk);
            let (true, Some(column)) = (needed || maybe, column) else { continue };
            let array = match found.cells(column) {
                Ok(array) => array,
                Err(error) if saved.forget(chunk, &live).is_some() => return Err(error.into()),
                // It was let go before, and its pages with it; or it is done without.
                Err(_) => continue,
            };
            if let Some((session, number)) = writer {
                let sizes = arrow_map::sizes(column, &array).map_err(unit::UnitError::from)?;
                let (rows, bytes) = (u64::from(entry.place.rows), array.get_buffer_memory_size() as u64);
                waiting.push((session, number, (entry.slot, rows, bytes), sizes));
            }
            key = Some((entry.partition, entry.column));
            pieces.push((entry.slot, array));
        }
        used.extend(payloads);
        if let Some((slot, len)) = saved.forget(chunk, &missing) {
            return Err(lost(options, chunk, slot, len));
        }
        let Some(key) = key else { continue };
        unit::units::note(&mut moved, chunk, at);
        unit.adopt(key, chunk, pieces, referred.contains(&chunk));
        for (session, number, (slot, rows, bytes), sizes) in waiting {
            let placed = unit.hold(chunk, slot, sizes);
            puts.extend(placed.map(|placed| (session, number, Cells { key, rows, bytes, placed })));
        }
    }
    for (chunk, runs) in live {
        if let Some((slot, len)) = saved.forget(chunk, &runs) {
            return Err(lost(options, chunk, slot, len));
        }
    }
    Ok(Adopted { puts, moved, used, forgotten: saved.forgotten })
}

/// Gives units what lies in spill files, each chunk to the one that made it while there is such a one: which chunks.
fn adopt_spilled(
    state: &State,
    units: &[Unit],
    live: &mut BTreeMap<ChunkId, Runs>,
    moved: &mut HashMap<ChunkId, usize>,
    options: &Options,
) -> Result<BTreeSet<ChunkId>, Error> {
    let mut adopted = BTreeSet::new();
    for (&partition, table) in &state.tables {
        for spill in table.spills.values() {
            let Some(dir) = &options.spill else {
                let what = format!(
                    "cells of partition `{}` were spilled to file {}; found `spill: None`; name the folder they lie in",
                    table.name, spill.file.number
                );
                return Err(Error::Options { what });
            };
            let column = spill.chunks.iter().find_map(|chunk| Some(table.chunks.get(chunk)?.column));
            let Some(column) = column else { continue };
            let (key, def) = ((partition, ColumnId(column)), &table.fields[usize::from(column)].def);
            for (chunk, pieces) in units[0].find_spilled(def, spill.file)? {
                if !spill.chunks.contains(&chunk) {
                    continue;
                }
                let mut missing = live.remove(&chunk).unwrap_or_default();
                for (slot, array) in pieces.pieces() {
                    take(&mut missing, *slot, array.len() as u32);
                }
                if let Some((slot, len)) = missing.first() {
                    let found = format!("no cells {slot}..{} of chunk {chunk}, which are live", slot + len);
                    return Err(SpillError::Damaged { path: dir.clone(), found }.into());
                }
                let number = Unit::number(chunk);
                let at = if number < units.len() { number } else { 0 };
                units[at].adopt_spilled(key, chunk, pieces);
                unit::units::note(moved, chunk, at);
                adopted.insert(chunk);
            }
        }
    }
    Ok(adopted)
}

/// Sorts runs and joins those that follow each other.
fn join(runs: &mut Runs) {
    runs.sort_unstable();
    let mut joined = Runs::new();
    for &(first, len) in runs.iter() {
        match joined.last_mut() {
            Some((start, length)) if *start + *length == first => *length += len,
            _ => joined.push((first, len)),
        }
    }
    *runs = joined;
}

/// Takes the slots `slot..slot + rows` out of the runs: those of them that were in there.
fn take(runs: &mut Runs, slot: u32, rows: u32) -> Runs {
    let (end, mut left, mut taken) = (slot.saturating_add(rows), Runs::new(), Runs::new());
    for &(first, len) in runs.iter() {
        let last = first + len;
        if last <= slot || first >= end {
            left.push((first, len));
            continue;
        }
        let (from, to) = (first.max(slot), last.min(end));
        taken.push((from, to - from));
        left.extend((first < slot).then(|| (first, slot - first)));
        left.extend((last > end).then(|| (end, last - end)));
    }
    *runs = left;
    taken
}

fn lost(options: &Options, chunk: ChunkId, slot: u32, len: u32) -> Error {
    let path = options.arena_dir().unwrap_or_default();
    let found = format!("no payload holds cells {slot}..{} of chunk {chunk}, which are live", slot + len);
    ArenaError::Damaged { path, found }.into()
}
