//! The program under test. `TQ_KILL_AT=<point>:<n>` kills it (SIGKILL, nothing is cleaned up) at the n-th pass of a point;
//! `TQ_STALL_AT=<point>:<seconds>` holds the first pass of a point for that long, `TQ_SLOW_AT=<point>:<milliseconds>` each.

use std::{
    env,
    process::{self, Command, ExitCode},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use stage_length_penalty::LengthPenalty;
use tq_tests::thin_out::ThinOut;

fn main() -> ExitCode {
    if let Some((point, n)) = armed("TQ_KILL_AT") {
        let passes = AtomicU64::new(0);
        let kill = move || {
            if passes.fetch_add(1, Ordering::SeqCst) + 1 == n {
                let killed = Command::new("kill").args(["-9", &process::id().to_string()]).status();
                // SIGKILL needs no answer; whoever comes here was not killed.
                process::exit(if killed.is_ok() { 99 } else { 98 });
            }
        };
        fail::cfg_callback(point, kill).expect("kill point");
    }
    if let Some((point, seconds)) = armed("TQ_STALL_AT") {
        let passes = AtomicU64::new(0);
        let stall = move || {
            if passes.fetch_add(1, Ordering::SeqCst) == 0 {
                std::thread::park_timeout(Duration::from_secs(seconds));
            }
        };
        fail::cfg_callback(point, stall).expect("stall point");
    }
    if let Some((point, milliseconds)) = armed("TQ_SLOW_AT") {
        let slow = move || std::thread::park_timeout(Duration::from_millis(milliseconds));
        fail::cfg_callback(point, slow).expect("slow point");
    }
    tq_run::App::new().stage::<LengthPenalty>().stage::<ThinOut>().main()
}

fn armed(variable: &str) -> Option<(String, u64)> {
    let text = env::var(variable).ok()?;
    let (point, n) =
        text.rsplit_once(':').unwrap_or_else(|| panic!("{variable} is `{text}`; expected <point>:<number>"));
    Some((point.to_owned(), n.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`; expected <point>:<number>"))))
}
