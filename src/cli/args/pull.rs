//! What `muster pull` takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::config::{Auto, Connections, Size, Value};
use crate::core::endpoint::Endpoint;
use crate::core::limit::Limit;
use crate::core::readback::Readback;
use crate::core::repo::{RepoKind, Revision};
use crate::core::selection::Pattern;

const EXAMPLES: &str = "\
Examples:
  muster pull nvidia/Kimi-K2.5-NVFP4 --volume /shared --to kimi-k2.5-nvfp4 --dry-run
  muster pull nvidia/Kimi-K2.5-NVFP4 --volume /shared --to kimi-k2.5-nvfp4 --detach
  muster pull org/model --revision v1.0 --include '*.safetensors' --include '*.json'
  muster pull org/model config.json tokenizer/
  muster pull hf://datasets/org/data@refs/pr/1

Prints the absolute model directory on stdout. A pull that was stopped goes on where it was.";

/// `muster pull`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PullArgs {
    /// What to pull.
    #[arg(
        value_name = "REPO",
        help = "Repository: org/name, org/name@revision or hf://[datasets/|spaces/]org/name[@revision]"
    )]
    pub repo: String,
    /// Files to pull instead of all; a name that ends in / is a folder
    #[arg(value_name = "FILE", conflicts_with = "include")]
    pub files: Vec<String>,
    /// Kind of repository: model, dataset or space
    #[arg(long, visible_alias = "type", value_name = "T", env = "MUSTER_REPO_TYPE", value_parser = parse_kind)]
    pub repo_type: Option<RepoKind>,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "R", env = "MUSTER_REVISION", value_parser = Revision::parse)]
    pub revision: Option<Revision>,
    /// Pulls only files that match this glob; may be repeated
    #[arg(long, value_name = "G", env = "MUSTER_INCLUDE", value_parser = Pattern::parse)]
    pub include: Vec<Pattern>,
    /// Leaves out files that match this glob; may be repeated
    #[arg(long, value_name = "G", env = "MUSTER_EXCLUDE", value_parser = Pattern::parse)]
    pub exclude: Vec<Pattern>,
    /// Name of the model on the volume [default: the repository's]
    #[arg(long, value_name = "NAME", env = "MUSTER_TO", conflicts_with = "local_dir")]
    pub to: Option<String>,
    /// Directory of the model: volume and name in one
    #[arg(long, value_name = "DIR", env = "MUSTER_LOCAL_DIR")]
    pub local_dir: Option<PathBuf>,
    /// Says what would be fetched, and fetches nothing
    #[arg(long, conflicts_with = "detach")]
    pub dry_run: bool,
    /// Returns at once; the download goes on in the background
    #[arg(long)]
    pub detach: bool,
    /// Is the process that --detach started.
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
    /// Stays at the commit on the volume even if the branch moved
    #[arg(long)]
    pub no_update: bool,
    /// Ends with 15 instead of waiting while another host owns the volume
    #[arg(long)]
    pub no_wait: bool,
    /// Lets this selection of files replace the one the directory was pulled with
    #[arg(long)]
    pub reselect: bool,
    /// Removes what is set aside of this model, once every file is right
    #[arg(long)]
    pub prune: bool,
    /// Goes on this long without any progress [default: 1h]
    #[arg(long, value_name = "DUR", env = "MUSTER_RETRY_FOR", value_parser = <Duration as Value>::parse)]
    pub retry_for: Option<Duration>,
    /// Bytes a second at most, for example 200MB, or none
    #[arg(long, value_name = "RATE", env = "MUSTER_LIMIT", value_parser = <Limit as Value>::parse)]
    pub limit: Option<Limit>,
    /// How bytes are fetched.
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// How bytes are fetched: the same for a pull and a daemon.
#[derive(Debug, Clone, Args)]
pub struct TransferArgs {
    /// Server to ask; HF_ENDPOINT counts too [default: the Hub]
    #[arg(long, value_name = "URL", env = "MUSTER_ENDPOINT", value_parser = <Endpoint as Value>::parse)]
    pub endpoint: Option<Endpoint>,
    /// File with the token for the endpoint
    #[arg(long, value_name = "F", env = "MUSTER_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Connections at a time, or auto
    #[arg(long, value_name = "N", env = "MUSTER_CONNECTIONS", value_parser = <Auto<Connections> as Value>::parse)]
    pub connections: Option<Auto<Connections>>,
    /// Space on the volume that stays free, or auto: 1 % of it, at most 10GiB
    #[arg(long, value_name = "SIZE", env = "MUSTER_RESERVE", value_parser = <Auto<Size> as Value>::parse)]
    pub reserve: Option<Auto<Size>>,
    /// Reads finished files back before they count: auto, always or never
    #[arg(long, value_name = "WHEN", env = "MUSTER_READBACK", value_parser = <Readback as Value>::parse)]
    pub readback: Option<Readback>,
    /// Directory of the working memory [default: on the volume]
    #[arg(long, value_name = "DIR", env = "MUSTER_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// Private key that signs what is complete
    #[arg(long, value_name = "FILE", env = "MUSTER_SIGN_KEY")]
    pub sign_key: Option<PathBuf>,
    /// Lets others on this machine go first: their pages, processor time and disk
    #[arg(long)]
    pub low_impact: bool,
    /// Leaves what was fetched in the page cache, for a launcher on this host
    #[arg(long, conflicts_with = "low_impact")]
    pub keep_cached: bool,
}

pub(super) fn parse_kind(text: &str) -> Result<RepoKind, String> {
    text.parse().map_err(|_| "it is none of model, dataset, space".to_owned())
}
