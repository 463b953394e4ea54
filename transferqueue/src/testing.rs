//! A small training run for the tests of this crate: prompts, groups of two samples, one model.

use std::time::{Duration, Instant};

use crate::{
    catalog::{
        command::{NewRow, Span},
        definition::{
            Birth, CutGrain, Definition, Gate, Grain, Model, OnPublication, Order, Partition, Schedule, Task, Trains,
            WeightRule,
        },
    },
    error::Error,
    ids::PartitionId,
    outputs::Outputs,
    schema::{Column, Dtype, Kind},
    session::{Claim, Lease, Session},
    store::Store,
};

/// Far enough away that only a defect reaches it.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// 4 groups of 2 a cycle in 2 mini-batches, on policy.
pub(crate) fn training(cycles: u64) -> Definition {
    let ragged = |name: &str, dtype| Column::new(name, Kind::Ragged { dtype, inner: vec![] });
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let task = |name: &str, reads: &[&str], writes: &[&str], per| Task {
        reads: names(reads),
        writes: names(writes),
        per,
        ..Task::new(name, "samples")
    };
    Definition {
        seed: 1,
        partitions: vec![
            Partition {
                name: "prompts".into(),
                columns: vec![ragged("prompt", Dtype::I32), Column::new("truth", Kind::Json)],
                birth: Birth::Put { capacity: Some(6) },
            },
            Partition {
                name: "samples".into(),
                columns: vec![
                    ragged("response", Dtype::I32),
                    Column::new("reward", Kind::Dense { dtype: Dtype::F32, shape: vec![] }),
                    ragged("advantages", Dtype::F32),
                ],
                birth: Birth::Expand {
                    from: "prompts".into(),
                    n: 2,
                    link: names(&["prompt", "truth"]),
                    gate: Gate::Schedule,
                },
            },
        ],
        tasks: vec![
            task("rollout", &["prompt"], &["response"], Grain::Row),
            task("reward", &["response", "truth"], &["reward"], Grain::Row),
            task("advantage", &["response", "reward"], &["advantages"], Grain::Group),
            Task {
                trains: Some(Trains { model: "policy".into(), from_cycle: 0 }),
                ..task("actor", &["prompt", "response", "advantages"], &[], Grain::Mini)
            },
        ],
        models: vec![Model { name: "policy".into(), keep_initial: false }],
        schedule: Some(Schedule {
            partition: "samples".into(),
            groups_per_cycle: 4,
            minis_per_cycle: 2,
            ahead: 0,
            total_cycles: cycles,
            order: Order::Admission,
            grain: CutGrain::Cycle,
            weights: WeightRule::Exact,
            max_lag: None,
            drop_beyond: false,
            on_publication: OnPublication::Finish,
        }),
        budget: None,
        weights: None,
    }
}

/// Publishes weights `weights <version>` for a cycle.
pub(crate) fn publish(session: &Session, cycle: Option<u64>, version: u64) {
    let columns = vec![Column::new("data", Kind::Binary)];
    let name = format!("weights/policy/{}.{version}", session.id());
    let partition = Partition { name, columns, birth: Birth::Put { capacity: None } };
    let weights = session.create_partition(partition).unwrap();
    let key = NewRow { key: Some("w".into()), ..NewRow::default() };
    session.put(weights, vec![key], Outputs::new().binary("data", [format!("weights {version}")]), soon()).unwrap();
    session.close_partition(weights).unwrap();
    assert_eq!(session.offer("policy", cycle, Some(weights), None).unwrap(), Some(version));
}

/// Puts prompts `from..to`; prompt `i` is `[i, i + 1]` with truth `{"answer": 2 i}`.
pub(crate) fn feed(session: &Session, from: i32, to: i32) {
    for i in from..to {
        match try_feed(session, i) {
            Err(error) if error.is_ended() => return,
            result => result.unwrap(),
        }
    }
}

/// Puts prompt `i`.
pub(crate) fn try_feed(session: &Session, i: i32) -> Result<(), Error> {
    let cells = Outputs::new().ragged("prompt", [[i, i + 1]]).json("truth", [serde_json::json!({ "answer": 2 * i })]);
    session.put(PartitionId(0), vec![NewRow::default()], cells, soon()).map(drop)
}

/// One claim of a stage and its work; `false` at the end of its stream.
pub(crate) fn step(session: &Session, task: &str) -> bool {
    let Claim::Lease(lease) = session.claim(task, 3, soon()).unwrap() else {
        return false;
    };
    work(session, task, lease);
    true
}

/// What a stage does with its rows.
pub(crate) fn work(session: &Session, task: &str, lease: Lease) {
    let batch = lease.batch().unwrap();
    match task {
        "rollout" => {
            let prompts = batch.ragged::<i32>("prompt").unwrap();
            let responses: Vec<Vec<i32>> =
                prompts.iter().map(|prompt| prompt.iter().map(|t| t * 2).collect()).collect();
            let mut outputs = Outputs::new().ragged("response", responses);
            for head in lease.heads() {
                outputs =
                    outputs.note(head.row, Default::default(), Some(Span { first: head.version, last: head.version }));
            }
            lease.commit(outputs).unwrap();
        }
        "reward" => {
            let responses = batch.ragged::<i32>("response").unwrap();
            let truths = batch.json("truth").unwrap();
            let right = |i: usize| truths.parse::<serde_json::Value>(i).unwrap()["answer"] == responses.row(i)[0];
            let rewards: Vec<f32> = (0..batch.len()).map(|i| f32::from(right(i))).collect();
            lease.commit(Outputs::new().dense("reward", rewards)).unwrap();
        }
        "advantage" => {
            let rewards = batch.dense::<f32>("reward").unwrap().to_vec();
            let lens = batch.ragged::<i32>("response").unwrap().lens();
            lease
                .commit(Outputs::new().ragged("advantages", rewards.iter().zip(lens).map(|(r, n)| vec![*r; n])))
                .unwrap();
        }
        "actor" => {
            assert!(batch.ragged::<f32>("advantages").unwrap().iter().all(|row| row == [1.0, 1.0]));
            let cut = lease.cut().unwrap().clone();
            drop(batch);
            lease.commit(Outputs::new()).unwrap();
            if cut.last {
                publish(session, Some(cut.cycle), cut.cycle + 1);
            }
        }
        other => panic!("no stage {other}"),
    }
}

/// A whole run: one thread a stage, until every stream has ended.
pub(crate) fn run(store: &Store, cycles: i32) {
    run_over(&|name| store.session(name).unwrap(), cycles);
}

/// The same over sessions from anywhere.
pub(crate) fn run_over(open: &dyn Fn(&str) -> Session, cycles: i32) {
    publish(&open("trainer"), None, 0);
    std::thread::scope(|scope| {
        for task in ["rollout", "reward", "advantage", "actor"] {
            let session = open(&format!("{task}-0"));
            scope.spawn(move || while step(&session, task) {});
        }
        let feeder = open("feeder");
        scope.spawn(move || {
            feed(&feeder, 0, 4 * cycles);
            feeder.close_partition(PartitionId(0)).unwrap();
        });
    });
}
