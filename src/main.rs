//! The binary: parse, run, exit code.

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use muster::cli;
use muster::config::Environment;
use muster::store;

fn main() -> ExitCode {
    // What a panic says may hold a secret; where it happened does not.
    panic::set_hook(Box::new(|panic| {
        if !store::panics_inside() {
            cli::ui::report_defect(panic.location());
        }
    }));
    let arguments: Vec<_> = std::env::args_os().collect();
    let run = AssertUnwindSafe(|| cli::run(&arguments, Environment::of_process()));
    panic::catch_unwind(run).unwrap_or(ExitCode::FAILURE)
}
