//! Admission by one inequality, and the lag each schedule promises.

use transferqueue::{
    RowId, Rows, SessionId,
    catalog::{command::*, definition::*, views::ScheduleView},
};

use crate::catalog_support::{World, grpo, schedule};

fn start(plan: Schedule, n: u32, prompts: u64) -> (World, SessionId) {
    let mut world = World::new(grpo(n, plan));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", prompts).unwrap();
    (world, s)
}

fn view(world: &World) -> ScheduleView {
    world.catalog.state().schedule().unwrap()
}

fn numbers(world: &World) -> (u64, u64, u64) {
    let view = view(world);
    (view.admitted, view.dropped, view.retired)
}

/// Everything that can be done short of the publication. Rollout notes the newest version as every token's.
fn stream(world: &mut World, s: SessionId) {
    loop {
        let mut idle = true;
        for task in ["rollout", "reward", "advantage", "actor"] {
            while let Ok(Reply::Claimed(claimed)) = world.claim(s, task, 100) {
                if claimed.batch.rows.is_empty() {
                    break;
                }
                idle = false;
                let notes = if task == "rollout" { sampled(world, &claimed) } else { vec![] };
                let cells = world.outputs(task, &claimed.batch.rows);
                let (lease, rows) = (claimed.lease, claimed.batch.rows);
                world.call(s, Command::Commit { lease, rows, cells, notes, drops: vec![] }).unwrap();
            }
        }
        if idle {
            return;
        }
    }
}

fn sampled(world: &World, claimed: &Claimed) -> Vec<RowNote> {
    let exact = world.catalog.state().definition().schedule.as_ref().unwrap().weights == WeightRule::Exact;
    let newest = world.catalog.state().version();
    let note = |head: &RowHead| {
        let first = if exact { head.version } else { newest };
        RowNote { row: head.row, tags: Tags::new(), span: Some(Span { first, last: newest }) }
    };
    claimed.heads.iter().map(note).collect()
}

/// Lags of the rows each publication consumed.
fn lags(world: &World) -> Vec<Vec<u64>> {
    let cycles = world.published.iter().filter_map(|p| Some((p.cycle?, p)));
    cycles.map(|(cycle, p)| p.rows.iter().map(|row| cycle - row.span.unwrap().first).collect()).collect()
}

#[test]
fn on_policy_admits_one_cycle_and_nothing_is_in_flight_at_a_publication() {
    let (mut world, s) = start(schedule(3, 1, 0, 3), 2, 20);
    assert_eq!(numbers(&world), (3, 0, 0));
    for cycle in 0..3 {
        assert_eq!(world.live("samples"), 6);
        stream(&mut world, s);
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
    assert_eq!(numbers(&world), (9, 0, 9));
    assert!(lags(&world).iter().flatten().all(|lag| *lag == 0));
    assert_eq!(lags(&world).len(), 3);
}

#[test]
fn one_step_off_has_a_lag_of_one_in_steady_state() {
    let (mut world, s) = start(schedule(2, 1, 2, 4), 1, 20);
    assert_eq!(numbers(&world), (4, 0, 0));
    for cycle in 0..4 {
        stream(&mut world, s);
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
    assert_eq!(numbers(&world), (8, 0, 8), "not one group more than the run needs");
    assert_eq!(lags(&world), [[0, 0], [1, 1], [1, 1], [1, 1]]);
}

#[test]
fn the_floor_of_s_times_b_may_be_ahead() {
    let (world, _) = start(schedule(4, 1, 3, 9), 1, 50);
    assert_eq!(numbers(&world), (7, 0, 0));
    let view = view(&world);
    assert_eq!((view.in_flight, view.allowed), (7, 7));
}

#[test]
fn admission_stops_at_the_runs_length() {
    let (world, _) = start(schedule(4, 1, 20, 2), 1, 50);
    assert_eq!(numbers(&world), (8, 0, 0));
}

#[test]
fn a_dropped_group_makes_room_for_another() {
    let (mut world, _) = start(schedule(2, 1, 0, 1), 2, 9);
    let samples = world.partition("samples");
    let drop = |row, len| DropRows { rows: Rows::run(RowId(row), len), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop(0, 1) }).unwrap();
    assert_eq!(numbers(&world), (2, 0, 0), "a group with a row left is not dropped");
    world.own(Command::Drop { partition: samples, rows: drop(1, 1) }).unwrap();
    assert_eq!(numbers(&world), (3, 1, 0));
}

#[test]
fn prompts_are_admitted_in_the_order_of_their_ids_with_that_as_ordinal() {
    let (mut world, s) = start(schedule(3, 1, 0, 1), 1, 0);
    let prompts = world.partition("prompts");
    world.put(s, "prompts", 2).unwrap();
    world.put(s, "prompts", 3).unwrap();
    let claimed = world.claimed(s, "rollout", 9);
    assert_eq!(claimed.heads.iter().map(|head| head.ordinal).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(world.catalog.state().rows(prompts).unwrap().to_string(), "0-4");
}

#[test]
fn prompts_that_were_dropped_are_skipped() {
    let (mut world, s) = start(schedule(1, 1, 0, 3), 1, 3);
    let prompts = world.partition("prompts");
    let drop = DropRows { rows: Rows::run(RowId(1), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: prompts, rows: drop }).unwrap();
    stream(&mut world, s);
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(world.claimed(s, "rollout", 1).heads[0].ordinal, 2);
}

#[test]
fn when_the_run_is_over_the_rest_is_dropped_as_surplus_and_everything_ends() {
    let mut plan = schedule(2, 1, 0, 1);
    plan.order = Order::Completion;
    let (mut world, s) = start(plan, 1, 9);
    stream(&mut world, s);
    // A group lost before the cut was replaced; one lost after it leaves no surplus either.
    world.offer(s, "policy", Some(0)).unwrap();
    assert!(view(&world).over);
    for task in ["rollout", "reward", "advantage", "actor"] {
        assert_eq!(world.claim(s, task, 1), Ok(Reply::Ended), "{task}");
        assert!(world.ledger(task).balanced());
    }
    assert_eq!((world.live("prompts"), world.live("samples")), (0, 0));
    assert_eq!(world.unit.len(), 1, "only the newest weights are left: {:?}", world.unit);
    assert_eq!(world.put(s, "prompts", 1), Ok(Reply::Ended), "the source is told");
}

#[test]
fn groups_admitted_beyond_the_last_cycle_are_surplus() {
    let mut plan = schedule(2, 2, 0, 1);
    (plan.order, plan.grain) = (Order::Completion, CutGrain::Mini);
    let (mut world, s) = start(plan, 1, 9);
    let samples = world.partition("samples");
    // Both minis are cut with last = true only once two groups are; a drop before makes another be admitted.
    let claimed = world.claimed(s, "rollout", 2);
    world.commit(s, "rollout", claimed.lease, &claimed.batch.rows).unwrap();
    let drop = DropRows { rows: Rows::run(RowId(1), 1), reason: "unwanted".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    assert_eq!(numbers(&world), (3, 1, 0));
    stream(&mut world, s);
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(numbers(&world), (3, 1, 2));
    assert_eq!(world.ledger("actor").consumed, 2);
}

#[test]
fn max_lag_in_completion_order_cuts_the_oldest_first_and_waits_for_them() {
    let mut plan = schedule(2, 1, 2, 4);
    (plan.order, plan.grain, plan.weights) = (Order::Completion, CutGrain::Mini, WeightRule::AtLeast);
    plan.max_lag = Some(1);
    let (mut world, s) = start(plan, 1, 20);
    // Row 0 stays behind while the others are trained.
    let slow = world.claimed(s, "rollout", 1);
    assert_eq!(slow.batch.rows.to_string(), "0");
    stream(&mut world, s);
    world.offer(s, "policy", Some(0)).unwrap();
    // Now row 0 has lag 1: it must be in this cycle, however many others are complete.
    stream(&mut world, s);
    assert!(view(&world).complete >= 2);
    assert_eq!(view(&world).cut, 0, "it is waited for");
    let note = RowNote { row: RowId(0), tags: Tags::new(), span: Some(Span { first: 0, last: 1 }) };
    let cells = world.outputs("rollout", &slow.batch.rows);
    let (lease, rows) = (slow.lease, slow.batch.rows);
    world.call(s, Command::Commit { lease, rows, cells, notes: vec![note], drops: vec![] }).unwrap();
    stream(&mut world, s);
    assert_eq!(view(&world).cut, 2);
    world.offer(s, "policy", Some(1)).unwrap();
    assert!(lags(&world).iter().flatten().all(|lag| *lag <= 1), "{:?}", lags(&world));
    assert!(world.published[2].rows.iter().any(|row| row.row == RowId(0)));
}

#[test]
fn max_lag_in_completion_order_leaves_behind_what_later_cycles_have_places_for() {
    let mut plan = schedule(2, 1, 2, 4);
    (plan.order, plan.weights, plan.max_lag) = (Order::Completion, WeightRule::AtLeast, Some(2));
    let (mut world, s) = start(plan, 1, 20);
    world.claimed(s, "rollout", 2);
    for cycle in 0..2 {
        stream(&mut world, s);
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
    stream(&mut world, s);
    assert!(view(&world).complete >= 2);
    assert_eq!(view(&world).cut, 0, "rows 0 and 1 have lag 2 now");
}

#[test]
fn without_a_largest_lag_completion_order_leaves_a_slow_group_behind() {
    let mut plan = schedule(2, 1, 2, 4);
    (plan.order, plan.grain, plan.weights) = (Order::Completion, CutGrain::Mini, WeightRule::AtLeast);
    let (mut world, s) = start(plan, 1, 20);
    world.claimed(s, "rollout", 1);
    for cycle in 0..3 {
        stream(&mut world, s);
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
    assert!(world.published.iter().flat_map(|p| &p.rows).all(|row| row.row != RowId(0)));
}

#[test]
fn with_drop_beyond_stale_groups_are_dropped_and_replaced() {
    let mut plan = schedule(2, 1, 2, 4);
    (plan.order, plan.grain, plan.weights) = (Order::Completion, CutGrain::Mini, WeightRule::AtLeast);
    (plan.max_lag, plan.drop_beyond) = (Some(0), true);
    let (mut world, s) = start(plan, 1, 20);
    let slow = world.claimed(s, "rollout", 1);
    stream(&mut world, s);
    let trained = view(&world).cut;
    assert_eq!(trained, 2);
    world.offer(s, "policy", Some(0)).unwrap();
    // Of the two groups left over the complete one is stale; the one not sampled yet may still use newer weights.
    assert_eq!(view(&world).dropped, 1);
    assert_eq!(world.ledger("actor").dropped, [("stale".to_owned(), 1)].into());
    let note = RowNote { row: RowId(0), tags: Tags::new(), span: Some(Span { first: 0, last: 1 }) };
    let cells = world.outputs("rollout", &slow.batch.rows);
    let (lease, rows) = (slow.lease, slow.batch.rows);
    world.call(s, Command::Commit { lease, rows, cells, notes: vec![note], drops: vec![] }).unwrap();
    assert_eq!(view(&world).dropped, 2, "and is dropped once its first token is known to be too old");
    for cycle in 1..4 {
        stream(&mut world, s);
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
    assert!(lags(&world).iter().flatten().all(|lag| *lag == 0));
}

#[test]
fn under_exact_weights_a_group_that_is_too_old_is_stale_before_it_is_sampled() {
    let mut plan = schedule(1, 1, 2, 9);
    (plan.max_lag, plan.drop_beyond) = (Some(1), true);
    let (mut world, s) = start(plan, 1, 20);
    stream(&mut world, s);
    world.offer(s, "policy", Some(0)).unwrap();
    stream(&mut world, s);
    world.offer(s, "policy", Some(1)).unwrap();
    assert_eq!(view(&world).dropped, 1, "group 2 was admitted at version 0 and could be trained at 2 at the earliest");
    assert_eq!(lags(&world), [[0], [1]]);
}

#[test]
fn the_ledger_is_exact_at_every_moment_of_a_run() {
    let (mut world, s) = start(schedule(2, 2, 1, 2), 3, 4);
    world.work(s, "rollout", 5);
    world.work(s, "reward", 4);
    let rows = |task: &str| {
        let entry = world.ledger(task);
        (entry.owed, entry.consumed, entry.live)
    };
    assert_eq!(rows("rollout"), (9, 5, 4));
    assert_eq!(rows("reward"), (9, 4, 5));
    assert_eq!(rows("advantage"), (9, 0, 9));
    assert_eq!(rows("actor"), (9, 0, 9));
}

#[test]
fn a_ledger_that_lost_a_row_does_not_balance() {
    let (world, _) = start(schedule(1, 1, 0, 1), 1, 1);
    let mut entry = world.ledger("rollout");
    assert!(entry.balanced());
    entry.live -= 1;
    assert!(!entry.balanced());
}
