//! Ranks of a gang that meet in the store, from threads of its process and over the wire.

use std::{
    thread,
    time::{Duration, Instant},
};

use transferqueue::{
    Column, Definition, Dtype, Error, Kind, Options, Session, Store,
    catalog::definition::{
        Birth, CutGrain, Gang as Ranks, Gate, Grain, Model, OnPublication, Order, Partition, Schedule, Task, Trains,
        WeightRule,
    },
    client::{self, Remote},
    session::Gang,
};

use crate::{connect, proxy::Proxy, serve, soon};

/// `actor` trains on samples as a gang of `ranks`, under leases of 400 ms.
fn store(ranks: u32) -> Store {
    let column = || vec![Column::new("x", Kind::Ragged { dtype: Dtype::F32, inner: vec![] })];
    let expand = Birth::Expand { from: "prompts".into(), n: 1, link: vec!["x".into()], gate: Gate::Schedule };
    let gang = Some(Ranks { ranks, lengths: vec![] });
    let trains = Some(Trains { model: "policy".into(), from_cycle: 0 });
    let definition = Definition {
        partitions: vec![
            Partition { name: "prompts".into(), columns: column(), birth: Birth::Put { capacity: None } },
            Partition { name: "samples".into(), columns: vec![], birth: expand },
        ],
        tasks: vec![Task { trains, gang, per: Grain::Mini, lease_ms: 400, ..Task::new("actor", "samples") }],
        models: vec![Model { name: "policy".into(), keep_initial: false }],
        schedule: Some(Schedule {
            partition: "samples".into(),
            groups_per_cycle: 2,
            minis_per_cycle: 1,
            ahead: 0,
            total_cycles: 2,
            order: Order::Admission,
            grain: CutGrain::Cycle,
            weights: WeightRule::Exact,
            max_lag: None,
            drop_beyond: false,
            on_publication: OnPublication::Finish,
        }),
        ..Definition::default()
    };
    Store::create(definition, Options::default()).unwrap()
}

fn join(session: &Session, rank: u32) -> Gang {
    session.join("actor", rank).unwrap()
}

fn quiet() -> Result<(), Error> {
    Ok(())
}

/// What each rank hears, when each does `call` in a thread of its own; the last rank begins first.
fn together<R: Send>(gangs: Vec<Gang>, call: impl Fn(&mut Gang) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let run = |mut gang: Gang| {
            let call = &call;
            scope.spawn(move || call(&mut gang))
        };
        let mut handles: Vec<_> = gangs.into_iter().rev().map(run).collect();
        handles.reverse();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[test]
fn ranks_here_and_there_get_the_same_sum_in_the_order_of_ranks() {
    let store = store(3);
    let server = serve(&store);
    let sessions = [
        store.session("actor-0").unwrap(),
        connect(&server).session("actor-1").unwrap(),
        connect(&server).session("actor-2").unwrap(),
    ];
    let gangs = (0..3).map(|rank| join(&sessions[rank as usize], rank)).collect();
    // In another order 1e8 + 1 − 1e8 is another f32.
    let parts = [1e8_f32, 1.0, -1e8];
    let expected = (parts[0] + parts[1]) + parts[2];
    assert_ne!(expected, (parts[0] + parts[2]) + parts[1]);
    let heard = together(gangs, |gang| {
        // Longer than one round.
        let mut vector = vec![parts[gang.rank() as usize]; 3_000_000];
        vector[2_999_999] = gang.rank() as f32;
        gang.sum(&mut vector, soon(), &mut quiet).unwrap();
        let mut precise = [f64::from(gang.rank()) + 1e-12, 0.5];
        gang.sum(&mut precise, soon(), &mut quiet).unwrap();
        let words = gang.gather(format!("I am {}", gang.rank()).into_bytes(), soon(), &mut quiet).unwrap();
        (vector, precise, words)
    });
    for (vector, precise, words) in &heard {
        assert!(vector[..2_999_999].iter().all(|x| *x == expected), "{:?}", &vector[..3]);
        assert_eq!(vector[2_999_999], 3.0);
        assert_eq!(*precise, [((0.0 + 1e-12) + (1.0 + 1e-12)) + (2.0 + 1e-12), 1.5]);
        assert_eq!(*words, ["I am 0", "I am 1", "I am 2"].map(|word| word.as_bytes().to_vec()));
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline_and_may_still_come() {
    let store = store(2);
    let server = serve(&store);
    let (here, there) = (store.session("actor-0").unwrap(), connect(&server).session("actor-1").unwrap());
    let (mut zero, mut one) = (join(&here, 0), join(&there, 1));
    let begun = Instant::now();
    let mut signs = 0;
    let mut alive = || {
        signs += 1;
        Ok(())
    };
    let error = one.sum(&mut [1.0_f32], begun + Duration::from_millis(900), &mut alive).unwrap_err();
    assert!(error.is_deadline(), "{error}");
    let said = error.to_string();
    assert!(said.contains("round 1 of the gang of `actor` (epoch 0) wants 2 ranks; 1 there"), "{said}");
    assert!(said.contains("`rank 0` (worker actor-0) for 0.") && said.contains("has not come"), "{said}");
    assert!(signs >= 2, "a rank that waits is asked to prolong its lease: {signs}");
    // What it brought stays, under its number.
    let mut sum = [2.0_f32];
    zero.sum(&mut sum, soon(), &mut quiet).unwrap();
    assert_eq!(sum, [3.0]);
}

#[test]
fn ranks_that_wait_hear_at_once_that_their_gang_has_ended_and_an_old_life_meets_no_new_one() {
    let store = store(2);
    let server = serve(&store);
    let (zero, one) = (connect(&server).session("actor-0").unwrap(), store.session("actor-1").unwrap());
    let mut old = join(&zero, 0);
    join(&one, 1);
    let waiting = thread::spawn(move || {
        let outcome = old.sum(&mut [1.0_f32], soon(), &mut quiet);
        (old, outcome)
    });
    thread::park_timeout(Duration::from_millis(100));
    assert_eq!(store.lose("actor-1").unwrap(), 1);
    let (mut old, outcome) = waiting.join().unwrap();
    let error = outcome.unwrap_err();
    assert!(error.is_gang_ended() && error.is_lost(), "{error}");
    assert!(error.to_string().contains("rank 1 (actor-1): its session was lost"), "{error}");
    // The next life: its first round has nothing of the old one's.
    let again = store.session("actor-1").unwrap();
    let gangs = vec![join(&zero, 0), join(&again, 1)];
    assert_eq!(gangs[0].epoch(), 1);
    let late = old.sum(&mut [1.0_f32], soon(), &mut quiet).unwrap_err();
    assert!(late.is_gang_ended() && late.to_string().contains("(epoch 0, now 1)"), "{late}");
    let heard = together(gangs, |gang| {
        let mut sum = [10.0_f32 + gang.rank() as f32];
        gang.sum(&mut sum, soon(), &mut quiet).unwrap();
        sum
    });
    assert_eq!(heard, [[21.0], [21.0]]);
}

#[test]
fn a_store_that_is_stopped_wakes_every_rank() {
    let store = store(3);
    let server = serve(&store);
    let (zero, one) = (store.session("actor-0").unwrap(), connect(&server).session("actor-1").unwrap());
    let waiting: Vec<_> = [join(&zero, 0), join(&one, 1)]
        .into_iter()
        .map(|mut gang| thread::spawn(move || gang.gather(Vec::new(), soon(), &mut quiet)))
        .collect();
    thread::park_timeout(Duration::from_millis(100));
    store.stop("enough");
    for rank in waiting {
        let error = rank.join().unwrap().unwrap_err();
        assert!(error.is_stopped() && error.to_string().contains("enough"), "{error}");
    }
}

#[test]
fn ranks_that_disagree_are_told_how() {
    let store = store(2);
    let sessions = [store.session("actor-0").unwrap(), store.session("actor-1").unwrap()];
    let (mut zero, mut one) = (join(&sessions[0], 0), join(&sessions[1], 1));
    let short = Instant::now() + Duration::from_millis(20);
    assert!(zero.sum(&mut [1.0_f32; 3], short, &mut quiet).unwrap_err().is_deadline());
    let error = one.sum(&mut [1.0_f64; 3], soon(), &mut quiet).unwrap_err().to_string();
    assert!(error.contains("rank 1 brings 3 f64 to round 1 (Sum), rank 0 brought 3 f32 (Sum)"), "{error}");
    let stranger = store.session("stranger").unwrap().join("actor", 1).unwrap_err().to_string();
    assert!(stranger.contains("rank 1 is held by session"), "{stranger}");
}

#[test]
fn a_round_goes_on_over_a_new_connection_and_counts_nothing_twice() {
    let store = store(2);
    let server = serve(&store);
    let proxy = Proxy::to(server.url());
    let remote = Remote::connect(&proxy.url(), server.token(), client::Options::default()).unwrap();
    let (here, there) = (store.session("actor-0").unwrap(), remote.session("actor-1").unwrap());
    let (mut zero, mut one) = (join(&here, 0), join(&there, 1));
    let waiting = thread::spawn(move || {
        let mut sum = [0.25_f64];
        one.sum(&mut sum, soon(), &mut quiet).map(|()| sum)
    });
    thread::park_timeout(Duration::from_millis(150));
    proxy.cut();
    thread::park_timeout(Duration::from_millis(150));
    let mut sum = [1.0_f64];
    zero.sum(&mut sum, soon(), &mut quiet).unwrap();
    assert_eq!((sum, waiting.join().unwrap().unwrap()), ([1.25], [1.25]));
}
