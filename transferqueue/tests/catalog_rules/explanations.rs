//! What a wait says: what is wanted, how far it is, and who holds it up.

use transferqueue::{
    Millis, SessionId,
    catalog::{command::*, definition::*},
};

use crate::catalog_support::{World, grpo, row_column, schedule, task};

fn start(n: u32, plan: Schedule, prompts: u64) -> (World, SessionId) {
    let mut world = World::new(grpo(n, plan));
    let s = world.session("s");
    world.put(s, "prompts", prompts).unwrap();
    (world, s)
}

/// The tasks that a claim's wait names.
fn named(world: &mut World, s: SessionId, task: &str) -> Vec<String> {
    world.waits(s, task).causes.into_iter().map(|cause| cause.task).collect()
}

#[test]
fn a_wait_names_the_lease_its_worker_and_how_long_it_has_been_held() {
    let (mut world, s) = start(8, schedule(4, 1, 0, 1), 4);
    world.work(s, "rollout", 32);
    let slow = world.session("reward-0");
    let lease = world.claimed(slow, "reward", 16).lease;
    world.work(s, "reward", 16);
    world.now += 3_100;
    world.waits(s, "actor");
    world.work(s, "advantage", 9);
    let text = world.waits(s, "actor").to_string();
    assert_eq!(
        text,
        format!(
            "task `actor` wants a batch of `prompt`, `responses`, `advantages` of cycle 0; 0 of 4 groups cut, 2 complete, \
             4 in flight; `reward` holds 16 under lease {lease} (worker reward-0) for 3.1 s"
        )
    );
    let text = world.waits(s, "advantage").to_string();
    assert!(text.contains("`reward` holds 16 under lease"), "{text}");
}

#[test]
fn a_wait_names_rows_that_no_worker_has_claimed() {
    let (mut world, s) = start(2, schedule(2, 1, 0, 1), 2);
    world.work(s, "rollout", 3);
    let text = world.waits(s, "actor").to_string();
    assert!(text.contains("`reward` holds 3 ready: no worker has claimed it yet"), "{text}");
    world.work(s, "reward", 3);
    let text = world.waits(s, "reward").to_string();
    assert!(text.contains("`rollout` holds 1 ready: no worker has claimed it yet"), "{text}");
    assert!(text.starts_with("task `reward` wants up to 100 rows of `responses`; 0 ready of 1 owed"), "{text}");
}

#[test]
fn a_task_that_two_writers_wait_for_is_named_once() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.partitions[1].columns.push(row_column("lengths"));
    def.tasks.push(task("length", "samples", Grain::Row, &["responses"], &["lengths"]));
    def.tasks.push(task("both", "samples", Grain::Row, &["scores", "lengths"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    world.claimed(s, "rollout", 1);
    assert_eq!(named(&mut world, s, "both"), ["rollout"]);
}

#[test]
fn a_task_whose_rows_are_all_leased_waits_for_these_leases() {
    let (mut world, s) = start(2, schedule(1, 1, 0, 1), 1);
    let lease = world.claimed(s, "rollout", 2).lease;
    let other = world.session("other");
    let wait = world.waits(other, "rollout");
    assert_eq!(wait.causes.iter().map(|cause| cause.lease).collect::<Vec<_>>(), [Some(lease)]);
}

#[test]
fn a_task_with_rows_ready_does_not_wait_for_its_own_leases() {
    let (mut world, s) = start(2, schedule(2, 1, 0, 1), 2);
    world.work(s, "rollout", 4);
    world.work(s, "reward", 3);
    world.claimed(s, "advantage", 1);
    assert_eq!(named(&mut world, s, "advantage"), ["reward"]);
}

#[test]
fn a_wait_for_a_cut_batch_says_how_many_of_its_rows_are_ready() {
    let mut def = grpo(2, schedule(2, 1, 0, 1));
    def.tasks[2].per = Grain::Cycle;
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    world.work(s, "rollout", 4);
    world.work(s, "reward", 4);
    let helper = world.session("helper");
    let lease = world.claimed(helper, "advantage", 1).lease;
    let text = world.waits(s, "actor").to_string();
    assert!(text.contains("wants 4 rows") && text.contains("(cycle 0, batch 0); 0 ready"), "{text}");
    assert!(text.contains(&format!("`advantage` holds 4 under lease {lease} (worker helper)")), "{text}");
}

#[test]
fn a_rollout_that_waits_for_admission_hears_the_inequality() {
    let (mut world, s) = start(1, schedule(2, 1, 1, 3), 9);
    world.work(s, "rollout", 9);
    let text = world.waits(s, "rollout").to_string();
    assert!(text.contains("3 admitted − 0 dropped − 0 retired = 3 in flight, 3 allowed"), "{text}");
    assert!(text.contains("cycle 0 has not ended"), "{text}");
}

#[test]
fn a_rollout_without_prompts_hears_so() {
    let (mut world, s) = start(1, schedule(2, 1, 0, 3), 1);
    world.work(s, "rollout", 9);
    let text = world.waits(s, "rollout").to_string();
    assert!(text.contains("no row of `prompts` left to expand, and it is not closed"), "{text}");
}

#[test]
fn a_trainer_that_waits_for_its_publication_hears_whose_part_is_missing() {
    let mut def = grpo(1, schedule(1, 1, 0, 2));
    def.tasks[3].name = "learner".into();
    let mut world = World::new(def);
    let (s, other) = (world.session("worker-1"), world.session("worker-2"));
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    for task in ["rollout", "reward", "advantage", "learner"] {
        world.work(s, task, 1);
    }
    let text = world.waits(other, "learner").to_string();
    assert!(text.contains("trained by worker worker-1, which has not offered version 1"), "{text}");
}

#[test]
fn the_task_table_shows_backlog_ready_holders_and_waits() {
    let (mut world, s) = start(2, schedule(2, 1, 0, 1), 2);
    let claimed = world.claimed(s, "rollout", 1);
    world.call(s, Command::Renew { lease: claimed.lease, progress: 7 }).unwrap();
    let tasks = world.catalog.state().tasks(Millis(2_000));
    let rollout = &tasks[0];
    assert_eq!((rollout.backlog, rollout.ready, rollout.leases.len()), (4, 3, 1));
    let lease = &rollout.leases[0];
    assert_eq!((lease.holder.as_str(), lease.rows, lease.for_ms, lease.progress), ("s", 1, 2_000, Some(7)));
    assert_eq!(lease.left_ms, 58_000);
    assert!(rollout.wait.is_none() && tasks[1].wait.is_some());
    let sessions = world.catalog.state().sessions(Millis(2_000));
    assert_eq!((sessions[0].rows, sessions[0].leases.len()), (1, 1));
}

#[test]
fn a_wait_for_groups_counts_rows_and_whole_groups() {
    let (mut world, s) = start(2, schedule(2, 1, 0, 1), 2);
    world.work(s, "rollout", 4);
    world.work(s, "reward", 1);
    world.claimed(s, "reward", 1);
    let text = world.waits(s, "advantage").to_string();
    assert!(text.contains("up to 100 groups of `scores`; 0 whole ones ready; 1 rows ready of 4 owed"), "{text}");
    assert!(text.contains("`reward` holds 2 ready") && text.contains("`reward` holds 1 under lease"), "{text}");
}

#[test]
fn a_wait_for_batches_is_for_the_first_that_nobody_holds() {
    let mut def = grpo(1, schedule(2, 2, 0, 1));
    for (column, name) in [("old", "old"), ("new", "new")] {
        def.partitions[1].columns.push(row_column(column));
        def.tasks.push(task(name, "samples", Grain::Mini, &["responses"], &[column]));
    }
    let last = def.tasks.len() - 1;
    def.tasks[last].reads.push("old".into());
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    for task in ["rollout", "reward"] {
        world.work(s, task, 2);
    }
    (0..2).for_each(|_| _ = world.work(s, "advantage", 1));
    world.work(s, "old", 1);
    world.claimed(s, "new", 1);
    let text = world.waits(s, "new").to_string();
    assert!(text.contains("wants 1 rows of `responses`, `old` (cycle 0, batch 1); 0 ready"), "{text}");
    assert!(text.contains("`old` holds 1 ready: no worker has claimed it yet"), "{text}");
}

#[test]
fn a_wait_for_a_round_says_how_many_groups_are_missing() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    let gate = Gate::Every { cycles: 0, first: true };
    def.partitions.push(crate::catalog_support::put_partition("val_prompts", &["prompt"]));
    let birth = Birth::Expand { from: "val_prompts".into(), n: 1, link: vec!["prompt".into()], gate };
    def.partitions.push(Partition { name: "val".into(), columns: vec![row_column("responses")], birth });
    def.tasks.push(task("rollout.val", "val", Grain::Row, &["prompt"], &["responses"]));
    def.tasks.push(task("validate", "val", Grain::Cycle, &["responses"], &[]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "val_prompts", 3).unwrap();
    assert!(world.waits(s, "validate").to_string().contains("no round is under way"));
    let val = world.partition("val_prompts");
    world.call(s, Command::ClosePartition(val)).unwrap();
    world.work(s, "rollout.val", 1);
    let text = world.waits(s, "validate").to_string();
    assert!(text.contains("a round of `responses`; round 0: 2 groups are not complete"), "{text}");
    assert!(text.contains("`rollout.val` holds 2 ready"), "{text}");
}

#[test]
fn a_rollout_that_waits_for_a_column_of_its_prompts_hears_who_writes_it() {
    let mut def = grpo(1, schedule(1, 1, 0, 1));
    def.partitions[0].columns.push(row_column("tokens"));
    let link = vec!["prompt".into(), "tokens".into()];
    def.partitions[1].birth = Birth::Expand { from: "prompts".into(), n: 1, link, gate: Gate::Schedule };
    def.tasks.push(task("tokenise", "prompts", Grain::Row, &["prompt"], &["tokens"]));
    let mut world = World::new(def);
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    let text = world.waits(s, "rollout").to_string();
    assert!(text.contains("waits for `tokens` of `prompts`, which `tokenise` writes"), "{text}");
}

#[test]
fn more_holders_than_fit_are_counted() {
    let (mut world, s) = start(1, schedule(9, 1, 0, 1), 9);
    (0..9).for_each(|_| _ = world.claimed(s, "rollout", 1));
    let wait = world.waits(s, "reward");
    assert_eq!(wait.causes.iter().filter(|cause| cause.lease.is_some()).count(), 3);
    assert!(wait.to_string().contains("`rollout` has 6 more leases"), "{wait}");
}
