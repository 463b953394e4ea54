//! Sessions and leases: retries, lost workers, time.

use transferqueue::{
    LeaseId, Millis, RowId, Rows, SessionId,
    catalog::{Advice, Event, Refusal, command::*, definition::*, event::Returned},
};

use crate::catalog_support::{World, grpo, put_partition, schedule, task};

fn jobs() -> Definition {
    let mut work = task("work", "jobs", Grain::Row, &["input"], &[]);
    (work.lease_ms, work.attempts) = (5_000, 3);
    Definition { partitions: vec![put_partition("jobs", &["input"])], tasks: vec![work], ..Definition::default() }
}

fn world(rows: u64) -> (World, SessionId) {
    let mut world = World::new(jobs());
    let s = world.session("worker-0");
    world.put(s, "jobs", rows).unwrap();
    (world, s)
}

/// Keeps a session alive while time passes.
fn pass_alive(world: &mut World, sessions: &[SessionId], ms: u64) {
    for _ in 0..ms / 1_000 {
        world.pass(1_000);
        for &session in sessions {
            world.call(session, Command::Heartbeat).unwrap();
        }
    }
}

#[test]
fn the_same_call_again_hears_the_same_reply_and_changes_nothing() {
    let (mut world, s) = world(3);
    let claim = world.request(s, Command::Claim { task: world.task("work"), limit: 2 });
    let first = world.send(&claim).unwrap();
    let seq = world.catalog.state().seq();
    assert_eq!(world.send(&claim).unwrap(), first);
    assert_eq!(world.catalog.state().seq(), seq);
    assert_eq!(world.ledger("work").live, 3);
}

#[test]
fn the_last_eight_replies_are_kept() {
    let (mut world, s) = world(1);
    let mut requests = Vec::new();
    for _ in 0..9 {
        let request = world.request(s, Command::Heartbeat);
        let reply = world.send(&request).unwrap();
        world.answered(&request, &reply);
        requests.push(request);
    }
    assert!(world.send(&requests[1]).is_ok());
    let refusal = world.send(&requests[0]).unwrap_err();
    assert!(matches!(refusal, Refusal::Sequence { found: 2, expected: 11, kept: 8, .. }), "{refusal:?}");
}

#[test]
fn a_gap_in_the_numbers_is_refused() {
    let (mut world, s) = world(1);
    let gap = Request { caller: Some((s, 7)), command: Command::Heartbeat };
    assert!(matches!(world.send(&gap), Err(Refusal::Sequence { found: 7, expected: 2, .. })));
}

#[test]
fn a_call_that_waits_or_is_refused_leaves_its_number_free() {
    let (mut world, s) = world(0);
    let claim = world.request(s, Command::Claim { task: world.task("work"), limit: 1 });
    assert!(matches!(world.send(&claim), Ok(Reply::NotYet(_))));
    world
        .own(Command::Put {
            partition: world.partition("jobs"),
            rows: vec![NewRow::default()],
            cells: vec![CellWrite {
                column: transferqueue::ColumnId(0),
                rows: Rows::run(RowId(0), 1),
                chunk: transferqueue::ChunkId(99),
                slot: 0,
                sizes: Sizes::Uniform(1),
                seal: true,
                replaces: None,
            }],
        })
        .unwrap();
    assert!(matches!(world.send(&claim), Ok(Reply::Claimed(_))), "the same number is answered later");
    let wrong = Request { caller: Some((s, 3)), command: Command::Claim { task: world.task("work"), limit: 0 } };
    assert!(world.send(&wrong).is_err());
    assert!(world.send(&Request { caller: Some((s, 3)), command: Command::Heartbeat }).is_ok());
}

#[test]
fn an_ended_session_is_refused_for_ever() {
    let (mut world, s) = world(2);
    world.claimed(s, "work", 2);
    world.call(s, Command::CloseSession).unwrap();
    let refusal = world.call(s, Command::Heartbeat).unwrap_err();
    assert!(matches!(refusal, Refusal::SessionEnded { .. }));
    assert_eq!(refusal.advice(), Advice::BeginAgain);
    let never = world.send(&Request { caller: Some((SessionId(77), 1)), command: Command::Heartbeat });
    assert!(matches!(never, Err(Refusal::Unknown { .. })));
}

#[test]
fn a_silent_session_is_lost_and_its_rows_return() {
    let (mut world, s) = world(2);
    let other = world.session("worker-1");
    world.claimed(s, "work", 2);
    world.waits(other, "work");
    pass_alive(&mut world, &[other], 32_000);
    assert!(matches!(world.call(s, Command::Heartbeat), Err(Refusal::SessionEnded { .. })));
    assert_eq!(world.claimed(other, "work", 9).batch.rows.len(), 2);
}

#[test]
fn a_heartbeat_or_any_call_keeps_a_session() {
    let (mut world, s) = world(0);
    pass_alive(&mut world, &[s], 90_000);
    world.call(s, Command::Heartbeat).unwrap();
    for _ in 0..9 {
        world.pass(10_000);
        world.waits(s, "work");
    }
    assert_eq!(world.catalog.state().sessions(Millis(world.now)).len(), 1);
}

#[test]
fn a_session_that_closes_gives_its_rows_back_without_an_attempt() {
    let (mut world, _) = world(1);
    for _ in 0..5 {
        let s = world.session("brief");
        world.claimed(s, "work", 1);
        world.call(s, Command::CloseSession).unwrap();
    }
    let s = world.session("last");
    world.work(s, "work", 1);
}

#[test]
fn a_lease_expires_unless_it_is_renewed_with_progress() {
    let (mut world, s) = world(1);
    let lease = world.claimed(s, "work", 1).lease;
    pass_alive(&mut world, &[s], 4_000);
    assert_eq!(
        world.call(s, Command::Renew { lease, progress: 0 }),
        Ok(Reply::Renewed(5_000)),
        "the first counts always"
    );
    pass_alive(&mut world, &[s], 4_000);
    assert_eq!(world.call(s, Command::Renew { lease, progress: 0 }), Ok(Reply::Renewed(1_000)), "no progress");
    pass_alive(&mut world, &[s], 1_000);
    let refusal = world.call(s, Command::Renew { lease, progress: 1 }).unwrap_err();
    assert_eq!(refusal, Refusal::LeaseEnded { lease });
    assert_eq!(refusal.advice(), Advice::BeginAgain);
    assert!(matches!(&world.commit(s, "work", lease, &Rows::run(RowId(0), 1)), Err(Refusal::LeaseEnded { .. })));
    assert_eq!(world.claimed(s, "work", 1).batch.rows.len(), 1);
}

#[test]
fn renewal_with_progress_goes_on_for_ever() {
    let (mut world, s) = world(1);
    let claimed = world.claimed(s, "work", 1);
    for progress in 1..20 {
        pass_alive(&mut world, &[s], 4_000);
        world.call(s, Command::Renew { lease: claimed.lease, progress }).unwrap();
    }
    world.commit(s, "work", claimed.lease, &claimed.batch.rows).unwrap();
}

#[test]
fn a_lease_is_of_its_session_alone() {
    let (mut world, s) = world(1);
    let other = world.session("thief");
    let claimed = world.claimed(s, "work", 1);
    let stolen = world.commit(other, "work", claimed.lease, &claimed.batch.rows).unwrap_err();
    assert_eq!(stolen, Refusal::NotYours { lease: claimed.lease, owner: s, caller: other });
    // The first number that no lease has had.
    let unknown = world.call(s, Command::Renew { lease: LeaseId(claimed.lease.0 + 1), progress: 1 });
    assert!(matches!(unknown, Err(Refusal::Unknown { .. })));
}

#[test]
fn a_jump_of_the_clock_gives_everyone_the_full_time() {
    let (mut world, s) = world(1);
    let claimed = world.claimed(s, "work", 1);
    world.now += 3_600_000;
    world.own(Command::Tick).unwrap();
    assert!(matches!(world.last(), [Event::ClockJumped { .. }]));
    world.pass(4_000);
    world.call(s, Command::Heartbeat).unwrap();
    world.now -= 1_000_000;
    world.own(Command::Tick).unwrap();
    pass_alive(&mut world, &[s], 4_000);
    world.commit(s, "work", claimed.lease, &claimed.batch.rows).unwrap();
}

#[test]
fn a_lease_expires_after_its_full_time_counted_from_the_jump() {
    let (mut world, s) = world(1);
    let lease = world.claimed(s, "work", 1).lease;
    world.now += 3_600_000;
    world.own(Command::Tick).unwrap();
    pass_alive(&mut world, &[s], 5_000);
    assert_eq!(world.call(s, Command::Renew { lease, progress: 1 }), Err(Refusal::LeaseEnded { lease }));
}

#[test]
fn a_little_step_back_is_no_jump() {
    let (mut world, s) = world(1);
    world.pass(2_000);
    world.claimed(s, "work", 1);
    world.now -= 900;
    let records = world.log.len();
    world.own(Command::Tick).unwrap();
    assert_eq!(world.log.len(), records, "a tick with nothing due writes nothing");
    world.now -= 200;
    world.own(Command::Tick).unwrap();
    assert!(matches!(world.last(), [Event::ClockJumped { .. }]));
}

#[test]
fn a_row_that_fails_too_often_stops_the_run_with_its_error() {
    let (mut world, s) = world(2);
    for attempt in 1..=3 {
        let claimed = world.claimed(s, "work", 1);
        assert_eq!(claimed.batch.rows.to_string(), "0");
        let error = format!("broken {attempt}");
        world.call(s, Command::Fail { lease: claimed.lease, rows: claimed.batch.rows, error }).unwrap();
    }
    assert!(world.wakes.contains(&transferqueue::catalog::Wake::Stopped));
    let refusal = world.claim(s, "work", 1).unwrap_err();
    assert_eq!(refusal.advice(), Advice::GiveUp);
    let message = refusal.to_string();
    assert!(message.contains("row 0") && message.contains("`work`") && message.contains("broken 3"), "{message}");
}

#[test]
fn expiry_and_lost_sessions_count_as_attempts_release_does_not() {
    let (mut world, keeper) = world(1);
    for _ in 0..5 {
        let claimed = world.claimed(keeper, "work", 1);
        world.call(keeper, Command::Release { lease: claimed.lease, rows: claimed.batch.rows }).unwrap();
    }
    world.claimed(keeper, "work", 1);
    pass_alive(&mut world, &[keeper], 6_000);
    let s = world.session("dies");
    let claimed = world.claimed(s, "work", 1);
    for progress in 1..15 {
        // The lease is renewed up to its session's death, so that both end at once.
        world.call(s, Command::Renew { lease: claimed.lease, progress }).unwrap();
        pass_alive(&mut world, &[keeper], 1_000);
    }
    pass_alive(&mut world, &[keeper], 31_000);
    let claimed = world.claimed(keeper, "work", 1);
    let error = "third".to_owned();
    world.call(keeper, Command::Fail { lease: claimed.lease, rows: claimed.batch.rows, error }).unwrap();
    assert!(matches!(world.claim(keeper, "work", 1), Err(Refusal::Poisoned { .. })));
}

#[test]
fn poison_that_is_dropped_takes_its_group_along() {
    let mut def = grpo(2, schedule(2, 1, 0, 1));
    def.tasks[1].on_poison = Poison::Drop;
    def.tasks[1].attempts = 1;
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 3).unwrap();
    world.work(s, "rollout", 4);
    let claimed = world.claimed(s, "reward", 1);
    world.call(s, Command::Fail { lease: claimed.lease, rows: claimed.batch.rows, error: "no".into() }).unwrap();
    for task in ["reward", "advantage", "actor"] {
        assert_eq!(world.ledger(task).dropped, [("failed".to_owned(), 2)].into(), "{task}");
    }
    assert_eq!(world.ledger("rollout").dropped, [].into(), "it had consumed them");
    let schedule = world.catalog.state().schedule().unwrap();
    assert_eq!((schedule.admitted, schedule.dropped), (3, 1), "another group takes its place");
}

#[test]
fn failures_of_different_rows_do_not_add_up() {
    let (mut world, s) = world(3);
    for _ in 0..2 {
        let claimed = world.claimed(s, "work", 3);
        let (lease, rows) = (claimed.lease, claimed.batch.rows);
        world.call(s, Command::Fail { lease, rows, error: "all".into() }).unwrap();
    }
    let claimed = world.claimed(s, "work", 3);
    world.commit(s, "work", claimed.lease, &claimed.batch.rows).unwrap();
    world.put(s, "jobs", 1).unwrap();
    world.work(s, "work", 1);
}

#[test]
fn rows_that_are_not_under_the_lease_are_refused() {
    let (mut world, s) = world(3);
    let claimed = world.claimed(s, "work", 2);
    for command in [
        Command::Release { lease: claimed.lease, rows: Rows::run(RowId(1), 2) },
        Command::Fail { lease: claimed.lease, rows: Rows::run(RowId(2), 1), error: String::new() },
        Command::Release { lease: claimed.lease, rows: [0, 1, 0].map(RowId).into_iter().collect() },
    ] {
        assert!(matches!(world.call(s, command), Err(Refusal::NotLeased { .. })));
    }
    let refused = world.commit(s, "work", claimed.lease, &Rows::run(RowId(2), 1)).unwrap_err().to_string();
    assert!(refused.contains("rows 2 ") && refused.contains("0-1"), "{refused}");
}

#[test]
fn a_lost_session_is_seen_in_the_log() {
    let (mut world, s) = world(1);
    world.claimed(s, "work", 1);
    world.pass(31_000);
    let events: Vec<&Event> = world.log.iter().flat_map(|record| &record.events).collect();
    assert!(events.iter().any(|e| matches!(e, Event::SessionEnded { lost: true, .. })));
    assert!(events.iter().any(|e| matches!(e, Event::RowsReturned { why: Returned::Expired, .. })));
}

#[test]
fn poison_of_a_prompt_takes_what_was_born_from_it_along() {
    let mut def = grpo(2, schedule(2, 1, 0, 1));
    let mut count = task("count", "prompts", Grain::Row, &["prompt"], &[]);
    (count.attempts, count.on_poison) = (1, Poison::Drop);
    def.tasks.push(count);
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    let held = world.claimed(s, "rollout", 3);
    let claimed = world.claimed(s, "count", 1);
    world.call(s, Command::Fail { lease: claimed.lease, rows: claimed.batch.rows, error: "no".into() }).unwrap();
    assert_eq!((world.live("prompts"), world.live("samples")), (1, 2));
    assert_eq!(world.ledger("rollout").dropped, [("failed".to_owned(), 2)].into());
    let reply = world.commit(s, "rollout", held.lease, &held.batch.rows).unwrap();
    assert_eq!(reply, Reply::Committed { dropped: Rows::run(RowId(0), 2) });
}

#[test]
fn a_restored_run_goes_on_after_poison_with_all_attempts() {
    let (mut world, s) = world(1);
    let fail = |world: &mut World, s| {
        let claimed = world.claimed(s, "work", 1);
        world.call(s, Command::Fail { lease: claimed.lease, rows: claimed.batch.rows, error: "no".into() }).unwrap();
    };
    (0..3).for_each(|_| fail(&mut world, s));
    assert!(matches!(world.claim(s, "work", 1), Err(Refusal::Poisoned { .. })));
    world.restore();
    let s = world.session("mended");
    (0..2).for_each(|_| fail(&mut world, s));
    world.work(s, "work", 1);
}

#[test]
fn what_a_reader_outside_the_run_fails_at_goes_back_to_it_and_stops_nobody() {
    let mut def = grpo(1, schedule(1, 1, 0, 9));
    def.tasks.push(Task { external: true, ..task("exporter", "samples", Grain::Row, &["responses"], &[]) });
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    world.work(s, "rollout", 1);
    for attempt in 1..=5 {
        let claimed = world.claimed(s, "exporter", 1);
        let (lease, rows) = (claimed.lease, claimed.batch.rows);
        world.call(s, Command::Fail { lease, rows, error: format!("disk full, attempt {attempt}") }).unwrap();
    }
    assert_eq!((world.ledger("exporter").live, world.live("samples")), (1, 1));
    world.work(s, "reward", 1);
}
