//! Data-parallel training: ranks that share every batch come to what one worker comes to, under every schedule, as
//! threads and as processes, killed or not.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tq_tests::Workplace;
use transferqueue::{catalog::Catalog, log};

const APART: &str = "workers={all: {stages: \"*\", kind: processes}}";
const TWO: &str = "stages.actor.ranks=2";
const ROWS: usize = 4 * 8 * 4;

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

/// All parameters of a model folder, one after the other.
fn parameters(folder: &Path) -> Vec<f64> {
    let bytes = fs::read(folder.join("model.safetensors")).expect("weights");
    let (length, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize);
    let header: Value = serde_json::from_slice(header).expect("a header");
    let mut tensors: Vec<_> =
        header.as_object().expect("tensors").iter().filter(|(k, _)| *k != "__metadata__").collect();
    tensors.sort_by_key(|(_, tensor)| tensor["data_offsets"][0].as_u64());
    let of = |(_, tensor): (&String, &Value)| {
        let at = |end: usize| tensor["data_offsets"][end].as_u64().expect("an offset") as usize;
        let bytes = &data[at(0)..at(1)];
        match tensor["dtype"].as_str() {
            Some("F32") => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap_or_default()).into()).collect()
            }
            Some("F64") => {
                bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap_or_default())).collect()
            }
            other => panic!("a tensor of {other:?}"),
        }
    };
    tensors.into_iter().flat_map(|tensor| -> Vec<f64> { of(tensor) }).collect()
}

fn norm(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn metric(place: &Workplace, step: u64, name: &str) -> f64 {
    let lines = place.lines("small", "metrics.jsonl");
    let of_step = |line: &&Value| line["step"].as_u64() == Some(step) && line.get(name).is_some();
    let found: Vec<_> = lines.iter().filter(of_step).collect();
    assert_eq!(found.len(), 1, "`{name}` of step {step} is recorded once");
    found[0][name].as_f64().unwrap_or_else(|| panic!("`{name}` is {}", found[0][name]))
}

/// One cycle, whose batch does not depend on who trains: `updates` of it, as 1 and as `ranks` ranks.
fn one_cycle(ranks: u64, more: &[&str]) -> (Workplace, Workplace) {
    let (one, many) = (workplace(), workplace());
    let optim = "actor_rollout_ref.actor.optim";
    let lr = [
        format!("{optim}.lr=1e-3"),
        format!("{optim}.lr_warmup_steps=0"),
        format!("{optim}.lr_scheduler_type=constant"),
    ];
    let ranks = format!("stages.actor.ranks={ranks}");
    let mut arguments = vec!["trainer.total_training_steps=1", &lr[0], &lr[1], &lr[2]];
    arguments.extend(more);
    one.succeed("quickstart.yaml", &arguments);
    arguments.push(&ranks);
    many.succeed("quickstart.yaml", &arguments);
    assert_eq!(one.trained("small"), many.trained("small"), "the same recorded batch");
    (one, many)
}

/// How far two ends lie apart, as a share of the way from the common beginning, and of the weights.
fn apart(one: &Workplace, many: &Workplace) -> (f64, f64) {
    let [end, other] = [one, many].map(|place| parameters(&place.run_file("small", "final/policy")));
    let begin = parameters(&one.run_file("small", "phases/warmup/final/policy"));
    let (way, gap) = (norm(&end, &begin), norm(&end, &other));
    assert!(way > 0.0, "nothing was trained");
    (gap / way, gap / norm(&end, &vec![0.0; end.len()]))
}

#[test]
fn the_first_update_of_two_ranks_is_that_of_one() {
    for mode in ["token-mean", "seq-mean-token-mean"] {
        let mode = format!("actor_rollout_ref.actor.loss_agg_mode={mode}");
        let (one, two) = one_cycle(2, &["actor_rollout_ref.actor.ppo_mini_batch_size=8", &mode]);
        let (_, of_weights) = apart(&one, &two);
        assert!(of_weights < 1e-6, "{mode}: weights differ by {of_weights:e}");
        for name in ["actor/grad_norm", "actor/pg_loss", "actor/loss", "actor/ppo_kl"] {
            let (a, b) = (metric(&one, 1, name), metric(&two, 1, name));
            assert!((a - b).abs() <= 1e-6 * a.abs().max(1e-2), "{mode}: `{name}` is {b}, alone {a}");
        }
        for name in ["critic/score/mean", "critic/score/max", "critic/score/min", "response_length/mean"] {
            let (a, b) = (metric(&one, 1, name), metric(&two, 1, name));
            assert!((a - b).abs() <= 1e-12 * a.abs().max(1.0), "{mode}: `{name}` is {b}, alone {a}");
        }
        for name in ["response_length/max", "response_length/min", "lag/max", "perf/total_num_tokens", "actor/lr"] {
            assert_eq!(metric(&one, 1, name), metric(&two, 1, name), "{mode}: `{name}`");
        }
    }
}

#[test]
fn twenty_updates_in_double_precision_are_those_of_one_worker() {
    let double = [
        "data.train_batch_size=20",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=fp64",
    ];
    for ranks in [2, 3] {
        let (one, many) = one_cycle(ranks, &double);
        let (of_way, _) = apart(&one, &many);
        assert!(of_way < 1e-9, "{ranks} ranks: {of_way:e} of the way apart");
    }
}

/// What rank 0 reported of each step.
fn losses(place: &Workplace) -> Vec<(u64, String, String)> {
    let lines = place.lines("small", "metrics.jsonl");
    let of = |line: &Value| {
        let text = |name: &str| Some(line.get(name)?.to_string());
        Some((line["step"].as_u64()?, text("actor/pg_loss")?, text("actor/grad_norm")?))
    };
    lines.iter().filter_map(of).collect()
}

/// Of the run's log, record by record: every version alive has a reason, at most one is being published beside them, and no
/// byte of weights is held for anything else.
fn assert_weights_stay_within_their_allowance(place: &Workplace, what: &str) {
    let mut catalog: Option<Catalog> = None;
    let mut published = 0;
    for entry in log::surviving(&place.run_file("small", "events")).expect("event log") {
        let record = entry.expect("a whole record").record;
        match &mut catalog {
            None => catalog = Some(Catalog::open(&record).expect("the first record")),
            Some(catalog) => drop(catalog.replay(&record).expect("the next record")),
        }
        for view in catalog.as_ref().expect("opened above").state().weights() {
            let newest = view.versions.iter().map(|version| version.bytes).max().unwrap_or(0);
            let alive = view.versions.len() as u64;
            assert!(view.versions.iter().all(|version| !version.reasons.is_empty()), "{what}: {view}");
            assert!(view.publishing.len() <= 1, "{what}: {view}");
            // A version is as large as the next: what is published begins at nothing.
            assert!(newest == 0 || view.bytes <= (alive + 1) * newest, "{what}: {view}");
            published = published.max(view.versions.last().map_or(0, |version| version.version));
        }
    }
    assert_eq!(published, 4, "{what}");
}

fn assert_whole(place: &Workplace, what: &str) {
    assert_weights_stay_within_their_allowance(place, what);
    assert_eq!(place.trained("small").len(), ROWS, "{what}");
    place.assert_ledger_balances("small");
    for step in 1..=4 {
        assert!(metric(place, step, "actor/grad_norm").is_finite(), "{what}");
    }
}

#[test]
fn on_policy_ranks_repeat_their_bits_and_processes_those_of_threads() {
    let (one, two, processes) = (workplace(), workplace(), workplace());
    one.succeed("quickstart.yaml", &[TWO]);
    two.succeed("quickstart.yaml", &[TWO]);
    processes.succeed("quickstart.yaml", &[TWO, APART]);
    for place in [&one, &two, &processes] {
        assert_whole(place, "on_policy");
        assert!(place.trained("small").values().all(|(_, lag)| *lag == 0));
    }
    assert!(one.weights("small", "policy") == two.weights("small", "policy"), "two runs of one seed differ");
    assert!(one.weights("small", "policy") == processes.weights("small", "policy"), "processes differ from threads");
}

#[test]
fn one_step_off_ranks_train_the_same_bits_as_threads_and_as_processes() {
    let (threads, processes) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[TWO, "schedule=one_step_off"]);
    processes.succeed("quickstart.yaml", &[TWO, "schedule=one_step_off", APART]);
    for place in [&threads, &processes] {
        assert_whole(place, "one_step_off");
        assert!(place.trained("small").values().all(|(step, lag)| *lag == u64::from(*step > 1)));
    }
    assert!(
        threads.weights("small", "policy") == processes.weights("small", "policy"),
        "processes differ from threads"
    );
}

#[test]
fn fully_asynchronous_ranks_train_every_row_once_within_their_bound() {
    for kind in ["workers={all: {stages: \"*\"}}", APART] {
        let place = workplace();
        let lag = ["schedule.use=fully_async", "schedule.lag=0.5", "schedule.max_lag=1"];
        place.succeed("quickstart.yaml", &[TWO, lag[0], lag[1], lag[2], kind]);
        assert_whole(&place, kind);
        assert!(place.trained("small").values().all(|(_, lag)| *lag <= 1));
    }
}

#[test]
fn every_training_stage_of_ppo_may_have_ranks_of_its_own() {
    let place = workplace();
    let sizes = ["data.train_batch_size=16", "actor_rollout_ref.rollout.n=1", "trainer.critic_warmup=2"];
    let ranks = ["stages.actor.ranks=2", "stages.critic.ranks=3", "stages.critic.per=cycle"];
    place.succeed("ppo.yaml", &[&sizes[..], &ranks[..]].concat());
    let tasks: std::collections::BTreeSet<String> = place.trained("small").into_keys().map(|(task, _)| task).collect();
    assert_eq!(tasks.into_iter().collect::<Vec<_>>(), ["actor", "critic"]);
    place.assert_ledger_balances("small");
}

#[test]
fn ranks_that_are_killed_in_a_cycle_train_it_again_together_to_the_same_bits() {
    let undisturbed = workplace();
    undisturbed.succeed("quickstart.yaml", &[TWO]);
    let expected = undisturbed.weights("small", "policy");
    // Every process of a rank dies at each such pass of its life, which is never the first of a cycle.
    for point in ["trainer::updated:4", "trainer::committed:4", "trainer::offer:3"] {
        let place = workplace();
        let mut command = place.small("quickstart.yaml", &[TWO, APART]);
        let output = command.env("TQ_KILL_AT", point).output().expect("program under test");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{point}: {said}");
        assert!(said.contains("worker process actor-0 (pid") && said.contains("is started again"), "{point}: {said}");
        assert_whole(&place, point);
        assert!(place.weights("small", "policy") == expected, "{point}: other weights than without kills");
        assert_eq!(losses(&place), losses(&undisturbed), "{point}: what was lost is not reported");
    }
}

/// A worker process of a run, by stage and index.
fn worker(runner: u32, stage: &str, index: &str) -> Option<u32> {
    let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is = |pid: &u32| {
        let line = line(*pid);
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.windows(2).any(|pair| pair == [b"--stage".as_slice(), stage.as_bytes()])
            && words.windows(2).any(|pair| pair == [b"--index".as_slice(), index.as_bytes()])
    };
    tq_tests::workers(runner).into_iter().map(|(pid, _)| pid).find(is)
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "waited for two minutes");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

fn start(place: &Workplace, arguments: &[&str]) -> Child {
    let mut command = place.small("quickstart.yaml", arguments);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test")
}

fn end(mut run: Child) -> String {
    let mut said = String::new();
    std::io::Read::read_to_string(&mut run.stderr.take().expect("its standard error"), &mut said).expect("text");
    assert!(run.wait().expect("its end").success(), "{said}");
    said
}

#[test]
fn one_rank_killed_at_any_moment_takes_its_fellow_back_with_it() {
    let steps = "trainer.total_training_steps=16";
    let (threads, processes) = (workplace(), workplace());
    threads.succeed("quickstart.yaml", &[TWO, steps]);
    let run = start(&processes, &[TWO, steps, APART]);
    let trained = || {
        let audit = fs::read_to_string(processes.run_file("small", "audit.jsonl")).unwrap_or_default();
        audit.lines().count() / (8 * 4)
    };
    for index in ["1", "0", "1"] {
        // Every rank has joined by then, and works.
        let before = trained();
        until(|| (trained() > before + 1).then_some(()));
        let pid = until(|| worker(run.id(), "actor", index));
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
    }
    let said = end(run);
    assert!(said.contains("worker process actor-1 (pid") && said.contains("signal: 9"), "{said}");
    for (rank, fellow) in [(1, 0), (0, 1)] {
        let back = format!("worker actor-{fellow} lost a fellow rank and begins again");
        assert!(said.contains(&back) && said.contains(&format!("has ended: rank {rank} (actor-{rank})")), "{said}");
    }
    assert_eq!(threads.trained("small"), processes.trained("small"));
    assert_eq!(losses(&threads), losses(&processes), "what was lost is not reported");
    processes.assert_ledger_balances("small");
    assert!(
        threads.weights("small", "policy") == processes.weights("small", "policy"),
        "other weights than undisturbed"
    );
}

#[test]
fn a_run_of_ranks_that_is_killed_as_a_whole_resumes_to_the_same_bits() {
    let undisturbed = workplace();
    undisturbed.succeed("quickstart.yaml", &[TWO]);
    let place = workplace();
    let mut command = place.small("quickstart.yaml", &[TWO]);
    let killed = command.env("TQ_KILL_AT", "trainer::updated:11").output().expect("program under test");
    assert!(!killed.status.success());
    place.succeed("quickstart.yaml", &[TWO, "--resume"]);
    assert_whole(&place, "resumed");
    assert!(place.weights("small", "policy") == undisturbed.weights("small", "policy"));
}
