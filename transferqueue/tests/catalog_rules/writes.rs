//! Outputs: who may write what, what a commit requires, cells that are replaced or appended to, rows dropped meanwhile.

use transferqueue::{
    ChunkId, ColumnId, RowId, Rows, SessionId,
    catalog::{Event, Refusal, command::*, definition::*},
};

use crate::catalog_support::{World, grpo, put_partition, row_column, schedule, task};

fn world() -> (World, SessionId) {
    let mut world = World::new(grpo(2, schedule(2, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    (world, s)
}

fn commit(lease: transferqueue::LeaseId, rows: Rows, cells: Vec<CellWrite>) -> Command {
    Command::Commit { lease, rows, cells, notes: vec![], drops: vec![] }
}

#[test]
fn only_the_declared_writer_writes_a_column() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let cells = vec![world.cells(world.column("samples", "scores"), Rows::run(RowId(0), 1), 4)];
    let refusal = world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap_err();
    let message = refusal.to_string();
    for word in ["`rollout`", "`scores`", "`samples`", "`responses`"] {
        assert!(message.contains(word), "{message}");
    }
    let nowhere = vec![world.cells(ColumnId(9), Rows::run(RowId(0), 1), 4)];
    assert!(world.call(s, Command::Write { lease: claimed.lease, cells: nowhere, notes: vec![] }).is_err());
}

#[test]
fn a_commit_requires_every_declared_write() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 3);
    let responses = world.column("samples", "responses");
    let cells = vec![world.cells(responses, Rows::run(RowId(0), 2), 4)];
    let refusal = world.call(s, commit(claimed.lease, Rows::run(RowId(0), 3), cells.clone())).unwrap_err();
    let Refusal::Unsealed { column, rows, .. } = refusal else { panic!("{refusal}") };
    assert_eq!((column.as_str(), rows.to_string().as_str()), ("responses", "2"));
    // Cells written before count, and so do those in the same call.
    world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap();
    let cells = vec![world.cells(responses, Rows::run(RowId(2), 1), 4)];
    world.call(s, commit(claimed.lease, Rows::run(RowId(0), 3), cells)).unwrap();
    assert_eq!(world.ledger("rollout").consumed, 3);
}

#[test]
fn open_cells_do_not_count_as_written() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let mut cells = world.outputs("rollout", &claimed.batch.rows);
    cells[0].seal = false;
    assert!(matches!(world.call(s, commit(claimed.lease, claimed.batch.rows, cells)), Err(Refusal::Unsealed { .. })));
}

#[test]
fn writing_makes_rows_ready_before_the_commit() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let cells = world.outputs("rollout", &claimed.batch.rows);
    world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap();
    assert_eq!(world.claimed(s, "reward", 1).batch.rows, claimed.batch.rows);
}

#[test]
fn a_sealed_cell_is_replaced_only_by_naming_its_generation() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 2);
    let (lease, rows) = (claimed.lease, claimed.batch.rows);
    let write = |cells| Command::Write { lease, cells, notes: vec![] };
    let cells = world.outputs("rollout", &rows);
    world.call(s, write(cells.clone())).unwrap();
    let again = world.call(s, write(cells.clone())).unwrap_err().to_string();
    assert!(again.contains("generation 0") && again.contains("`responses`"), "{again}");
    let mut wrong = world.outputs("rollout", &rows);
    wrong[0].replaces = Some(3);
    assert!(world.call(s, write(wrong.clone())).unwrap_err().to_string().contains("generation 3"));
    let one = Rows::run(RowId(1), 1);
    let mut right = world.outputs("rollout", &one);
    right[0].replaces = Some(0);
    let chunk = right[0].chunk;
    world.call(s, write(right)).unwrap();
    let samples = world.partition("samples");
    let refs = world.catalog.state().refer(samples, &rows, &["responses"]).unwrap();
    let runs = &refs.columns[0].runs;
    assert_eq!((runs[0].chunk, runs[0].generation), (cells[0].chunk, 0), "its neighbour stays where it was");
    assert_eq!((runs[1].chunk, runs[1].generation), (chunk, 1));
    let mut next = world.outputs("rollout", &one);
    next[0].replaces = Some(1);
    world.call(s, write(next)).unwrap();
    assert!(!world.unit.contains_key(&chunk), "the replaced cell's chunk is free");
}

#[test]
fn cells_are_sealed_column_by_column() {
    let (mut world, s) = world();
    for (task, column) in [("rollout", "`responses`"), ("reward", "`scores`")] {
        let claimed = world.claimed(s, task, 1);
        let cells = world.outputs(task, &claimed.batch.rows);
        let write = Command::Write { lease: claimed.lease, cells, notes: vec![] };
        world.call(s, write.clone()).unwrap();
        let again = world.call(s, write).unwrap_err().to_string();
        assert!(again.contains("it is sealed (generation 0)") && again.contains(column), "{again}");
    }
}

#[test]
fn replacing_what_is_not_there_is_refused() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let mut cells = world.outputs("rollout", &claimed.batch.rows);
    cells[0].replaces = Some(0);
    let refusal = world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap_err();
    assert!(refusal.to_string().contains("nothing is sealed"), "{refusal}");
}

#[test]
fn an_open_cell_makes_room_for_its_longer_form() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let rows = claimed.batch.rows;
    let mut chunks = Vec::new();
    for seal in [false, false, true] {
        let mut cells = world.outputs("rollout", &rows);
        cells[0].seal = seal;
        chunks.push(cells[0].chunk);
        world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap();
        if !seal {
            world.waits(s, "reward");
        }
    }
    assert!(world.freed.contains(&chunks[0]) && world.freed.contains(&chunks[1]));
    let batch = world.claimed(s, "reward", 1).batch;
    assert_eq!(batch.columns[0].runs[0].chunk, chunks[2]);
}

#[test]
fn open_cells_of_rows_that_go_back_are_absent() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let mut cells = world.outputs("rollout", &claimed.batch.rows);
    cells[0].seal = false;
    let chunk = cells[0].chunk;
    world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap();
    world.call(s, Command::Release { lease: claimed.lease, rows: claimed.batch.rows }).unwrap();
    assert!(world.freed.contains(&chunk));
    world.work(s, "rollout", 1);
}

#[test]
fn a_cell_is_named_once_in_a_call() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let cells = [world.outputs("rollout", &claimed.batch.rows), world.outputs("rollout", &claimed.batch.rows)].concat();
    let refusal = world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap_err();
    assert!(refusal.to_string().contains("twice"), "{refusal}");
}

#[test]
fn impossible_writes_are_refused() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 2);
    let rows = claimed.batch.rows;
    let scores = world.column("prompts", "prompt");
    let foreign = world.cells(scores, Rows::run(RowId(0), 1), 1).chunk;
    let good = world.outputs("rollout", &rows).remove(0);
    let prompt_chunk = ChunkId(1);
    assert_ne!(foreign, prompt_chunk);
    let sizes = CellWrite { sizes: Sizes::Each(vec![1]), ..good.clone() };
    let slot = CellWrite { slot: u32::MAX, ..good };
    for (cell, word) in [(sizes, "1 sizes for 2 cells"), (slot, "slots below")] {
        let write = Command::Write { lease: claimed.lease, cells: vec![cell], notes: vec![] };
        let refusal = world.call(s, write).unwrap_err().to_string();
        assert!(refusal.contains(word), "{refusal}");
    }
}

#[test]
fn a_chunk_holds_one_column() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.partitions[1].columns.push(row_column("second"));
    def.tasks[0].writes.push("second".into());
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let claimed = world.claimed(s, "rollout", 1);
    let mut cells = world.outputs("rollout", &claimed.batch.rows);
    world.call(s, Command::Write { lease: claimed.lease, cells: vec![cells[0].clone()], notes: vec![] }).unwrap();
    (cells[1].chunk, cells[1].slot) = (cells[0].chunk, 1);
    let refusal =
        world.call(s, commit(claimed.lease, claimed.batch.rows, vec![cells.remove(1)])).unwrap_err().to_string();
    assert!(refusal.contains("`second`") && refusal.contains("`responses`"), "{refusal}");
}

#[test]
fn a_cell_beyond_its_declared_maximum_is_refused() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.partitions[1].columns[0].max_bytes = Some(16);
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let claimed = world.claimed(s, "rollout", 1);
    let responses = world.column("samples", "responses");
    let cells = vec![world.cells(responses, claimed.batch.rows.clone(), 17)];
    let refusal = world.call(s, commit(claimed.lease, claimed.batch.rows.clone(), cells)).unwrap_err().to_string();
    assert!(refusal.contains("17 bytes") && refusal.contains("at most 16"), "{refusal}");
    let cells = vec![world.cells(responses, claimed.batch.rows.clone(), 16)];
    world.call(s, commit(claimed.lease, claimed.batch.rows, cells)).unwrap();
}

#[test]
fn a_put_brings_every_column_that_no_task_writes_and_no_other() {
    let def = Definition {
        partitions: vec![put_partition("jobs", &["a", "b", "made"])],
        tasks: vec![task("make", "jobs", Grain::Row, &["a"], &["made"])],
        ..Definition::default()
    };
    let mut world = World::new(def);
    let s = world.session("s");
    let jobs = world.partition("jobs");
    let rows = vec![NewRow::default(); 2];
    let mut cell = |column: u16, rows: Rows| world.cells(ColumnId(column), rows, 1);
    let (a, b, made) =
        (cell(0, Rows::run(RowId(0), 2)), cell(1, Rows::run(RowId(0), 2)), cell(2, Rows::run(RowId(0), 2)));
    let short = cell(1, Rows::run(RowId(0), 1));
    let put = |cells: Vec<&CellWrite>| Command::Put {
        partition: jobs,
        rows: rows.clone(),
        cells: cells.into_iter().cloned().collect(),
    };
    for (cells, word) in [
        (vec![&a], "without `b`"),
        (vec![&a, &b, &made], "its task writes"),
        (vec![&a, &short], "positions 0 to 1"),
        (vec![&a, &b, &b], "positions"),
    ] {
        let refusal = world.call(s, put(cells)).unwrap_err().to_string();
        assert!(refusal.contains(word), "{refusal}");
    }
    let open = CellWrite { seal: false, ..b.clone() };
    assert!(world.call(s, put(vec![&a, &open])).is_err());
    assert_eq!(world.call(s, put(vec![&a, &b])).map(World::rows).unwrap().len(), 2);
}

#[test]
fn rows_born_at_admission_are_not_put_and_their_partition_closes_by_itself() {
    let (mut world, s) = world();
    let samples = world.partition("samples");
    let put = Command::Put { partition: samples, rows: vec![NewRow::default()], cells: vec![] };
    assert!(matches!(world.call(s, put), Err(Refusal::Partition { .. })));
    assert!(matches!(world.call(s, Command::ClosePartition(samples)), Err(Refusal::Partition { .. })));
    let prompts = world.partition("prompts");
    world.call(s, Command::ClosePartition(prompts)).unwrap();
    assert_eq!(world.put(s, "prompts", 1), Err(Refusal::Closed { partition: "prompts".into() }));
}

#[test]
fn dropping_counts_for_every_task_that_still_owed_the_row() {
    let (mut world, s) = world();
    world.work(s, "rollout", 4);
    let claimed = world.claimed(s, "reward", 4);
    let drops = vec![DropRows { rows: Rows::run(RowId(1), 1), reason: "too_short".into() }];
    let rows: Rows = [0, 2, 3].map(RowId).into_iter().collect();
    let cells = world.outputs("reward", &rows);
    let commit = Command::Commit { lease: claimed.lease, rows: Rows::run(RowId(0), 4), cells, notes: vec![], drops };
    world.call(s, commit).unwrap();
    for (task, consumed, live) in [("rollout", 4, 0), ("reward", 3, 0), ("advantage", 0, 3), ("actor", 0, 3)] {
        let entry = world.ledger(task);
        assert_eq!((entry.consumed, entry.live), (consumed, live), "{task}");
        let dropped = entry.dropped.get("too_short").copied().unwrap_or(0);
        assert_eq!(dropped, u64::from(task != "rollout"), "{task}");
    }
    assert!(world.catalog.state().sessions(transferqueue::Millis(0))[0].leases.is_empty(), "the lease is over");
}

#[test]
fn a_late_commit_of_dropped_rows_is_told_and_leaves_nothing() {
    let (mut world, s) = world();
    let other = world.session("other");
    let claimed = world.claimed(s, "rollout", 2);
    let samples = world.partition("samples");
    let rows = DropRows { rows: Rows::run(RowId(1), 1), reason: "unwanted".into() };
    world.call(other, Command::Drop { partition: samples, rows }).unwrap();
    let cells = world.outputs("rollout", &claimed.batch.rows);
    let chunk = cells[0].chunk;
    let reply = world.call(s, Command::Write { lease: claimed.lease, cells, notes: vec![] }).unwrap();
    assert_eq!(reply, Reply::Written { dropped: Rows::run(RowId(1), 1) });
    let note = RowNote { row: RowId(1), tags: Tags::new(), span: None };
    let commit = Command::Commit {
        lease: claimed.lease,
        rows: claimed.batch.rows.clone(),
        cells: vec![],
        notes: vec![note],
        drops: vec![],
    };
    assert_eq!(world.call(s, commit), Ok(Reply::Committed { dropped: Rows::run(RowId(1), 1) }));
    let entry = world.ledger("rollout");
    assert_eq!((entry.consumed, entry.dropped.get("unwanted")), (1, Some(&1)));
    let column = world.catalog.state().columns().into_iter().find(|c| c.column == "responses").unwrap();
    assert_eq!((column.bytes_live, column.bytes_dead_in_chunk), (4, 4));
    assert!(world.unit.contains_key(&chunk));
    assert!(matches!(
        world.commit(s, "rollout", claimed.lease, &Rows::run(RowId(0), 1)),
        Err(Refusal::LeaseEnded { .. })
    ));
}

#[test]
fn a_lease_that_lost_all_its_rows_still_hears_so() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 1);
    let samples = world.partition("samples");
    let drop = DropRows { rows: claimed.batch.rows.clone(), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    let reply = world.commit(s, "rollout", claimed.lease, &claimed.batch.rows).unwrap();
    assert_eq!(reply, Reply::Committed { dropped: claimed.batch.rows });
}

#[test]
fn drops_name_a_plain_reason_and_rows_that_were_born() {
    let (mut world, _) = world();
    let samples = world.partition("samples");
    let drop = |row, reason: &str| Command::Drop {
        partition: samples,
        rows: DropRows { rows: Rows::run(RowId(row), 1), reason: reason.into() },
    };
    for reason in ["", "Too Long", "a-b"] {
        assert!(matches!(world.own(drop(0, reason)), Err(Refusal::Reason(_))), "{reason}");
    }
    assert!(matches!(world.own(drop(99, "late")), Err(Refusal::NoRow { .. })));
    world.own(drop(0, "late_2")).unwrap();
    let records = world.log.len();
    world.own(drop(0, "again")).unwrap();
    assert_eq!(world.log.len(), records, "a row that is gone is dropped no second time");
}

#[test]
fn notes_tell_possible_versions_and_finite_numbers() {
    let (mut world, s) = world();
    world.offer(s, "policy", None).unwrap();
    let claimed = world.claimed(s, "rollout", 1);
    let note = |row, span, tags| RowNote { row: RowId(row), tags, span };
    let none = Tags::new();
    let late = Some(Span { first: 0, last: 1 });
    let nan: Tags = [("x".to_owned(), Tag::Float(f64::NAN))].into();
    for (bad, word) in [
        (note(0, late, none.clone()), "versions 0 to 1"),
        (note(0, None, nan), "finite"),
        (note(3, None, none), "not under lease"),
    ] {
        let write = Command::Write { lease: claimed.lease, cells: vec![], notes: vec![bad] };
        let refusal = world.call(s, write).unwrap_err().to_string();
        assert!(refusal.contains(word), "{refusal}");
    }
    let good = note(0, Some(Span { first: 0, last: 0 }), [("n".to_owned(), Tag::Int(3))].into());
    world.call(s, Command::Write { lease: claimed.lease, cells: vec![], notes: vec![good.clone()] }).unwrap();
    let samples = world.partition("samples");
    let head = world.catalog.state().heads(samples, &Rows::run(RowId(0), 1)).unwrap().remove(0);
    assert_eq!((head.span, head.tags), (good.span, good.tags));
}

#[test]
fn first_tokens_have_the_version_of_admission_or_where_allowed_a_later_one() {
    for (rule, allowed) in [(WeightRule::Exact, false), (WeightRule::AtLeast, true)] {
        let mut plan = schedule(1, 1, 1, 3);
        plan.weights = rule;
        let mut world = World::new(grpo(1, plan));
        let s = world.session("s");
        world.offer(s, "policy", None).unwrap();
        world.put(s, "prompts", 3).unwrap();
        let claimed = world.claimed(s, "rollout", 1);
        let note = RowNote { row: RowId(0), tags: Tags::new(), span: Some(Span { first: 0, last: 0 }) };
        let (lease, rows) = (claimed.lease, claimed.batch.rows);
        let cells = world.outputs("rollout", &rows);
        world.call(s, Command::Commit { lease, rows, cells, notes: vec![note], drops: vec![] }).unwrap();
        let late = world.claimed(s, "rollout", 1);
        for task in ["reward", "advantage", "actor"] {
            world.work(s, task, 1);
        }
        world.offer(s, "policy", Some(0)).unwrap();
        let note = RowNote { row: RowId(1), tags: Tags::new(), span: Some(Span { first: 1, last: 1 }) };
        let written = world.call(s, Command::Write { lease: late.lease, cells: vec![], notes: vec![note] });
        assert_eq!(written.is_ok(), allowed, "{written:?}");
        let young = world.claimed(s, "rollout", 1);
        let note = RowNote { row: RowId(2), tags: Tags::new(), span: Some(Span { first: 0, last: 1 }) };
        let written = world.call(s, Command::Write { lease: young.lease, cells: vec![], notes: vec![note] });
        assert!(matches!(written, Err(Refusal::Note { .. })), "before its admission: {written:?}");
    }
}

#[test]
fn cells_of_the_log_name_their_task() {
    let (mut world, s) = world();
    world.work(s, "rollout", 1);
    let task = world.task("rollout");
    let written = world.last().iter().any(|e| matches!(e, Event::CellsWritten { task: Some(t), .. } if *t == task));
    assert!(written);
}
