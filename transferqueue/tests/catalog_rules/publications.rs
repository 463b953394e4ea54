//! Weight versions: published together, pinned, retired; trainers that are lost; restores.

use transferqueue::{
    Millis, ModelId, RowId, Rows, SessionId,
    catalog::{Event, Refusal, Wake, command::*, definition::*},
};

use crate::catalog_support::{World, grpo, row_column, schedule, task};

/// GRPO with a critic, which begins to train in a given cycle.
fn ppo(plan: Schedule, actor_from: u64, critic_from: u64) -> Definition {
    let mut def = grpo(1, plan);
    def.models.push(Model { name: "critic".into(), keep_initial: false });
    def.tasks[3].trains.as_mut().unwrap().from_cycle = actor_from;
    let mut critic = task("critic", "samples", Grain::Mini, &["responses", "advantages"], &[]);
    critic.trains = Some(Trains { model: "critic".into(), from_cycle: critic_from });
    def.tasks.push(critic);
    def
}

fn stream(world: &mut World, s: SessionId) {
    for task in ["rollout", "reward", "advantage"] {
        while let Ok(Reply::Claimed(claimed)) = world.claim(s, task, 100) {
            world.commit(s, task, claimed.lease, &claimed.batch.rows.clone()).unwrap();
        }
    }
}

fn versions(world: &World, model: &str) -> Vec<(u64, String)> {
    let views = world.catalog.state().versions_alive();
    views.into_iter().filter(|v| v.model == model).map(|v| (v.version, v.partition)).collect()
}

fn pin(world: &mut World, s: SessionId, version: Option<u64>) -> Result<Reply, Refusal> {
    let model = world.model("policy");
    world.call(s, Command::Pin { model, version })
}

#[test]
fn version_0_is_there_once_every_model_has_offered_its_initial_weights() {
    let mut world = World::new(ppo(schedule(1, 1, 0, 1), 0, 0));
    let s = world.session("s");
    assert!(matches!(pin(&mut world, s, None), Ok(Reply::NotYet(_))));
    assert_eq!(world.offer(s, "policy", None), Ok(Reply::Offered(None)));
    assert!(matches!(pin(&mut world, s, Some(0)), Ok(Reply::NotYet(_))));
    assert!(world.catalog.state().newest(ModelId(0)).unwrap().offered);
    world.wakes.clear();
    assert_eq!(world.offer(s, "critic", None), Ok(Reply::Offered(Some(0))));
    assert!(world.wakes.contains(&Wake::Version(ModelId(0))) && world.wakes.contains(&Wake::Version(ModelId(1))));
    let Reply::Pinned(pinned) = pin(&mut world, s, None).unwrap() else { panic!() };
    assert_eq!((pinned.version, pinned.lineage), (0, 0));
    let again = world.weights(s, "again");
    let offer = Command::Offer { model: world.model("policy"), cycle: None, weights: Some(again), state: None };
    assert!(matches!(world.call(s, offer), Err(Refusal::Offer { .. })));
}

#[test]
fn admission_does_not_wait_for_weights_but_an_offer_of_a_cycle_does() {
    let mut world = World::new(ppo(schedule(1, 1, 0, 1), 0, 1));
    let s = world.session("s");
    world.put(s, "prompts", 1).unwrap();
    world.offer(s, "policy", None).unwrap();
    stream(&mut world, s);
    world.work(s, "actor", 1);
    let model = world.model("policy");
    let offer = Command::Offer { model, cycle: Some(0), weights: None, state: None };
    let Reply::NotYet(wait) = world.call(s, offer.clone()).unwrap() else { panic!() };
    assert!(wait.to_string().contains("`critic` has not been offered"), "{wait}");
    world.offer(s, "critic", None).unwrap();
    assert_eq!(world.call(s, offer), Ok(Reply::Offered(Some(1))));
}

#[test]
fn a_publication_is_one_event_for_all_models_when_the_last_part_is_offered() {
    let mut world = World::new(ppo(schedule(1, 1, 0, 2), 0, 0));
    let (a, c) = (world.session("actor"), world.session("critic"));
    world.offer(a, "policy", None).unwrap();
    world.offer(c, "critic", None).unwrap();
    world.put(a, "prompts", 2).unwrap();
    stream(&mut world, a);
    world.work(a, "actor", 1);
    assert_eq!(world.offer(a, "policy", Some(0)), Ok(Reply::Offered(None)));
    assert_eq!((world.ledger("actor").consumed, world.catalog.state().version()), (0, 0), "not yet consumed");
    let text = world.waits(a, "actor").to_string();
    assert!(text.contains("is done with 1 rows; version 1 is not published"), "{text}");
    world.work(c, "critic", 1);
    assert_eq!(world.offer(c, "critic", Some(0)), Ok(Reply::Offered(Some(1))));
    assert_eq!((world.ledger("actor").consumed, world.ledger("critic").consumed), (1, 1));
    let published = world.published.last().unwrap();
    let tasks: Vec<_> = published.rows.iter().map(|row| (row.task, row.row.0, row.index)).collect();
    assert_eq!(tasks, [(world.task("actor"), 0, 0), (world.task("critic"), 0, 0)]);
    assert_eq!(versions(&world, "policy"), [(1, "weights/policy/0.1".to_owned())]);
    assert_eq!(versions(&world, "critic"), [(1, "weights/critic/0.1".to_owned())]);
}

#[test]
fn a_model_that_does_not_train_yet_owes_nothing_and_is_published_as_an_alias() {
    let mut world = World::new(ppo(schedule(1, 1, 0, 2), 1, 0));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.offer(s, "critic", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    stream(&mut world, s);
    assert_eq!(world.ledger("actor").dropped, [("before_from_cycle".to_owned(), 1)].into());
    world.waits(s, "actor");
    world.work(s, "critic", 1);
    assert!(matches!(world.offer(s, "policy", Some(0)), Err(Refusal::Offer { .. })), "it does not train");
    let (_, record) = (world.offer(s, "critic", Some(0)).unwrap(), world.last().to_vec());
    assert_eq!(versions(&world, "policy"), [(1, "weights/policy/0.0".to_owned())]);
    assert!(record.iter().any(|e| matches!(e, Event::VersionRetired { model: ModelId(0), version: 0 })));
    let old = world.partition("weights/policy/0.0");
    assert!(!record.iter().any(|e| matches!(e, Event::PartitionDeleted { partition } if *partition == old)));
    stream(&mut world, s);
    world.work(s, "actor", 1);
    world.work(s, "critic", 1);
    let model = world.model("critic");
    let unchanged = Command::Offer { model, cycle: Some(1), weights: None, state: None };
    world.call(s, unchanged).unwrap();
    let policy = world.weights(s, "weights/policy/second");
    let model = world.model("policy");
    world.call(s, Command::Offer { model, cycle: Some(1), weights: Some(policy), state: None }).unwrap();
    assert!(world.catalog.state().partition("weights/policy/0.0").is_none(), "no alias is left");
    assert_eq!(versions(&world, "critic"), [(2, "weights/critic/0.1".to_owned())]);
}

#[test]
fn a_version_goes_when_it_is_not_newest_not_pinned_and_not_needed() {
    let mut def = grpo(1, schedule(1, 1, 1, 4));
    def.models[0].keep_initial = true;
    let mut world = World::new(def);
    let (s, reader) = (world.session("s"), world.session("reader"));
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 9).unwrap();
    let publish = |world: &mut World, cycle| {
        stream(world, s);
        world.work(s, "actor", 1);
        world.offer(s, "policy", Some(cycle)).unwrap();
    };
    publish(&mut world, 0);
    let numbers = |world: &World| versions(world, "policy").into_iter().map(|(v, _)| v).collect::<Vec<_>>();
    assert_eq!(numbers(&world), [0, 1]);
    pin(&mut world, reader, Some(1)).unwrap();
    publish(&mut world, 1);
    // 1 is pinned and needed (group 2 was admitted under it), 0 is kept.
    assert_eq!(numbers(&world), [0, 1, 2]);
    publish(&mut world, 2);
    assert_eq!(numbers(&world), [0, 1, 2, 3], "2 is needed by group 3");
    let model = world.model("policy");
    world.call(reader, Command::Unpin { model, version: 1 }).unwrap();
    assert_eq!(numbers(&world), [0, 2, 3]);
    assert!(world.catalog.state().partition("weights/policy/0.1").is_none());
    assert!(matches!(world.call(reader, Command::Unpin { model, version: 1 }), Err(Refusal::Version { .. })));
    let gone = pin(&mut world, reader, Some(1)).unwrap_err().to_string();
    assert!(gone.contains("version 1") && gone.contains("retired"), "{gone}");
}

#[test]
fn pins_count_and_end_with_their_session() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 3)));
    let (s, reader) = (world.session("s"), world.session("reader"));
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 9).unwrap();
    pin(&mut world, reader, None).unwrap();
    pin(&mut world, reader, Some(0)).unwrap();
    let model = world.model("policy");
    world.call(reader, Command::Unpin { model, version: 0 }).unwrap();
    stream(&mut world, s);
    world.work(s, "actor", 1);
    world.offer(s, "policy", Some(0)).unwrap();
    assert_eq!(versions(&world, "policy").len(), 2);
    world.call(reader, Command::CloseSession).unwrap();
    assert_eq!(versions(&world, "policy").len(), 1);
}

#[test]
fn a_pin_waits_for_a_version_to_come_unless_none_will() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 1).unwrap();
    let Reply::NotYet(wait) = pin(&mut world, s, Some(1)).unwrap() else { panic!() };
    let text = wait.to_string();
    assert!(text.contains("version 1") && text.contains("`actor` has not offered"), "{text}");
    stream(&mut world, s);
    world.work(s, "actor", 1);
    world.offer(s, "policy", Some(0)).unwrap();
    assert!(matches!(pin(&mut world, s, Some(1)), Ok(Reply::Pinned(_))));
    let never = pin(&mut world, s, Some(2)).unwrap_err().to_string();
    assert!(never.contains("run is over"), "{never}");
}

#[test]
fn a_pin_that_waits_is_woken_when_the_stream_ends() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    assert!(matches!(pin(&mut world, s, Some(1)), Ok(Reply::NotYet(_))));
    world.wakes.clear();
    let prompts = world.partition("prompts");
    world.call(s, Command::ClosePartition(prompts)).unwrap();
    assert!(world.wakes.contains(&Wake::Version(world.model("policy"))));
    assert!(pin(&mut world, s, Some(1)).is_err(), "no version will come");
}

#[test]
fn the_newest_trainer_state_alone_is_kept() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 2)));
    let s = world.session("s");
    world.put(s, "prompts", 2).unwrap();
    let model = world.model("policy");
    for cycle in [None, Some(0), Some(1)] {
        if cycle.is_some() {
            stream(&mut world, s);
            world.work(s, "actor", 1);
        }
        let weights = Some(world.weights(s, &format!("w{cycle:?}")));
        let state = Some(world.weights(s, &format!("s{cycle:?}")));
        world.call(s, Command::Offer { model, cycle, weights, state }).unwrap();
        let newest = world.catalog.state().newest(model).unwrap();
        assert_eq!(newest.state, state);
        let names: Vec<String> = world.catalog.state().partitions().into_iter().skip(2).map(|p| p.name).collect();
        assert_eq!(names, [format!("w{cycle:?}"), format!("s{cycle:?}")]);
    }
}

#[test]
fn only_complete_partitions_of_their_own_are_offered_once() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 2)));
    let s = world.session("s");
    let model = world.model("policy");
    let offer = |weights, state| Command::Offer { model, cycle: None, weights, state };
    let prompts = world.partition("prompts");
    let partition = Partition { name: "open".into(), columns: vec![], birth: Birth::Put { capacity: None } };
    let Reply::Partition(open) = world.call(s, Command::CreatePartition(partition)).unwrap() else { panic!() };
    let good = world.weights(s, "good");
    for (bad, word) in [
        (offer(Some(prompts), None), "declared"),
        (offer(Some(open), None), "not closed"),
        (offer(None, None), "no weights"),
        (offer(Some(good), Some(good)), "two"),
    ] {
        let refusal = world.call(s, bad).unwrap_err().to_string();
        assert!(refusal.contains(word), "{refusal}");
    }
    world.call(s, offer(Some(good), None)).unwrap();
    world.put(s, "prompts", 1).unwrap();
    stream(&mut world, s);
    world.work(s, "actor", 1);
    let again = Command::Offer { model, cycle: Some(0), weights: Some(good), state: None };
    assert!(world.call(s, again).unwrap_err().to_string().contains("already belongs"));
    let drop = DropRows { rows: Rows::run(RowId(0), 1), reason: "x".into() };
    assert!(world.own(Command::Drop { partition: good, rows: drop }).is_err(), "a version is complete");
    assert!(world.call(s, Command::DeletePartition(good)).is_err());
}

#[test]
fn an_offered_part_is_not_deleted_while_other_parts_are_waited_for() {
    let mut world = World::new(ppo(schedule(1, 1, 0, 2), 0, 0));
    let s = world.session("s");
    let [weights, state] = ["weights", "state"].map(|name| world.weights(s, name));
    let model = world.model("policy");
    let offer = Command::Offer { model, cycle: None, weights: Some(weights), state: Some(state) };
    assert_eq!(world.call(s, offer), Ok(Reply::Offered(None)));
    for part in [weights, state] {
        assert!(matches!(world.call(s, Command::DeletePartition(part)), Err(Refusal::Partition { .. })));
    }
}

#[test]
fn what_a_lost_session_was_building_goes_with_it() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 2)));
    let (s, other) = (world.session("s"), world.session("other"));
    world.weights(s, "weights/policy/0.0");
    // A worker that comes back need not wait for its former self.
    let second = world.weights(other, "weights/policy/0.0");
    let taken = Partition { name: "weights/policy/0.0".into(), columns: vec![], birth: Birth::Put { capacity: None } };
    assert!(world.call(other, Command::CreatePartition(taken)).is_err());
    let model = world.model("policy");
    world.call(other, Command::Offer { model, cycle: None, weights: Some(second), state: None }).unwrap();
    world.call(s, Command::CloseSession).unwrap();
    assert_eq!(world.partition("weights/policy/0.0"), second);
    assert_eq!(world.catalog.state().partitions().len(), 3);
    world.call(other, Command::CloseSession).unwrap();
    assert_eq!(world.partition("weights/policy/0.0"), second, "what is published stays");
}

#[test]
fn a_partition_added_by_the_store_itself_stays() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 2)));
    let partition = Partition { name: "notes".into(), columns: vec![], birth: Birth::Put { capacity: None } };
    world.own(Command::CreatePartition(partition.clone())).unwrap();
    world.restore();
    assert!(world.own(Command::CreatePartition(partition.clone())).is_err());
    let gate = Gate::Every { cycles: 1, first: true };
    let birth = Birth::Expand { from: "prompts".into(), n: 1, link: vec![], gate };
    assert!(world.own(Command::CreatePartition(Partition { name: "late".into(), birth, ..partition })).is_err());
}

#[test]
fn training_that_was_in_a_lost_sessions_memory_is_done_again() {
    let mut world = World::new(grpo(1, schedule(2, 2, 0, 1)));
    let (s, next) = (world.session("s"), world.session("next"));
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    stream(&mut world, s);
    world.work(s, "actor", 1);
    world.work(s, "actor", 1);
    world.waits(next, "actor");
    let theft = Command::Offer { model: world.model("policy"), cycle: Some(0), weights: None, state: None };
    let refusal = world.call(next, theft).unwrap_err().to_string();
    assert!(refusal.contains("trained by session"), "{refusal}");
    world.call(s, Command::CloseSession).unwrap();
    assert_eq!(world.claimed(next, "actor", 1).batch.rows.to_string(), "0");
    assert_eq!(world.claimed(next, "actor", 1).batch.rows.to_string(), "1");
    assert_eq!(world.ledger("actor").consumed, 0);
}

#[test]
fn an_expired_lease_of_a_training_task_takes_the_whole_cycle_back() {
    let mut world = World::new(grpo(1, schedule(2, 2, 0, 1)));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    stream(&mut world, s);
    world.work(s, "actor", 1);
    let wedged = world.claimed(s, "actor", 1);
    for _ in 0..61 {
        world.pass(1_000);
        world.call(s, Command::Heartbeat).unwrap();
    }
    assert!(matches!(world.commit(s, "actor", wedged.lease, &wedged.batch.rows), Err(Refusal::LeaseEnded { .. })));
    let other = world.session("other");
    assert_eq!(world.claimed(other, "actor", 1).batch.rows.to_string(), "0", "from the first batch on");
}

#[test]
fn an_offered_part_outlives_its_session() {
    let mut world = World::new(ppo(schedule(1, 1, 0, 1), 0, 0));
    let (a, c) = (world.session("actor"), world.session("critic"));
    world.offer(a, "policy", None).unwrap();
    world.offer(c, "critic", None).unwrap();
    world.put(a, "prompts", 1).unwrap();
    stream(&mut world, a);
    world.work(a, "actor", 1);
    world.offer(a, "policy", Some(0)).unwrap();
    world.call(a, Command::CloseSession).unwrap();
    world.work(c, "critic", 1);
    assert_eq!(world.offer(c, "critic", Some(0)), Ok(Reply::Offered(Some(1))));
    assert_eq!(versions(&world, "policy"), [(1, "weights/policy/0.1".to_owned())]);
}

#[test]
fn a_restore_ends_sessions_and_leases_undoes_unpublished_training_and_begins_a_lineage() {
    let mut world = World::new(ppo(schedule(2, 2, 0, 2), 0, 0));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.offer(s, "critic", None).unwrap();
    world.put(s, "prompts", 4).unwrap();
    let held = world.claimed(s, "rollout", 1);
    let open = {
        let mut cells = world.outputs("rollout", &held.batch.rows);
        cells[0].seal = false;
        cells
    };
    let chunk = open[0].chunk;
    world.call(s, Command::Write { lease: held.lease, cells: open, notes: vec![] }).unwrap();
    let rest = world.claimed(s, "rollout", 9);
    world.commit(s, "rollout", rest.lease, &rest.batch.rows).unwrap();
    pin(&mut world, s, Some(0)).unwrap();
    let incarnation = world.catalog.state().incarnation();
    world.restore();
    let state = world.catalog.state();
    assert_eq!((state.lineage(), state.incarnation()), (1, incarnation + 1));
    assert!(state.sessions(Millis(0)).is_empty());
    assert!(world.freed.contains(&chunk), "open cells are absent");
    assert!(matches!(world.call(s, Command::Heartbeat), Err(Refusal::SessionEnded { .. })));

    let s = world.session("again");
    assert_eq!(world.claimed(s, "rollout", 9).batch.rows, held.batch.rows);
    world.commit(s, "rollout", transferqueue::LeaseId(3), &held.batch.rows).unwrap();
    stream(&mut world, s);
    for _ in 0..2 {
        world.work(s, "actor", 1);
    }
    world.offer(s, "policy", Some(0)).unwrap();
    world.work(s, "critic", 1);
    // The offered part, and the critic's half, are lost with the process; so is what was being built.
    world.weights(s, "weights/critic/1.1");
    world.restore();
    assert!(world.catalog.state().partition("weights/policy/1.1").is_none());
    assert!(world.catalog.state().partition("weights/critic/1.1").is_none());
    let s = world.session("third");
    for model in ["actor", "critic"] {
        for index in 0..2 {
            assert_eq!(world.work(s, model, 1).cut.unwrap().index, index);
        }
    }
    world.offer(s, "policy", Some(0)).unwrap();
    world.offer(s, "critic", Some(0)).unwrap();
    assert_eq!(world.published.last().unwrap().lineage, 2);
    let Reply::Pinned(pinned) = pin(&mut world, s, None).unwrap() else { panic!() };
    assert_eq!((pinned.lineage, pinned.version), (2, 1));
    assert_eq!(world.ledger("actor").consumed, 2);
}

#[test]
fn columns_kept_by_the_definition_do_not_stop_a_cycle_from_ending() {
    let mut def = grpo(1, schedule(1, 1, 0, 2));
    let mut archive = row_column("archive");
    archive.keep = true;
    def.partitions[1].columns.push(archive);
    def.tasks[1].writes.push("archive".into());
    let mut world = World::new(def);
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 2).unwrap();
    for cycle in 0..2 {
        stream(&mut world, s);
        world.work(s, "actor", 1);
        world.offer(s, "policy", Some(cycle)).unwrap();
    }
    assert_eq!((world.live("samples"), world.live("prompts")), (2, 0));
    let schedule = world.catalog.state().schedule().unwrap();
    assert_eq!((schedule.retired, schedule.dropped, schedule.over), (2, 0, true));
}

#[test]
fn a_cycle_whose_trainer_is_lost_after_its_rows_were_dropped_wakes_the_next_one_to_offer() {
    let mut world = World::new(grpo(1, schedule(1, 1, 0, 1)));
    let (s, next) = (world.session("s"), world.session("next"));
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 1).unwrap();
    stream(&mut world, s);
    world.work(s, "actor", 1);
    let samples = world.partition("samples");
    let drop = DropRows { rows: Rows::run(RowId(0), 1), reason: "x".into() };
    world.own(Command::Drop { partition: samples, rows: drop }).unwrap();
    world.waits(next, "actor");
    world.wakes.clear();
    world.call(s, Command::CloseSession).unwrap();
    assert!(world.wakes.contains(&Wake::Task(world.task("actor"))));
    assert!(world.claimed(next, "actor", 1).batch.rows.is_empty());
    assert_eq!(world.offer(next, "policy", Some(0)), Ok(Reply::Offered(Some(1))));
}

#[test]
fn a_schedule_ended_early_publishes_its_cycle_and_drops_what_was_admitted_ahead() {
    let mut world = World::new(grpo(1, schedule(1, 1, 1, 5)));
    let s = world.session("s");
    world.offer(s, "policy", None).unwrap();
    world.put(s, "prompts", 5).unwrap();
    let end = |cycle| Command::EndSchedule { cycle };
    assert!(matches!(world.call(s, end(1)), Err(Refusal::Offer { .. })), "not the cycle in progress");
    assert!(matches!(world.call(s, end(0)), Err(Refusal::Offer { .. })), "not completely cut");
    stream(&mut world, s);
    world.work(s, "actor", 1);
    world.call(s, end(0)).unwrap();
    assert_eq!(world.offer(s, "policy", Some(0)), Ok(Reply::Offered(Some(1))));
    let schedule = world.catalog.state().schedule().unwrap();
    assert_eq!((schedule.cycle, schedule.total_cycles, schedule.over), (1, 1, true));
    assert_eq!((schedule.admitted, schedule.retired, schedule.dropped), (2, 1, 1));
    assert_eq!((world.live("samples"), world.live("prompts")), (0, 0));
    assert_eq!(world.ledger("actor").dropped, [("surplus".to_owned(), 1)].into());
    assert_eq!(world.claim(s, "actor", 1), Ok(Reply::Ended));
    assert!(matches!(world.call(s, end(1)), Err(Refusal::Offer { .. })), "it is over");
}
