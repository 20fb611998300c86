//! What `muster gate` and `muster verify` take.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::config::{Uids, Value, ValueError};
use crate::core::manifest::ManifestId;
use crate::core::repo::Revision;
use crate::core::structure::Strictness;

const EXAMPLES: &str = "\
Examples:
  muster gate kimi-k2.5-nvfp4
  muster gate kimi-k2.5-nvfp4 --wait=2h --stall 10m -- vllm serve {}
  muster gate kimi-k2.5-nvfp4 --policy /etc/muster/policy.toml --explain
  muster gate kimi-k2.5-nvfp4 --require-signature --key /etc/muster/release.pub -- vllm serve {}
  muster gate /shared/kimi-k2.5-nvfp4 --full --json --verdict /run/verdict.json

Writes nothing in the model directory and needs no network, no daemon and no database. `{}` in
the arguments becomes the directory; MUSTER_MODEL_DIR and MUSTER_COMMIT are set for the command,
whose exit code is then muster's.

Exit codes: 0 open, 10 incomplete, 11 corrupt, 12 refused, 13 unknown model, 15 in use,
18 could not check, 19 stalled, 124 timed out, 126/127 command not runnable or not found.
Any other code means: do not launch.";

/// How long a gate waits for a model that is not there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until it opens or nothing can come any more.
    Forever,
    /// Until then.
    AtMost(Duration),
}

/// `muster gate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GateArgs {
    /// Model: a name on the volume, a repository id, or the path of a model directory
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Opens only for this branch, tag or commit
    #[arg(long, value_name = "R", env = "MUSTER_REVISION", value_parser = Revision::parse)]
    pub revision: Option<Revision>,
    /// Opens only for the manifest with this id
    #[arg(long, value_name = "ID", env = "MUSTER_MANIFEST_ID", value_parser = ManifestId::parse)]
    pub manifest_id: Option<ManifestId>,
    /// Hashes every file, whatever the receipt says
    #[arg(long)]
    pub full: bool,
    /// Waits until the model is complete, or for this long
    #[arg(long, value_name = "DUR", env = "MUSTER_WAIT", num_args = 0..=1, require_equals = true,
          default_missing_value = "forever", value_parser = parse_wait)]
    pub wait: Option<Wait>,
    /// While waiting, gives up (19) when no byte came for this long
    #[arg(long, value_name = "DUR", env = "MUSTER_STALL", value_parser = <Duration as Value>::parse)]
    pub stall: Option<Duration>,
    /// Opens only if the rules in this file are met too
    #[arg(long, value_name = "FILE", env = "MUSTER_POLICY")]
    pub policy: Option<PathBuf>,
    /// Opens only for a model that the holder of the key signed; hashes every file
    #[arg(long)]
    pub require_signature: bool,
    /// Public key of who has to have signed
    #[arg(long, value_name = "FILE", env = "MUSTER_GATE_KEY")]
    pub key: Option<PathBuf>,
    /// Users whose receipts are believed beside a signature, so that unchanged files are not hashed
    #[arg(long, value_name = "UIDS", env = "MUSTER_TRUST_RECEIPT_UID", value_parser = <Uids as Value>::parse)]
    pub trust_receipt_uid: Option<Uids>,
    /// Prints each rule of the policy with its verdict
    #[arg(long)]
    pub explain: bool,
    /// Writes the verdict as JSON to this file
    #[arg(long, value_name = "FILE", env = "MUSTER_VERDICT")]
    pub verdict: Option<PathBuf>,
    /// Directory that remembers what was hashed [default: $XDG_STATE_HOME/muster/verified]
    #[arg(long, value_name = "DIR", env = "MUSTER_REMEMBER")]
    pub remember: Option<PathBuf>,
    /// Neither uses nor writes what earlier gates hashed
    #[arg(long, conflicts_with = "remember")]
    pub no_remember: bool,
    /// What faults in the structure of published weight files mean: check (closed), warn or off [default: check]
    #[arg(long, value_name = "MODE", env = "MUSTER_STRUCTURE", value_parser = <Strictness as Value>::parse)]
    pub structure: Option<Strictness>,
    /// Keeps the model locked until stopped, instead of starting a command
    #[arg(long, conflicts_with = "command")]
    pub hold: bool,
    /// Command to start when the gate is open
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `muster verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Model: a name on the volume, a repository id, or the path of a model directory
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Sets bad files aside, so that the next pull fetches them again
    #[arg(long)]
    pub quarantine: bool,
    /// Lets others on this machine go first
    #[arg(long)]
    pub low_impact: bool,
    /// What faults in the structure of published weight files mean: check (12), warn or off [default: check]
    #[arg(long, value_name = "MODE", env = "MUSTER_STRUCTURE", value_parser = <Strictness as Value>::parse)]
    pub structure: Option<Strictness>,
}

fn parse_wait(text: &str) -> Result<Wait, ValueError> {
    if text == "forever" { Ok(Wait::Forever) } else { Duration::parse(text).map(Wait::AtMost) }
}
