//! Live rows and where their cells lie, in pages of 64 rows.
//!
//! Row ids are dense in the order of birth, so a page is found by index, a claim of neighbouring rows stays in few pages,
//! and a page goes when its last row goes: memory follows live rows (plus 8 bytes per 64 ids between the oldest and the
//! newest one). Within a page the cells of each column lie in runs; a contiguous put is one run a page. All of a row's
//! cells are found close together, since scattered claims pay for every cache line they touch. Cells that die leave their
//! run standing until the last of them is dead, so that consuming scattered rows splits nothing.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::command::{CellRun, Span, Tags};
use crate::ids::{ChunkId, GroupId, RowId};

/// Rows per page.
pub(crate) const PAGE: u64 = 64;

/// One live row, in one cache line. Bits of tasks and columns are positions within the partition.
#[repr(align(64))]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    /// Tasks that owe it.
    pub(crate) owing: u64,
    /// Tasks whose filter is not decided yet.
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) pending: u64,
    /// Columns whose cell was sealed, whether its bytes are still held or not.
    pub(crate) sealed: u64,
    /// Columns whose sealed bytes are still held.
    pub(crate) held: u64,
    /// Columns that nobody will ever write.
    #[serde(skip_serializing_if = "is_none")]
    pub(crate) void: u64,
    pub(crate) group: GroupId,
    pub(crate) sample: u32,
    /// Child partitions that still read it through a link or have yet to expand it.
    pub(crate) holds: u16,
    /// Already subtracted from its group's count of owed rows.
    pub(crate) unowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<Box<Label>>,
}

/// What is said of a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Label {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<Box<str>>,
    #[serde(skip_serializing_if = "Tags::is_empty")]
    pub(crate) tags: Tags,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) span: Option<Span>,
}

fn is_none(mask: &u64) -> bool {
    *mask == 0
}

impl Row {
    /// Tasks that owe it or may come to owe it.
    pub(crate) fn wanted(&self) -> u64 {
        self.owing | self.pending
    }

    /// Columns whose cell is sealed, or will never be.
    pub(crate) fn settled(&self) -> u64 {
        self.sealed | self.void
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.label.as_ref()?.key.as_deref()
    }

    pub(crate) fn tags(&self) -> Tags {
        self.label.as_ref().map_or_else(Tags::new, |label| label.tags.clone())
    }

    pub(crate) fn span(&self) -> Option<Span> {
        self.label.as_ref()?.span
    }
}

/// Consecutive cells of one column in one chunk, within a page.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) column: u8,
    /// Offset in the page.
    pub(crate) at: u8,
    pub(crate) len: u8,
    /// Cells that are still held.
    pub(crate) live: u8,
    pub(crate) slot: u32,
    pub(crate) chunk: ChunkId,
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) chunk: ChunkId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) bytes: u32,
}

impl Run {
    fn end(&self) -> u8 {
        self.at + self.len
    }

    fn holds(&self, column: usize, offset: u8) -> bool {
        usize::from(self.column) == column && self.at <= offset && offset < self.end()
    }

    /// Whether `next` begins where this one ends and goes on in the same chunk.
    fn joins(&self, next: &Run) -> bool {
        self.column == next.column
            && self.end() == next.at
            && self.chunk == next.chunk
            && self.slot + u32::from(self.len) == next.slot
    }
}

/// 64 neighbouring rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Page {
    live: u32,
    columns: usize,
    rows: Vec<Option<Row>>,
    /// Sorted by column and offset, without overlap.
    runs: Vec<Run>,
    /// Bytes of each cell, row by row; empty before the first cell.
    bytes: Vec<u32>,
    /// Column, offset and generation of cells that were replaced; all others have generation 0.
    replaced: Vec<(u8, u8, u32)>,
}

/// What became of a run when one of its cells died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) bytes: u32,
    pub(crate) chunk: ChunkId,
    /// Whether this was the last cell of its run.
    pub(crate) last: bool,
}

impl Page {
    fn new(columns: usize) -> Self {
        let rows = vec![None; PAGE as usize];
        Self { live: 0, columns, rows, runs: Vec::new(), bytes: Vec::new(), replaced: Vec::new() }
    }

    fn find(&self, column: usize, offset: u8) -> Option<usize> {
        // Usually each column has one run, in its place.
        if self.runs.get(column).is_some_and(|run| run.holds(column, offset)) {
            return Some(column);
        }
        let next = self.runs.partition_point(|run| (usize::from(run.column), run.at) <= (column, offset));
        next.checked_sub(1).filter(|&i| self.runs[i].holds(column, offset))
    }

    fn size(&self, column: usize, offset: u8) -> u32 {
        self.bytes[usize::from(offset) * self.columns + column]
    }

    fn generation(&self, column: usize, offset: u8) -> u32 {
        let mut replaced = self.replaced.iter();
        replaced.find(|(c, o, _)| (usize::from(*c), *o) == (column, offset)).map_or(0, |(.., generation)| *generation)
    }

    /// The place of a held cell. The caller knows from the row's bits that it is held.
    pub(crate) fn cell(&self, column: usize, offset: u8) -> Option<Cell> {
        let run = &self.runs[self.find(column, offset)?];
        let slot = run.slot + u32::from(offset - run.at);
        Some(Cell {
            chunk: run.chunk,
            slot,
            generation: self.generation(column, offset),
            bytes: self.size(column, offset),
        })
    }

    /// The place of a cell without its size, as pointers want it.
    pub(crate) fn spot(&self, column: usize, offset: u8) -> Option<CellRun> {
        let run = &self.runs[self.find(column, offset)?];
        let slot = run.slot + u32::from(offset - run.at);
        Some(CellRun { chunk: run.chunk, generation: self.generation(column, offset), slot, len: 1 })
    }

    /// Brings what a commit will want of a row's cells near, while many rows are looked at side by side: for scattered
    /// rows this saves a sixth of claim and commit.
    pub(crate) fn read_ahead(&self, offset: u8) {
        std::hint::black_box(self.bytes.get(usize::from(offset) * self.columns).copied());
        std::hint::black_box(self.runs.last().map(|run| run.slot));
    }

    /// Notes the bytes of a cell whose run is about to be added.
    pub(crate) fn set_size(&mut self, column: usize, offset: u8, bytes: u32) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; PAGE as usize * self.columns];
        }
        self.bytes[usize::from(offset) * self.columns + column] = bytes;
    }

    /// Takes note of cells that are not there yet. Returns whether a run was added (and not merely lengthened).
    pub(crate) fn add(&mut self, run: Run) -> bool {
        let at = self.runs.partition_point(|old| (old.column, old.at) < (run.column, run.at));
        if at > 0 && self.runs[at - 1].joins(&run) {
            self.runs[at - 1].len += run.len;
            self.runs[at - 1].live += run.live;
            return false;
        }
        self.runs.insert(at, run);
        true
    }

    /// A held cell dies.
    pub(crate) fn kill(&mut self, column: usize, offset: u8) -> Option<Dead> {
        let i = self.find(column, offset)?;
        let run = &mut self.runs[i];
        run.live -= 1;
        let (chunk, last) = (run.chunk, run.live == 0);
        if last {
            self.runs.remove(i);
        }
        Some(Dead { bytes: self.size(column, offset), chunk, last })
    }

    /// A held cell is about to be replaced: it leaves its run, which is split around it, and its generation rises. Returns
    /// the cell, and by how many the runs in its chunk changed.
    pub(crate) fn punch(&mut self, column: usize, offset: u8) -> Option<(Cell, i64)> {
        let cell = self.cell(column, offset)?;
        let i = self.find(column, offset)?;
        let run = self.runs.remove(i);
        let mut pieces = 0;
        for (from, to) in [(run.at, offset), (offset + 1, run.end())] {
            let held = |&o: &u8| self.row(o).is_some_and(|row| row.held & 1 << column != 0);
            let live = (from..to).filter(held).count() as u8;
            if live > 0 {
                let slot = run.slot + u32::from(from - run.at);
                self.runs.insert(i + pieces, Run { at: from, len: to - from, live, slot, ..run });
                pieces += 1;
            }
        }
        self.replaced.retain(|(c, o, _)| (usize::from(*c), *o) != (column, offset));
        self.replaced.push((column as u8, offset, cell.generation + 1));
        Some((cell, pieces as i64 - 1))
    }

    fn held(&self) -> impl Iterator<Item = (usize, Cell, u32)> + '_ {
        self.runs.iter().flat_map(move |run| {
            let column = usize::from(run.column);
            let live = move |&o: &u8| self.row(o).is_some_and(|row| row.held & 1 << column != 0);
            let mut offset = run.at;
            std::iter::from_fn(move || {
                let from = (offset..run.end()).find(live)?;
                offset = (from..run.end()).find(|o| !live(o)).unwrap_or(run.end());
                Some((column, self.cell(column, from)?, u32::from(offset - from)))
            })
        })
    }

    pub(crate) fn row(&self, offset: u8) -> Option<&Row> {
        self.rows[usize::from(offset)].as_ref()
    }

    pub(crate) fn row_mut(&mut self, offset: u8) -> Option<&mut Row> {
        self.rows[usize::from(offset)].as_mut()
    }
}

/// All live rows of a partition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pages {
    /// Number of the first page in `pages`.
    base: u64,
    pages: VecDeque<Option<Box<Page>>>,
    columns: usize,
}

/// Page number and offset in it.
pub(crate) fn place(row: RowId) -> (u64, u8) {
    (row.0 / PAGE, (row.0 % PAGE) as u8)
}

impl Pages {
    pub(crate) fn new(columns: usize) -> Self {
        Self { columns, ..Self::default() }
    }

    pub(crate) fn page(&self, number: u64) -> Option<&Page> {
        let index = number.checked_sub(self.base)?;
        self.pages.get(index as usize)?.as_deref()
    }

    pub(crate) fn page_mut(&mut self, number: u64) -> Option<&mut Page> {
        let index = number.checked_sub(self.base)?;
        self.pages.get_mut(index as usize)?.as_deref_mut()
    }

    pub(crate) fn get(&self, row: RowId) -> Option<&Row> {
        let (page, offset) = place(row);
        self.page(page)?.row(offset)
    }

    pub(crate) fn get_mut(&mut self, row: RowId) -> Option<&mut Row> {
        let (page, offset) = place(row);
        self.page_mut(page)?.row_mut(offset)
    }

    pub(crate) fn cell(&self, row: RowId, column: usize) -> Option<Cell> {
        let (page, offset) = place(row);
        self.page(page)?.cell(column, offset)
    }

    /// The place of a row's cell, if it is held.
    pub(crate) fn spot(&self, row: RowId, column: usize) -> Option<CellRun> {
        let (page, offset) = place(row);
        let page = self.page(page)?;
        page.row(offset).filter(|row| row.held & 1 << column != 0)?;
        page.spot(column, offset)
    }

    /// Held cells as (column, first cell, number), in the order of rows within each column and page.
    pub(crate) fn held(&self) -> impl Iterator<Item = (usize, Cell, u32)> + '_ {
        self.pages.iter().flatten().flat_map(|page| page.held())
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> u64 {
        self.pages.iter().flatten().map(|page| page.rows.iter().flatten().count() as u64).sum()
    }

    /// The chunk of every run.
    pub(crate) fn run_chunks(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.pages.iter().flatten().flat_map(|page| page.runs.iter().map(|run| run.chunk))
    }

    /// A row is born. Rows are born in the order of their ids.
    pub(crate) fn insert(&mut self, id: RowId, row: Row) {
        let (number, offset) = place(id);
        if self.pages.is_empty() {
            self.base = number;
        }
        let index = (number - self.base) as usize;
        if index >= self.pages.len() {
            self.pages.resize_with(index + 1, || None);
        }
        let page = self.pages[index].get_or_insert_with(|| Box::new(Page::new(self.columns)));
        page.live += u32::from(page.rows[usize::from(offset)].is_none());
        page.rows[usize::from(offset)] = Some(row);
    }

    /// A row is gone; its cells are dead already.
    pub(crate) fn remove(&mut self, id: RowId) -> Option<Row> {
        let (number, offset) = place(id);
        let page = self.page_mut(number)?;
        let row = page.rows[usize::from(offset)].take()?;
        page.live -= 1;
        if page.live == 0 {
            self.pages[(number - self.base) as usize] = None;
            while self.pages.front().is_some_and(Option::is_none) {
                self.pages.pop_front();
                self.base += 1;
            }
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page with held cells of one column: offsets, first slot, sizes.
    fn page(cells: &[(u8, u32, &[u32])]) -> (Page, Vec<bool>) {
        let mut page = Page::new(1);
        let mut added = Vec::new();
        for (at, slot, sizes) in cells {
            for (offset, bytes) in (*at..).zip(*sizes) {
                page.rows[usize::from(offset)] = Some(Row { held: 1, ..Row::default() });
                page.set_size(0, offset, *bytes);
            }
            let len = sizes.len() as u8;
            let run = Run { column: 0, at: *at, len, live: len, chunk: ChunkId(1), slot: *slot };
            added.push(page.add(run));
        }
        (page, added)
    }

    #[test]
    fn contiguous_writes_become_one_run_and_keep_each_size() {
        let (page, added) = page(&[(0, 10, &[4, 4]), (2, 12, &[9]), (3, 13, &[1, 2]), (6, 15, &[4]), (7, 17, &[4])]);
        assert_eq!(added, [true, false, false, true, true], "a gap in rows or slots begins another run");
        let sizes: Vec<u32> = (0..5).map(|o| page.cell(0, o).unwrap().bytes).collect();
        assert_eq!(sizes, [4, 4, 9, 1, 2]);
        assert_eq!(page.cell(0, 4).unwrap().slot, 14);
        assert_eq!(page.cell(0, 5), None);
        assert_eq!(page.runs.len(), 3);
    }

    #[test]
    fn a_run_stands_until_its_last_cell_is_dead() {
        let (mut page, _) = page(&[(0, 0, &[5, 6, 7])]);
        assert_eq!(page.kill(0, 1), Some(Dead { bytes: 6, chunk: ChunkId(1), last: false }));
        assert_eq!(page.kill(0, 0), Some(Dead { bytes: 5, chunk: ChunkId(1), last: false }));
        assert_eq!(page.kill(0, 2), Some(Dead { bytes: 7, chunk: ChunkId(1), last: true }));
        assert!(page.runs.is_empty());
    }

    #[test]
    fn a_replaced_cell_splits_its_run_and_leaves_the_neighbours_in_place() {
        let (mut page, _) = page(&[(0, 20, &[1, 2, 3, 4])]);
        let (cell, runs) = page.punch(0, 1).unwrap();
        assert_eq!((cell.slot, cell.bytes, runs), (21, 2, 1));
        assert_eq!(page.cell(0, 1), None);
        assert_eq!(page.cell(0, 0).unwrap().slot, 20);
        assert_eq!((page.cell(0, 3).unwrap().slot, page.cell(0, 3).unwrap().bytes), (23, 4));
        page.add(Run { column: 0, at: 1, len: 1, live: 1, chunk: ChunkId(1), slot: 21 });
        assert_eq!(page.cell(0, 1).unwrap().generation, 1, "also when its run joins its neighbour's");
        assert_eq!([0, 2].map(|o| page.cell(0, o).unwrap().generation), [0, 0]);
        page.punch(0, 1).unwrap();
        let (_, runs) = page.punch(0, 0).unwrap();
        assert_eq!(runs, -1, "a run of one cell ceases");
    }

    #[test]
    fn a_piece_whose_cells_are_all_dead_does_not_stand() {
        let (mut page, _) = page(&[(0, 20, &[1, 2, 3])]);
        page.kill(0, 0).unwrap();
        page.row_mut(0).unwrap().held = 0;
        assert_eq!(page.punch(0, 1).unwrap().1, 0, "the piece behind the cell takes the place of the run");
        assert_eq!(page.kill(0, 2), Some(Dead { bytes: 3, chunk: ChunkId(1), last: true }));
    }

    #[test]
    fn cells_of_many_columns_are_found_also_when_some_columns_have_several_runs() {
        let mut page = Page::new(3);
        for (column, at, slot) in [(2, 0, 7), (0, 5, 1), (0, 0, 2), (1, 3, 9)] {
            page.set_size(usize::from(column), at, slot);
            page.add(Run { column, at, len: 1, live: 1, chunk: ChunkId(u64::from(column)), slot });
        }
        for (column, at, slot) in [(2, 0, 7), (0, 5, 1), (0, 0, 2), (1, 3, 9)] {
            let cell = page.cell(column, at).unwrap();
            assert_eq!((cell.chunk, cell.slot, cell.bytes), (ChunkId(column as u64), slot, slot));
        }
        assert_eq!(page.cell(1, 0), None);
        assert_eq!(page.cell(2, 3), None);
    }

    #[test]
    fn pages_without_rows_are_given_back() {
        let mut pages = Pages::new(0);
        for id in 0..3 * PAGE {
            pages.insert(RowId(id), Row::default());
        }
        for id in 0..2 * PAGE {
            pages.remove(RowId(id)).unwrap();
        }
        assert_eq!((pages.base, pages.pages.len()), (2, 1));
        assert!(pages.get(RowId(5)).is_none());
        assert!(pages.get(RowId(2 * PAGE)).is_some());
    }
}
