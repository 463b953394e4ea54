//! One story from its seed to its end.

use std::{
    fmt,
    hash::{Hash, Hasher},
    ops::AddAssign,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::FutureExt;

use super::{
    disk::{Drive, Fault},
    guest::Guest,
    network::{Arrival, Body, Heard, Network, Unwanted},
    oracle::Oracle,
    random::Random,
    worker::{Role, Sight, Worker},
};
use crate::{
    Durability, Error, Flush, Options, Recovered, Store,
    bulk::outgoing,
    catalog::{
        Trained,
        command::{Command, Request},
        definition::{Definition, OnLost, Poison, Sampling, Task},
    },
    ids::TaskId,
    link::Link,
    server::{Service, receiving, writing},
    store::{asking::Asked, clock::Clock, core::Sender, options::Ground},
    testing, wire,
};

/// Steps after which a story that has not ended is stuck.
const PATIENCE: u64 = 40_000;
/// Store time after which nothing goes wrong any more, so that the story ends.
const CALM: u64 = 150_000;

pub(super) struct Simulation {
    seed: u64,
    random: Random,
    /// Milliseconds since the story began.
    time: u64,
    life: Life,
    options: Options,
    drive: Drive,
    /// The store's process ends, and its next life begins, with so many tenths of a percent a step.
    restarts: u64,
    /// Until then nobody is there to take a request.
    down_until: u64,
    network: Network,
    workers: Vec<Worker>,
    oracle: Oracle,
    guest: Guest,
    /// Percent of each kind of trouble.
    trouble: u64,
    /// When the disk begins to fail.
    fault: Option<u64>,
    /// When there is room again for bytes.
    mended: Option<u64>,
    told: rustc_hash::FxHasher,
    steps: u64,
    ended: Ended,
}

/// One life of the store.
struct Life {
    store: Store,
    service: Service,
    /// Its own milliseconds, and when they began.
    now: Arc<AtomicU64>,
    born: u64,
    /// Rows that publications consumed, as the hook heard of them.
    trained: Arc<Mutex<Vec<Trained>>>,
}

impl Life {
    fn new(store: Store, now: Arc<AtomicU64>, born: u64) -> Self {
        let trained: Arc<Mutex<Vec<Trained>>> = Arc::default();
        let hears = trained.clone();
        store
            .on_publication(move |publication| hears.lock().unwrap().extend(publication.consumed.rows.iter().cloned()))
            .unwrap();
        let service = Service::over(&store, 7, 1 << 20);
        Self { store, service, now, born, trained }
    }

    fn is_broken(&self) -> bool {
        self.store.shared.lock().is_err()
    }
}

/// How it ended; sums of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    finished: u64,
    stopped: u64,
    broken: u64,
    steps: u64,
    consumed: u64,
    used_again: u64,
    lost_packets: u64,
    repeated_packets: u64,
    lost_sessions: u64,
    expired_leases: u64,
    resumed_rows: u64,
    restarts: u64,
    crashes: u64,
    torn_records: u64,
    held_again: u64,
    guests_ended: u64,
    /// Of everything that was sent and decided.
    story: u64,
}

impl AddAssign for Ended {
    fn add_assign(&mut self, other: Self) {
        self.finished += other.finished;
        self.stopped += other.stopped;
        self.broken += other.broken;
        self.steps += other.steps;
        self.consumed += other.consumed;
        self.used_again += other.used_again;
        self.lost_packets += other.lost_packets;
        self.repeated_packets += other.repeated_packets;
        self.lost_sessions += other.lost_sessions;
        self.expired_leases += other.expired_leases;
        self.resumed_rows += other.resumed_rows;
        self.restarts += other.restarts;
        self.crashes += other.crashes;
        self.torn_records += other.torn_records;
        self.held_again += other.held_again;
        self.guests_ended += other.guests_ended;
        self.story ^= other.story;
    }
}

impl Ended {
    pub(super) fn reached_everything(&self) -> bool {
        let hard = [self.finished, self.broken, self.lost_packets, self.repeated_packets, self.lost_sessions];
        let lives =
            [self.restarts, self.crashes, self.torn_records, self.held_again, self.guests_ended, self.used_again];
        hard.iter().chain(&lives).all(|n| *n > 0) && self.expired_leases > 0 && self.resumed_rows > 0
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} finished, {} stopped by a row, {} with a failed disk; {} steps, {} rows consumed, {} used again before, {} packets lost, {} repeated, {} sessions lost, {} leases expired, {} rows resumed; {} restarts of the store, {} of them with the machine, {} torn records, {} puts held again, {} sessions of its own ended",
            self.finished,
            self.stopped,
            self.broken,
            self.steps,
            self.consumed,
            self.used_again,
            self.lost_packets,
            self.repeated_packets,
            self.lost_sessions,
            self.expired_leases,
            self.resumed_rows,
            self.restarts,
            self.crashes,
            self.torn_records,
            self.held_again,
            self.guests_ended
        )
    }
}

fn definition(random: &mut Random) -> Definition {
    let cycles = random.range(1, 2);
    let mut definition = testing::training(cycles);
    definition.tasks[0].on_lost = *random.pick(&[OnLost::Again, OnLost::Resume, OnLost::Resume]);
    for task in &mut definition.tasks {
        task.lease_ms = random.range(2_000, 20_000);
        task.attempts = *random.pick(&[3, 50, 50]);
        task.on_poison = *random.pick(&[Poison::Drop, Poison::Drop, Poison::Stop]);
        task.sampling = *random.pick(&[Sampling::Sequential, Sampling::Shuffled]);
    }
    let (reads, reuse) = (vec!["response".to_owned()], random.range(2, 3) as u32);
    definition.tasks.push(Task { reads, reuse, ..Task::new("replay", "samples") });
    definition
}

impl Simulation {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let definition = definition(&mut random);
        let cycles = definition.schedule.as_ref().unwrap().total_cycles;
        let drive = Drive::new();
        let durability = *random.pick(&[Durability::None, Durability::Process, Durability::Host]);
        let options = Options {
            durability,
            flush: *random.pick(&[Flush::None, Flush::Publication]),
            segment_bytes: *random.pick(&[20_000, 64 << 20]),
            arena_segment_bytes: 4096 * random.range(1, 4) as usize,
            units: *random.pick(&[1, 1, 2, 3]),
            chunk_bytes: *random.pick(&[200, 256 << 10]),
            incarnation: Some(7),
            ..Options::at(drive.folder())
        };
        let now = Arc::new(AtomicU64::new(0));
        let ground = Ground { clock: Clock::Set(now.clone()), disk: Arc::new(drive.clone()) };
        let life = Life::new(Store::begin(definition, &options, ground).unwrap(), now, 0);
        let lasts = durability > Durability::None;
        let roles = [Role::Source { prompts: 4 * cycles + random.below(3) }]
            .into_iter()
            .chain((0..5).flat_map(|task| {
                let count = if task == 3 { 1 } else { random.range(1, 2) };
                (0..count).map(move |_| Role::Stage(TaskId(task)))
            }))
            .collect::<Vec<_>>();
        let workers = roles.into_iter().enumerate().map(|(number, role)| Worker::new(number, role)).collect();
        let trouble = *random.pick(&[0, 2, 5, 12]);
        let fault = random.chance(25).then(|| random.range(200, 20_000));
        let restarts = if lasts { *random.pick(&[0, 2, 10, 40]) } else { 0 };
        Self {
            seed,
            random,
            time: 0,
            life,
            options,
            oracle: Oracle::new(drive.clone()),
            drive,
            restarts,
            down_until: 0,
            network: Network::default(),
            workers,
            guest: Guest::default(),
            trouble,
            fault,
            mended: None,
            told: rustc_hash::FxHasher::default(),
            steps: 0,
            ended: Ended::default(),
        }
    }

    pub(super) fn run(mut self) -> Ended {
        for worker in 0..self.workers.len() {
            self.network.at(self.random.below(50), Arrival::Alarm { worker, alarm: 0 });
        }
        self.network.at(1_000, Arrival::Tick);
        while let Some((time, arrival)) = self.network.next() {
            self.steps += 1;
            assert!(self.steps < PATIENCE, "seed {} is stuck at {time} ms:\n{}", self.seed, self.stuck());
            self.pass(time);
            self.go_wrong(time);
            self.arrive(time, arrival);
            if self.is_killed() {
                self.restart(time);
            } else if self.life.is_broken() {
                return self.end(false);
            }
            let trained = std::mem::take(&mut *self.life.trained.lock().unwrap());
            trained.iter().for_each(|one| self.oracle.consume(one.task, one.row));
            self.oracle.look(&self.life.store);
            if self.workers.iter().all(Worker::finished) {
                return self.end(true);
            }
        }
        unreachable!("time goes on: there is always a next tick")
    }

    fn pass(&mut self, time: u64) {
        self.time = time;
        self.life.now.store(time.saturating_sub(self.life.born), Ordering::SeqCst);
    }

    fn is_calm(&self) -> bool {
        self.time >= CALM
    }

    fn trouble(&self) -> u64 {
        if self.is_calm() { 0 } else { self.trouble }
    }

    /// Crashes, pauses, and the one failure of the disk.
    fn go_wrong(&mut self, now: u64) {
        if self.fault.is_some_and(|at| at <= now) {
            self.fault = None;
            let room = self.random.below(300) as usize;
            let fault = *self.random.pick(&[Fault::Full(room), Fault::Full(room), Fault::Arena(room), Fault::Flush]);
            self.drive.fail(Some(fault));
            let until = now + self.random.range(1, 2_000);
            if matches!(fault, Fault::Arena(_)) {
                self.mended = Some(until);
            }
        }
        if self.mended.is_some_and(|until| until <= now) {
            self.mended = None;
            self.drive.fail(None);
        }
        if self.random.below(2_000) >= self.trouble() {
            return;
        }
        let at = self.random.below(self.workers.len() as u64) as usize;
        let pause = *self.random.pick(&[50, 4_000, 31_000, 65_000]);
        let crash = self.random.chance(50);
        let name = self.workers[at].name.clone();
        // The runner sees a process end and says so; a host that is gone is only silent.
        let seen = crash && self.random.chance(50);
        if crash {
            self.workers[at].crash();
        }
        let alarm = self.workers[at].sleep();
        self.network.at(now + pause, Arrival::Alarm { worker: at, alarm });
        if seen {
            // The disk may fail under this as under anything else.
            drop(self.life.store.lose(&name));
        }
    }

    fn arrive(&mut self, now: u64, arrival: Arrival) {
        match arrival {
            Arrival::Tick => {
                if now >= self.down_until {
                    let mut tick = Request { caller: None, command: Command::Tick };
                    drop(self.life.store.ask(Sender::Here(None), &mut tick, false));
                    let calm = self.is_calm();
                    self.guest.act(&self.life.store, &mut self.random, calm);
                }
                self.network.at(now + 1_000, Arrival::Tick);
            }
            // Nobody listens.
            Arrival::Request { .. } if now < self.down_until => {}
            Arrival::Alarm { worker, alarm } => {
                if self.workers[worker].alarm == alarm {
                    self.act(worker, now);
                }
            }
            Arrival::Request { worker, call, body, unwanted } => {
                let heard = self.serve(body, &unwanted);
                self.tell(&heard);
                let trouble = self.trouble();
                self.network.send(now, &mut self.random, trouble, Arrival::Answer { worker, call, heard });
            }
            Arrival::Answer { worker, call, heard } => {
                let sight = Sight { store: &self.life.store };
                if self.workers[worker].hear(call, heard, &sight, &mut self.random) {
                    self.act(worker, now);
                }
            }
        }
    }

    /// A worker sends what it has to say now, and looks again later.
    fn act(&mut self, at: usize, now: u64) {
        let sight = Sight { store: &self.life.store };
        let worker = &mut self.workers[at];
        if let Some((call, body, unwanted)) = worker.next(&sight) {
            let request = Arrival::Request { worker: at, call, body, unwanted };
            let trouble = if now < CALM { self.trouble } else { 0 };
            self.network.send(now, &mut self.random, trouble, request);
        }
        let alarm = self.workers[at].sleep();
        if !self.workers[at].finished() {
            let patience = self.random.range(200, 900);
            self.network.at(now + patience, Arrival::Alarm { worker: at, alarm });
        }
    }

    /// The server's part, without a socket.
    fn serve(&mut self, body: Body, unwanted: &Unwanted) -> Heard {
        match body {
            Body::Call { request: Request { caller, mut command }, attempt, along } => {
                if let Some(caller) = caller {
                    let Unwanted { spots, puts } = unwanted;
                    let let_go = self.life.store.let_go(caller.0, spots.iter().copied(), puts);
                    let placed = let_go.and_then(|()| writing::along(&self.life.service, caller, &mut command, &along));
                    if let Err(error) = placed {
                        return Heard::of(&error);
                    }
                }
                let sender = Sender::Wire { caller, attempt: Some(attempt) };
                let mut request = Request { caller: None, command };
                match self.life.store.ask(sender, &mut request, false) {
                    Ok(Asked::Answered(reply)) => {
                        self.oracle.answered(&self.life.store);
                        Heard::Reply(reply)
                    }
                    Ok(Asked::Later(..)) => Heard::Later,
                    Err(error) => Heard::of(&error),
                }
            }
            Body::Put { put, array } => match self.put(put, array) {
                Ok(placed) => {
                    self.oracle.placed(&put, &placed);
                    Heard::Placed(placed)
                }
                Err(error) => Heard::of(&error),
            },
        }
    }

    fn put(&self, put: wire::Put, array: arrow::array::ArrayRef) -> Result<wire::Placed, Error> {
        let body = outgoing::put(put, &array).expect("it is small");
        let received = receiving::put(&self.life.service, body).now_or_never().expect("nothing waits");
        received.map_err(|status| wire::refused(&status, "the store").expect("it says why"))
    }

    /// Whether the store's process ends now: by chance, or because its disk failed and someone starts it again.
    fn is_killed(&mut self) -> bool {
        let chance = if self.is_calm() { 0 } else { self.restarts };
        let broken = self.life.is_broken() && self.options.durability > Durability::None;
        self.random.below(1_000) < chance || broken
    }

    /// The process is gone, maybe with its machine, and another one goes on from what it has left.
    fn restart(&mut self, now: u64) {
        let before = Oracle::puts(&self.life.store);
        self.ended.restarts += 1;
        self.network.cut();
        self.guest.forget(&mut self.ended.guests_ended);
        self.drive.fail(None);
        self.mended = None;
        if self.random.chance(30) {
            self.drive.tear(&mut self.random);
        }
        self.down_until = now + *self.random.pick(&[0, 0, 50, 3_000, 40_000]);
        // Nothing of it is left but its files.
        let nothing = Store::still(Definition::default(), Options::default(), Arc::default()).unwrap();
        self.life = Life::new(nothing, Arc::default(), 0);
        if self.options.durability == Durability::Host && self.random.chance(50) {
            self.ended.crashes += 1;
            self.drive.crash(&mut self.random);
        }
        if self.random.chance(10) {
            // The next one does not come far either.
            self.drive.fail(Some(Fault::Full(self.random.below(100) as usize)));
            if let Ok((store, ..)) = self.recover() {
                drop(store);
            }
            self.drive.fail(None);
        }
        let (store, recovered, clock, trained) = self.recover().unwrap_or_else(|error| panic!("{error}"));
        self.drive.reread();
        self.ended.torn_records += u64::from(recovered.torn.is_some());
        self.ended.held_again += recovered.held as u64;
        (recovered.seq, recovered.sessions, recovered.held, recovered.bytes).hash(&mut self.told);
        self.life = Life::new(store, clock, self.down_until);
        self.oracle.restarted(&self.life.store, &recovered, &before, &trained);
    }

    #[allow(clippy::type_complexity, reason = "used once")]
    fn recover(&self) -> Result<(Store, Recovered, Arc<AtomicU64>, Vec<Trained>), Error> {
        let (now, mut trained) = (Arc::new(AtomicU64::new(0)), Vec::new());
        let ground = Ground { clock: Clock::Set(now.clone()), disk: Arc::new(self.drive.clone()) };
        let (store, recovered) =
            Store::recover_on(&self.options, ground, |published, _, _| trained.extend(published.rows.iter().cloned()))?;
        Ok((store, recovered, now, trained))
    }

    fn tell(&mut self, heard: &Heard) {
        match heard {
            Heard::Reply(reply) => serde_json::to_string(reply).unwrap().hash(&mut self.told),
            Heard::Later => "later".hash(&mut self.told),
            Heard::Placed(placed) => format!("{placed:?}").hash(&mut self.told),
            Heard::Failed(failure) => {
                // Words about files hold the name of a folder that differs each time.
                let folder = self.drive.folder().to_str().unwrap();
                format!("{failure:?}").replace(folder, "").hash(&mut self.told);
            }
        }
    }

    fn end(mut self, whole: bool) -> Ended {
        let stopped = self.workers.iter().any(|worker| worker.stopped);
        if whole {
            let ledger = self.life.store.with_state(|state, _| state.ledger()).unwrap();
            assert!(stopped || ledger.iter().all(|entry| entry.live == 0), "rows are owed at the end: {ledger:?}");
            // A disk that began to fail under the last step is mended.
            self.drive.fail(None);
            // Sessions whose worker crashed are found lost, and what they had put goes with them.
            for _ in 0..32 {
                self.life.now.fetch_add(1_000, Ordering::SeqCst);
                self.life.store.call(None, Command::Tick, None).unwrap();
            }
            assert_eq!(
                self.life.store.with_state(|state, now| state.sessions(now).len()).unwrap(),
                0,
                "sessions are left"
            );
            assert_eq!(self.life.store.units().stats().total().unsettled, 0, "something is held at the end");
        }
        self.oracle.read_on(&self.life.store);
        self.oracle.replays(&self.life.store, &mut self.random);
        self.drive.from(0).hash(&mut self.told);
        Ended {
            finished: u64::from(whole && !stopped),
            stopped: u64::from(whole && stopped),
            broken: u64::from(!whole),
            steps: self.steps,
            consumed: self.oracle.consumed(),
            used_again: self.oracle.used_again(),
            lost_packets: self.network.lost,
            repeated_packets: self.network.repeated,
            lost_sessions: self.oracle.lost_sessions,
            expired_leases: self.oracle.expired,
            resumed_rows: self.workers.iter().map(|worker| worker.resumed).sum(),
            story: self.told.finish(),
            ..self.ended
        }
    }

    fn stuck(&self) -> String {
        let tasks = self.life.store.with_state(|state, now| state.tasks(now)).unwrap();
        let waits =
            tasks.iter().map(|task| format!("{}: {:?}", task.task, task.wait.as_ref().map(ToString::to_string)));
        waits.chain(self.workers.iter().map(|worker| worker.told())).collect::<Vec<_>>().join("\n")
    }
}
