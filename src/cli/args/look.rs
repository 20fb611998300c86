//! What the verbs that only look take: `status`, `list`, `history`.

use clap::Args;

const STATUS_EXAMPLES: &str = "\
Examples:
  muster status
  muster status kimi-k2.5-nvfp4 --watch
  muster status --json | jq '.models[] | {id, state, bytes}'

Works without the daemon and as another user, and then says how old the facts are. Ends with 0
whenever it could answer.";

/// `muster status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct StatusArgs {
    /// Model to show instead of all
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// Shows every change until stopped; with --json one object a line
    #[arg(short, long)]
    pub watch: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  muster doctor --volume /shared
  muster doctor --offline --quiet
  muster doctor --json | jq '.checks[] | select(.status != \"ok\")'

Changes nothing: it takes no volume and no lock, and what it writes to try the disk is a folder of
its own, which goes at the end. Ends with 0 when nothing stands in the way of a pull, whatever else
there is to say; otherwise with the code that a pull would end with now: that of the first problem.";

/// `muster doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// Asks nobody on the network, as HF_HUB_OFFLINE does
    #[arg(long)]
    pub offline: bool,
}

/// `muster list`.
#[derive(Debug, Args)]
pub struct ListArgs {}

/// `muster history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Model: a name on the volume, or a repository id
    #[arg(value_name = "MODEL")]
    pub model: String,
}
