//! A task that draws its rows several times: when a row is ready again, when it is consumed, and in which order claims go.

use std::collections::BTreeMap;

use transferqueue::{
    Millis, RowId, Rows,
    catalog::{
        Catalog, Event, Refusal,
        command::{Command, DropRows, Reply},
        definition::*,
        views::{RowTaskState, Uses},
    },
};

use crate::catalog_support::{World, grpo, put_partition, schedule, task};

fn replay(reuse: u32, sampling: Sampling) -> Definition {
    let learn = Task { reuse, sampling, ..task("learn", "memory", Grain::Row, &["input"], &[]) };
    Definition {
        seed: 3,
        partitions: vec![put_partition("memory", &["input"])],
        tasks: vec![learn],
        ..Definition::default()
    }
}

fn drop_row(world: &mut World, partition: &str, row: u64) {
    let rows = DropRows { rows: Rows::run(RowId(row), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: world.partition(partition), rows }).unwrap();
}

fn bytes(world: &World) -> u64 {
    world.catalog.state().columns()[0].bytes_live
}

#[test]
fn rows_are_used_in_passes_and_their_bytes_go_with_the_last_one() {
    let mut world = World::new(replay(3, Sampling::Sequential));
    let s = world.session("s");
    world.put(s, "memory", 5).unwrap();
    let drawn: Vec<String> = (0..8).map(|_| world.work(s, "learn", 2).batch.rows.to_string()).collect();
    assert_eq!(drawn, ["0-1", "2-3", "4,0", "1-2", "3-4", "0-1", "2-3", "4"]);
    world.assert_replays();
    assert_eq!((world.live("memory"), bytes(&world)), (0, 0));
    let entry = world.ledger("learn");
    assert_eq!((entry.owed, entry.consumed, entry.live), (5, 5, 0));
    assert_eq!(entry.uses, Some(Uses { each: 3, committed: 15, live: 0, dropped: 0 }));
}

#[test]
fn a_row_holds_its_bytes_until_its_last_use_and_the_end_comes_after_that() {
    let mut world = World::new(replay(2, Sampling::Sequential));
    let s = world.session("s");
    world.put(s, "memory", 2).unwrap();
    world.own(Command::ClosePartition(world.partition("memory"))).unwrap();
    world.work(s, "learn", 2);
    assert_eq!((world.live("memory"), bytes(&world)), (2, 16));
    world.work(s, "learn", 1);
    assert_eq!((world.live("memory"), bytes(&world)), (1, 8));
    let last = world.claimed(s, "learn", 5);
    assert_eq!(last.batch.rows.to_string(), "1");
    assert!(matches!(world.claim(s, "learn", 1).unwrap(), Reply::NotYet(_)), "the last use is not committed");
    world.commit(s, "learn", last.lease, &last.batch.rows).unwrap();
    assert_eq!(world.claim(s, "learn", 1).unwrap(), Reply::Ended);
}

#[test]
fn a_row_that_comes_later_is_drawn_before_those_that_were_used() {
    let mut world = World::new(replay(2, Sampling::Sequential));
    let s = world.session("s");
    world.put(s, "memory", 2).unwrap();
    world.work(s, "learn", 2);
    world.put(s, "memory", 1).unwrap();
    assert_eq!(world.work(s, "learn", 3).batch.rows.to_string(), "2,0-1");
}

#[test]
fn nobody_else_draws_a_row_that_is_leased_and_no_claim_has_it_twice() {
    let mut world = World::new(replay(4, Sampling::Shuffled));
    let (a, b) = (world.session("a"), world.session("b"));
    world.put(a, "memory", 6).unwrap();
    let (mine, yours) = (world.claimed(a, "learn", 4), world.claimed(b, "learn", 99));
    assert_eq!((mine.batch.rows.len(), yours.batch.rows.len()), (4, 2));
    let all: std::collections::BTreeSet<_> = mine.batch.rows.iter().chain(yours.batch.rows.iter()).collect();
    assert_eq!(all.len(), 6);
    world.waits(a, "learn");
}

#[test]
fn shuffled_draws_follow_the_seed_and_every_row_is_used_exactly_as_often_as_declared() {
    let draws = |seed: u64| {
        let mut world = World::new(Definition { seed, ..replay(3, Sampling::Shuffled) });
        let s = world.session("s");
        world.put(s, "memory", 40).unwrap();
        let mut drawn = Vec::new();
        while world.live("memory") > 0 {
            drawn.extend(world.work(s, "learn", 7).batch.rows.iter());
        }
        drawn
    };
    let (once, other) = (draws(3), draws(4));
    assert_eq!(once, draws(3));
    assert_ne!(once, other);
    let mut uses = BTreeMap::new();
    once.iter().for_each(|row| *uses.entry(*row).or_insert(0) += 1);
    assert_eq!((uses.len(), uses.values().all(|n| *n == 3)), (40, true));
    // With replacement: some row comes again before another has come at all.
    let repeated = (1..once.len()).find(|at| once[..*at].contains(&once[*at])).unwrap();
    assert!(repeated < 40, "the first repetition is draw {repeated}");
}

#[test]
fn a_lost_lease_counts_no_use_and_a_late_commit_is_refused() {
    let mut world = World::new(replay(2, Sampling::Sequential));
    let (a, b) = (world.session("a"), world.session("b"));
    world.put(a, "memory", 1).unwrap();
    let late = world.claimed(a, "learn", 1);
    for _ in 0..61 {
        world.pass(1_000);
        world.call(a, Command::Heartbeat).unwrap();
        world.call(b, Command::Heartbeat).unwrap();
    }
    let again = world.claimed(b, "learn", 1);
    let refused = world.commit(a, "learn", late.lease, &late.batch.rows).unwrap_err();
    assert!(matches!(refused, Refusal::LeaseEnded { lease } if lease == late.lease), "{refused}");
    assert_eq!(world.ledger("learn").uses.unwrap().committed, 0);
    world.commit(b, "learn", again.lease, &again.batch.rows).unwrap();
    let twice = world.commit(b, "learn", again.lease, &again.batch.rows).unwrap_err();
    assert!(matches!(twice, Refusal::LeaseEnded { .. }), "{twice}");
    assert_eq!(world.ledger("learn").uses.unwrap().committed, 1);
}

#[test]
fn every_use_has_its_own_attempts() {
    let mut def = replay(2, Sampling::Sequential);
    (def.tasks[0].attempts, def.tasks[0].on_poison) = (2, Poison::Drop);
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "memory", 1).unwrap();
    let fail = |world: &mut World| {
        let claimed = world.claimed(s, "learn", 1);
        let fail = Command::Fail { lease: claimed.lease, rows: claimed.batch.rows, error: "it broke".into() };
        world.call(s, fail).unwrap();
    };
    fail(&mut world);
    world.work(s, "learn", 1);
    fail(&mut world);
    assert_eq!(world.live("memory"), 1, "one failure of each use");
    fail(&mut world);
    let entry = world.ledger("learn");
    assert_eq!((entry.consumed, &entry.dropped), (0, &BTreeMap::from([("failed".to_owned(), 1)])));
    assert_eq!(entry.uses, Some(Uses { each: 2, committed: 1, live: 0, dropped: 1 }));
    assert!(entry.balanced());
}

#[test]
fn a_dropped_row_takes_its_uses_along_also_while_it_is_leased() {
    let mut world = World::new(replay(3, Sampling::Sequential));
    let s = world.session("s");
    world.put(s, "memory", 3).unwrap();
    world.work(s, "learn", 3);
    world.work(s, "learn", 1);
    let held = world.claimed(s, "learn", 2);
    assert_eq!(held.batch.rows.to_string(), "1-2");
    drop_row(&mut world, "memory", 0);
    drop_row(&mut world, "memory", 1);
    let reply = world.commit(s, "learn", held.lease, &held.batch.rows).unwrap();
    assert_eq!(reply, Reply::Committed { dropped: Rows::run(RowId(1), 1) });
    assert_eq!(world.ledger("learn").uses, Some(Uses { each: 3, committed: 5, live: 2, dropped: 3 }));
    assert_eq!(world.work(s, "learn", 9).batch.rows.to_string(), "2");
    assert_eq!((world.live("memory"), world.ledger("learn").consumed), (0, 1));
}

#[test]
fn groups_are_drawn_whole_those_with_the_least_used_row_first() {
    let mut def = grpo(2, schedule(3, 1, 0, 1));
    def.tasks.push(Task { reuse: 2, ..task("judge", "samples", Grain::Group, &["scores"], &[]) });
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 3).unwrap();
    world.work(s, "rollout", 6);
    world.work(s, "reward", 6);
    // One row of group 0 is used, the other given back: the group stays in the first pass, but has one use more to come.
    let claimed = world.claimed(s, "judge", 1);
    world.commit(s, "judge", claimed.lease, &Rows::run(RowId(1), 1)).unwrap();
    world.call(s, Command::Release { lease: claimed.lease, rows: Rows::run(RowId(0), 1) }).unwrap();
    let drawn: Vec<String> = (0..5).map(|_| world.work(s, "judge", 1).batch.rows.to_string()).collect();
    assert_eq!(drawn, ["0-1", "2-3", "4-5", "0", "2-3"]);
    drop_row(&mut world, "samples", 4);
    assert_eq!(world.work(s, "judge", 1).batch.rows.to_string(), "5");
    world.waits(s, "judge");
    assert_eq!(world.ledger("judge").uses, Some(Uses { each: 2, committed: 11, live: 0, dropped: 1 }));
}

#[test]
fn a_restored_catalog_goes_on_with_the_uses_that_were_committed() {
    let mut world = World::new(replay(2, Sampling::Sequential));
    let s = world.session("s");
    world.put(s, "memory", 3).unwrap();
    world.work(s, "learn", 2);
    world.claimed(s, "learn", 1);
    let (catalog, _) = Catalog::restore(world.catalog.state().clone(), Millis(0));
    catalog.state().verify().unwrap();
    let view = &catalog.state().tasks(Millis(0))[0];
    assert_eq!((view.ready, view.leased), (3, 0));
    assert_eq!(view.uses, Some(Uses { each: 2, committed: 2, live: 2, dropped: 0 }));
}

#[test]
fn waits_and_rows_say_how_often_rows_were_used() {
    let mut world = World::new(replay(4, Sampling::Sequential));
    let s = world.session("s");
    world.put(s, "memory", 3).unwrap();
    world.work(s, "learn", 3);
    world.work(s, "learn", 1);
    world.claimed(s, "learn", 3);
    let wait = world.waits(s, "learn").to_string();
    assert!(wait.contains("0 ready of 3 owed, used 4 of 12 times"), "{wait}");
    let row = world.catalog.state().row(world.partition("memory"), RowId(0), Millis(0)).unwrap();
    assert_eq!((row.tasks[0].state, row.tasks[0].uses), (RowTaskState::Leased, Some((2, 4))));
    // The log has the draws: replaying it (as every test does at its end) asks no sampler.
    let draws = world.log.iter().flat_map(|record| &record.events);
    assert_eq!(draws.filter(|event| matches!(event, Event::Leased { .. })).count(), 3);
}

#[test]
fn whoever_writes_trains_or_claims_batches_uses_a_row_once() {
    let refused = |change: &dyn Fn(&mut Definition), expected: &[&str]| {
        let mut def = grpo(2, schedule(1, 1, 0, 1));
        change(&mut def);
        let error = Catalog::create(def, 1, Millis(0)).unwrap_err().to_string();
        expected.iter().for_each(|word| assert!(error.contains(word), "{error}"));
    };
    refused(&|def| def.tasks[1].reuse = 2, &["`reward`", "reuse 2", "writes `scores`"]);
    refused(&|def| def.tasks[3].reuse = 2, &["`actor`", "reuse 2", "ppo_epochs"]);
    let judge = |per, reuse| Task { reuse, ..task("judge", "samples", per, &["scores"], &[]) };
    refused(&|def| def.tasks.push(judge(Grain::Mini, 2)), &["`judge`", "cut batches", "rows or groups"]);
    refused(&|def| def.tasks.push(judge(Grain::Row, 0)), &["`judge`", "reuse 0", "at least 1"]);
    let mut def = grpo(2, schedule(1, 1, 0, 1));
    def.tasks.push(Task { external: true, ..judge(Grain::Row, 5) });
    Catalog::create(def, 1, Millis(0)).unwrap();
}
