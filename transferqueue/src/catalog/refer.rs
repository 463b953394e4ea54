//! Pointers: where the columns of given rows lie, and what is known of the rows themselves.

use super::{
    command::{BatchRef, CellRun, ColumnRef, RowHead},
    refusal::Refusal,
    state::{
        State,
        cursor::Cursor,
        pages::{Cell, place},
        table::Table,
    },
};
use crate::{
    ids::{ColumnId, GroupId, PartitionId, RowId, Rows},
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
        let mut parent: Option<(GroupId, RowId)> = None;
        for id in rows.iter() {
            let (number, offset) = place(id);
            let gone = || no_row(table, id);
            let page = table.pages.page(number).ok_or_else(gone)?;
            let row = page.row(offset).ok_or_else(gone)?;
            for (source, found) in sources.iter().zip(&mut refs) {
                let cell = match source {
                    Source::Own(column) if row.held & 1 << column != 0 => page.cell(*column, offset),
                    Source::Own(_) => None,
                    Source::Link(table, column) => {
                        let from = match parent {
                            Some((group, from)) if group == row.group => from,
                            _ => self.tables[&partition].groups.get(&row.group).map(|g| g.parent).ok_or_else(gone)?,
                        };
                        parent = Some((row.group, from));
                        let held = table.pages.get(from).is_some_and(|row| row.held & 1 << column != 0);
                        if held { table.pages.cell(from, *column) } else { None }
                    }
                };
                match cell {
                    Some(cell) => push(&mut found.runs, cell),
                    None => {
                        let sealed = matches!(source, Source::Own(c) if row.sealed & 1 << c == 0);
                        return Err(Refusal::Cell {
                            partition: table.name.clone(),
                            column: found.name.clone(),
                            row: id,
                            found: if sealed { "not sealed yet".into() } else { "not held any more".into() },
                            hint: "only cells that a declared reader still needs, or kept ones, can be read".into(),
                        });
                    }
                }
            }
        }
        Ok(BatchRef { incarnation: self.incarnation, partition, rows: rows.clone(), columns: refs })
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
        let mut heads = Vec::with_capacity(rows.len() as usize);
        let mut origin: Option<(GroupId, (u64, u64))> = None;
        for id in rows.iter() {
            let row = table.pages.get(id).ok_or_else(|| no_row(table, id))?;
            let (ordinal, version) = match origin {
                Some((group, origin)) if group == row.group => origin,
                _ => table.origin(id, row),
            };
            origin = Some((row.group, (ordinal, version)));
            let tags = row.tags.as_deref().cloned().unwrap_or_default();
            let (group, sample, span) = (row.group, row.sample, row.span);
            heads.push(RowHead { row: id, group, ordinal, sample, version, span, tags });
        }
        Ok(heads)
    }

    /// Whether a row's cell was sealed (its bytes may be gone); `None` for a row that is gone.
    pub fn is_sealed(&self, partition: PartitionId, column: ColumnId, row: RowId) -> Option<bool> {
        let row = self.tables.get(&partition)?.pages.get(row)?;
        Some(row.sealed.checked_shr(u32::from(column.0)).unwrap_or(0) & 1 == 1)
    }

    /// Bytes of a row's first ragged column that a task reads; 0 without one.
    pub(crate) fn length(&self, table: &Table, cursor: &Cursor, id: RowId) -> u64 {
        let ragged = |kind: &Kind| matches!(kind, Kind::Ragged { .. });
        for name in &cursor.def.reads {
            if let Some(column) = table.column(name) {
                if ragged(&table.fields[column].def.kind) {
                    return table.pages.cell(id, column).map_or(0, |cell| u64::from(cell.bytes));
                }
            } else if let Some(expansion) = &table.expansion
                && let Some(&(_, column)) = expansion.links.iter().find(|(link, _)| link == name)
                && let Some(parent) = self.tables.get(&expansion.parent)
                && ragged(&parent.fields[usize::from(column)].def.kind)
            {
                let from = table.pages.get(id).and_then(|row| table.groups.get(&row.group)).map(|group| group.parent);
                let cell = from.and_then(|from| parent.pages.cell(from, usize::from(column)));
                return cell.map_or(0, |cell| u64::from(cell.bytes));
            }
        }
        0
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

/// Lengthens the last run by a cell that follows it, or begins a new one.
fn push(runs: &mut Vec<CellRun>, cell: Cell) {
    match runs.last_mut() {
        Some(run)
            if run.chunk == cell.chunk && run.generation == cell.generation && run.slot + run.len == cell.slot =>
        {
            run.len += 1;
        }
        _ => runs.push(CellRun { chunk: cell.chunk, generation: cell.generation, slot: cell.slot, len: 1 }),
    }
}
