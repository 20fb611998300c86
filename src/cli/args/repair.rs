//! What `muster repair` takes.

use std::time::Duration;

use clap::Args;

use crate::config::{Auto, Connections, Size, Value};
use crate::core::limit::Limit;

const EXAMPLES: &str = "\
Examples:
  muster repair kimi-k2.5-nvfp4 --volume /shared
  muster repair kimi-k2.5-nvfp4 model-00007-of-000119.safetensors
  muster repair kimi-k2.5-nvfp4 --full
  muster repair kimi-k2.5-nvfp4 --from /other/volume/kimi-k2.5-nvfp4
  muster repair kimi-k2.5-nvfp4 --from http://mirror.internal:8080

What something is known against is read and replaced: what a check found wrong, what is missing, what
has another size or identity than was proved. When nothing is known, everything is read. Of a wrong file
the right blocks of 16 MiB are kept and the others fetched; the file itself is moved aside.";

/// `muster repair`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RepairArgs {
    /// Name on the volume, repository, or directory
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Files to read and replace, whatever is known of them
    #[arg(value_name = "FILE", conflicts_with = "full")]
    pub files: Vec<String>,
    /// Reads every file, whatever is known of it
    #[arg(long)]
    pub full: bool,
    /// Another copy of the model: a directory, or the URL of a mirror, which is sent no token
    #[arg(long, value_name = "DIR|URL", env = "MUSTER_REPAIR_FROM")]
    pub from: Option<String>,
    /// Ends with 15 instead of waiting while another host owns the volume
    #[arg(long)]
    pub no_wait: bool,
    /// Goes on this long without any progress [default: 1h]
    #[arg(long, value_name = "DUR", env = "MUSTER_RETRY_FOR", value_parser = <Duration as Value>::parse)]
    pub retry_for: Option<Duration>,
    /// Bytes a second at most, for example 200MB, or none
    #[arg(long, value_name = "RATE", env = "MUSTER_LIMIT", value_parser = <Limit as Value>::parse)]
    pub limit: Option<Limit>,
    /// Connections at a time, or auto
    #[arg(long, value_name = "N", env = "MUSTER_CONNECTIONS", value_parser = <Auto<Connections> as Value>::parse)]
    pub connections: Option<Auto<Connections>>,
    /// Space on the volume that stays free, or auto: 1 % of it, at most 10GiB
    #[arg(long, value_name = "SIZE", env = "MUSTER_RESERVE", value_parser = <Auto<Size> as Value>::parse)]
    pub reserve: Option<Auto<Size>>,
}
