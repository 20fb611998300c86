//! What `muster adopt` takes: a pull into a directory that has something already.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::pull::{PullArgs, TransferArgs, parse_kind};
use crate::config::Value;
use crate::core::limit::Limit;
use crate::core::repo::{RepoKind, Revision};
use crate::core::selection::Pattern;

const EXAMPLES: &str = "\
Examples:
  muster adopt /shared/kimi-k2.5-nvfp4 --repo nvidia/Kimi-K2.5-NVFP4 --no-fetch
  muster adopt /shared/kimi-k2.5-nvfp4 --repo nvidia/Kimi-K2.5-NVFP4 --revision v1.0
  muster adopt ./model --repo org/model --include '*.safetensors' --include '*.json' --prune

Hashes every file that is there, keeps what is right as it is, and fetches what is missing or wrong. A wrong
file is set aside and stays until --prune. What the official client, aria2 or git-lfs left beside the files
is not needed; it is neither written nor removed. With --no-fetch nothing is changed unless every file is
right: then the directory gets its manifest and receipt; else 10 says that files are missing, 11 that some
are wrong.";

/// `muster adopt`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AdoptArgs {
    /// Directory with the files of a repository, whoever brought them
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The repository that it is of.
    #[arg(
        long,
        value_name = "REPO",
        env = "MUSTER_REPO",
        help = "Repository that it is of: org/name, org/name@revision or hf://[datasets/|spaces/]org/name[@revision]"
    )]
    pub repo: String,
    /// Kind of repository: model, dataset or space
    #[arg(long, visible_alias = "type", value_name = "T", env = "MUSTER_REPO_TYPE", value_parser = parse_kind)]
    pub repo_type: Option<RepoKind>,
    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "R", env = "MUSTER_REVISION", value_parser = Revision::parse)]
    pub revision: Option<Revision>,
    /// Adopts only files that match this glob; may be repeated
    #[arg(long, value_name = "G", env = "MUSTER_INCLUDE", value_parser = Pattern::parse)]
    pub include: Vec<Pattern>,
    /// Leaves out files that match this glob; may be repeated
    #[arg(long, value_name = "G", env = "MUSTER_EXCLUDE", value_parser = Pattern::parse)]
    pub exclude: Vec<Pattern>,
    /// Only says what is right, wrong and missing; fetches and moves nothing
    #[arg(long, conflicts_with = "prune")]
    pub no_fetch: bool,
    /// Removes what is set aside of this model, once every file is right
    #[arg(long)]
    pub prune: bool,
    /// Ends with 15 instead of waiting while another host owns the volume
    #[arg(long)]
    pub no_wait: bool,
    /// Lets this selection of files replace the one the directory was pulled with
    #[arg(long)]
    pub reselect: bool,
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

impl AdoptArgs {
    /// The pull that it is.
    #[must_use]
    pub fn into_pull(self) -> PullArgs {
        PullArgs {
            repo: self.repo,
            files: Vec::new(),
            repo_type: self.repo_type,
            revision: self.revision,
            include: self.include,
            exclude: self.exclude,
            to: None,
            local_dir: Some(self.dir),
            dry_run: false,
            detach: false,
            detached: false,
            no_update: false,
            no_wait: self.no_wait,
            reselect: self.reselect,
            prune: self.prune,
            retry_for: self.retry_for,
            limit: self.limit,
            transfer: self.transfer,
        }
    }
}
