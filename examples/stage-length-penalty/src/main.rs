//! `tq-run` with one stage more.

use stage_length_penalty::LengthPenalty;

fn main() -> std::process::ExitCode {
    tq_run::App::new().stage::<LengthPenalty>().main()
}
