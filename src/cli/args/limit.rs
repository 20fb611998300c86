//! What `muster limit` takes.

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  muster limit
  muster limit kimi-k2.5-nvfp4 200MB
  muster limit kimi-k2.5-nvfp4 none
  muster limit --all 1Gbit
  muster limit --all auto

RATE is bytes a second: 200MB, 64MiB, 1.6Gbit; `none` lifts the limit; `auto` goes back to what the
configuration of the volume's owner says, its timetable included. A change counts at once, and is
kept over a restart.";

/// `muster limit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "muster limit [OPTIONS] [MODEL [RATE]]\n       muster limit [OPTIONS] --all RATE")]
pub struct LimitArgs {
    /// Model whose download is limited; without RATE its limit is shown
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// Bytes a second, none or auto
    #[arg(value_name = "RATE")]
    pub rate: Option<String>,
    /// Limits all downloads of the volume together
    #[arg(long)]
    pub all: bool,
}
