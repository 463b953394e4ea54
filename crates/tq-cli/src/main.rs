//! `tq-cli`: see the library.

use std::{io, process::ExitCode};

use clap::Parser;
use tq_cli::{Cli, Outcome};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match tq_cli::run(&cli, &mut io::stdout().lock(), &mut io::stderr().lock()) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Unwell) => ExitCode::FAILURE,
        Ok(Outcome::Unconfirmed) => ExitCode::from(2),
        // Whoever reads the output has seen enough.
        Err(error) if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            use io::Write;
            // Nothing is left to tell it to when this fails too.
            drop(writeln!(io::stderr(), "error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
