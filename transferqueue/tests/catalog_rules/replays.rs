//! Logs that are replayed: gaps, numbers, and the answers that sessions which live on may ask for again.

use transferqueue::{
    Millis,
    catalog::{Catalog, Refusal, command::*},
};

use crate::catalog_support::{World, grpo, schedule};

#[test]
fn a_log_with_a_gap_is_not_replayed() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let mut replayed = Catalog::open(&world.log[0]).unwrap();
    assert!(matches!(replayed.replay(&world.log[2]), Err(Refusal::Log { found: 2, expected: 1, .. })));
    assert!(matches!(Catalog::open(&world.log[1]), Err(Refusal::Log { .. })));
    let mut other = world.log[1].clone();
    other.version += 1;
    assert!(matches!(replayed.replay(&other), Err(Refusal::Log { .. })));
    replayed.replay(&world.log[1]).unwrap();
}

#[test]
fn a_session_number_or_lease_number_is_not_used_again_after_a_restore() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let lease = world.claimed(s, "rollout", 1).lease;
    world.restore();
    let t = world.session("t");
    assert!(t > s);
    assert!(world.claimed(t, "rollout", 1).lease > lease);
}

/// A catalog that the world's log leads to, whose sessions live on.
fn replayed(world: &World) -> Catalog {
    let mut catalog = Catalog::open(&world.log[0]).unwrap();
    for record in &world.log[1..] {
        catalog.replay(record).unwrap();
    }
    catalog.go_on();
    catalog
}

#[test]
fn an_answer_that_was_lost_with_the_process_is_given_by_the_replayed_catalog() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    world.catalog.keep_replies();
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let request = world.request(s, Command::Claim { task: world.task("rollout"), limit: 1 });
    let heard = world.call(s, request.command.clone()).unwrap();
    let mut catalog = replayed(&world);
    let again = catalog.call(&request, Millis(world.now)).unwrap();
    assert_eq!((again.reply, again.record), (heard, None));
    // Once more than that is a call that another one has overtaken.
    let (_, seq) = request.caller.unwrap();
    let older = Request { caller: Some((s, seq - 1)), ..request };
    assert!(matches!(catalog.call(&older, Millis(world.now)), Err(Refusal::Sequence { .. })));
}

#[test]
fn calls_that_left_no_record_are_no_gap_after_a_recovery_and_only_once() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    world.catalog.keep_replies();
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    // Shows life twice within a second: the second leaves no record.
    world.call(s, Command::Heartbeat).unwrap();
    let before = world.log.len();
    world.call(s, Command::Heartbeat).unwrap();
    assert_eq!(world.log.len(), before);
    let mut catalog = replayed(&world);
    let claim = world.request(s, Command::Claim { task: world.task("rollout"), limit: 1 });
    let reply = catalog.call(&claim, Millis(world.now)).unwrap().reply;
    assert!(matches!(reply, Reply::Claimed(_)));
    assert_eq!(catalog.call(&claim, Millis(world.now)).unwrap().reply, reply);
    let (_, seq) = claim.caller.unwrap();
    let beyond = Request { caller: Some((s, seq + 2)), command: Command::Heartbeat };
    assert!(matches!(catalog.call(&beyond, Millis(world.now)), Err(Refusal::Sequence { .. })));
}
