//! Which seeds a simulation runs: `TQ_SIM_SCHEDULES` of them from `TQ_SIM_SEED` on, shared among the cores. Also that of
//! `src/store/simulation`.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// How many seeds are asked for; `usual` when nothing is said, one when a seed is.
pub(crate) fn count(usual: u64) -> u64 {
    number("TQ_SIM_SCHEDULES", if env::var("TQ_SIM_SEED").is_ok() { 1 } else { usual })
}

/// What came of one seed; a failure names it.
pub(crate) fn one<T>(seed: u64, simulate: impl FnOnce(u64) -> T) -> T {
    catch_unwind(AssertUnwindSafe(|| simulate(seed)))
        .unwrap_or_else(|_| panic!("seed {seed} failed; TQ_SIM_SEED={seed} runs it alone"))
}

/// What came of each.
pub(crate) fn each<T: Send>(usual: u64, simulate: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let (first, count) = (number("TQ_SIM_SEED", 0), count(usual));
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64).min(count);
    let share =
        |n: u64| (first + n..first + count).step_by(threads as usize).map(|seed| one(seed, &simulate)).collect();
    let shares: Vec<Vec<T>> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|n| scope.spawn(move || share(n))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|why| resume_unwind(why))).collect()
    });
    shares.into_iter().flatten().collect()
}
