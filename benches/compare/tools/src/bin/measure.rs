//! Runs one command and says what it used: `measure REPORT COMMAND [ARGUMENT…]`.
//!
//! A process inherits the peak memory of the process that started it, so a large runner would be
//! seen in every figure; this one is small. It starts one child, so what the kernel counts for
//! "children" is that child and everything that it waited for. The child's process id goes to
//! REPORT first, the figures when it has ended.

use std::error::Error;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(report), Some(program)) = (arguments.next(), arguments.next()) else {
        return Err("usage: measure REPORT COMMAND [ARGUMENT…]".into());
    };
    let start = Instant::now();
    let mut child = Command::new(program).args(arguments).spawn()?;
    fs::write(&report, format!("{{\"pid\": {}}}\n", child.id()))?;
    let status = child.wait()?;
    let wall = start.elapsed();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
    let figures = format!(
        "{{\"exit\": {code}, \"wall_s\": {:.6}, \"user_s\": {:.6}, \"system_s\": {:.6}, \"peak_bytes\": {}}}\n",
        wall.as_secs_f64(),
        usage.user_time().num_microseconds() as f64 / 1e6,
        usage.system_time().num_microseconds() as f64 / 1e6,
        usage.max_rss() * 1024,
    );
    fs::write(&report, figures)?;
    Ok(ExitCode::SUCCESS)
}
