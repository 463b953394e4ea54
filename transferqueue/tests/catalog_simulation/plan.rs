//! Random plans: every combination of order, grain, weights and limits that the catalog accepts.

use transferqueue::catalog::{command::Tag, definition::*, predicate::Predicate};

use crate::{
    catalog_support::{grpo, put_partition, row_column, schedule, task},
    random::Random,
};

/// A definition, and what the simulation has to know of it.
pub struct Plan {
    pub definition: Definition,
    /// Prompts that the source puts before it closes.
    pub prompts: u64,
    /// Rows of the validation set.
    pub val: u64,
    /// The largest lag a trained row may have; `None`: no promise.
    pub lag: Option<u64>,
    /// Chance in percent that a worker drops some of its rows.
    pub drops: u64,
    /// Chance in percent of each kind of trouble at a step.
    pub trouble: u64,
}

pub fn random(random: &mut Random) -> Plan {
    let minis = random.range(1, 3);
    let b = minis * random.range(1, 3);
    let ahead = *random.pick(&[0, 0, b / 2, b, 2 * b, b + 1]);
    let cycles = random.range(1, 4);
    let mut plan = schedule(b, minis, ahead, cycles);
    plan.order = *random.pick(&[Order::Admission, Order::Completion]);
    plan.grain = *random.pick(&[CutGrain::Cycle, CutGrain::Mini]);
    plan.weights = *random.pick(&[WeightRule::Exact, WeightRule::AtLeast]);
    let reach = ahead.div_ceil(b);
    if random.chance(50) {
        plan.drop_beyond = random.chance(50);
        let least = if plan.drop_beyond { 0 } else { reach };
        plan.max_lag = Some(random.range(least, reach + 1));
    }
    let lag = match (plan.order, plan.max_lag) {
        (Order::Admission, Some(max)) => Some(reach.min(max)),
        (Order::Admission, None) => Some(reach),
        (Order::Completion, max) if ahead > 0 => max,
        (Order::Completion, _) => Some(0),
    };

    let n = random.range(1, 4) as u32;
    let mut definition = grpo(n, plan);
    definition.seed = random.next();
    for column in &mut definition.partitions[1].columns {
        column.max_bytes = random.chance(50).then_some(64);
    }
    if random.chance(40) {
        let row: u64 = definition.partitions[1].columns.iter().filter_map(|c| c.max_bytes).sum();
        definition.budget = Some(row * u64::from(n) * b + random.below(1 + row * b));
    }
    for task in &mut definition.tasks {
        task.lease_ms = random.range(2_000, 20_000);
        task.attempts = random.range(2, 4) as u32;
        task.on_poison = if random.chance(85) { Poison::Drop } else { Poison::Stop };
        if task.trains.is_none() && !task.writes.is_empty() {
            task.on_lost = *random.pick(&[OnLost::Again, OnLost::Resume]);
        }
        task.sampling = *random.pick(&[Sampling::Sequential, Sampling::Shuffled, Sampling::Balanced]);
    }
    if random.chance(40) {
        let lengths = if random.chance(50) { vec!["prompt".to_owned(), "responses".to_owned()] } else { vec![] };
        let actor = definition.tasks.iter_mut().find(|task| task.name == "actor").expect("GRPO has one");
        actor.gang = Some(Gang { ranks: random.range(1, 3) as u32, lengths });
    }
    if random.chance(30) {
        definition.partitions[0].birth = Birth::Put { capacity: Some(random.range(1, 2 * b)) };
    }
    if random.chance(40) {
        add_critic(random, &mut definition, cycles);
    }
    if random.chance(40) {
        add_filtered(random, &mut definition);
    }
    if random.chance(40) {
        let per = *random.pick(&[Grain::Row, Grain::Group]);
        let mut replay = task("replay", "samples", per, &["prompt", "responses"], &[]);
        (replay.reuse, replay.external) = (random.range(2, 4) as u32, random.chance(30));
        replay.sampling = *random.pick(&[Sampling::Sequential, Sampling::Shuffled, Sampling::Balanced]);
        definition.tasks.push(replay);
    }
    if random.chance(30) {
        let mut archive = row_column("archive");
        archive.keep = true;
        definition.partitions[1].columns.push(archive);
        definition.tasks.push(task("archivist", "samples", Grain::Row, &["responses"], &["archive"]));
    }
    let val = if random.chance(50) { add_val(random, &mut definition, cycles) } else { 0 };
    let needed = b * cycles;
    let prompts = if random.chance(60) { needed + random.below(3 * b) } else { random.below(needed + 1) };
    Plan { definition, prompts, val, lag, drops: *random.pick(&[0, 0, 2, 10]), trouble: *random.pick(&[0, 1, 3]) }
}

/// A critic with values per cycle and a training task that may begin later, or begin while the actor does not.
fn add_critic(random: &mut Random, definition: &mut Definition, cycles: u64) {
    definition.partitions[1].columns.push(row_column("values"));
    definition.models.push(Model { name: "critic".into(), keep_initial: random.chance(50) });
    let per = *random.pick(&[Grain::Row, Grain::Mini, Grain::Cycle]);
    definition.tasks.push(task("values", "samples", per, &["prompt", "responses"], &["values"]));
    let per = *random.pick(&[Grain::Mini, Grain::Cycle]);
    let mut critic = task("critic", "samples", per, &["responses", "values"], &[]);
    let later = random.below(cycles + 1);
    let (actor, own) = if random.chance(50) { (later, 0) } else { (0, later) };
    critic.trains = Some(Trains { model: "critic".into(), from_cycle: own });
    definition.tasks.push(critic);
    let trains = definition.tasks.iter_mut().find_map(|task| task.trains.as_mut());
    trains.expect("grpo has an actor").from_cycle = actor;
    // The advantage task becomes one that works on whole cycles, behind a batch task.
    if random.chance(50) {
        let advantage = definition.tasks.iter_mut().find(|task| task.name == "advantage").unwrap();
        advantage.per = Grain::Cycle;
        advantage.reads.push("values".into());
    }
}

/// Two writers of one column with disjoint filters, a reader of it, and a filtered task that writes a column nobody else
/// makes for the other rows.
fn add_filtered(random: &mut Random, definition: &mut Definition) {
    let long = Predicate::Is("long".into(), Tag::Bool(true));
    let columns = &mut definition.partitions[1].columns;
    columns.push(row_column("checked"));
    columns.push(row_column("extra"));
    let mut a = task("check-long", "samples", Grain::Row, &["responses"], &["checked"]);
    a.filter = Some(long.clone());
    let mut b = task("check-short", "samples", Grain::Row, &["responses"], &["checked"]);
    b.filter = Some(Predicate::Not(Box::new(long.clone())));
    let per = *random.pick(&[Grain::Row, Grain::Group]);
    let reader = task("checked-by", "samples", per, &["checked"], &[]);
    let mut extra = task("extra", "samples", Grain::Row, &["responses"], &["extra"]);
    extra.filter = Some(long);
    let last = task("extra-reader", "samples", Grain::Row, &["extra", "checked"], &[]);
    definition.tasks.extend([a, b, reader, extra, last]);
}

fn add_val(random: &mut Random, definition: &mut Definition, cycles: u64) -> u64 {
    let gate = Gate::Every { cycles: random.below(cycles + 1), first: random.chance(60) };
    let columns = ["responses", "scores"].iter().map(|name| row_column(name)).collect();
    let n = random.range(1, 2) as u32;
    let birth = Birth::Expand { from: "val_prompts".into(), n, link: vec!["prompt".into()], gate };
    definition.partitions.push(put_partition("val_prompts", &["prompt"]));
    definition.partitions.push(Partition { name: "val".into(), columns, birth });
    let mut rollout = task("rollout.val", "val", Grain::Row, &["prompt"], &["responses"]);
    rollout.samples_with = Some("policy".into());
    definition.tasks.push(rollout);
    definition.tasks.push(task("reward.val", "val", Grain::Row, &["responses"], &["scores"]));
    let per = *random.pick(&[Grain::Cycle, Grain::Mini]);
    definition.tasks.push(task("validate", "val", per, &["prompt", "scores"], &[]));
    random.range(0, 3)
}
