//! Weights in memory: every version alive has a reason, bytes are counted by model, and a limit is kept.

use transferqueue::{
    SessionId,
    catalog::{
        Refusal,
        command::{Command, Reply},
        definition::*,
        weights::{Publishing, Reason, WeightsView},
    },
};

use crate::catalog_support::{World, grpo, schedule};

fn start(plan: Schedule, change: impl FnOnce(&mut Definition)) -> (World, SessionId) {
    let mut def = grpo(1, plan);
    change(&mut def);
    let mut world = World::new(def);
    let s = world.session("trainer");
    world.put(s, "prompts", 20).unwrap();
    world.offer(s, "policy", None).unwrap();
    (world, s)
}

/// Trains a cycle and publishes what comes of it: 100 bytes of weights.
fn publish(world: &mut World, s: SessionId, cycle: u64) -> Result<Reply, Refusal> {
    for task in ["rollout", "reward", "advantage", "actor"] {
        while let Ok(Reply::Claimed(claimed)) = world.claim(s, task, 100) {
            world.commit(s, task, claimed.lease, &claimed.batch.rows.clone())?;
            if task == "actor" {
                break;
            }
        }
    }
    let model = world.model("policy");
    let name = format!("weights/policy/0.{}", cycle + 1);
    let weights = Some(try_weights(world, s, &name)?);
    world.call(s, Command::Offer { model, cycle: Some(cycle), weights, state: None })
}

fn try_weights(world: &mut World, s: SessionId, name: &str) -> Result<transferqueue::PartitionId, Refusal> {
    let columns = vec![transferqueue::Column::new("data", transferqueue::Kind::Binary)];
    let partition = Partition { name: name.into(), columns, birth: Birth::Put { capacity: None } };
    let Reply::Partition(id) = world.call(s, Command::CreatePartition(partition))? else { panic!() };
    let cells =
        vec![world.cells(transferqueue::ColumnId(0), transferqueue::Rows::run(transferqueue::RowId(0), 1), 100)];
    world.call(s, Command::Put { partition: id, rows: vec![Default::default()], cells })?;
    world.call(s, Command::ClosePartition(id))?;
    Ok(id)
}

fn pin(world: &mut World, s: SessionId, version: u64) {
    let model = world.model("policy");
    world.call(s, Command::Pin { model, version: Some(version) }).unwrap();
}

fn view(world: &World) -> WeightsView {
    world.catalog.state().weights().remove(0)
}

fn alive(world: &World) -> Vec<(u64, Vec<Reason>)> {
    view(world).versions.into_iter().map(|version| (version.version, version.reasons)).collect()
}

#[test]
fn every_version_alive_says_why_and_the_others_are_gone() {
    // One group a cycle, one ahead: the group in flight was admitted one version ago.
    let (mut world, s) = start(schedule(1, 1, 1, 9), |def| def.models[0].keep_initial = true);
    let (a, b) = (world.session("eval"), world.session("judge"));
    for cycle in 0..5 {
        publish(&mut world, s, cycle).unwrap();
        if cycle == 1 {
            [a, b].into_iter().for_each(|reader| pin(&mut world, reader, 2));
        }
    }
    let pinned = |names: &[&str]| Reason::Pinned(names.iter().map(|name| (*name).to_owned()).collect());
    let expected = [
        (0, vec![Reason::Initial]),
        (2, vec![pinned(&["eval", "judge"])]),
        (4, vec![Reason::Groups(1)]),
        (5, vec![Reason::Newest, Reason::Groups(1)]),
    ];
    assert_eq!(alive(&world), expected);
    assert_eq!(view(&world).bytes, 400);
    assert!(view(&world).versions.iter().all(|version| version.bytes == 100));
    world.call(a, Command::CloseSession).unwrap();
    assert_eq!(alive(&world)[1], (2, vec![pinned(&["judge"])]));
    // A named state holds what is alive in its files; who goes on from it finds no pin.
    world.restore();
    assert_eq!(alive(&world), [expected[0].clone(), expected[2].clone(), expected[3].clone()]);
    assert_eq!(view(&world).bytes, 300);
}

#[test]
fn on_policy_two_versions_are_alive_at_most_the_second_while_it_is_published() {
    let (mut world, s) = start(schedule(1, 1, 0, 4), |_| {});
    for cycle in 0..3 {
        assert_eq!(view(&world).bytes, 100);
        publish(&mut world, s, cycle).unwrap();
    }
    let id = try_weights(&mut world, s, "weights/policy/0.4").unwrap();
    let found = view(&world);
    let (partition, by) = ("weights/policy/0.4".to_owned(), Some("trainer".to_owned()));
    assert_eq!((found.bytes, found.publishing), (200, vec![Publishing { partition, bytes: 100, by }]));
    world.call(s, Command::DeletePartition(id)).unwrap();
    assert_eq!(view(&world).bytes, 100);
}

#[test]
fn what_a_lost_trainer_was_publishing_is_reclaimed_and_a_trainers_state_is_counted_beside() {
    let (mut world, s) = start(schedule(1, 1, 0, 4), |_| {});
    let other = world.session("trainer");
    try_weights(&mut world, s, "weights/policy/0.1").unwrap();
    try_weights(&mut world, s, "state/policy/0.1").unwrap();
    assert_eq!((view(&world).bytes, view(&world).state_bytes), (200, 100));
    world.own(Command::Lose(s)).unwrap();
    assert_eq!((view(&world).bytes, view(&world).state_bytes, view(&world).publishing.len()), (100, 0, 0));
    publish(&mut world, other, 0).unwrap();
    assert_eq!(alive(&world), [(1, vec![Reason::Newest, Reason::Groups(1)])]);
}

#[test]
fn an_alias_counts_once() {
    let (mut world, s) = start(schedule(1, 1, 0, 4), |_| {});
    let reader = world.session("eval");
    pin(&mut world, reader, 0);
    for task in ["rollout", "reward", "advantage", "actor"] {
        world.work(s, task, 1);
    }
    let model = world.model("policy");
    world.call(s, Command::Offer { model, cycle: Some(0), weights: None, state: None }).unwrap();
    assert_eq!((alive(&world).len(), view(&world).bytes), (2, 100));
}

#[test]
fn a_put_beyond_the_limit_is_refused_with_every_version_and_why_it_is_alive() {
    let (mut world, s) = start(schedule(1, 1, 0, 9), |def| def.weights = Some(250));
    let reader = world.session("eval");
    publish(&mut world, s, 0).unwrap();
    pin(&mut world, reader, 1);
    let refused = publish(&mut world, s, 1);
    assert_eq!(refused, Ok(Reply::Offered(Some(2))), "the pinned one and the one being published fit");
    let refused = publish(&mut world, s, 2).unwrap_err();
    assert!(matches!(&refused, Refusal::Weights { held: 200, more: 100, ceiling: 250, .. }), "{refused:?}");
    let said = refused.to_string();
    for part in [
        "`weights/policy/0.3`",
        "store.weights",
        "version 1 (100 bytes: pinned by eval)",
        "version 2 (100 bytes: newest",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(view(&world).bytes, 200, "nothing of it is held");
    let model = world.model("policy");
    world.call(reader, Command::Unpin { model, version: 1 }).unwrap();
    let id = world.partition("weights/policy/0.3");
    world.call(s, Command::DeletePartition(id)).unwrap();
    let weights = Some(try_weights(&mut world, s, "weights/policy/0.3").unwrap());
    world.call(s, Command::Offer { model, cycle: Some(2), weights, state: None }).unwrap();
    assert_eq!(view(&world).bytes, 100);
}
