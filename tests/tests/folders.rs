//! A run's folder: one process at a time, nothing of anyone else deleted, no mistake paid for with a phase.

use std::{fs, process::Output, time::Duration};

use tq_tests::Workplace;

fn workplace() -> Workplace {
    Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test"))
}

/// What it said when it was refused before the start.
fn refused(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

#[test]
fn a_second_process_is_kept_out_and_the_first_goes_on() {
    let (place, undisturbed) = (workplace(), workplace());
    let long = "trainer.total_training_steps=24"; // several times as long as the three tries below
    undisturbed.succeed("quickstart.yaml", &[long]);
    let mut job = place.spawn("quickstart.yaml", &[long]);
    let plan = place.run_file("small", "plan.yaml");
    while !plan.exists() {
        assert!(job.try_wait().expect("the job's state").is_none(), "it ended before it wrote its plan");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    for second in ["--resume", "--overwrite", "trainer.seed=1"] {
        let said = refused(&place.run("quickstart.yaml", &[second]));
        assert!(said.contains("another process runs in"), "{second}: {said}");
    }
    assert!(job.wait().expect("the job's end").success());
    assert!(place.weights("small", "policy") == undisturbed.weights("small", "policy"), "the second disturbed it");
    assert_eq!(place.trained("small").len(), 24 * 8 * 4);
}

#[test]
fn overwriting_deletes_what_a_run_wrote_and_nothing_else() {
    let place = workplace();
    place.succeed("quickstart.yaml", &["trainer.total_training_steps=1"]);
    let note = place.run_file("small", "notes.txt");
    fs::write(&note, "mine").expect("a file in the run's folder");
    place.succeed("quickstart.yaml", &["trainer.total_training_steps=1", "--overwrite"]);
    assert_eq!(fs::read_to_string(note).expect("still there"), "mine");
}

#[test]
fn a_name_that_leads_out_of_the_runs_is_refused() {
    let place = workplace();
    for name in ["trainer.experiment_name=..", "trainer.experiment_name=''", "trainer.default_local_dir=."] {
        let said = refused(&place.run("quickstart.yaml", &[name, "--overwrite"]));
        assert!(said.contains("trainer."), "{name}: {said}");
        assert!(place.path().join("data/digits/train.parquet").exists(), "{name} deleted the data");
    }
    let long = format!("trainer.experiment_name={}", "x".repeat(200));
    assert!(refused(&place.run("quickstart.yaml", &[&long])).contains("at most"));
}

#[test]
fn a_file_that_is_missing_is_refused_before_the_warm_up_and_before_anything_is_deleted() {
    let place = workplace();
    place.succeed("quickstart.yaml", &["trainer.total_training_steps=1"]);
    let before = place.weights("small", "policy");
    for (argument, named) in [
        ("data.val_files=nope.parquet", "nope.parquet"),
        ("actor_rollout_ref.model.path=nowhere", "nowhere/config.json"),
    ] {
        let said = refused(&place.run("quickstart.yaml", &[argument, "--overwrite"]));
        assert!(said.contains(named), "{said}");
    }
    assert!(place.weights("small", "policy") == before, "the old run is gone");
}
