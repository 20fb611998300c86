//! What the verbs that serve take: `mirror`, `daemon`, `demo`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::pull::TransferArgs;
use crate::config::{Jobs, Size, Value};
use crate::core::limit::Limit;

/// `muster mirror`.
#[derive(Debug, Args)]
pub struct MirrorArgs {
    /// Address and port to listen on [default: 127.0.0.1:8642]
    #[arg(long, value_name = "ADDR", env = "MUSTER_MIRROR_LISTEN", value_parser = <SocketAddr as Value>::parse)]
    pub listen: Option<SocketAddr>,
    /// File with the bearer token that clients must send
    #[arg(long, value_name = "F", env = "MUSTER_MIRROR_TOKEN_FILE", conflicts_with = "public")]
    pub token_file: Option<PathBuf>,
    /// Serves other hosts without a token
    #[arg(long)]
    pub public: bool,
}

/// `muster daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Unix socket of the API [default: on the volume]
    #[arg(long, value_name = "PATH", env = "MUSTER_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Group that may use the socket
    #[arg(long, value_name = "GROUP", env = "MUSTER_API_GROUP")]
    pub api_group: Option<String>,
    /// TCP address and port of the API as well; needs --listen-token-file
    #[arg(long, value_name = "ADDR", env = "MUSTER_API_LISTEN", value_parser = <SocketAddr as Value>::parse)]
    pub listen: Option<SocketAddr>,
    /// File with the bearer token that TCP clients must send
    #[arg(long, value_name = "F", env = "MUSTER_API_TOKEN_FILE")]
    pub listen_token_file: Option<PathBuf>,
    /// Jobs worked on at a time [default: 2]
    #[arg(long, value_name = "N", env = "MUSTER_JOBS", value_parser = <Jobs as Value>::parse)]
    pub jobs: Option<Jobs>,
    /// Bytes a second of all jobs together at most, or none
    #[arg(long, value_name = "RATE", env = "MUSTER_VOLUME_LIMIT", value_parser = <Limit as Value>::parse)]
    pub volume_limit: Option<Limit>,
    /// How bytes are fetched.
    #[command(flatten)]
    pub transfer: TransferArgs,
    /// Asks the daemon of this volume whether it is well (0; 14 when not), instead of being one
    #[arg(long)]
    pub check: bool,
}

/// `muster demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Size of one shard [default: 9MB, about 1 GiB over all]
    #[arg(long, value_name = "SIZE", env = "MUSTER_DEMO_SHARD_SIZE", value_parser = <Size as Value>::parse)]
    pub shard_size: Option<Size>,
    /// Number of shards [default: 119]
    #[arg(long, value_name = "N", env = "MUSTER_DEMO_SHARDS", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub shards: Option<u16>,
    /// Keeps the files instead of cleaning up
    #[arg(long)]
    pub keep: bool,
    /// Directory to work in [default: a fresh one for temporary files]
    #[arg(long, value_name = "DIR", env = "MUSTER_DEMO_DIR")]
    pub dir: Option<PathBuf>,
}
