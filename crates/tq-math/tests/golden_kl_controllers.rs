//! KL controllers against recorded traces.

mod golden;

use golden::{Tally, load, number, text};
use tq_math::kl::Controller;

#[test]
fn controllers_follow_the_recorded_traces_also_across_a_save() {
    let Some(file) = load("kl_controllers.json") else {
        return;
    };
    let mut tally = Tally::new("kl_controllers.json");
    for (nth, case) in file.as_array().expect("traces").iter().enumerate() {
        let config = &case["config"];
        let make = || {
            Controller::new(
                text(config, "type"),
                number(&config["kl_coef"]),
                number(&config["target_kl"]),
                number(&config["horizon"]),
            )
        };
        tally.ran();
        let mut controller = match (make(), case.get("error")) {
            (Ok(controller), None) => controller,
            (Err(_), Some(_)) => continue,
            (ours, theirs) => {
                tally.wrong(format!("trace {nth}: {ours:?} instead of {theirs:?}"));
                continue;
            }
        };
        tally.close(&format!("trace {nth}"), controller.value(), number(&case["initial"]), 0.0, 1e-12);
        for (step, update) in case["trace"].as_array().expect("updates").iter().enumerate() {
            if step % 5 == 3 {
                // A new controller with the saved value goes on where the old one stopped.
                let saved = controller.value();
                controller = make().expect("made before");
                controller.restore(saved);
            }
            controller.update(number(&update["current_kl"]), number(&update["n_steps"]) as usize);
            tally.close(&format!("trace {nth} step {step}"), controller.value(), number(&update["value"]), 0.0, 1e-12);
        }
    }
    tally.finish();
}
