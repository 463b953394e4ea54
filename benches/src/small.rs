//! Rows of one number, one by one: what a call costs when the bytes are nothing.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use transferqueue::{
    Column, Dtype, Kind, NewRow, Outputs, Session, Tag, Tags,
    catalog::definition::{Birth, Definition, Partition, Task},
};

/// The partition, and the task that claims its rows.
const NAME: &str = "small";
/// Calls of each kind that are timed, over all clients.
const CALLS: usize = 2_000;
/// Passes of each client that are not.
const WARM: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// The kinds of calls, in the order of a pass.
pub const KINDS: [&str; 4] = ["put", "get", "tag update", "claim + commit"];

/// One kind of call: the middle one, and the one of a hundred that takes longest, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Calls {
    /// Which one of [`KINDS`].
    pub kind: &'static str,
    /// Half of them took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
}

/// Adds the partition and the task.
#[must_use]
pub fn with(mut definition: Definition) -> Definition {
    let columns = vec![Column::new("x", Kind::Dense { dtype: Dtype::U64, shape: vec![1] })];
    definition.partitions.push(Partition { name: NAME.into(), columns, birth: Birth::Put { capacity: None } });
    definition.tasks.push(Task { reads: vec!["x".into()], ..Task::new(NAME, NAME) });
    definition
}

/// Has all clients (a session each, with a connection of its own) put, claim, read, tag and commit rows at the same time.
pub fn measure(sessions: Vec<Session>) -> Vec<Calls> {
    let passes = CALLS / sessions.len();
    let client = |session: &Session| -> Vec<[Duration; KINDS.len()]> {
        for at in 0..WARM {
            pass(session, at as u64);
        }
        (0..passes).map(|at| pass(session, at as u64)).collect()
    };
    let all: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = sessions.iter().map(|session| scope.spawn(|| client(session))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("it measured")).collect()
    });
    let calls = |(at, kind): (usize, &'static str)| {
        let mut all: Vec<Duration> = all.iter().map(|pass| pass[at]).collect();
        all.sort();
        let share = |share: f64| all[(all.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        Calls { kind, p50: share(0.5), p99: share(0.99) }
    };
    KINDS.into_iter().enumerate().map(calls).collect()
}

/// Puts a row, claims one (with several clients it may be another one's), reads it, sets a tag of it, commits it.
fn pass(session: &Session, number: u64) -> [Duration; KINDS.len()] {
    let partition = session.partition(NAME).expect("a partition");
    let until = Instant::now() + PATIENCE;
    let begun = Instant::now();
    let outputs = Outputs::new().dense::<u64>("x", [number]);
    session.put(partition, vec![NewRow::default()], outputs, until).expect("there is room");
    let put = begun.elapsed();

    let begun = Instant::now();
    let mut lease = session.claim(NAME, 1, until).expect("a claim").lease().expect("a row");
    let claimed = begun.elapsed();

    let begun = Instant::now();
    black_box(lease.batch().expect("it is there").dense::<u64>("x").expect("a number").scalar(0));
    let got = begun.elapsed();

    let row = lease.rows().iter().next().expect("one row");
    let begun = Instant::now();
    let tags = Tags::from([("seen".to_owned(), Tag::Int(number as i64))]);
    lease.write(Outputs::new().note(row, tags, None)).expect("a tag");
    let tagged = begun.elapsed();

    let begun = Instant::now();
    lease.commit(Outputs::new()).expect("a commit");
    [put, got, tagged, claimed + begun.elapsed()]
}
