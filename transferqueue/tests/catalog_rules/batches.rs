//! Batches: cut once, in a fixed order, claimed in that order, short only at the end.

use transferqueue::{
    GroupId, RowId, Rows, SessionId,
    catalog::{Event, Refusal, command::*, definition::*},
};

use crate::catalog_support::{World, grpo, row_column, schedule, task};

/// The batches cut so far: (cycle, index, groups, last).
fn cuts(world: &World) -> Vec<(u64, u64, Vec<u64>, bool)> {
    let events = world.log.iter().flat_map(|record| &record.events);
    let cut = |event: &Event| match event {
        Event::BatchCut { cycle, index, groups, last, .. } => {
            Some((*cycle, *index, groups.iter().map(|GroupId(g)| *g).collect(), *last))
        }
        _ => None,
    };
    events.filter_map(cut).collect()
}

fn start(plan: Schedule, n: u32, prompts: u64) -> (World, SessionId) {
    let mut world = World::new(grpo(n, plan));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", prompts).unwrap();
    (world, s)
}

/// Takes all rows of some ordinals through rollout, reward and advantage, in this order.
fn complete(world: &mut World, s: SessionId, ordinals: &[u64]) {
    let mut held = Vec::new();
    for task in ["rollout", "reward", "advantage"] {
        let mut found = Vec::new();
        while let Ok(Reply::Claimed(claimed)) = world.claim(s, task, 1) {
            found.push(claimed);
        }
        for ordinal in ordinals {
            for claimed in found.iter().filter(|claimed| claimed.heads[0].ordinal == *ordinal) {
                world.commit(s, task, claimed.lease, &claimed.batch.rows.clone()).unwrap();
            }
        }
        held.extend(found.into_iter().filter(|claimed| !ordinals.contains(&claimed.heads[0].ordinal)));
    }
    for claimed in held {
        world.call(s, Command::Release { lease: claimed.lease, rows: claimed.batch.rows }).unwrap();
    }
}

#[test]
fn in_admission_order_the_next_groups_are_waited_for() {
    let mut plan = schedule(4, 2, 0, 1);
    plan.grain = CutGrain::Mini;
    let (mut world, s) = start(plan, 1, 4);
    complete(&mut world, s, &[1, 2, 3]);
    assert_eq!(cuts(&world), []);
    complete(&mut world, s, &[0]);
    assert_eq!(cuts(&world), [(0, 0, vec![0, 1], false), (0, 1, vec![2, 3], true)]);
}

#[test]
fn in_completion_order_the_first_complete_are_cut_and_sorted_within_the_batch() {
    let mut plan = schedule(4, 2, 0, 1);
    (plan.order, plan.grain) = (Order::Completion, CutGrain::Mini);
    let (mut world, s) = start(plan, 1, 4);
    complete(&mut world, s, &[3]);
    assert_eq!(cuts(&world), []);
    complete(&mut world, s, &[1]);
    assert_eq!(cuts(&world), [(0, 0, vec![1, 3], false)]);
    let claimed = world.claimed(s, "actor", 1);
    assert_eq!(claimed.heads.iter().map(|head| head.ordinal).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(claimed.cut, Some(CutRef { cycle: 0, index: 0, sizes: vec![2], last: false, share: None }));
}

#[test]
fn a_whole_cycle_is_cut_at_once_and_sliced_by_group_id() {
    let mut plan = schedule(4, 2, 0, 1);
    plan.order = Order::Completion;
    let (mut world, s) = start(plan, 1, 4);
    complete(&mut world, s, &[3, 1, 2]);
    assert_eq!(cuts(&world), []);
    complete(&mut world, s, &[0]);
    assert_eq!(cuts(&world), [(0, 0, vec![0, 1], false), (0, 1, vec![2, 3], true)]);
}

#[test]
fn rows_of_a_batch_are_ordered_by_prompt_and_sample_whatever_order_they_finished_in() {
    let (mut world, s) = start(schedule(2, 1, 0, 1), 2, 2);
    let (a, b) = (world.claimed(s, "rollout", 1), world.claimed(s, "rollout", 3));
    world.commit(s, "rollout", b.lease, &b.batch.rows).unwrap();
    world.commit(s, "rollout", a.lease, &a.batch.rows).unwrap();
    world.work(s, "reward", 4);
    world.work(s, "advantage", 2);
    let claimed = world.claimed(s, "actor", 1);
    let order: Vec<_> = claimed.heads.iter().map(|head| (head.ordinal, head.sample)).collect();
    assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn the_next_cycle_is_not_cut_before_this_one_is_published() {
    let (mut world, s) = start(schedule(1, 1, 1, 2), 1, 2);
    complete(&mut world, s, &[0, 1]);
    assert_eq!(cuts(&world).len(), 1);
    world.work(s, "actor", 1);
    assert!(world.claimed(s, "actor", 1).batch.rows.is_empty(), "what remains is to offer");
    assert_eq!(cuts(&world).len(), 1);
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(cuts(&world)[1], (1, 0, vec![1], true));
}

#[test]
fn at_the_end_of_the_stream_the_last_cycle_is_short() {
    for grain in [CutGrain::Cycle, CutGrain::Mini] {
        let mut plan = schedule(4, 2, 0, 9);
        plan.grain = grain;
        let (mut world, s) = start(plan, 1, 3);
        complete(&mut world, s, &[0, 1, 2]);
        let expected = if grain == CutGrain::Mini { 1 } else { 0 };
        assert_eq!(cuts(&world).len(), expected, "more may come");
        let prompts = world.partition("prompts");
        world.call(s, Command::ClosePartition(prompts)).unwrap();
        assert_eq!(cuts(&world), [(0, 0, vec![0, 1], false), (0, 1, vec![2], true)]);
        world.work(s, "actor", 1);
        world.work(s, "actor", 1);
        world.offer(s, "policy", Some(0)).unwrap();
        assert_eq!(world.claim(s, "actor", 1), Ok(Reply::Ended), "a cycle without a group is not begun");
        assert_eq!(world.claim(s, "rollout", 1), Ok(Reply::Ended));
    }
}

#[test]
fn batches_are_claimed_in_order_by_one_trainer_and_by_many_helpers() {
    let mut def = grpo(1, schedule(4, 4, 0, 1));
    def.partitions[1].columns.push(row_column("old"));
    def.tasks.push(task("old", "samples", Grain::Mini, &["responses"], &["old"]));
    def.tasks[3].reads.push("old".into());
    let mut world = World::new(def);
    let (a, b) = (world.session("a"), world.session("b"));
    world.offer(a, "policy", None).unwrap();
    world.put(a, "prompts", 4).unwrap();
    complete(&mut world, a, &[0, 1, 2, 3]);
    let first = world.claimed(a, "old", 1);
    let second = world.claimed(b, "old", 1);
    assert_eq!((first.batch.rows.to_string(), second.batch.rows.to_string()), ("0".into(), "1".into()));
    world.commit(b, "old", second.lease, &second.batch.rows).unwrap();
    world.waits(a, "actor");
    world.commit(a, "old", first.lease, &first.batch.rows).unwrap();
    let trained = world.claimed(a, "actor", 1);
    assert_eq!(trained.batch.rows.to_string(), "0");
    // One memory trains a cycle, so another session waits although batch 1 is ready.
    world.waits(b, "actor");
    assert_eq!(world.claimed(a, "actor", 1).batch.rows.to_string(), "1");
}

#[test]
fn a_batch_given_back_comes_again_before_later_ones() {
    let (mut world, s) = start(schedule(3, 3, 0, 1), 1, 3);
    complete(&mut world, s, &[0, 1, 2]);
    let first = world.claimed(s, "actor", 1);
    let second = world.claimed(s, "actor", 1);
    world.call(s, Command::Release { lease: first.lease, rows: first.batch.rows }).unwrap();
    assert_eq!(world.claimed(s, "actor", 1).cut.unwrap().index, 0);
    world.commit(s, "actor", second.lease, &second.batch.rows).unwrap();
    let third = world.claimed(s, "actor", 1).cut.unwrap();
    assert_eq!((third.index, third.last), (2, true));
}

#[test]
fn a_task_per_cycle_gets_all_batches_in_order_with_their_sizes() {
    let mut def = grpo(2, schedule(4, 2, 0, 1));
    def.tasks[3].per = Grain::Cycle;
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 4).unwrap();
    complete(&mut world, s, &[0, 1, 2]);
    world.waits(s, "actor");
    complete(&mut world, s, &[3]);
    let claimed = world.claimed(s, "actor", 1);
    assert_eq!(claimed.batch.rows.to_string(), "0-7");
    assert_eq!(claimed.cut, Some(CutRef { cycle: 0, index: 0, sizes: vec![4, 4], last: true, share: None }));
}

#[test]
fn a_task_per_cycle_waits_until_the_cycle_is_completely_cut() {
    let mut plan = schedule(2, 2, 0, 1);
    plan.grain = CutGrain::Mini;
    let mut def = grpo(1, plan);
    def.tasks[3].per = Grain::Cycle;
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    complete(&mut world, s, &[0]);
    assert_eq!(cuts(&world).len(), 1);
    world.waits(s, "actor");
    complete(&mut world, s, &[1]);
    assert_eq!(world.claimed(s, "actor", 1).batch.rows.to_string(), "0-1");
}

#[test]
fn columns_that_batch_tasks_make_are_not_waited_for_by_the_cut() {
    // values per mini → advantage per cycle → actor: the cut needs responses and scores alone.
    let mut def = grpo(1, schedule(2, 2, 0, 1));
    def.partitions[1].columns.push(row_column("values"));
    def.tasks.push(task("values", "samples", Grain::Mini, &["responses"], &["values"]));
    def.tasks[2].per = Grain::Cycle;
    def.tasks[2].reads.push("values".into());
    // A streaming task behind a batch task must not hold the cut up either.
    def.partitions[1].columns.push(row_column("late"));
    def.tasks.push(task("late", "samples", Grain::Row, &["values"], &["late"]));
    def.tasks.push(task("last", "samples", Grain::Mini, &["late"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    world.work(s, "rollout", 2);
    assert_eq!(cuts(&world), []);
    world.work(s, "reward", 2);
    assert_eq!(cuts(&world).len(), 2);
    world.waits(s, "advantage");
    world.work(s, "values", 1);
    world.work(s, "values", 1);
    world.work(s, "late", 2);
    assert_eq!(world.work(s, "advantage", 1).batch.rows.to_string(), "0-1");
    world.work(s, "actor", 1);
    world.work(s, "last", 1);
}

#[test]
fn rows_without_columns_of_their_own_are_complete_at_birth() {
    let mut def = grpo(1, schedule(2, 1, 0, 1));
    def.tasks.truncate(1);
    def.tasks[0] = Task {
        trains: Some(Trains { model: "policy".into(), from_cycle: 0 }),
        ..task("sft", "samples", Grain::Mini, &["prompt"], &[])
    };
    def.partitions[1].columns.clear();
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    world.work(s, "sft", 1);
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(world.claim(s, "sft", 1), Ok(Reply::Ended));
    assert_eq!((world.live("samples"), world.live("prompts")), (0, 0));
}

#[test]
fn a_dropped_group_is_replaced_before_the_cut() {
    let (mut world, s) = start(schedule(2, 1, 0, 1), 2, 5);
    let samples = world.partition("samples");
    let drop = DropRows { rows: Rows::run(RowId(0), 2), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    complete(&mut world, s, &[1, 2]);
    assert_eq!(cuts(&world), [(0, 0, vec![1, 2], true)]);
}

#[test]
fn a_group_that_lost_its_last_incomplete_row_is_complete() {
    let (mut world, s) = start(schedule(1, 1, 0, 1), 2, 1);
    // The reward drops the second row before it has a score.
    let claimed = world.claimed(s, "rollout", 1);
    world.commit(s, "rollout", claimed.lease, &claimed.batch.rows).unwrap();
    world.work(s, "reward", 1);
    let samples = world.partition("samples");
    let drop = DropRows { rows: Rows::run(RowId(1), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    assert_eq!(world.work(s, "advantage", 1).batch.rows.to_string(), "0");
    assert_eq!(cuts(&world), [(0, 0, vec![0], true)]);
}

#[test]
fn rows_dropped_after_the_cut_leave_the_batch_and_an_empty_last_batch_does_not_hang() {
    let (mut world, s) = start(schedule(2, 2, 0, 2), 1, 4);
    complete(&mut world, s, &[0, 1]);
    let samples = world.partition("samples");
    let first = world.claimed(s, "actor", 1);
    assert!(!first.cut.clone().unwrap().last);
    world.commit(s, "actor", first.lease, &first.batch.rows).unwrap();
    let drop = DropRows { rows: Rows::run(RowId(1), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    let empty = world.claimed(s, "actor", 1);
    assert!(empty.batch.rows.is_empty());
    assert_eq!((empty.lease.0, empty.cut.unwrap().last), (0, true), "a lease that is none: publish");
    assert_eq!(world.catalog.state().schedule().unwrap().dropped, 0, "it keeps its place until the cycle ends");
    world.offer(s, "policy", Some(0)).unwrap();
    let schedule = world.catalog.state().schedule().unwrap();
    assert_eq!((schedule.retired, schedule.dropped, schedule.admitted), (1, 1, 4));
    world.work(s, "rollout", 9);
}

#[test]
fn a_cycle_whose_rows_are_all_dropped_is_published_as_it_is() {
    let (mut world, s) = start(schedule(2, 1, 0, 1), 1, 2);
    complete(&mut world, s, &[0, 1]);
    let samples = world.partition("samples");
    let drop = DropRows { rows: Rows::run(RowId(0), 2), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    assert!(world.claimed(s, "actor", 1).batch.rows.is_empty());
    let model = world.model("policy");
    let offer = Command::Offer { model, cycle: Some(0), weights: None, state: None };
    assert_eq!(world.call(s, offer), Ok(Reply::Offered(Some(1))));
    assert_eq!(world.claim(s, "actor", 1), Ok(Reply::Ended));
}

#[test]
fn when_the_stream_ends_within_a_cycle_and_nothing_is_left_an_empty_batch_ends_it() {
    let mut plan = schedule(2, 2, 0, 9);
    plan.grain = CutGrain::Mini;
    let (mut world, s) = start(plan, 1, 1);
    complete(&mut world, s, &[0]);
    world.work(s, "actor", 1);
    world.waits(s, "actor");
    let prompts = world.partition("prompts");
    world.call(s, Command::ClosePartition(prompts)).unwrap();
    assert_eq!(cuts(&world)[1], (0, 1, vec![], true));
    assert!(world.claimed(s, "actor", 1).cut.unwrap().last);
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(world.claim(s, "actor", 1), Ok(Reply::Ended));
}

#[test]
fn offering_too_early_or_the_wrong_cycle_is_refused_with_the_numbers() {
    let mut plan = schedule(2, 2, 0, 2);
    plan.grain = CutGrain::Mini;
    let (mut world, s) = start(plan, 1, 2);
    complete(&mut world, s, &[0]);
    world.work(s, "actor", 1);
    let model = world.model("policy");
    let offer = |cycle| Command::Offer { model, cycle: Some(cycle), weights: None, state: None };
    let early = world.call(s, offer(0)).unwrap_err().to_string();
    assert!(early.contains("not completely cut: 1 of 2"), "{early}");
    complete(&mut world, s, &[1]);
    let early = world.call(s, offer(0)).unwrap_err().to_string();
    assert!(early.contains("1 rows of cycle 0"), "{early}");
    let wrong = world.call(s, offer(1)).unwrap_err().to_string();
    assert!(wrong.contains("offers cycle 1") && wrong.contains("current cycle is 0 of 2"), "{wrong}");
    world.work(s, "actor", 1);
    world.call(s, offer(0)).unwrap();
    assert!(matches!(world.call(s, offer(0)), Err(Refusal::Offer { .. })));
}

#[test]
fn a_task_per_cycle_that_lags_behind_gets_an_ended_cycle_though_its_last_batch_is_gone() {
    let mut def = grpo(1, schedule(2, 2, 0, 2));
    def.tasks.push(task("statistics", "samples", Grain::Cycle, &["scores"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    complete(&mut world, s, &[0, 1]);
    let samples = world.partition("samples");
    let drop = DropRows { rows: Rows::run(RowId(1), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    world.work(s, "actor", 1);
    world.offer(s, "policy", Some(0)).unwrap();
    let claimed = world.work(s, "statistics", 1);
    assert_eq!((claimed.batch.rows.to_string(), claimed.cut.unwrap().sizes), ("0".into(), vec![1]));
}

#[test]
fn a_task_per_cycle_goes_on_with_the_next_cycle_while_another_lease_holds_one() {
    let mut def = grpo(1, schedule(1, 1, 0, 2));
    def.tasks.push(task("statistics", "samples", Grain::Cycle, &["scores"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    for cycle in 0..2 {
        complete(&mut world, s, &[cycle]);
        assert_eq!(world.claimed(s, "statistics", 1).cut.unwrap().cycle, cycle);
        world.work(s, "actor", 1);
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
}
