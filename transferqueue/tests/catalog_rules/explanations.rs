//! What a wait says: what is wanted, how far it is, and who holds it up.

use transferqueue::{
    Millis, SessionId,
    catalog::{command::*, definition::*},
};

use crate::catalog_support::{World, grpo, schedule};

fn start(n: u32, plan: Schedule, prompts: u64) -> (World, SessionId) {
    let mut world = World::new(grpo(n, plan));
    let s = world.session("s");
    world.put(s, "prompts", prompts).unwrap();
    (world, s)
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
