//! Live rows and where their cells lie, in pages of 64 rows.
//!
//! Row ids are dense in the order of birth, so a page is found by index, a claim of neighbouring rows stays in few pages,
//! and a page goes when its last row goes: memory follows live rows (plus 8 bytes per 64 ids between the oldest and the
//! newest one). Within a page, each column keeps its cells as runs; a contiguous put is one run a page. Cells that die
//! leave their run standing until the last of them is dead, so that consuming scattered rows splits nothing.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::super::command::{Sizes, Span, Tags};
use crate::ids::{ChunkId, GroupId, RowId};

/// Rows per page.
pub(crate) const PAGE: u64 = 64;

/// One live row. Bits of tasks and columns are positions within the partition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) group: GroupId,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) sample: u32,
    /// Child partitions that still read it through a link or have yet to expand it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) holds: u32,
    /// Tasks that owe it.
    pub(crate) owing: u64,
    /// Tasks whose filter is not decided yet.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) pending: u64,
    /// Columns whose cell was sealed, whether its bytes are still held or not.
    pub(crate) sealed: u64,
    /// Columns whose sealed bytes are still held.
    pub(crate) held: u64,
    /// Columns that nobody will ever write.
    #[serde(default, skip_serializing_if = "is_none")]
    pub(crate) void: u64,
    /// Already subtracted from its group's count of owed rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unowed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tags: Option<Box<Tags>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) span: Option<Span>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_none(n: &u64) -> bool {
    *n == 0
}

impl Row {
    /// Tasks that owe it or may come to owe it.
    pub(crate) fn wanted(&self) -> u64 {
        self.owing | self.pending
    }
}

/// Consecutive cells of one column in one chunk, within a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Offset in the page.
    pub(crate) at: u16,
    pub(crate) len: u16,
    /// Cells that are still held.
    pub(crate) live: u16,
    pub(crate) chunk: ChunkId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) sizes: Sizes,
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
    fn end(&self) -> u16 {
        self.at + self.len
    }

    fn bytes(&self, index: u16) -> u32 {
        match &self.sizes {
            Sizes::Uniform(bytes) => *bytes,
            Sizes::Each(each) => each[usize::from(index)],
        }
    }

    fn cell(&self, offset: u16) -> Cell {
        let index = offset - self.at;
        Cell {
            chunk: self.chunk,
            slot: self.slot + u32::from(index),
            generation: self.generation,
            bytes: self.bytes(index),
        }
    }

    /// Whether `next`, which begins where this one ends, goes on in the same chunk.
    fn joins(&self, next: &Run) -> bool {
        self.end() == next.at
            && self.chunk == next.chunk
            && self.slot + u32::from(self.len) == next.slot
            && self.generation == next.generation
    }

    fn join(&mut self, next: Run) {
        match (&mut self.sizes, next.sizes) {
            (Sizes::Uniform(a), Sizes::Uniform(b)) if *a == b => {}
            (Sizes::Each(a), Sizes::Uniform(b)) => a.extend(std::iter::repeat_n(b, usize::from(next.len))),
            (Sizes::Each(a), Sizes::Each(b)) => a.extend(b),
            (Sizes::Uniform(a), b) => {
                let mut each = vec![*a; usize::from(self.len)];
                match b {
                    Sizes::Uniform(b) => each.extend(std::iter::repeat_n(b, usize::from(next.len))),
                    Sizes::Each(b) => each.extend(b),
                }
                self.sizes = Sizes::Each(each);
            }
        }
        self.len += next.len;
        self.live += next.live;
    }
}

/// 64 neighbouring rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Page {
    live: u32,
    rows: Vec<Option<Row>>,
    /// By column; sorted, without overlap.
    cells: Vec<Vec<Run>>,
}

/// What became of a run when one of its cells died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) bytes: u32,
    /// The chunk, if this was the last cell of its run.
    pub(crate) run_of: Option<ChunkId>,
}

impl Page {
    fn new(columns: usize) -> Self {
        Self { live: 0, rows: vec![None; PAGE as usize], cells: vec![Vec::new(); columns] }
    }

    fn find(&self, column: usize, offset: u16) -> Option<usize> {
        let runs = &self.cells[column];
        let next = match runs.as_slice() {
            [only] => usize::from(only.at <= offset),
            _ => runs.partition_point(|run| run.at <= offset),
        };
        next.checked_sub(1).filter(|&i| offset < runs[i].end())
    }

    /// The place of a held cell. The caller knows from the row's bits that it is held.
    pub(crate) fn cell(&self, column: usize, offset: u16) -> Option<Cell> {
        self.find(column, offset).map(|i| self.cells[column][i].cell(offset))
    }

    /// Takes note of cells that are not there yet. Returns whether a run was added (and not merely lengthened).
    pub(crate) fn add(&mut self, column: usize, run: Run) -> bool {
        let runs = &mut self.cells[column];
        let at = runs.partition_point(|old| old.at < run.at);
        if at > 0 && runs[at - 1].joins(&run) {
            runs[at - 1].join(run);
            return false;
        }
        runs.insert(at, run);
        true
    }

    /// A held cell dies.
    pub(crate) fn kill(&mut self, column: usize, offset: u16) -> Option<Dead> {
        let i = self.find(column, offset)?;
        let runs = &mut self.cells[column];
        let run = &mut runs[i];
        let bytes = run.bytes(offset - run.at);
        run.live -= 1;
        let run_of = (run.live == 0).then_some(run.chunk);
        if run_of.is_some() {
            runs.remove(i);
        }
        Some(Dead { bytes, run_of })
    }

    /// A held cell is about to be replaced: it leaves its run, which is split around it. Returns the cell and the chunk
    /// of each run that came to be (`1`) or ceased (`-1`).
    pub(crate) fn punch(&mut self, column: usize, offset: u16, held: impl Fn(u16) -> bool) -> Option<(Cell, i64)> {
        let i = self.find(column, offset)?;
        let run = self.cells[column].remove(i);
        let cell = run.cell(offset);
        let mut pieces = 0;
        for (from, to) in [(run.at, offset), (offset + 1, run.end())] {
            let live = (from..to).filter(|&o| held(o)).count() as u16;
            if live == 0 {
                continue;
            }
            let sizes = match &run.sizes {
                Sizes::Uniform(bytes) => Sizes::Uniform(*bytes),
                Sizes::Each(each) => {
                    Sizes::Each(each[usize::from(from - run.at)..usize::from(to - run.at)].to_vec())
                }
            };
            let slot = run.slot + u32::from(from - run.at);
            let piece = Run { at: from, len: to - from, live, slot, sizes, ..run };
            self.cells[column].insert(i + pieces, piece);
            pieces += 1;
        }
        Some((cell, pieces as i64 - 1))
    }

    fn held(&self) -> impl Iterator<Item = (usize, Cell, u32)> + '_ {
        let live = |column: usize, o: u16| self.row(o).is_some_and(|row| row.held & 1 << column != 0);
        self.cells.iter().enumerate().flat_map(move |(column, runs)| {
            runs.iter().flat_map(move |run| {
                let mut offset = run.at;
                std::iter::from_fn(move || {
                    let from = (offset..run.end()).find(|&o| live(column, o))?;
                    offset = (from..run.end()).find(|&o| !live(column, o)).unwrap_or(run.end());
                    Some((column, run.cell(from), u32::from(offset - from)))
                })
            })
        })
    }

    pub(crate) fn row(&self, offset: u16) -> Option<&Row> {
        self.rows[usize::from(offset)].as_ref()
    }

    pub(crate) fn row_mut(&mut self, offset: u16) -> Option<&mut Row> {
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
pub(crate) fn place(row: RowId) -> (u64, u16) {
    (row.0 / PAGE, (row.0 % PAGE) as u16)
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
        self.pages.iter().flatten().flat_map(|page| page.cells.iter().flatten().map(|run| run.chunk))
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

    fn run(at: u16, len: u16, slot: u32, sizes: Sizes) -> Run {
        Run { at, len, live: len, chunk: ChunkId(1), slot, generation: 0, sizes }
    }

    #[test]
    fn contiguous_writes_become_one_run_and_keep_each_size() {
        let mut page = Page::new(1);
        assert!(page.add(0, run(0, 2, 10, Sizes::Uniform(4))));
        assert!(!page.add(0, run(2, 1, 12, Sizes::Uniform(9))));
        assert!(!page.add(0, run(3, 2, 13, Sizes::Each(vec![1, 2]))));
        assert!(page.add(0, run(6, 1, 15, Sizes::Uniform(4))), "a gap in rows is another run");
        let sizes: Vec<u32> = (0..5).map(|o| page.cell(0, o).unwrap().bytes).collect();
        assert_eq!(sizes, [4, 4, 9, 1, 2]);
        assert_eq!(page.cell(0, 4).unwrap().slot, 14);
        assert_eq!(page.cell(0, 5), None);
        assert_eq!(page.cells[0].len(), 2);
    }

    #[test]
    fn a_run_stands_until_its_last_cell_is_dead() {
        let mut page = Page::new(1);
        page.add(0, run(0, 3, 0, Sizes::Each(vec![5, 6, 7])));
        assert_eq!(page.kill(0, 1), Some(Dead { bytes: 6, run_of: None }));
        assert_eq!(page.kill(0, 0), Some(Dead { bytes: 5, run_of: None }));
        assert_eq!(page.kill(0, 2), Some(Dead { bytes: 7, run_of: Some(ChunkId(1)) }));
        assert!(page.cells[0].is_empty());
    }

    #[test]
    fn a_replaced_cell_splits_its_run_and_leaves_the_neighbours_in_place() {
        let mut page = Page::new(1);
        page.add(0, run(0, 4, 20, Sizes::Each(vec![1, 2, 3, 4])));
        let (cell, runs) = page.punch(0, 1, |_| true).unwrap();
        assert_eq!((cell.slot, cell.bytes, runs), (21, 2, 1));
        assert_eq!(page.cell(0, 1), None);
        assert_eq!(page.cell(0, 0).unwrap().slot, 20);
        assert_eq!((page.cell(0, 3).unwrap().slot, page.cell(0, 3).unwrap().bytes), (23, 4));
        let (_, runs) = page.punch(0, 0, |_| true).unwrap();
        assert_eq!(runs, -1, "a run of one cell ceases");
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
