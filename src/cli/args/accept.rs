//! What `muster accept` takes.

use clap::Args;

use crate::core::local_edits::EditReason;
use crate::core::repo_path::RepoPath;

const EXAMPLES: &str = "\
Examples:
  muster accept kimi-k2.5-nvfp4 config.json hf_quant_config.json --reason 'no FP8 KV cache on these GPUs'
  muster accept kimi-k2.5-nvfp4 --undo config.json

A file that was accepted counts as right exactly as it is now: gate, verify and pull take its SHA-256
for the published one's, keep the file, and name it in every output. Another change closes the gate
again. An update stops with 12 when the publisher changed the same file. --undo sets the edited file
aside and fetches the published one.";

/// `muster accept`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AcceptArgs {
    /// Model: a name on the volume, a repository id, or the path of a model directory
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Files that were changed on purpose, as paths in the repository
    #[arg(value_name = "PATH", required = true, value_parser = RepoPath::parse)]
    pub paths: Vec<RepoPath>,
    /// Why, in one line: it is shown wherever the files are named
    #[arg(long, value_name = "TEXT", env = "MUSTER_REASON", value_parser = EditReason::parse,
          required_unless_present = "undo")]
    pub reason: Option<EditReason>,
    /// Brings the published files back; the edited ones are set aside
    #[arg(long)]
    pub undo: bool,
    /// Accepts weights too; with --undo, even while the model is in use
    #[arg(long)]
    pub force: bool,
}
