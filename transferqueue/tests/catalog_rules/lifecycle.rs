//! Bytes live as long as a declared reader needs them, and not longer.

use transferqueue::{
    ChunkId, ColumnId, RowId, Rows, SessionId,
    catalog::{Event, Refusal, Wake, command::*, definition::*, views::ColumnView},
};

use crate::catalog_support::{World, grpo, put_partition, row_column, schedule, task};

fn column(world: &World, name: &str) -> ColumnView {
    world.catalog.state().columns().into_iter().find(|c| c.column == name).unwrap()
}

fn two_readers(keep: bool) -> (World, SessionId) {
    let mut def = Definition {
        partitions: vec![put_partition("jobs", &["a", "b"])],
        tasks: vec![
            task("first", "jobs", Grain::Row, &["a", "b"], &[]),
            task("second", "jobs", Grain::Row, &["a"], &[]),
        ],
        ..Definition::default()
    };
    def.partitions[0].columns[0].keep = keep;
    let mut world = World::new(def);
    let s = world.session("s");
    (world.put(s, "jobs", 4).is_ok()).then_some((world, s)).unwrap()
}

#[test]
fn a_cell_is_freed_when_every_declared_reader_is_done_and_the_row_when_nobody_owes_it() {
    let (mut world, s) = two_readers(false);
    world.work(s, "first", 4);
    assert_eq!((column(&world, "a").bytes_live, column(&world, "b").bytes_live), (32, 0));
    assert_eq!(column(&world, "b").bytes_freed_total, 32);
    assert_eq!(world.live("jobs"), 4);
    world.work(s, "second", 3);
    assert_eq!(world.live("jobs"), 1);
    world.work(s, "second", 3);
    assert_eq!(world.live("jobs"), 0);
    assert!(world.unit.is_empty(), "every chunk is free");
}

#[test]
fn a_kept_column_outlives_its_readers_until_the_row_is_dropped() {
    let (mut world, s) = two_readers(true);
    world.work(s, "first", 4);
    world.work(s, "second", 4);
    assert_eq!(world.live("jobs"), 4);
    assert_eq!((column(&world, "a").cells, column(&world, "b").cells), (4, 0));
    let jobs = world.partition("jobs");
    assert!(world.catalog.state().refer(jobs, &Rows::run(RowId(0), 4), &["a"]).is_ok(), "it can be read");
    let drop = DropRows { rows: Rows::run(RowId(0), 4), reason: "archived".into() };
    world.own(Command::Drop { partition: jobs, rows: drop }).unwrap();
    assert_eq!(world.live("jobs"), 0);
    assert!(world.unit.is_empty());
    assert_eq!(world.ledger("first").dropped, [].into(), "they were consumed");
}

#[test]
fn a_column_without_readers_stays_until_its_row_retires() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.partitions[1].columns.push(row_column("unread"));
    def.tasks[0].writes.push("unread".into());
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    world.work(s, "rollout", 1);
    assert_eq!(column(&world, "unread").cells, 1);
    world.offer(s, "policy", None).unwrap();
    for task in ["reward", "advantage", "actor"] {
        world.work(s, task, 1);
    }
    assert_eq!(column(&world, "unread").cells, 1);
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(column(&world, "unread").cells, 0);
}

#[test]
fn a_reader_that_comes_last_finds_what_it_reads_and_nothing_else() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.tasks.push(task("late", "samples", Grain::Row, &["responses"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    world.offer(s, "policy", None).unwrap();
    ["rollout", "reward", "advantage", "actor"].into_iter().for_each(|task| drop(world.work(s, task, 1)));
    world.offer(s, "policy", Some(0)).unwrap();
    let live = |world: &World| ["responses", "scores", "advantages"].map(|name| column(world, name).bytes_live);
    assert_eq!((live(&world), world.live("samples")), ([4, 0, 0], 1));
    world.work(s, "late", 1);
    assert_eq!((live(&world), world.live("samples"), world.live("prompts")), ([0, 0, 0], 0, 0));
}

#[test]
fn a_chunk_is_freed_when_its_last_cell_is_dead_and_the_account_says_what_it_waits_for() {
    let (mut world, s) = two_readers(false);
    world.work(s, "second", 4);
    world.work(s, "first", 1);
    let view = column(&world, "a");
    assert_eq!((view.bytes_live, view.bytes_dead_in_chunk, view.bytes_freed_total), (24, 8, 0));
    assert_eq!(view.readers_owing, [("first".to_owned(), 3)]);
    world.work(s, "first", 3);
    let view = column(&world, "a");
    assert_eq!((view.bytes_live, view.bytes_dead_in_chunk, view.bytes_freed_total), (0, 0, 32));
    assert_eq!(view.bytes_written_total, 32);
    let freed = world.log.iter().flat_map(|record| &record.events).find_map(|event| match event {
        Event::ChunksFreed { chunks, slots, .. } => Some((chunks.clone(), slots.clone())),
        _ => None,
    });
    let (chunks, slots) = freed.unwrap();
    assert_eq!((chunks.len(), slots), (2, vec![4, 4]), "with the cells heard of");
}

#[test]
fn a_chunk_that_is_freed_while_a_write_to_it_is_under_way_is_announced_again() {
    let mut world = World::new(grpo(1, schedule(2, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    let samples = world.partition("samples");
    let responses = world.column("samples", "responses");
    let chunk = ChunkId(500);
    let (a, b) = (world.claimed(s, "rollout", 1), world.claimed(s, "rollout", 1));
    let first = world.append(chunk, responses, a.batch.rows.clone(), 4);
    // The unit has written the second cell, too, but its commit comes later.
    let second = world.append(chunk, responses, b.batch.rows.clone(), 4);
    world
        .call(
            s,
            Command::Commit {
                lease: a.lease,
                rows: a.batch.rows.clone(),
                cells: vec![first],
                notes: vec![],
                drops: vec![],
            },
        )
        .unwrap();
    let drop = DropRows { rows: a.batch.rows, reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    assert!(world.last().iter().any(|e| matches!(e, Event::ChunksFreed { slots, .. } if slots == &[1])));
    assert!(!world.freed.contains(&chunk), "the unit keeps what the catalog has not heard of");
    world
        .call(
            s,
            Command::Commit {
                lease: b.lease,
                rows: b.batch.rows.clone(),
                cells: vec![second],
                notes: vec![],
                drops: vec![],
            },
        )
        .unwrap();
    let batch = world.claimed(s, "reward", 1).batch;
    assert_eq!(batch.columns[0].runs[0].chunk, chunk);
    let drop = DropRows { rows: b.batch.rows, reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    assert!(world.last().iter().any(|e| matches!(e, Event::ChunksFreed { slots, .. } if slots == &[2])));
    assert!(world.freed.contains(&chunk));
}

#[test]
fn a_linked_cell_is_held_until_no_row_of_the_group_is_owed() {
    let mut world = World::new(grpo(2, schedule(2, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    world.offer(s, "policy", None).unwrap();
    for task in ["rollout", "reward", "advantage"] {
        world.work(s, task, 4);
    }
    let claimed = world.claimed(s, "actor", 1);
    assert_eq!(world.live("prompts"), 2, "the actor still reads prompts");
    world.commit(s, "actor", claimed.lease, &claimed.batch.rows).unwrap();
    assert_eq!(world.live("prompts"), 2, "done is not consumed");
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(world.live("prompts"), 0);
    assert_eq!(column(&world, "prompt").bytes_freed_total, 16);
}

#[test]
fn a_prompt_goes_with_the_last_row_of_its_group_also_when_that_is_dropped() {
    let mut world = World::new(grpo(2, schedule(2, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    let samples = world.partition("samples");
    let drop = |row| DropRows { rows: Rows::run(RowId(row), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop(0) }).unwrap();
    assert_eq!(world.live("prompts"), 2);
    world.own(Command::Drop { partition: samples, rows: drop(1) }).unwrap();
    assert_eq!(world.live("prompts"), 1);
}

#[test]
fn a_prompt_in_use_cannot_be_dropped_but_a_waiting_one_can() {
    let mut world = World::new(grpo(2, schedule(2, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 3).unwrap();
    let prompts = world.partition("prompts");
    let drop = |row| Command::Drop {
        partition: prompts,
        rows: DropRows { rows: Rows::run(RowId(row), 1), reason: "x".into() },
    };
    assert!(matches!(world.own(drop(1)), Err(Refusal::Partition { .. })));
    world.own(drop(2)).unwrap();
    assert_eq!(world.live("prompts"), 2);
}

#[test]
fn a_task_on_the_parent_holds_the_prompt_too() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.tasks.push(task("count", "prompts", Grain::Row, &["prompt"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let samples = world.partition("samples");
    let drop = DropRows { rows: Rows::run(RowId(0), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    assert_eq!(world.live("prompts"), 1);
    world.work(s, "count", 1);
    assert_eq!(world.live("prompts"), 0);
}

#[test]
fn a_linked_column_made_by_a_task_of_the_parent_is_waited_for() {
    let mut def = grpo(1, schedule(2, 1, 0, 1));
    def.partitions[0].columns.push(row_column("tokens"));
    def.partitions[1].birth =
        Birth::Expand { from: "prompts".into(), n: 1, link: vec!["tokens".into()], gate: Gate::Schedule };
    for task in &mut def.tasks {
        task.reads.iter_mut().filter(|read| *read == "prompt").for_each(|read| *read = "tokens".into());
    }
    def.tasks.push(task("tokenise", "prompts", Grain::Row, &["prompt"], &["tokens"]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    assert_eq!(world.live("samples"), 0);
    world.work(s, "tokenise", 1);
    assert_eq!(world.live("samples"), 1);
    world.work(s, "tokenise", 1);
    assert_eq!(world.live("samples"), 2);
    world.work(s, "rollout", 2);
}

#[test]
fn rows_of_a_partition_without_consumers_stay_until_it_is_deleted() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    let id = world.weights(s, "extra");
    assert_eq!(world.live("extra"), 1);
    let before = world.unit.len();
    world.call(s, Command::DeletePartition(id)).unwrap();
    assert_eq!(world.unit.len(), before - 1);
    assert!(matches!(world.last(), [Event::PartitionDeleted { .. }, Event::ChunksFreed { .. }]));
    assert!(matches!(world.call(s, Command::DeletePartition(id)), Err(Refusal::Unknown { .. })));
    let prompts = world.partition("prompts");
    assert!(matches!(world.call(s, Command::DeletePartition(prompts)), Err(Refusal::Partition { .. })));
    let again = world.weights(s, "extra");
    assert!(again > id, "ids are never reused");
}

#[test]
fn admission_waits_for_bytes_and_goes_on_when_some_are_given_back() {
    let mut def = grpo(1, schedule(1, 1, 3, 9));
    for column in &mut def.partitions[1].columns {
        column.max_bytes = Some(10);
    }
    def.budget = Some(65);
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 9).unwrap();
    assert_eq!(world.live("samples"), 2, "2 × 30 bytes fit 65");
    let wait = {
        world.work(s, "rollout", 2);
        // Both rows now hold 4 bytes instead of 10 reserved: 48 in all, and 30 more do not fit.
        assert_eq!(world.live("samples"), 2);
        world.waits(s, "rollout").to_string()
    };
    assert!(wait.contains("waits for bytes: 48 of 65"), "{wait}");
    world.work(s, "reward", 2);
    assert_eq!(world.live("samples"), 2, "36 are reserved or held");
    // Scores consumed and advantages written: 4 bytes of responses and 4 of advantages a row.
    world.work(s, "advantage", 2);
    assert_eq!(world.live("samples"), 3, "16 + 30 fit");
}

#[test]
fn spilled_cells_make_room_for_groups_and_die_as_others_do() {
    let mut def = grpo(1, schedule(1, 1, 3, 9));
    for column in &mut def.partitions[1].columns {
        column.max_bytes = Some(10);
    }
    def.budget = Some(65);
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 9).unwrap();
    world.work(s, "rollout", 2);
    assert_eq!(world.live("samples"), 2, "48 are reserved or held");
    let samples = world.partition("samples");
    let held = |world: &World| {
        let columns = world.catalog.state().columns().into_iter();
        columns.filter(|c| c.partition == "samples").map(|c| (c.bytes_live, c.bytes_spilled)).collect::<Vec<_>>()
    };
    let chunks: Vec<_> =
        world.catalog.state().live_cells().filter(|r| r.partition == samples).map(|r| r.chunk).collect();
    let spill = |number| Command::Spill {
        partition: samples,
        file: SpillFile { number, bytes: 1, crc32: 0 },
        chunks: chunks.clone(),
    };
    world.own(spill(0)).unwrap();
    assert_eq!(held(&world)[0], (8, 8), "{:?}", held(&world));
    assert!(world.waits(s, "rollout").to_string().contains("waits for bytes: 40 of 65"));
    let seq = world.catalog.state().seq();
    world.own(spill(1)).unwrap();
    assert_eq!(world.catalog.state().seq(), seq, "what lies in a file is not written again");
    world.work(s, "reward", 2);
    assert_eq!(world.live("samples"), 3, "28 + 30 fit");
    let rows = DropRows { rows: Rows::run(RowId(0), 2), reason: "test".into() };
    world.own(Command::Drop { partition: samples, rows }).unwrap();
    assert_eq!(held(&world)[0], (0, 0));
    assert!(world.last().iter().any(|e| matches!(e, Event::ChunksFreed { .. })));
}

#[test]
fn a_put_waits_at_the_capacity_and_is_woken_by_admission() {
    let mut def = grpo(1, schedule(1, 1, 0, 9));
    def.partitions[0].birth = Birth::Put { capacity: Some(2) };
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 1).unwrap();
    world.put(s, "prompts", 2).unwrap();
    let Reply::NotYet(wait) = world.put(s, "prompts", 1).unwrap() else { panic!() };
    let text = wait.to_string();
    assert!(text.contains("put into `prompts`") && text.contains("fewer than 2") && text.contains("2 wait"), "{text}");
    for task in ["rollout", "reward", "advantage", "actor"] {
        world.work(s, task, 1);
    }
    world.wakes.clear();
    world.offer(s, "policy", Some(0)).unwrap();
    assert!(world.wakes.contains(&Wake::Put(world.partition("prompts"))));
    assert!(matches!(world.put(s, "prompts", 1), Ok(Reply::Put(_))));
}

#[test]
fn pointers_are_small_for_neighbours_and_name_what_is_gone() {
    let (mut world, s) = two_readers(false);
    let jobs = world.partition("jobs");
    let state = world.catalog.state();
    let refs = state.refer(jobs, &Rows::run(RowId(0), 4), &["b", "a"]).unwrap();
    assert_eq!(refs.columns.iter().map(|c| c.column).collect::<Vec<_>>(), [ColumnId(1), ColumnId(0)]);
    assert!(refs.columns.iter().all(|column| column.runs.len() == 1 && column.runs[0].len == 4));
    let unknown = state.refer(jobs, &Rows::run(RowId(0), 1), &["c"]).unwrap_err().to_string();
    assert!(unknown.contains("`c`") && unknown.contains("`a`, `b`"), "{unknown}");
    world.work(s, "first", 4);
    let gone = world.catalog.state().refer(jobs, &Rows::run(RowId(0), 1), &["b"]).unwrap_err().to_string();
    assert!(gone.contains("`b`") && gone.contains("row 0") && gone.contains("not held any more"), "{gone}");
    world.work(s, "second", 4);
    assert!(matches!(world.catalog.state().refer(jobs, &Rows::run(RowId(0), 1), &["b"]), Err(Refusal::NoRow { .. })));
    assert!(matches!(world.catalog.state().heads(jobs, &Rows::run(RowId(9), 1)), Err(Refusal::NoRow { .. })));
}

#[test]
fn pointers_count_slots_from_the_beginning_of_each_chunk() {
    let (mut world, s) = two_readers(false);
    world.put(s, "jobs", 2).unwrap();
    let jobs = world.partition("jobs");
    let refs = world.catalog.state().refer(jobs, &Rows::run(RowId(3), 3), &["a"]).unwrap();
    let runs: Vec<_> = refs.columns[0].runs.iter().map(|run| (run.slot, run.len)).collect();
    assert_eq!(runs, [(3, 1), (0, 2)]);
}

#[test]
fn a_pointer_to_a_cell_to_come_is_refused_as_such() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let samples = world.partition("samples");
    let refusal = world.catalog.state().refer(samples, &Rows::run(RowId(0), 1), &["responses"]).unwrap_err();
    assert!(refusal.to_string().contains("not sealed yet"), "{refusal}");
}

#[test]
fn live_cells_are_what_a_snapshot_writes() {
    let (mut world, s) = two_readers(false);
    let claimed = world.claimed(s, "first", 2);
    world.commit(s, "first", claimed.lease, &Rows::run(RowId(1), 1)).unwrap();
    let mut cells: Vec<(u16, u32, u32)> =
        world.catalog.state().live_cells().map(|run| (run.column.0, run.slot, run.len)).collect();
    cells.sort_unstable();
    assert_eq!(cells, [(0, 0, 4), (1, 0, 1), (1, 2, 2)]);
}

#[test]
fn a_put_that_waits_for_consumers_is_woken_when_a_row_retires() {
    let mut def = Definition {
        partitions: vec![put_partition("jobs", &["a"])],
        tasks: vec![task("work", "jobs", Grain::Row, &["a"], &[])],
        ..Definition::default()
    };
    def.partitions[0].birth = Birth::Put { capacity: Some(2) };
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "jobs", 2).unwrap();
    assert!(matches!(world.put(s, "jobs", 1), Ok(Reply::NotYet(_))));
    world.wakes.clear();
    world.work(s, "work", 1);
    assert!(world.wakes.contains(&Wake::Put(world.partition("jobs"))));
    world.put(s, "jobs", 1).unwrap();
}

#[test]
fn a_linked_cell_goes_with_its_group_though_another_column_of_the_prompt_is_still_read() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.partitions[0].columns.push(row_column("source"));
    def.tasks.push(task("count", "prompts", Grain::Row, &["source"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let samples = world.partition("samples");
    let drop = DropRows { rows: Rows::run(RowId(0), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    assert_eq!((column(&world, "prompt").cells, column(&world, "source").cells), (0, 1));
    assert_eq!(world.live("prompts"), 1);
}
