//! From a definition to the empty state: names resolved, masks of readers and writers computed once.

use std::collections::{BTreeMap, VecDeque};

use super::{
    bits::Bits,
    check,
    definition::{self, Birth, Definition, Gate, Grain, WeightRule},
    refusal::Refusal,
    state::{
        Next, Scratch, State,
        cursor::{Counted, Cursor, Training},
        cycle::Progress,
        gang::Gang,
        models::Versions,
        pages::Pages,
        reuse::Reuse,
        table::{Expansion, Field, Table},
    },
};
use crate::ids::{GroupId, LeaseId, ModelId, PartitionId, RowId, SessionId, TaskId};

impl State {
    /// The state before the first row.
    pub(crate) fn new(def: &Definition, incarnation: u64) -> Result<Self, Refusal> {
        check::definition(def)?;
        let mut tables: BTreeMap<PartitionId, Table> =
            (0..).map(PartitionId).zip(def.partitions.iter().map(|p| table(p, true))).collect();
        for (id, partition) in (0..).map(PartitionId).zip(&def.partitions) {
            expand(def, &mut tables, id, partition);
        }
        let mut cursors = Vec::with_capacity(def.tasks.len());
        for (id, task) in (0..).map(TaskId).zip(&def.tasks) {
            cursors.push(cursor(def, &mut tables, id, task));
        }
        for table in tables.values_mut() {
            table.cut_on = cut_on(table, &cursors);
        }
        let mut state = Self {
            definition: def.clone(),
            incarnation,
            lineage: 0,
            seq: 0,
            version: 0,
            tables,
            cursors,
            models: vec![Versions::default(); def.models.len()],
            progress: None,
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            next: Next {
                partition: PartitionId(def.partitions.len() as u32),
                session: SessionId(1),
                lease: LeaseId(1),
            },
            poisoned: None,
            scratch: Scratch { schedule: true, ..Scratch::default() },
        };
        if let Some(plan) = &def.schedule {
            let partition = state.partition(&plan.partition).expect("invariant: checked above");
            state.progress = Some(Progress::new(plan.clone(), partition));
        }
        Ok(state)
    }
}

/// An empty partition.
pub(crate) fn table(partition: &definition::Partition, declared: bool) -> Table {
    let field = |column: &crate::schema::Column| Field {
        def: column.clone(),
        readers: 0,
        writers: 0,
        linked: false,
        cells: 0,
        live: 0,
        dead: 0,
        freed: 0,
        written: 0,
        spilled: 0,
    };
    let kept = partition.columns.iter().enumerate().filter(|(_, c)| c.keep).fold(0, |mask, (i, _)| mask | 1 << i);
    Table {
        name: partition.name.clone(),
        fields: partition.columns.iter().map(field).collect(),
        birth: partition.birth.clone(),
        declared,
        owner: None,
        closed: false,
        tasks: Vec::new(),
        expansion: None,
        children: Vec::new(),
        cut_on: 0,
        kept,
        made: 0,
        group_tallies: 0,
        batch_tallies: 0,
        next_row: RowId(0),
        next_group: GroupId(0),
        live: Bits::default(),
        pages: Pages::new(partition.columns.len()),
        groups: BTreeMap::new(),
        keys: BTreeMap::new(),
        chunks: BTreeMap::new(),
        spills: BTreeMap::new(),
        open: BTreeMap::new(),
        saved: BTreeMap::new(),
        reserved: 0,
        eras: BTreeMap::new(),
        batches: BTreeMap::new(),
    }
}

/// Joins an expanding partition to its parent.
fn expand(
    def: &Definition,
    tables: &mut BTreeMap<PartitionId, Table>,
    id: PartitionId,
    partition: &definition::Partition,
) {
    let Birth::Expand { from, n, link, gate } = &partition.birth else { return };
    let position = def.partitions.iter().position(|p| &p.name == from).expect("invariant: checked by `check`");
    let parent_id = PartitionId(position as u32);
    let parent = tables.get_mut(&parent_id).expect("invariant: every declared partition has a table");
    parent.children.push(id);
    let mut links = Vec::with_capacity(link.len());
    for name in link {
        let column = parent.column(name).expect("invariant: checked by `check`");
        parent.fields[column].linked = true;
        links.push((name.clone(), column as u16));
    }
    let first = matches!(gate, Gate::Every { first: true, .. });
    let expansion = Expansion {
        parent: parent_id,
        n: *n,
        gate: *gate,
        links,
        next: RowId(0),
        due: VecDeque::from_iter(first.then_some(0)),
        last_due: first.then_some(0),
        round: None,
    };
    tables.get_mut(&id).expect("invariant: every declared partition has a table").expansion = Some(expansion);
}

/// A task's cursor, and its bit in the columns it reads and writes.
fn cursor(def: &Definition, tables: &mut BTreeMap<PartitionId, Table>, id: TaskId, task: &definition::Task) -> Cursor {
    let position = def.partitions.iter().position(|p| p.name == task.partition).expect("invariant: checked by `check`");
    let partition = PartitionId(position as u32);
    let table = tables.get_mut(&partition).expect("invariant: every declared partition has a table");
    let bit = 1 << table.tasks.len();
    table.tasks.push(id);
    let (mut reads, mut writes) = (0, 0);
    let positions = |names: &[String]| names.iter().filter_map(|name| table.column(name)).collect::<Vec<_>>();
    let (read, written) = (positions(&task.reads), positions(&task.writes));
    for column in read {
        reads |= 1 << column;
        table.fields[column].readers |= bit;
    }
    for column in written {
        writes |= 1 << column;
        table.fields[column].writers |= bit;
    }
    table.made |= writes;
    // A row that came by put is a group of its own, so there groups are rows.
    let counted = match (task.per, &table.expansion) {
        (Grain::Group, Some(_)) => {
            table.group_tallies += 1;
            Counted::Groups(table.group_tallies - 1)
        }
        (Grain::Mini | Grain::Cycle, _) => {
            table.batch_tallies += 1;
            Counted::Batches(table.batch_tallies - 1)
        }
        _ => Counted::Rows,
    };
    let exact = match (&table.expansion, &def.schedule) {
        (Some(Expansion { gate: Gate::Schedule, .. }), Some(plan)) => plan.weights == WeightRule::Exact,
        _ => true,
    };
    let model = |name: &str| {
        let position = def.models.iter().position(|m| m.name == name).expect("invariant: checked by `check`");
        ModelId(position as u16)
    };
    Cursor {
        def: task.clone(),
        partition,
        bit,
        reads,
        writes,
        counted,
        training: task.trains.as_ref().map(|t| Training { model: model(&t.model), from_cycle: t.from_cycle }),
        gang: task.gang.as_ref().map(|gang| Gang::new(gang.ranks)),
        one_version: task.samples_with.is_some() && exact,
        reuse: Reuse::new(task.reuse),
        owing: Bits::default(),
        undecided: 0,
        ready: Bits::default(),
        done: Bits::default(),
        ready_groups: Bits::default(),
        leases: Default::default(),
        attempts: Default::default(),
        trainers: Default::default(),
        owed: 0,
        consumed: 0,
        dropped: BTreeMap::new(),
    }
}

/// The columns a group must have before it is cut: those that batch tasks read, unless they come (directly or through
/// other tasks) from a batch task itself.
fn cut_on(table: &Table, cursors: &[Cursor]) -> u64 {
    let tasks: Vec<&Cursor> = table.tasks.iter().map(|id| &cursors[id.0 as usize]).collect();
    let in_batches = |task: &&&Cursor| matches!(task.counted, Counted::Batches(_));
    let read = tasks.iter().filter(in_batches).fold(0, |mask, task| mask | task.reads);
    let mut behind = tasks.iter().filter(in_batches).fold(0, |mask, task| mask | task.writes);
    loop {
        let more = tasks.iter().filter(|t| t.reads & behind != 0).fold(behind, |mask, task| mask | task.writes);
        if more == behind {
            return read & !behind;
        }
        behind = more;
    }
}
