//! `tq-run`: runs pipelines with the built-in stages.

fn main() -> std::process::ExitCode {
    tq_run::App::new().main()
}
