//! Pointers: where the columns of given rows lie, and what is known of the rows themselves.

use std::collections::BTreeMap;

use super::{
    command::{BatchRef, CellRun, ColumnRef, RowHead, SavedRef},
    refusal::Refusal,
    state::{
        State,
        cursor::Cursor,
        pages::place,
        table::{Open, Table, set_bits},
    },
};
use crate::{
    ids::{ColumnId, GroupId, PartitionId, RowId, Rows, TaskId},
    schema::Kind,
};

/// Where a column of a batch comes from.
enum Source<'a> {
    Own(usize),
    /// The parent's table and the column there.
    Link(&'a Table, usize),
}

impl State {
    /// The pointer to some columns of some rows of a partition, linked columns included. It holds nothing: bytes stay as
    /// long as the rows' readers need them.
    ///
    /// # Errors
    /// An unknown partition or column, a row that is gone, or a cell that is not sealed or not held any more.
    pub fn refer(&self, partition: PartitionId, rows: &Rows, columns: &[&str]) -> Result<BatchRef, Refusal> {
        let table = self.table(partition)?;
        let mut sources = Vec::with_capacity(columns.len());
        let mut refs = Vec::with_capacity(columns.len());
        for name in columns {
            let (source, partition, column) = self.source(partition, table, name)?;
            sources.push(source);
            refs.push(ColumnRef { name: (*name).to_owned(), partition, column, runs: Vec::new() });
        }
        // One pass over the rows, then one for each column: scattered rows then come from memory side by side.
        let own = sources.iter().fold(0_u64, |mask, source| match source {
            Source::Own(column) => mask | 1 << column,
            Source::Link(..) => mask,
        });
        let mut places = Vec::with_capacity(bounded(table, rows)?);
        for id in rows.iter() {
            let (number, offset) = place(id);
            let page = table.pages.page(number).ok_or_else(|| no_row(table, id))?;
            let row = page.row(offset).ok_or_else(|| no_row(table, id))?;
            page.read_ahead(offset);
            places.push((id, page, offset));
            if let Some(column) = set_bits(own & !row.held).next() {
                return Err(no_cell(table, &table.fields[column].def.name, id, row.sealed & 1 << column != 0));
            }
        }
        for (source, found) in sources.iter().zip(&mut refs) {
            let mut from: Option<(GroupId, RowId)> = None;
            for &(id, page, offset) in &places {
                let cell = match source {
                    Source::Own(column) => page.spot(*column, offset),
                    Source::Link(parent, column) => {
                        let group = page.row(offset).map(|row| row.group).expect("invariant: seen above");
                        if from.is_none_or(|(seen, _)| seen != group) {
                            from = table.groups.get(&group).map(|found| (group, found.parent));
                        }
                        from.and_then(|(_, row)| parent.pages.spot(row, *column))
                    }
                };
                push(&mut found.runs, cell.ok_or_else(|| no_cell(table, &found.name, id, true))?);
            }
        }
        Ok(BatchRef {
            incarnation: self.incarnation(),
            partition,
            rows: rows.clone(),
            columns: refs,
            saved: Vec::new(),
        })
    }

    /// What was saved of rows that a task is about to have, one entry for each set of columns.
    pub(super) fn saved(&self, cursor: &Cursor, task: TaskId, rows: &Rows) -> Vec<SavedRef> {
        let table = self.table_of(cursor);
        let mut by_columns: BTreeMap<Vec<u16>, SavedRef> = BTreeMap::new();
        if table.saved.is_empty() {
            return Vec::new();
        }
        for row in rows.iter() {
            let Some(saved) = table.saved.get(&(row, task)) else { continue };
            let (columns, cells): (Vec<u16>, Vec<Open>) = table.open_in(row, cursor.writes).unzip();
            let column = |&column: &u16| ColumnRef {
                name: table.fields[usize::from(column)].def.name.clone(),
                partition: cursor.partition,
                column: ColumnId(column),
                runs: Vec::new(),
            };
            let empty =
                SavedRef { rows: Rows::default(), columns: columns.iter().map(column).collect(), sampled: Vec::new() };
            let found = by_columns.entry(columns).or_insert(empty);
            found.rows.push(row);
            found.sampled.push(saved.sampled.clone());
            for (pointer, Open { chunk, slot, .. }) in found.columns.iter_mut().zip(cells) {
                push(&mut pointer.runs, CellRun { chunk, generation: 0, slot, len: 1 });
            }
        }
        by_columns.into_values().collect()
    }

    fn source<'a>(
        &'a self,
        id: PartitionId,
        table: &Table,
        name: &str,
    ) -> Result<(Source<'a>, PartitionId, ColumnId), Refusal> {
        if let Some(column) = table.column(name) {
            return Ok((Source::Own(column), id, ColumnId(column as u16)));
        }
        if let Some(expansion) = &table.expansion
            && let Some((_, column)) = expansion.links.iter().find(|(link, _)| link == name)
        {
            let parent = self.table(expansion.parent)?;
            return Ok((Source::Link(parent, usize::from(*column)), expansion.parent, ColumnId(*column)));
        }
        let links = table.expansion.iter().flat_map(|e| e.links.iter().map(|(link, _)| format!("`{link}`")));
        let own = table.fields.iter().map(|field| format!("`{}`", field.def.name));
        Err(Refusal::Unknown {
            what: format!("column of `{}` named", table.name),
            name: format!("`{name}`"),
            known: own.chain(links).collect::<Vec<_>>().join(", "),
        })
    }

    /// What is known of rows without reading a byte, in the order asked for.
    ///
    /// # Errors
    /// An unknown partition, or a row that is gone.
    pub fn heads(&self, partition: PartitionId, rows: &Rows) -> Result<Vec<RowHead>, Refusal> {
        let table = self.table(partition)?;
        let mut heads = Vec::with_capacity(bounded(table, rows)?);
        let mut origin: Option<(GroupId, (u64, u64))> = None;
        for id in rows.iter() {
            let row = table.pages.get(id).ok_or_else(|| no_row(table, id))?;
            let (ordinal, version) = match origin {
                Some((group, origin)) if group == row.group => origin,
                _ => table.origin(id, row),
            };
            origin = Some((row.group, (ordinal, version)));
            let (group, sample, span, tags) = (row.group, row.sample, row.span(), row.tags());
            heads.push(RowHead { row: id, group, ordinal, sample, version, span, tags });
        }
        Ok(heads)
    }

    /// Whether a row's cell was sealed (its bytes may be gone); `None` for a row that is gone.
    pub fn is_sealed(&self, partition: PartitionId, column: ColumnId, row: RowId) -> Option<bool> {
        let row = self.tables.get(&partition)?.pages.get(row)?;
        Some(row.sealed.checked_shr(u32::from(column.0)).unwrap_or(0) & 1 == 1)
    }

    /// How to tell the size of a row for a gang: the lengths of the columns it names, added up; 1 without any.
    pub(crate) fn size<'a>(&'a self, cursor: &Cursor) -> impl Fn(RowId) -> u64 + 'a {
        let table = self.table_of(cursor);
        let names = cursor.def.gang.iter().flat_map(|gang| &gang.lengths);
        let lengths: Vec<_> = names
            .filter_map(|name| {
                let (source, _, column) = self.source(cursor.partition, table, name).ok()?;
                let at = match source {
                    Source::Own(_) => table,
                    Source::Link(parent, _) => parent,
                };
                let width = match &at.fields[usize::from(column.0)].def.kind {
                    Kind::Ragged { dtype, inner } => (dtype.size() * inner.iter().product::<usize>()) as u64,
                    _ => 1,
                };
                Some((length(table, Some(source)), width.max(1)))
            })
            .collect();
        move |row| match lengths.is_empty() {
            true => 1,
            false => lengths.iter().map(|(bytes, width)| bytes(row) / width).sum(),
        }
    }

    /// How to tell a row's length: bytes of the first ragged column that a task reads; 0 without one.
    pub(crate) fn length<'a>(&'a self, table: &'a Table, cursor: &Cursor) -> impl Fn(RowId) -> u64 + 'a {
        let source = cursor.def.reads.iter().find_map(|name| {
            let (source, _, column) = self.source(cursor.partition, table, name).ok()?;
            let at = match source {
                Source::Own(_) => table,
                Source::Link(parent, _) => parent,
            };
            matches!(at.fields[usize::from(column.0)].def.kind, Kind::Ragged { .. }).then_some(source)
        });
        length(table, source)
    }
}

/// Bytes of a row's cell in one column; 0 without one.
fn length<'a>(table: &'a Table, source: Option<Source<'a>>) -> impl Fn(RowId) -> u64 + 'a {
    move |row| {
        let cell = match source {
            None => None,
            Some(Source::Own(column)) => table.pages.cell(row, column),
            Some(Source::Link(parent, column)) => {
                let group = table.pages.get(row).and_then(|row| table.groups.get(&row.group));
                group.and_then(|group| parent.pages.cell(group.parent, column))
            }
        };
        cell.map_or(0, |cell| u64::from(cell.bytes))
    }
}

/// How many rows are named, if they can all be there: few bytes can name very many.
fn bounded(table: &Table, rows: &Rows) -> Result<usize, Refusal> {
    let (named, live) = (rows.len(), table.live.len());
    if named <= live {
        return Ok(named as usize);
    }
    // The first that is not there is told, as it would be among few; otherwise some are named twice.
    match rows.iter().take(live as usize + 1).find(|row| !table.live.contains(row.0)) {
        Some(row) => Err(no_row(table, row)),
        None => Err(Refusal::Partition {
            partition: table.name.clone(),
            found: format!("{named} rows are named, {live} are live"),
            hint: "name each row once".into(),
        }),
    }
}

fn no_row(table: &Table, row: RowId) -> Refusal {
    let hint = if row < table.next_row {
        "it was consumed by every reader, or dropped".to_owned()
    } else {
        format!("ids so far end at {}", table.next_row.0)
    };
    Refusal::NoRow { partition: table.name.clone(), row, hint }
}

fn no_cell(table: &Table, column: &str, row: RowId, sealed: bool) -> Refusal {
    Refusal::Cell {
        partition: table.name.clone(),
        column: column.to_owned(),
        row,
        found: if sealed { "not held any more".into() } else { "not sealed yet".into() },
        hint: "only cells that a declared reader still needs, or kept ones, can be read".into(),
    }
}

/// Lengthens the last run by a cell that follows it, or begins a new one.
fn push(runs: &mut Vec<CellRun>, cell: CellRun) {
    match runs.last_mut() {
        Some(run)
            if run.chunk == cell.chunk && run.generation == cell.generation && run.slot + run.len == cell.slot =>
        {
            run.len += 1;
        }
        _ => runs.push(cell),
    }
}
