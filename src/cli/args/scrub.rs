//! What `muster scrub` takes.

use clap::Args;

use crate::config::Value;
use crate::core::limit::Limit;
use crate::core::subset::Subset;

const EXAMPLES: &str = "\
Examples:
  muster scrub kimi-k2.5-nvfp4
  muster scrub --all --subset 5% --limit 200MB
  muster scrub --all --subset 3/7
  muster scrub /mnt/ro/kimi-k2.5-nvfp4 --json

Reads the bytes again and names what is wrong, to the block of 16 MiB. A finding counts only when a
second read from the disk agrees, and then the gate is closed (11). n/t is always the same part, so that
1/7 to 7/7 reach everything; a percentage or a size takes what was not read for longest. A model of
which nothing can be written is read all the same. `muster repair` mends what was found.";

/// `muster scrub`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "muster scrub [OPTIONS] MODEL\n       muster scrub [OPTIONS] --all")]
pub struct ScrubArgs {
    /// Model: a name on the volume, a repository id, or the path of a model directory
    #[arg(value_name = "MODEL", required_unless_present = "all", conflicts_with = "all")]
    pub model: Option<String>,
    /// Reads every model of the volume
    #[arg(long)]
    pub all: bool,
    /// Part to read: n/t, a percentage such as 5%, or a size such as 50GB [default: everything]
    #[arg(long, value_name = "PART", env = "MUSTER_SCRUB_SUBSET", value_parser = str::parse::<Subset>)]
    pub subset: Option<Subset>,
    /// Most bytes a second that are read, such as 200MB, or none [default: none]
    #[arg(long, value_name = "RATE", env = "MUSTER_SCRUB_LIMIT", value_parser = <Limit as Value>::parse)]
    pub limit: Option<Limit>,
    /// Lets others on this machine go first
    #[arg(long)]
    pub low_impact: bool,
}
