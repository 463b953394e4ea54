//! `on_lost: resume`: unfinished work on a row outlives its worker.

use transferqueue::{
    RowId, Rows, SessionId,
    catalog::{Event, Refusal, command::*, definition::*, views::RowTask},
};

use crate::catalog_support::{World, grpo, schedule};

/// Two groups of two rows, sampled by `rollout`, which resumes; cells of at most 32 bytes.
fn definition() -> Definition {
    let mut def = grpo(2, schedule(2, 1, 0, 2));
    for column in &mut def.partitions[1].columns {
        column.max_bytes = Some(32);
    }
    rollout(&mut def).on_lost = OnLost::Resume;
    def
}

fn rollout(def: &mut Definition) -> &mut Task {
    def.tasks.iter_mut().find(|task| task.name == "rollout").unwrap()
}

fn world() -> (World, SessionId) {
    over(definition())
}

fn over(def: Definition) -> (World, SessionId) {
    let mut world = World::new(def);
    let s = world.session("rollout-0");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 4).unwrap();
    (world, s)
}

fn open(world: &mut World, rows: Rows, bytes: u32) -> CellWrite {
    let column = world.column("samples", "responses");
    CellWrite { seal: false, ..world.cells(column, rows, bytes) }
}

fn sampled(row: u64, stretches: &[(u64, u64)]) -> SavedRow {
    let stretch = |&(version, tokens): &(u64, u64)| Sampled { version, tokens };
    SavedRow { row: RowId(row), sampled: stretches.iter().map(stretch).collect() }
}

/// Saves cells of `bytes` bytes of rows `first..=last`.
fn save(world: &mut World, s: SessionId, claimed: &Claimed, rows: (u64, u64), bytes: u32) -> Reply {
    let run = Rows::run(RowId(rows.0), rows.1 - rows.0 + 1);
    let cells = vec![open(world, run, bytes)];
    let rows = (rows.0..=rows.1).map(|row| sampled(row, &[(0, u64::from(bytes) / 8)])).collect();
    world.call(s, Command::Save { lease: claimed.lease, cells, rows }).unwrap()
}

fn task(world: &World, row: u64) -> RowTask {
    let view =
        world.catalog.state().row(world.partition("samples"), RowId(row), transferqueue::Millis(world.now)).unwrap();
    view.tasks.into_iter().find(|task| task.task == "rollout").unwrap()
}

fn responses(world: &World) -> (u64, u64) {
    let column = world.catalog.state().columns().into_iter().find(|column| column.column == "responses").unwrap();
    (column.cells, column.bytes_live)
}

#[test]
fn what_a_lost_worker_saved_is_handed_to_the_next_one() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 3);
    assert!(claimed.batch.saved.is_empty());
    assert_eq!(save(&mut world, s, &claimed, (0, 1), 16), Reply::Written { dropped: Rows::default() });
    assert_eq!((responses(&world), task(&world, 0).saved.unwrap().tokens), ((2, 32), 2));
    // Nobody sees it as an output.
    let other = world.session("reward-0");
    world.waits(other, "reward");
    world.own(Command::Lose(s)).unwrap();
    assert_eq!(responses(&world), (2, 32));

    let next = world.session("rollout-1");
    let claimed = world.claimed(next, "rollout", 3);
    let [saved] = &claimed.batch.saved[..] else { panic!("{:?}", claimed.batch.saved) };
    assert_eq!((saved.rows.to_string(), saved.columns[0].name.as_str()), ("0-1".to_owned(), "responses"));
    assert_eq!(saved.sampled, vec![vec![Sampled { version: 0, tokens: 2 }]; 2]);
    let view = task(&world, 0);
    assert_eq!((view.saved.unwrap().worker, view.lease.unwrap().holder), ("rollout-0".into(), "rollout-1".into()));
    assert_eq!(world.resumed, 2);
    world.assert_replays();
}

#[test]
fn a_save_takes_the_place_of_the_last_one_and_a_commit_of_all() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 2);
    save(&mut world, s, &claimed, (0, 1), 8);
    let first = world.log.last().unwrap().clone();
    save(&mut world, s, &claimed, (0, 1), 24);
    assert_eq!(responses(&world), (2, 48));
    let Some(Event::RowsSaved { cells, .. }) = first.events.iter().find(|e| matches!(e, Event::RowsSaved { .. }))
    else {
        panic!("{first:?}")
    };
    assert!(world.freed.contains(&cells[0].chunk), "what was saved before is freed");
    world.commit(s, "rollout", claimed.lease, &Rows::run(RowId(0), 1)).unwrap();
    assert_eq!((responses(&world), task(&world, 0).saved), ((2, 4 + 24), None));
    // A release, or a failure, is no reason to forget.
    world.call(s, Command::Fail { lease: claimed.lease, rows: Rows::run(RowId(1), 1), error: "broke".into() }).unwrap();
    assert_eq!(task(&world, 1).saved.unwrap().tokens, 3);
    world.assert_replays();
}

#[test]
fn what_is_saved_goes_with_its_row() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 4);
    save(&mut world, s, &claimed, (0, 3), 8);
    let drop = |rows| DropRows { rows, reason: "unwanted".into() };
    let partition = world.partition("samples");
    world.call(s, Command::Drop { partition, rows: drop(Rows::run(RowId(0), 1)) }).unwrap();
    assert_eq!(responses(&world), (3, 24));
    // A late save of a dropped row keeps nothing of it.
    assert_eq!(save(&mut world, s, &claimed, (0, 1), 16), Reply::Written { dropped: Rows::run(RowId(0), 1) });
    assert_eq!(responses(&world), (3, 32));
    let all = Rows::run(RowId(1), 3);
    let (lease, cells, notes) = (claimed.lease, vec![], vec![]);
    let drops = vec![drop(all.clone())];
    world.call(s, Command::Commit { lease, rows: all, cells, notes, drops }).unwrap();
    assert_eq!(responses(&world), (0, 0));
    world.assert_replays();
}

#[test]
fn a_late_save_is_refused_as_a_late_commit_is() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 2);
    save(&mut world, s, &claimed, (0, 1), 8);
    world.call(s, Command::Release { lease: claimed.lease, rows: claimed.batch.rows.clone() }).unwrap();
    let next = world.session("rollout-1");
    world.claimed(next, "rollout", 2);
    let cells = vec![open(&mut world, Rows::run(RowId(0), 2), 16)];
    let late = Command::Save { lease: claimed.lease, cells, rows: vec![] };
    assert_eq!(world.call(s, late), Err(Refusal::LeaseEnded { lease: claimed.lease }));
    assert_eq!(task(&world, 0).saved.unwrap().tokens, 1);
}

#[test]
fn a_restored_catalog_has_what_was_saved() {
    let (mut world, s) = world();
    let claimed = world.claimed(s, "rollout", 2);
    save(&mut world, s, &claimed, (0, 1), 16);
    world.restore();
    let cells = world.catalog.state().live_cells().filter(|run| run.partition == world.partition("samples")).count();
    assert_eq!((responses(&world), cells), ((2, 32), 2));
    let s = world.session("rollout-0");
    let claimed = world.claimed(s, "rollout", 4);
    assert_eq!(claimed.batch.saved[0].rows.to_string(), "0-1");
    let partition = world.partition("samples");
    // Bytes that cannot be had: the row begins anew.
    world.own(Command::Forget { partition, rows: Rows::run(RowId(1), 2) }).unwrap();
    assert_eq!((responses(&world), task(&world, 1).saved), ((1, 16), None));
}

#[test]
fn what_is_saved_lies_within_what_its_row_has_reserved() {
    let mut def = definition();
    // One cycle to the byte: four rows of what all their columns may hold.
    let row: u64 = def.partitions[1].columns.iter().filter_map(|column| column.max_bytes).sum();
    def.budget = Some(4 * row);
    let (mut world, s) = over(def);
    let used = |world: &World| {
        let health = world.catalog.state().health(transferqueue::Millis(world.now));
        health.budget.unwrap().used
    };
    let claimed = world.claimed(s, "rollout", 4);
    assert_eq!(used(&world), 4 * row);
    save(&mut world, s, &claimed, (0, 3), 32);
    assert_eq!(used(&world), 4 * row);
    world.commit(s, "rollout", claimed.lease, &claimed.batch.rows).unwrap();
    assert_eq!(used(&world), 4 * (row - 32 + 4), "the sealed cells count as what they are");
}

#[test]
fn what_cannot_be_saved_is_refused_by_name() {
    let mut again = definition();
    rollout(&mut again).on_lost = OnLost::Again;
    let (mut world, s) = over(again);
    let claimed = world.claimed(s, "rollout", 1);
    let cells = vec![open(&mut world, Rows::run(RowId(0), 1), 8)];
    let refusal = world.call(s, Command::Save { lease: claimed.lease, cells, rows: vec![] }).unwrap_err();
    assert_eq!(refusal, Refusal::NotResumed { task: "rollout".into() });

    let (mut world, s) = self::world();
    let lease = world.claimed(s, "rollout", 2).lease;
    let cell = open(&mut world, Rows::run(RowId(0), 1), 8);
    let sealed = CellWrite { seal: true, ..cell.clone() };
    let foreign = open(&mut world, Rows::run(RowId(3), 1), 8);
    let large = open(&mut world, Rows::run(RowId(0), 1), 33);
    let save = |cells: Vec<CellWrite>, rows: Vec<SavedRow>| Command::Save { lease, cells, rows };
    for (command, word) in [
        (save(vec![sealed], vec![]), "sealed cells"),
        (save(vec![foreign], vec![]), "not under lease"),
        (save(vec![large], vec![]), "at most 32"),
        (save(vec![cell.clone(), cell.clone()], vec![]), "twice"),
        (save(vec![cell.clone()], vec![sampled(1, &[(0, 1)])]), "without a cell"),
        (save(vec![cell.clone()], vec![sampled(0, &[(0, 0)])]), "of no token"),
        (save(vec![cell.clone()], vec![sampled(0, &[(0, 1), (0, 1)])]), "do not rise"),
        (save(vec![cell.clone()], vec![sampled(0, &[(0, 1), (1, 1)])]), "the newest version"),
        (save(vec![cell.clone()], vec![sampled(0, &[(0, 1)]), sampled(0, &[(0, 1)])]), "twice"),
        (Command::Write { lease, cells: vec![cell], notes: vec![] }, "on_lost: resume"),
    ] {
        let refusal = world.call(s, command).unwrap_err().to_string();
        assert!(refusal.contains(word), "{refusal}");
    }
    let trainer = |def: &mut Definition| {
        def.tasks.iter_mut().find(|task| task.name == "actor").unwrap().on_lost = OnLost::Resume;
    };
    let mut def = definition();
    trainer(&mut def);
    let refused = transferqueue::catalog::Catalog::create(def, 1, transferqueue::Millis(0)).unwrap_err().to_string();
    assert!(refused.contains("`actor`") && refused.contains("nothing to resume"), "{refused}");
}
