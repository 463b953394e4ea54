//! A store that outlives kills: in a process of its own its workers go on with it; in the runner a resumed run goes on
//! exactly where it was.

use std::{
    fs,
    io::Read,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tq_tests::{Workplace, store_process, until, workers};

const APART: &str = "+store={kind: process}";
const STEPS: &str = "trainer.total_training_steps=40";

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

fn start(place: &Workplace, arguments: &[&str]) -> Child {
    let mut command = place.small("quickstart.yaml", arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test")
}

/// Waits for the end; whether it went well, and what was said.
fn end(mut run: Child) -> (bool, String) {
    let mut said = String::new();
    run.stderr.take().expect("its standard error").read_to_string(&mut said).expect("text");
    (run.wait().expect("its end").success(), said)
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().expect("kill").success(), "{pid} had ended");
}

/// Steps in the audit so far.
fn steps(place: &Workplace) -> u64 {
    let text = fs::read_to_string(place.run_file("small", "audit.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| line.split("\"step\":").nth(1)?.split(',').next()?.parse().ok()).max().unwrap_or(0)
}

/// Step and loss of every step that trained.
fn losses(place: &Workplace) -> Vec<(u64, String)> {
    let lines = place.lines("small", "metrics.jsonl");
    lines.iter().filter_map(|line| Some((line["step"].as_u64()?, line.get("actor/pg_loss")?.to_string()))).collect()
}

fn assert_same(threads: &Workplace, other: &Workplace) {
    assert_eq!(threads.trained("small"), other.trained("small"));
    assert!(threads.weights("small", "policy") == other.weights("small", "policy"), "other weights than threads");
    other.assert_ledger_balances("small");
    for left in ["token", "url"] {
        assert!(!other.run_file("small", left).exists(), "`{left}` is left behind");
    }
}

#[test]
fn a_store_in_a_process_of_its_own_trains_the_same_bits() {
    let (threads, apart) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[]);
    apart.succeed("quickstart.yaml", &[APART]);
    assert_same(&threads, &apart);
    assert_eq!(losses(&apart), losses(&threads));
}

#[test]
fn a_store_that_is_killed_comes_back_under_its_workers() {
    let (threads, apart) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[STEPS]);
    let run = start(&apart, &[APART, STEPS]);
    until(|| (steps(&apart) > 1).then_some(()));
    let before = until(|| Some(workers(run.id())).filter(|workers| workers.len() >= 5));
    for wait in [50, 400, 900, 150] {
        std::thread::park_timeout(Duration::from_millis(wait));
        let (killed, done) = (store_process(run.id()), steps(&apart));
        signal("-9", killed);
        until(|| (store_process(run.id()) != killed && steps(&apart) > done).then_some(()));
    }
    let after = workers(run.id());
    let (well, said) = end(run);
    assert!(well, "{said}");
    assert_eq!(said.matches("the store's process (pid").count(), 4, "{said}");
    assert!(!said.contains("worker process"), "a worker did not outlive the store: {said}");
    assert!(after.iter().all(|worker| before.contains(worker)), "{before:?}, then {after:?}");
    assert_same(&threads, &apart);
    // Nothing that was published is made again: a torn end of the audit alone is written twice.
    assert_eq!(steps_of_lines(&apart), Vec::from_iter(0..=40));
}

/// The step of each line of metrics.
fn steps_of_lines(place: &Workplace) -> Vec<u64> {
    place.lines("small", "metrics.jsonl").iter().filter_map(|line| line["step"].as_u64()).collect()
}

/// The validation of a step that lost its line comes later: it belongs to the line that was written anew.
#[test]
fn a_step_that_is_killed_between_audit_and_metrics_has_one_line() {
    let lasting = ["+store={durability: process}", "trainer.test_freq=2"];
    // Two steps of the warm-up come before.
    for pass in 3..=6 {
        let place = workplace();
        let point = format!("journal::audited:{pass}");
        let output = place.small("quickstart.yaml", &lasting).env("TQ_KILL_AT", &point).output().expect("a run");
        assert_eq!(output.status.signal(), Some(9), "{point}: {}", String::from_utf8_lossy(&output.stderr));
        place.succeed("quickstart.yaml", &[&lasting[..], &["--resume"]].concat());
        assert_eq!(steps_of_lines(&place), [0, 1, 2, 3, 4], "{point}");
    }
}

#[test]
fn ranks_begin_again_when_the_store_that_adds_up_their_gradients_is_killed() {
    let (threads, apart) = (workplace(), workplace());
    let ranks = "stages.actor.ranks=2";
    threads.succeed("quickstart.yaml", &[STEPS, ranks]);
    let run = start(&apart, &[APART, STEPS, ranks]);
    until(|| (steps(&apart) > 1).then_some(()));
    for wait in [300, 1_100, 500] {
        std::thread::park_timeout(Duration::from_millis(wait));
        let (killed, done) = (store_process(run.id()), steps(&apart));
        signal("-9", killed);
        until(|| (store_process(run.id()) != killed && steps(&apart) > done).then_some(()));
    }
    let (well, said) = end(run);
    assert!(well, "{said}");
    assert_same(&threads, &apart);
}

#[test]
fn a_killed_run_whose_bytes_are_kept_goes_on_exactly_where_it_was() {
    let (threads, kept) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[STEPS]);
    // One state at the end alone: what a resumed run does not repeat it has from the arena.
    let lasting = ["+store={durability: process}", STEPS, "schedule.state_every=1000"];
    let mut run = start(&kept, &lasting);
    until(|| (steps(&kept) > 5).then_some(()));
    let done = steps(&kept);
    run.kill().expect("kill");
    run.wait().expect("its end");
    let (well, said) = end(start(&kept, &[&lasting[..], &["--resume"]].concat()));
    assert!(well, "{said}");
    assert_same(&threads, &kept);
    assert!(kept.repeated_steps("small").iter().all(|step| *step >= done), "{:?}", kept.repeated_steps("small"));
    assert!(!kept.run_file("small", "arena").exists(), "nothing goes on from a finished run");
}

#[test]
fn a_damaged_arena_is_told_and_the_last_named_state_goes_on() {
    let (threads, kept) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[STEPS]);
    let lasting = ["+store={durability: process}", STEPS];
    let mut run = start(&kept, &lasting);
    until(|| (steps(&kept) > 3).then_some(()));
    run.kill().expect("kill");
    run.wait().expect("its end");
    for file in fs::read_dir(kept.run_file("small", "arena")).expect("the arena").flatten() {
        if file.path().extension().is_some_and(|extension| extension == "data") {
            fs::write(file.path(), vec![7; fs::metadata(file.path()).expect("its size").len() as usize])
                .expect("a file");
        }
    }
    let (well, said) = end(start(&kept, &[&lasting[..], &["--resume"]].concat()));
    assert!(well, "{said}");
    assert!(said.contains("the store cannot go on where it was") && said.contains("is damaged: chunk"), "{said}");
    assert_same(&threads, &kept);
}

#[test]
fn ctrl_c_names_a_state_and_the_run_goes_on_from_there() {
    let (threads, apart) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[STEPS]);
    let run = start(&apart, &[APART, STEPS]);
    until(|| (steps(&apart) > 1).then_some(()));
    signal("-INT", run.id());
    let (well, said) = end(run);
    assert!(!well && said.contains("stopped in phase `rl`; step"), "{said}");
    let (well, said) = end(start(&apart, &[APART, STEPS, "--resume"]));
    assert!(well, "{said}");
    assert_same(&threads, &apart);
    assert_eq!(losses(&apart), losses(&threads), "each step is told once, in full");
    assert!(!apart.run_file("small", "held_metrics.json").exists());
}

#[test]
fn workers_make_a_run_of_a_store_that_starts_none() {
    let (threads, joined) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[]);
    let mut store = joined.small("quickstart.yaml", &[]);
    let arguments: Vec<_> = store.get_args().map(|argument| argument.to_owned()).collect();
    let arguments: Vec<&str> = arguments.iter().map(|argument| argument.to_str().expect("text")).collect();
    store = joined.command(&[&["store"], &arguments[..]].concat());
    let mut store = store.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test");
    let token = joined.run_file("small", "token");
    let token = token.to_str().expect("a path in UTF-8");
    let mut before = String::new();
    let warmup = &[("dataset", "0"), ("sft", "0")][..];
    let stages = ["rollout", "reward", "advantage", "actor", "validation"].map(|stage| (stage, "0"));
    // One source for the prompts, one for the held-out ones.
    let rl = [&[("dataset", "0"), ("dataset", "1")][..], &stages].concat();
    for crew in [warmup, &rl] {
        let read = || fs::read_to_string(joined.run_file("small", "url")).ok();
        let url = until(|| read().filter(|url| !url.is_empty() && *url != before));
        let join = |(stage, index): &(&str, &str)| {
            let arguments = ["worker", "--connect", &url, "--token-file", token, "--stage", stage, "--index", index];
            joined.command(&arguments).stderr(Stdio::piped()).spawn().expect("program under test")
        };
        for worker in crew.iter().map(join).collect::<Vec<Child>>() {
            let (well, said) = end(worker);
            assert!(well, "{said}");
        }
        before = url;
    }
    let status = until(|| store.try_wait().expect("its status"));
    assert!(status.success(), "{}", end(store).1);
    assert_same(&threads, &joined);
}

#[test]
fn contradictions_about_the_store_are_refused() {
    let place = workplace();
    for (arguments, expected) in [
        (
            &["+store={kind: process, durability: none}"][..],
            "store.durability: found `none` beside `store.kind: process`",
        ),
        (&["+store={arena: /dev/shm/x}"], "store.arena: found a folder for bytes that nothing keeps"),
        (
            &[APART, "workers={all: {stages: \"*\", kind: threads}}"],
            "workers.all.kind: found `threads` beside `store.kind: process`",
        ),
    ] {
        let output = place.run("quickstart.yaml", arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn every_schedule_trains_the_same_bits_over_two_units() {
    let whole_cycles: &[&str] = &["schedule.use=fully_async", "schedule.lag=0", "schedule.grain=cycle"];
    for schedule in [&[][..], &["schedule=one_step_off"], whole_cycles] {
        let (one, two) = (workplace(), workplace());
        one.succeed("quickstart.yaml", schedule);
        two.succeed("quickstart.yaml", &[schedule, &["+store={units: 2}"]].concat());
        assert_same(&one, &two);
        assert_eq!(losses(&two), losses(&one), "{schedule:?}");
    }
}

#[test]
fn a_store_of_two_units_in_a_process_of_its_own_is_killed_and_trains_the_same_bits() {
    let (threads, apart) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[STEPS]);
    let run = start(&apart, &["+store={kind: process, units: 2}", STEPS]);
    until(|| (steps(&apart) > 1).then_some(()));
    for _ in 0..2 {
        let (killed, done) = (store_process(run.id()), steps(&apart));
        signal("-9", killed);
        until(|| (store_process(run.id()) != killed && steps(&apart) > done).then_some(()));
    }
    let (well, said) = end(run);
    assert!(well, "{said}");
    assert_same(&threads, &apart);
}
