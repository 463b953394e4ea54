//! Claim and commit of 1,024 rows at 10⁴, 10⁵ and 10⁶ live rows × 12 columns, for each way of choosing.
//!
//! Timed: the two calls through `Catalog::call`, with everything in them: pointers and heads of all rows and columns, the
//! choice, events applied, cells and rows freed, replies kept, records made. Not timed: filling the catalog. The claiming
//! task is the only reader of its columns (but for the group case, whose rows a trainer still owes), so each commit frees
//! 12 × 1,024 cells. Flat means: within 2× over all numbers of live rows where a claim costs what it returns; `where` and
//! shuffled claims may grow with ready rows. At the end the wake-up latency of a waiting claim, through the store.

use std::{
    process::ExitCode,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tq_benches::{Better, Report, Row};
use transferqueue::{
    ChunkId, Claim, Column, ColumnId, Dtype, Kind, Millis, Options, Outputs, PartitionId, RowId, Rows, SessionId,
    Store, TaskId,
    catalog::{Catalog, command::*, definition::*, predicate::Predicate},
};

const COLUMNS: u16 = 12;
const TAKE: u64 = 1_024;
/// Rows of one put or of one producer's commit.
const BLOCK: u64 = 4_096;
const GROUP: u64 = 8;

#[derive(Clone, Copy, PartialEq)]
enum Case {
    Plain,
    Group,
    Where,
    Shuffled,
    Balanced,
}

impl Case {
    const ALL: [Self; 5] = [Self::Plain, Self::Group, Self::Where, Self::Shuffled, Self::Balanced];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Group => "group",
            Self::Where => "where",
            Self::Shuffled => "shuffled",
            Self::Balanced => "balanced",
        }
    }

    /// Whether the design promises a cost that does not depend on live rows.
    fn flat(self) -> bool {
        matches!(self, Self::Plain | Self::Group | Self::Balanced)
    }
}

/// A catalog and one worker of it.
struct Bench {
    catalog: Catalog,
    session: SessionId,
    seq: u64,
    chunk: u64,
    lengths: u64,
}

impl Bench {
    fn call(&mut self, command: Command) -> Reply {
        self.seq += 1;
        let request = Request { caller: Some((self.session, self.seq)), command };
        self.catalog.call(&request, Millis(1)).expect("the benchmark's calls are right").reply
    }

    /// One cell in each row of a block, of a length that differs from row to row.
    fn cells(&mut self, column: u16, rows: &Rows) -> CellWrite {
        self.chunk += 1;
        let each = (0..rows.len()).map(|_| {
            self.lengths = self.lengths.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            64 + (self.lengths >> 55) as u32
        });
        let sizes = Sizes::Each(each.collect());
        let (chunk, column, rows) = (ChunkId(self.chunk), ColumnId(column), rows.clone());
        CellWrite { column, rows, chunk, slot: 0, sizes, seal: true, replaces: None }
    }

    fn new(case: Case, live: u64) -> Self {
        let (catalog, _) = Catalog::create(definition(case, live), 1, Millis(0)).expect("a sound definition");
        let mut bench = Self { catalog, session: SessionId(1), seq: 0, chunk: 0, lengths: 1 };
        let open = Request { caller: None, command: Command::OpenSession { name: "bench".into(), here: true } };
        bench.catalog.call(&open, Millis(0)).expect("a session opens");
        match case {
            Case::Group => bench.admit(live),
            _ => bench.fill(live, case == Case::Where),
        }
        bench
    }

    /// Rows with their cells, by put; with tags, every second one matches the filter.
    fn fill(&mut self, live: u64, tags: bool) {
        for first in (0..live).step_by(BLOCK as usize) {
            let n = BLOCK.min(live - first);
            let long = |row: u64| ("long".to_owned(), Tag::Bool(row.is_multiple_of(2)));
            let row = |row| NewRow { key: None, tags: tags.then(|| long(row)).into_iter().collect() };
            let rows = (first..first + n).map(row).collect();
            let cells = (0..COLUMNS).map(|column| self.cells(column, &Rows::run(RowId(0), n))).collect();
            self.call(Command::Put { partition: PartitionId(0), rows, cells });
        }
    }

    /// Groups admitted by the schedule, whose columns a producer writes.
    fn admit(&mut self, live: u64) {
        self.call(Command::Put {
            partition: PartitionId(1),
            rows: vec![NewRow::default(); (live / GROUP) as usize],
            cells: vec![],
        });
        while let Reply::Claimed(claimed) = self.call(Command::Claim { task: TaskId(1), limit: BLOCK }) {
            let rows = claimed.batch.rows;
            let cells = (0..COLUMNS).map(|column| self.cells(column, &rows)).collect();
            let (notes, drops) = (vec![], vec![]);
            self.call(Command::Commit { lease: claimed.lease, rows, cells, notes, drops });
        }
        // The claim that waited left its number free.
        self.seq -= 1;
    }

    /// Claims and commits 1,024 rows; returns the seconds.
    fn round(&mut self, limit: u64) -> f64 {
        let begun = Instant::now();
        let Reply::Claimed(claimed) = self.call(Command::Claim { task: TaskId(0), limit }) else {
            panic!("rows must be ready");
        };
        assert_eq!(claimed.batch.rows.len(), TAKE);
        assert_eq!(claimed.batch.columns.len(), usize::from(COLUMNS));
        let (lease, rows) = (claimed.lease, claimed.batch.rows);
        self.call(Command::Commit { lease, rows, cells: vec![], notes: vec![], drops: vec![] });
        begun.elapsed().as_secs_f64()
    }
}

fn definition(case: Case, live: u64) -> Definition {
    let names: Vec<String> = (0..COLUMNS).map(|i| format!("c{i}")).collect();
    let column = |name: &String| Column::new(name.clone(), Kind::Ragged { dtype: Dtype::F32, inner: vec![] });
    let columns: Vec<Column> = names.iter().map(column).collect();
    let mut work = Task { reads: names.clone(), ..Task::new("work", "rows") };
    let put = |name: &str, columns| Partition { name: name.into(), columns, birth: Birth::Put { capacity: None } };
    if case == Case::Group {
        work.per = Grain::Group;
        let birth = Birth::Expand { from: "prompts".into(), n: GROUP as u32, link: vec![], gate: Gate::Schedule };
        let trainer = Task {
            per: Grain::Mini,
            trains: Some(Trains { model: "policy".into(), from_cycle: 0 }),
            ..Task::new("trainer", "rows")
        };
        let make = Task { writes: names, ..Task::new("make", "rows") };
        let rows = Partition { name: "rows".into(), columns, birth };
        return Definition {
            partitions: vec![rows, put("prompts", vec![])],
            tasks: vec![work, make, trainer],
            models: vec![Model { name: "policy".into(), keep_initial: false }],
            schedule: Some(Schedule {
                partition: "rows".into(),
                groups_per_cycle: live / GROUP,
                minis_per_cycle: 1,
                ahead: 0,
                total_cycles: 1,
                order: Order::Completion,
                grain: CutGrain::Cycle,
                weights: WeightRule::AtLeast,
                max_lag: None,
                drop_beyond: false,
                on_publication: OnPublication::Finish,
            }),
            ..Definition::default()
        };
    }
    let mut tasks = vec![];
    match case {
        Case::Where => {
            work.filter = Some(Predicate::Is("long".into(), Tag::Bool(true)));
            // The rows that do not match stay, owed to another reader of one column.
            tasks.push(Task { reads: vec!["c0".into()], ..Task::new("keeper", "rows") });
        }
        Case::Shuffled => work.sampling = Sampling::Shuffled,
        Case::Balanced => work.sampling = Sampling::Balanced,
        Case::Plain | Case::Group => {}
    }
    tasks.insert(0, work);
    Definition { seed: 1, partitions: vec![put("rows", columns)], tasks, ..Definition::default() }
}

/// Seconds from a step in this thread until another thread, which waits for it, has gone on; sorted.
fn hand_overs(begin: impl Fn(), wait: impl Fn() -> Instant + Send) -> Vec<f64> {
    const COUNT: usize = 2_000;
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        scope.spawn(move || (0..COUNT).try_for_each(|_| sender.send(wait())));
        let mut seconds: Vec<f64> = (0..COUNT)
            .map(|_| {
                // Long enough for the other thread to be asleep again.
                thread::park_timeout(Duration::from_micros(300));
                let begun = Instant::now();
                begin();
                receiver.recv().expect("the other thread answers").duration_since(begun).as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    })
}

/// A claim that waits in one thread is served by a put of another: from the put's begin to the claim's return, beside the
/// bare hand-over of a channel.
fn wake_ups(report: &mut Report) {
    let column = Column::new("c0", Kind::Ragged { dtype: Dtype::F32, inner: vec![] });
    let jobs = Partition { name: "jobs".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
    let work = Task { reads: vec!["c0".into()], ..Task::new("work", "jobs") };
    let definition = Definition { partitions: vec![jobs], tasks: vec![work], ..Definition::default() };
    let store = Store::create(definition, Options::default()).expect("a sound definition");
    let (puts, claims) = (store.session("puts").expect("a session"), store.session("claims").expect("a session"));
    let jobs = puts.partition("jobs").expect("it is declared");
    let soon = || Instant::now() + Duration::from_secs(60);
    let put = || {
        let cells = Outputs::new().ragged("c0", vec![vec![1.0_f32]]);
        puts.put(jobs, vec![NewRow::default()], cells, soon()).expect("a put of one row");
    };
    let claim = || match claims.claim("work", 1, soon()).expect("a claim") {
        Claim::Lease(lease) => {
            let served = Instant::now();
            lease.commit(Outputs::new()).expect("a commit of one row");
            served
        }
        Claim::Ended => unreachable!("nobody closes the partition"),
    };
    let ours = hand_overs(put, claim);
    let (sender, receiver) = mpsc::sync_channel(1);
    let bare = hand_overs(
        || sender.send(()).expect("the other thread listens"),
        move || {
            receiver.recv().expect("this thread sends");
            Instant::now()
        },
    );
    for (name, at) in [("median", 50), ("99th percentile", 99)] {
        let of = |seconds: &[f64]| seconds[seconds.len() * at / 100] * 1e6;
        report.push(Row::alone(format!("put to served claim, {name}"), "µs", of(&ours), None, Better::Less));
        report.push(Row::alone(format!("hand-over of a channel, {name}"), "µs", of(&bare), None, Better::Less));
    }
}

/// Median seconds of a claim and commit at a number of live rows.
fn measure(case: Case, live: u64) -> f64 {
    let limit = if case == Case::Group { TAKE / GROUP } else { TAKE };
    let rounds = (live / TAKE / 4).clamp(2, 24);
    let mut seconds = Vec::new();
    while seconds.len() < 24 {
        let mut bench = Bench::new(case, live);
        seconds.extend((0..rounds).map(|_| bench.round(limit)));
    }
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() -> ExitCode {
    let mut report = Report::new("catalog");
    // `catalog shuffled` measures that case alone.
    let only = std::env::args().nth(1);
    for case in Case::ALL.into_iter().filter(|case| only.as_deref().is_none_or(|name| name == case.name())) {
        let mut rates = Vec::new();
        for live in [10_000, 100_000, 1_000_000] {
            let rate = TAKE as f64 / measure(case, live);
            rates.push(rate);
            let name = format!("claim and commit, {}, {live} live rows", case.name());
            report.push(Row::alone(name, "rows/s", rate, Some(1e6), Better::More));
        }
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let ratio = rates.iter().copied().fold(0.0, f64::max) / slowest;
        let budget = case.flat().then_some(2.0);
        let name = format!("claim and commit, {}, fastest / slowest", case.name());
        report.push(Row::alone(name, "ratio", ratio, budget, Better::Less));
    }
    if only.as_deref().is_none_or(|name| name == "wake-ups") {
        wake_ups(&mut report);
    }
    report.conclude()
}
