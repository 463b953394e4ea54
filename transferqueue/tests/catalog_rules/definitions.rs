//! What is refused before the first row.

use transferqueue::{
    Millis,
    catalog::{Advice, Catalog, Refusal, command::Tag, definition::*, predicate::Predicate},
};

use crate::catalog_support::{grpo, put_partition, row_column, schedule, task};

fn base() -> Definition {
    grpo(2, schedule(4, 2, 0, 3))
}

/// The refusal must contain all of these words.
#[track_caller]
fn refused(definition: Definition, words: &[&str]) {
    let refusal = Catalog::create(definition, 1, Millis(0)).expect_err("must be refused");
    assert_eq!(refusal.advice(), Advice::FixCall);
    let message = refusal.to_string();
    for word in words {
        assert!(message.contains(word), "{message:?} lacks {word:?}");
    }
    assert_eq!(message, message.trim());
    assert!(message.chars().next().is_some_and(char::is_lowercase), "{message}");
}

#[test]
fn a_sound_definition_is_accepted() {
    Catalog::create(base(), 1, Millis(0)).unwrap();
}

#[test]
fn names_are_unique() {
    let mut def = base();
    def.partitions.push(put_partition("prompts", &[]));
    refused(def, &["partition", "`prompts`", "twice"]);
    let mut def = base();
    def.tasks[1].name = "rollout".into();
    refused(def, &["task", "`rollout`", "twice"]);
    let mut def = base();
    def.partitions[1].columns.push(row_column("scores"));
    refused(def, &["column", "`samples`", "`scores`", "twice"]);
}

#[test]
fn names_must_resolve() {
    let mut def = base();
    def.tasks[0].partition = "sample".into();
    refused(def, &["`rollout`", "`sample`", "`samples`"]);
    let mut def = base();
    def.tasks[1].reads = vec!["response".into()];
    refused(def, &["`reward`", "reads", "`response`", "`responses`", "`prompt`"]);
    let mut def = base();
    def.tasks[1].writes = vec!["score".into()];
    refused(def, &["`reward`", "writes", "`score`", "`scores`"]);
    let mut def = base();
    def.tasks[0].samples_with = Some("polcy".into());
    refused(def, &["`rollout`", "`polcy`", "`policy`"]);
    let mut def = base();
    def.partitions[1].birth = Birth::Expand { from: "prompt".into(), n: 2, link: vec![], gate: Gate::Schedule };
    refused(def, &["`samples`", "expands", "`prompt`", "`prompts`"]);
}

#[test]
fn an_expansion_has_a_sound_parent_and_links() {
    let expand = |from: &str, n, link: &[&str], gate| Birth::Expand {
        from: from.into(),
        n,
        link: link.iter().map(|s| (*s).to_owned()).collect(),
        gate,
    };
    let mut def = base();
    def.partitions[1].birth = expand("prompts", 0, &["prompt"], Gate::Schedule);
    refused(def, &["`samples`", "0 rows", "at least 1"]);
    let mut def = base();
    def.partitions[1].birth = expand("prompts", 2, &["promt"], Gate::Schedule);
    refused(def, &["links", "`promt`", "`prompt`"]);
    let mut def = base();
    def.partitions[1].columns.push(row_column("prompt"));
    refused(def, &["`prompt`", "links", "rename"]);
    let mut def = base();
    let mut twice = put_partition("twice", &[]);
    twice.birth = expand("samples", 1, &[], Gate::Every { cycles: 1, first: true });
    def.partitions.push(twice);
    refused(def, &["`twice`", "`samples`", "itself an expansion"]);
    let mut def = base();
    def.partitions[0].birth = Birth::Put { capacity: Some(3) };
    let mut val = put_partition("val", &[]);
    val.birth = expand("prompts", 1, &[], Gate::Every { cycles: 1, first: true });
    def.partitions.push(val);
    refused(def, &["`val`", "at once", "capacity"]);
}

#[test]
fn linked_columns_are_not_written() {
    let mut def = base();
    def.tasks[1].writes.push("prompt".into());
    refused(def, &["`reward`", "`prompt`", "read-only"]);
}

#[test]
fn a_column_has_one_producer_or_several_with_filters_that_exclude_each_other() {
    let long = Predicate::Is("long".into(), Tag::Bool(true));
    let mut def = base();
    def.tasks.push(task("second", "samples", Grain::Row, &["responses"], &["scores"]));
    refused(def.clone(), &["`reward`", "`second`", "`scores`"]);
    def.tasks[1].filter = Some(long.clone());
    def.tasks.last_mut().unwrap().filter = Some(long.clone());
    refused(def.clone(), &["`reward`", "`second`", "`scores`", "exclude"]);
    def.tasks.last_mut().unwrap().filter = Some(Predicate::Not(Box::new(long)));
    Catalog::create(def, 1, Millis(0)).unwrap();
}

#[test]
fn a_column_that_is_read_is_written() {
    let mut def = base();
    def.tasks[2].reads.push("values".into());
    def.partitions[1].columns.push(row_column("values"));
    refused(def, &["`advantage`", "`values`", "no task writes"]);
}

#[test]
fn tasks_that_wait_for_each_other_are_refused() {
    let mut def = base();
    def.partitions[1].columns.push(row_column("extra"));
    def.tasks[1].reads.push("extra".into());
    def.tasks.push(task("loop", "samples", Grain::Row, &["scores"], &["extra"]));
    refused(def, &["`reward`", "`loop`", "circle"]);
    let mut def = base();
    def.tasks[1].reads.push("scores".into());
    refused(def, &["`reward`", "`scores`", "itself"]);
}

#[test]
fn a_partition_that_nobody_consumes_is_refused() {
    let mut def = base();
    let mut idle = put_partition("idle", &["x"]);
    let gate = Gate::Every { cycles: 1, first: true };
    idle.birth = Birth::Expand { from: "prompts".into(), n: 1, link: vec![], gate };
    def.partitions.push(idle);
    refused(def, &["`idle`", "no task"]);
}

#[test]
fn limits_of_a_task_are_at_least_one() {
    let mut def = base();
    def.tasks[0].attempts = 0;
    refused(def, &["`rollout`", "0 attempts"]);
    let mut def = base();
    def.tasks[0].lease_ms = 0;
    refused(def, &["`rollout`", "0 ms"]);
}

#[test]
fn training_tasks_claim_batches_of_the_trained_partition_one_a_model() {
    let mut def = base();
    def.tasks[3].per = Grain::Row;
    refused(def, &["`actor`", "trains", "batches"]);
    let mut def = base();
    def.tasks[3].per = Grain::Group;
    refused(def, &["`actor`", "trains", "batches"]);
    let mut def = base();
    let mut second = def.tasks[3].clone();
    second.name = "actor2".into();
    def.tasks.push(second);
    refused(def, &["`actor`", "`actor2`", "`policy`"]);
    let mut def = base();
    def.tasks.push(Task { per: Grain::Mini, ..task("batcher", "prompts", Grain::Mini, &["prompt"], &[]) });
    refused(def, &["`batcher`", "`prompts`", "never cut"]);
}

#[test]
fn a_schedule_has_possible_numbers() {
    for (b, minis, cycles) in [(0, 1, 1), (4, 1, 0)] {
        refused(grpo(2, schedule(b, minis, 0, cycles)), &["schedule", "at least 1"]);
    }
    refused(grpo(2, schedule(4, 3, 0, 1)), &["4 groups", "3 equal", "divisor"]);
    refused(grpo(2, schedule(4, 0, 0, 1)), &["4 groups", "0 equal"]);
    refused(grpo(2, schedule(u64::MAX, 1, 0, 2)), &["64 bits"]);
    refused(grpo(2, schedule(4, 1, u64::MAX, 2)), &["64 bits"]);
    let mut def = base();
    def.schedule = None;
    def.tasks[3].trains = None;
    refused(def, &["`samples`", "schedule", "none"]);
    let mut def = base();
    def.schedule.as_mut().unwrap().partition = "prompts".into();
    def.tasks[3].trains = None;
    refused(def, &["`prompts`", "not admitted by the schedule"]);
}

#[test]
fn some_task_trains_from_the_first_cycle_on() {
    let mut def = base();
    def.tasks[3].trains = None;
    refused(def, &["no task that trains"]);
    let mut def = base();
    def.tasks[3].trains.as_mut().unwrap().from_cycle = 2;
    refused(def, &["no task trains before cycle 2"]);
}

#[test]
fn a_largest_lag_that_cannot_be_kept_is_refused_unless_rows_beyond_it_are_dropped() {
    for order in [Order::Admission, Order::Completion] {
        let mut plan = schedule(4, 1, 6, 3);
        plan.order = order;
        plan.max_lag = Some(1);
        refused(grpo(2, plan.clone()), &["max_lag 1", "6 groups", "lag of 2"]);
        plan.drop_beyond = true;
        Catalog::create(grpo(2, plan.clone()), 1, Millis(0)).unwrap();
        plan.drop_beyond = false;
        plan.max_lag = Some(2);
        Catalog::create(grpo(2, plan), 1, Millis(0)).unwrap();
    }
}

#[test]
fn a_budget_below_one_cycle_is_refused_with_the_numbers() {
    let mut def = base();
    for column in &mut def.partitions[1].columns {
        column.max_bytes = Some(100);
    }
    def.budget = Some(4 * 2 * 300 - 1);
    refused(def.clone(), &["2399 bytes", "4 groups", "2 rows", "300 bytes", "2400"]);
    def.budget = Some(4 * 2 * 300);
    Catalog::create(def.clone(), 1, Millis(0)).unwrap();
    def.partitions[1].columns[0].keep = true;
    refused(def, &["`responses`", "kept", "budget"]);
}

#[test]
fn more_columns_or_tasks_than_a_row_has_bits_for_are_refused() {
    let mut def = base();
    def.partitions[0].columns = (0..65).map(|i| row_column(&format!("c{i}"))).collect();
    refused(def, &["`prompts`", "65 columns", "64"]);
    let mut def = base();
    def.tasks.extend((0..61).map(|i| task(&format!("t{i}"), "samples", Grain::Row, &["responses"], &[])));
    refused(def, &["`samples`", "65 tasks", "64"]);
}

#[test]
fn sixty_four_columns_and_tasks_work() {
    let names: Vec<String> = (0..64).map(|i| format!("c{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tasks = (0..64).map(|i| task(&format!("t{i}"), "wide", Grain::Row, &[names[i]], &[])).collect();
    let def = Definition { partitions: vec![put_partition("wide", &names)], tasks, ..Definition::default() };
    let mut world = crate::catalog_support::World::new(def);
    let session = world.session("w");
    world.put(session, "wide", 70).unwrap();
    (0..64).for_each(|i| _ = world.work(session, &format!("t{i}"), 100));
    assert_eq!(world.live("wide"), 0);
    assert!(world.unit.is_empty());
}

#[test]
fn refusals_of_a_definition_are_of_that_kind() {
    let mut def = base();
    def.tasks[0].attempts = 0;
    assert!(matches!(Catalog::create(def, 1, Millis(0)), Err(Refusal::Definition(_))));
}

#[test]
fn an_external_task_reads_alone() {
    for (writes, trains) in [(true, false), (false, true)] {
        let mut def = base();
        let found =
            def.tasks.iter_mut().find(|task| if trains { task.trains.is_some() } else { !task.writes.is_empty() });
        let task = found.unwrap();
        task.external = true;
        let name = format!("`{}`", task.name);
        assert_eq!(writes, !trains);
        refused(def, &[&name, "external", "reads alone"]);
    }
    let mut def = base();
    def.tasks.push(Task { external: true, ..task("exporter", "samples", Grain::Row, &["responses"], &[]) });
    Catalog::create(def, 1, Millis(0)).unwrap();
}
