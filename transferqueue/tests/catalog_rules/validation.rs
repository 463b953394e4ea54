//! Partitions with a gate of their own: rounds of all rows of a parent, beside the schedule.

use transferqueue::{
    RowId, Rows, SessionId,
    catalog::{command::*, definition::*},
};

use crate::catalog_support::{World, grpo, put_partition, row_column, schedule, task};

fn with_val(cycles: u64, first: bool, total: u64) -> (World, SessionId) {
    let mut def = grpo(1, schedule(1, 1, 0, total));
    let birth = Birth::Expand {
        from: "val_prompts".into(),
        n: 1,
        link: vec!["prompt".into()],
        gate: Gate::Every { cycles, first },
    };
    def.partitions.push(put_partition("val_prompts", &["prompt"]));
    def.partitions.push(Partition {
        name: "val".into(),
        columns: ["responses", "scores"].iter().map(|name| row_column(name)).collect(),
        birth,
    });
    let mut rollout = task("rollout.val", "val", Grain::Row, &["prompt"], &["responses"]);
    rollout.samples_with = Some("policy".into());
    def.tasks.push(rollout);
    def.tasks.push(task("reward.val", "val", Grain::Row, &["responses"], &["scores"]));
    def.tasks.push(task("validate", "val", Grain::Cycle, &["prompt", "scores"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 20).unwrap();
    world.put(s, "val_prompts", 2).unwrap();
    let val = world.partition("val_prompts");
    world.call(s, Command::ClosePartition(val)).unwrap();
    (world, s)
}

fn cycle(world: &mut World, s: SessionId, number: u64) {
    for task in ["rollout", "reward", "advantage", "actor"] {
        world.work(s, task, 1);
    }
    world.offer(s, "policy", Some(number)).unwrap();
}

/// Works a round off; returns the version it belongs to.
fn round(world: &mut World, s: SessionId) -> u64 {
    let rolled = world.work(s, "rollout.val", 2);
    assert_eq!(rolled.heads.len(), 2);
    world.work(s, "reward.val", 2);
    let claimed = world.work(s, "validate", 1);
    let cut = claimed.cut.unwrap();
    assert_eq!((cut.index, cut.last, cut.sizes), (0, true, vec![2]));
    assert!(claimed.heads.iter().all(|head| head.version == cut.cycle));
    cut.cycle
}

#[test]
fn rounds_run_before_the_first_update_every_few_versions_and_at_the_end() {
    let (mut world, s) = with_val(2, true, 5);
    let mut rounds = vec![round(&mut world, s)];
    for number in 0..5 {
        world.waits(s, "validate");
        cycle(&mut world, s, number);
        if [2, 4, 5].contains(&(number + 1)) {
            rounds.push(round(&mut world, s));
        }
    }
    assert_eq!(rounds, [0, 2, 4, 5]);
    for task in ["rollout.val", "reward.val", "validate"] {
        assert_eq!(world.claim(s, task, 1), Ok(Reply::Ended), "{task}");
        assert_eq!(world.ledger(task).consumed, 8);
    }
    assert_eq!((world.live("val"), world.live("val_prompts")), (0, 0), "the last round lets the prompts go");
    assert_eq!(world.catalog.state().schedule().unwrap().admitted, 5, "they are not counted by the schedule");
}

#[test]
fn a_round_at_the_last_version_that_is_due_anyway_runs_once() {
    let (mut world, s) = with_val(1, false, 1);
    world.waits(s, "validate");
    cycle(&mut world, s, 0);
    assert_eq!(round(&mut world, s), 1);
    assert_eq!(world.claim(s, "validate", 1), Ok(Reply::Ended));
}

#[test]
fn without_a_distance_only_the_first_round_runs() {
    let (mut world, s) = with_val(0, true, 2);
    assert_eq!(round(&mut world, s), 0);
    cycle(&mut world, s, 0);
    cycle(&mut world, s, 1);
    assert_eq!(world.claim(s, "validate", 1), Ok(Reply::Ended));
}

#[test]
fn a_slow_round_holds_the_next_ones_back_and_their_weights_alive() {
    let (mut world, s) = with_val(1, true, 3);
    for number in 0..3 {
        cycle(&mut world, s, number);
    }
    let versions: Vec<u64> = world.catalog.state().versions_alive().iter().map(|view| view.version).collect();
    assert_eq!(versions, [0, 1, 2, 3], "each round samples with the version it is of");
    let rounds: Vec<u64> = (0..4).map(|_| round(&mut world, s)).collect();
    assert_eq!(rounds, [0, 1, 2, 3]);
    let versions: Vec<u64> = world.catalog.state().versions_alive().iter().map(|view| view.version).collect();
    assert_eq!(versions, [3]);
}

#[test]
fn a_round_lasts_until_its_last_group_is_done() {
    let (mut world, s) = with_val(1, true, 2);
    cycle(&mut world, s, 0);
    world.work(s, "rollout.val", 2);
    world.work(s, "reward.val", 2);
    let claimed = world.claimed(s, "validate", 1);
    world.commit(s, "validate", claimed.lease, &Rows::run(RowId(0), 1)).unwrap();
    world.waits(s, "rollout.val");
    world.commit(s, "validate", claimed.lease, &Rows::run(RowId(1), 1)).unwrap();
    assert_eq!(round(&mut world, s), 1);
}

#[test]
fn a_round_waits_until_its_prompts_are_complete() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    let gate = Gate::Every { cycles: 0, first: true };
    def.partitions.push(put_partition("val_prompts", &["prompt"]));
    let birth = Birth::Expand { from: "val_prompts".into(), n: 2, link: vec!["prompt".into()], gate };
    def.partitions.push(Partition { name: "val".into(), columns: vec![row_column("responses")], birth });
    def.tasks.push(task("rollout.val", "val", Grain::Row, &["prompt"], &["responses"]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "val_prompts", 2).unwrap();
    let text = world.waits(s, "rollout.val").to_string();
    assert!(text.contains("expands `val_prompts` once that is closed"), "{text}");
    world.put(s, "val_prompts", 1).unwrap();
    let val = world.partition("val_prompts");
    world.call(s, Command::ClosePartition(val)).unwrap();
    assert_eq!(world.work(s, "rollout.val", 9).batch.rows.len(), 6);
}

#[test]
fn an_empty_validation_set_ends_at_once() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    let gate = Gate::Every { cycles: 1, first: true };
    def.partitions.push(put_partition("val_prompts", &["prompt"]));
    let birth = Birth::Expand { from: "val_prompts".into(), n: 1, link: vec![], gate };
    def.partitions.push(Partition { name: "val".into(), columns: vec![row_column("responses")], birth });
    def.tasks.push(task("rollout.val", "val", Grain::Row, &[], &["responses"]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    let val = world.partition("val_prompts");
    world.call(s, Command::ClosePartition(val)).unwrap();
    world.put(s, "prompts", 1).unwrap();
    cycle(&mut world, s, 0);
    assert_eq!(world.claim(s, "rollout.val", 1), Ok(Reply::Ended));
}

#[test]
fn without_a_schedule_the_first_round_runs_and_that_is_all() {
    let gate = Gate::Every { cycles: 3, first: true };
    let birth = Birth::Expand { from: "prompts".into(), n: 1, link: vec!["prompt".into()], gate };
    let def = Definition {
        partitions: vec![
            put_partition("prompts", &["prompt"]),
            Partition { name: "val".into(), columns: vec![row_column("responses")], birth },
        ],
        tasks: vec![task("generate", "val", Grain::Row, &["prompt"], &["responses"])],
        ..Definition::default()
    };
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 3).unwrap();
    let prompts = world.partition("prompts");
    world.call(s, Command::ClosePartition(prompts)).unwrap();
    world.work(s, "generate", 9);
    assert_eq!(world.claim(s, "generate", 1), Ok(Reply::Ended));
    assert_eq!((world.live("val"), world.live("prompts")), (0, 0));
}
