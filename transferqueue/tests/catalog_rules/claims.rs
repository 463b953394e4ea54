//! Claims of rows and groups: what they return, in which order, and when the end has come.

use transferqueue::{
    Millis, RowId, Rows,
    catalog::{
        Refusal,
        command::{Command, DropRows, NewRow, Reply, RowNote, Tag},
        definition::*,
        predicate::Predicate,
    },
};

use crate::catalog_support::{World, grpo, put_partition, row_column, schedule, task};

fn jobs(sampling: Sampling) -> Definition {
    let mut work = task("work", "jobs", Grain::Row, &["input"], &[]);
    work.sampling = sampling;
    Definition {
        seed: 3,
        partitions: vec![put_partition("jobs", &["input"])],
        tasks: vec![work],
        ..Definition::default()
    }
}

#[test]
fn rows_are_claimed_once_lowest_first_up_to_the_limit() {
    let mut world = World::new(jobs(Sampling::Sequential));
    let (a, b) = (world.session("a"), world.session("b"));
    world.put(a, "jobs", 5).unwrap();
    assert_eq!(world.claimed(a, "work", 2).batch.rows.to_string(), "0-1");
    assert_eq!(world.claimed(b, "work", 9).batch.rows.to_string(), "2-4");
    world.waits(a, "work");
}

#[test]
fn heads_tell_ordinal_sample_version_and_tags() {
    let mut world = World::new(grpo(2, schedule(2, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    let claimed = world.claimed(s, "rollout", 3);
    let seen: Vec<_> = claimed.heads.iter().map(|h| (h.row.0, h.group.0, h.ordinal, h.sample, h.version)).collect();
    assert_eq!(seen, [(0, 0, 0, 0, 0), (1, 0, 0, 1, 0), (2, 1, 1, 0, 0)]);
}

#[test]
fn a_task_that_reads_only_links_may_begin_at_birth_and_all_rows_of_a_group_point_to_the_one_cell() {
    let mut world = World::new(grpo(3, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let claimed = world.claimed(s, "rollout", 3);
    let prompt = &claimed.batch.columns[0];
    assert_eq!((prompt.name.as_str(), prompt.partition), ("prompt", world.partition("prompts")));
    assert_eq!(prompt.runs.len(), 3);
    assert!(prompt.runs.iter().all(|run| *run == prompt.runs[0] && run.len == 1));
}

#[test]
fn a_row_is_ready_once_every_column_read_is_sealed() {
    let mut def = jobs(Sampling::Sequential);
    def.partitions[0].columns.extend([row_column("x"), row_column("y")]);
    def.tasks.push(task("make-x", "jobs", Grain::Row, &["input"], &["x"]));
    def.tasks.push(task("make-y", "jobs", Grain::Row, &["input"], &["y"]));
    def.tasks.push(task("both", "jobs", Grain::Row, &["x", "y"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "jobs", 2).unwrap();
    world.work(s, "make-x", 2);
    world.waits(s, "both");
    world.work(s, "make-y", 1);
    assert_eq!(world.claimed(s, "both", 2).batch.rows.to_string(), "0");
}

#[test]
fn whole_groups_are_claimed_once_all_their_rows_are_ready() {
    let mut world = World::new(grpo(2, schedule(3, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 3).unwrap();
    world.work(s, "rollout", 6);
    world.work(s, "reward", 3);
    // Group 0 is whole, group 1 has one row.
    assert_eq!(world.claimed(s, "advantage", 5).batch.rows.to_string(), "0-1");
    world.waits(s, "advantage");
    world.work(s, "reward", 3);
    assert_eq!(world.claimed(s, "advantage", 1).batch.rows.to_string(), "2-3", "limit counts groups");
}

#[test]
fn a_group_that_is_partly_given_back_is_claimed_again_with_what_is_left() {
    let mut world = World::new(grpo(3, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    world.work(s, "rollout", 3);
    world.work(s, "reward", 3);
    let claimed = world.claimed(s, "advantage", 1);
    world.commit(s, "advantage", claimed.lease, &Rows::run(RowId(0), 1)).unwrap();
    world.call(s, Command::Release { lease: claimed.lease, rows: Rows::run(RowId(1), 1) }).unwrap();
    world.waits(s, "advantage");
    world.call(s, Command::Release { lease: claimed.lease, rows: Rows::run(RowId(2), 1) }).unwrap();
    assert_eq!(world.claimed(s, "advantage", 1).batch.rows.to_string(), "1-2");
}

#[test]
fn a_group_does_not_wait_for_a_row_that_was_dropped_before_its_filter_was_decided() {
    let mut def = grpo(2, schedule(1, 1, 0, 1));
    def.tasks[2].filter = Some(Predicate::FirstVersionAtLeast(0));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let drop = DropRows { rows: Rows::run(RowId(0), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: world.partition("samples"), rows: drop }).unwrap();
    world.work(s, "rollout", 2);
    world.work(s, "reward", 2);
    assert_eq!(world.claimed(s, "advantage", 1).batch.rows.to_string(), "1");
}

#[test]
fn in_a_partition_that_takes_rows_by_put_a_group_is_a_row() {
    let mut def = jobs(Sampling::Sequential);
    def.tasks[0].per = Grain::Group;
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "jobs", 3).unwrap();
    assert_eq!(world.work(s, "work", 2).batch.rows.to_string(), "0-1");
}

#[test]
fn shuffled_claims_take_every_row_once_and_follow_the_seed() {
    let order = |seed| {
        let mut def = jobs(Sampling::Shuffled);
        def.seed = seed;
        let mut world = World::new(def);
        let s = world.session("s");
        world.put(s, "jobs", 40).unwrap();
        let mut rows = Vec::new();
        while rows.len() < 40 {
            rows.extend(world.work(s, "work", 7).batch.rows.iter().map(|row| row.0));
        }
        rows
    };
    let (a, b) = (order(1), order(1));
    assert_eq!(a, b);
    assert_ne!(a, order(2));
    let mut sorted = a.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..40).collect::<Vec<_>>());
    assert_ne!(a, sorted);
}

#[test]
fn balanced_claims_have_nearly_the_mean_length() {
    let mut world = World::new(jobs(Sampling::Balanced));
    let s = world.session("s");
    let jobs = world.partition("jobs");
    let mut cells = world.cells(world.column("jobs", "input"), Rows::run(RowId(0), 32), 0);
    // Lengths rise with the id, so the first eight rows would be the shortest.
    cells.sizes = transferqueue::catalog::command::Sizes::Each((0..32).map(|i| 10 * i).collect());
    let put = Command::Put { partition: jobs, rows: vec![NewRow::default(); 32], cells: vec![cells] };
    world.call(s, put).unwrap();
    let total: u64 = world.claimed(s, "work", 8).batch.rows.iter().map(|row| 10 * row.0).sum();
    let mean = 8 * 155;
    assert!(total.abs_diff(mean) <= 40, "{total}, mean {mean}");
}

#[test]
fn balanced_claims_of_groups_weigh_whole_groups_by_a_linked_column() {
    let mut def = grpo(2, schedule(8, 1, 0, 1));
    def.tasks[2].sampling = Sampling::Balanced;
    def.tasks[2].reads = vec!["prompt".into(), "scores".into()];
    let mut world = World::new(def);
    let s = world.session("s");
    let prompts = world.partition("prompts");
    let mut cells = world.cells(world.column("prompts", "prompt"), Rows::run(RowId(0), 8), 0);
    cells.sizes = transferqueue::catalog::command::Sizes::Each((0..8).map(|i| 10 * i).collect());
    world.call(s, Command::Put { partition: prompts, rows: vec![NewRow::default(); 8], cells: vec![cells] }).unwrap();
    world.work(s, "rollout", 16);
    world.work(s, "reward", 16);
    let claimed = world.claimed(s, "advantage", 2);
    let ordinals: Vec<u64> = claimed.heads.iter().map(|head| head.ordinal).collect();
    assert_eq!(ordinals.iter().sum::<u64>(), 2 * 7, "two groups with the mean length: {ordinals:?}");
    assert!(ordinals[0] == ordinals[1] && ordinals[2] == ordinals[3], "groups stay whole: {ordinals:?}");
}

fn tagged(world: &mut World, s: transferqueue::SessionId, values: &[bool]) {
    let tags = |value: &bool| NewRow { key: None, tags: [("long".to_owned(), Tag::Bool(*value))].into() };
    world.put_rows(s, "jobs", values.iter().map(tags).collect()).unwrap();
}

#[test]
fn a_task_with_a_filter_is_owed_matching_rows_only() {
    let mut def = jobs(Sampling::Sequential);
    let mut long = task("long", "jobs", Grain::Row, &["input"], &[]);
    long.filter = Some(Predicate::Is("long".into(), Tag::Bool(true)));
    def.tasks.push(long);
    let mut world = World::new(def);
    let s = world.session("s");
    tagged(&mut world, s, &[true, false, true, false]);
    assert_eq!(world.ledger("long").owed, 2);
    assert_eq!(world.work(s, "long", 9).batch.rows.to_string(), "0,2");
    assert_eq!(world.ledger("work").owed, 4);
    let jobs = world.partition("jobs");
    world.call(s, Command::ClosePartition(jobs)).unwrap();
    assert_eq!(world.claim(s, "long", 1), Ok(Reply::Ended));
}

#[test]
fn a_filter_is_decided_when_the_columns_read_are_sealed() {
    let mut def = jobs(Sampling::Sequential);
    def.partitions[0].columns.push(row_column("text"));
    def.tasks[0].writes = vec!["text".into()];
    let mut long = task("long", "jobs", Grain::Row, &["text"], &[]);
    long.filter = Some(Predicate::AtLeast("length".into(), Tag::Int(10)));
    def.tasks.push(long);
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "jobs", 2).unwrap();
    let jobs = world.partition("jobs");
    world.call(s, Command::ClosePartition(jobs)).unwrap();
    world.waits(s, "long");
    assert_eq!(world.ledger("long").owed, 0);
    let claimed = world.claimed(s, "work", 2);
    let cells = world.outputs("work", &claimed.batch.rows);
    let note =
        |row, length| RowNote { row: RowId(row), tags: [("length".to_owned(), Tag::Int(length))].into(), span: None };
    let rows = claimed.batch.rows.clone();
    let notes = vec![note(0, 3), note(1, 30)];
    world.call(s, Command::Commit { lease: claimed.lease, rows, cells, notes, drops: vec![] }).unwrap();
    assert_eq!(world.ledger("long").owed, 1);
    assert_eq!(world.live("jobs"), 1, "the row that nobody wants any more has retired");
    assert_eq!(world.work(s, "long", 9).batch.rows.to_string(), "1");
    assert_eq!(world.claim(s, "long", 1), Ok(Reply::Ended));
}

#[test]
fn a_column_that_nobody_will_write_for_a_row_is_not_waited_for() {
    let mut def = jobs(Sampling::Sequential);
    def.partitions[0].columns.push(row_column("extra"));
    def.partitions[0].columns.push(row_column("more"));
    let mut extra = task("extra", "jobs", Grain::Row, &["input"], &["extra"]);
    extra.filter = Some(Predicate::Is("long".into(), Tag::Bool(true)));
    def.tasks.push(extra);
    def.tasks.push(task("more", "jobs", Grain::Row, &["extra"], &["more"]));
    def.tasks.push(task("reader", "jobs", Grain::Row, &["more"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    tagged(&mut world, s, &[true, false]);
    // The second row's `extra` and `more` never come: their readers owe it no longer, and the ledger says why.
    for task in ["more", "reader"] {
        let entry = world.ledger(task);
        assert_eq!((entry.owed, entry.live), (2, 1), "{task}");
        assert_eq!(entry.dropped, [("unproduced".to_owned(), 1)].into());
    }
    world.work(s, "work", 2);
    for task in ["extra", "more", "reader"] {
        world.work(s, task, 2);
    }
    assert_eq!(world.live("jobs"), 0);
}

#[test]
fn rows_that_must_be_sampled_with_one_version_come_lowest_version_first_and_never_mixed() {
    let mut world = World::new(grpo(1, schedule(2, 1, 2, 3)));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 6).unwrap();
    assert_eq!(world.claimed(s, "rollout", 1).batch.rows.to_string(), "0");
    let held = world.claimed(s, "rollout", 1);
    world.commit(s, "rollout", held.lease, &held.batch.rows).unwrap();
    // Rows 2 and 3 stay at version 0 while cycle 0 is trained.
    let first = transferqueue::LeaseId(1);
    world.commit(s, "rollout", first, &Rows::run(RowId(0), 1)).unwrap();
    world.work(s, "reward", 9);
    world.work(s, "advantage", 9);
    world.work(s, "actor", 1);
    world.offer(s, "policy", Some(0)).unwrap();
    let claimed = world.claimed(s, "rollout", 9);
    assert_eq!(claimed.batch.rows.to_string(), "2-3");
    assert!(claimed.heads.iter().all(|head| head.version == 0));
    let next = world.claimed(s, "rollout", 9);
    assert_eq!(next.batch.rows.to_string(), "4-5");
    assert!(next.heads.iter().all(|head| head.version == 1));
}

#[test]
fn versions_are_kept_apart_as_long_as_rows_of_them_are_left() {
    let mut world = World::new(grpo(1, schedule(1, 1, 2, 5)));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 5).unwrap();
    for cycle in 0..2 {
        for task in ["rollout", "reward", "advantage", "actor"] {
            world.work(s, task, 1);
        }
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
    for row in ["2", "3", "4"] {
        assert_eq!(world.claimed(s, "rollout", 9).batch.rows.to_string(), row);
    }
}

#[test]
fn an_empty_queue_is_not_the_end_but_a_closed_and_consumed_one_is() {
    let mut world = World::new(jobs(Sampling::Sequential));
    let (a, b) = (world.session("a"), world.session("b"));
    let ended = |world: &World| world.catalog.state().tasks(Millis(0))[0].ended;
    world.waits(a, "work");
    assert!(!ended(&world));
    world.put(a, "jobs", 1).unwrap();
    let claimed = world.claimed(a, "work", 1);
    let jobs = world.partition("jobs");
    world.call(a, Command::ClosePartition(jobs)).unwrap();
    // The row may come back.
    world.waits(b, "work");
    assert!(!ended(&world));
    world.commit(a, "work", claimed.lease, &claimed.batch.rows).unwrap();
    assert_eq!(world.claim(b, "work", 1), Ok(Reply::Ended));
    assert!(ended(&world));
}

#[test]
fn a_claim_of_nothing_or_of_an_unknown_task_is_refused() {
    let mut world = World::new(jobs(Sampling::Sequential));
    let s = world.session("s");
    assert!(matches!(world.claim(s, "work", 0), Err(Refusal::Claim { .. })));
    let unknown = world.call(s, Command::Claim { task: transferqueue::TaskId(9), limit: 1 });
    let message = unknown.unwrap_err().to_string();
    assert!(message.contains('9') && message.contains("work"), "{message}");
    let anonymous = world.own(Command::Claim { task: transferqueue::TaskId(0), limit: 1 });
    assert_eq!(anonymous, Err(Refusal::NoSession));
}

#[test]
fn keys_are_unique_among_live_rows() {
    let mut world = World::new(jobs(Sampling::Sequential));
    let s = world.session("s");
    let row = |key: &str| NewRow { key: Some(key.into()), ..NewRow::default() };
    world.put_rows(s, "jobs", vec![row("a"), row("b")]).unwrap();
    let jobs = world.partition("jobs");
    assert_eq!(world.catalog.state().row_of_key(jobs, "b"), Some(RowId(1)));
    let taken = world.put_rows(s, "jobs", vec![row("c"), row("b")]).unwrap_err();
    assert_eq!(taken, Refusal::KeyTaken { partition: "jobs".into(), key: "b".into(), row: RowId(1) });
    assert!(matches!(world.put_rows(s, "jobs", vec![row("d"), row("d")]), Err(Refusal::KeyTaken { .. })));
    world.work(s, "work", 2);
    assert_eq!(world.catalog.state().row_of_key(jobs, "b"), None);
    assert_eq!(World::rows(world.put_rows(s, "jobs", vec![row("b")]).unwrap()).to_string(), "2", "ids are not reused");
}
