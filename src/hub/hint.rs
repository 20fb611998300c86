//! What to do about a [`HubError`]: one sentence for whoever reads it.

use crate::core::repo::Revision;

use super::error::{Caller, HubError, Phase};
use super::faults::PageFault;

const GIVE_TOKEN: &str = "set HF_TOKEN, or give --token-file";
const WITHHELD: &str = "a token is configured, but plain http to another machine may not carry it: use https";

impl HubError {
    /// What to do next, where there is something to do.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::RepoNotFound { caller, .. } => match caller {
                Caller::Anonymous => {
                    format!("check the name and --repo-type; if the repository is private, {GIVE_TOKEN}")
                }
                Caller::Withheld => format!("check the name and --repo-type; {WITHHELD}"),
                Caller::Token => "check the name and --repo-type, and that the token's account may read it".to_owned(),
            },
            Self::RevisionNotFound { revision, .. } if revision == Revision::default().as_str() => {
                "the default branch may have another name: give it with --revision".to_owned()
            }
            Self::RevisionNotFound { .. } => "check --revision: a branch, a tag or a full commit id".to_owned(),
            Self::EntryNotFound { .. } => "check the path against the repository's file list".to_owned(),
            Self::NotFound { .. } => "check the name, --repo-type and --endpoint (or HF_ENDPOINT)".to_owned(),
            Self::AccessDenied { caller, page, .. } | Self::Masked { caller, page, .. } => access(*caller, page),
            Self::Disabled { .. } => "the Hub has switched it off; only its owners can change that".to_owned(),
            Self::BadToken { .. } => {
                "it may have expired: make a new one, or unset it for a public repository".to_owned()
            }
            Self::Forbidden { caller, .. } => match caller {
                Caller::Anonymous => GIVE_TOKEN.to_owned(),
                Caller::Withheld => WITHHELD.to_owned(),
                Caller::Token => "the token needs the permission to read this repository".to_owned(),
            },
            Self::RateLimited { caller, .. } => match caller {
                Caller::Anonymous => format!("wait some minutes; with a token more requests are allowed: {GIVE_TOKEN}"),
                Caller::Withheld => format!("wait some minutes; {WITHHELD}"),
                Caller::Token => "wait some minutes".to_owned(),
            },
            Self::NotAHub { .. } => {
                "check --endpoint (or HF_ENDPOINT), and that no proxy or login page answers in its place".to_owned()
            }
            Self::Pages { fault: PageFault::Elsewhere { to }, .. } => {
                format!("the mirror passes the Hub's own links on; if {to} can be reached, use it as the endpoint")
            }
            Self::Redirect { .. } => "if the server has moved, give its new address with --endpoint".to_owned(),
            Self::Tls { .. } => {
                "check that the server speaks https; if a proxy or a private authority signs here, name its certificate \
                 file in SSL_CERT_FILE"
                    .to_owned()
            }
            Self::Connect { .. } | Self::Timeout { phase: Phase::Connect, .. } => {
                "check --endpoint (or HF_ENDPOINT), the network, and HTTPS_PROXY and NO_PROXY; \
                 HF_HUB_OFFLINE=1 works with what is on the volume"
                    .to_owned()
            }
            Self::Proxy { .. } => {
                "give them with the proxy's address, HTTPS_PROXY=http://user:password@host:port, or name hosts that \
                 need no proxy in NO_PROXY"
                    .to_owned()
            }
            Self::UnsafePath { .. } => "the repository itself is at fault; --exclude does not help".to_owned(),
            Self::Server { .. }
            | Self::Rejected { .. }
            | Self::Unreadable { .. }
            | Self::TooLarge { .. }
            | Self::Pages { .. }
            | Self::Entry { .. }
            | Self::Contradiction { .. }
            | Self::Broken { .. }
            | Self::Timeout { .. }
            | Self::Client { .. } => return None,
        })
    }
}

fn access(caller: Caller, page: &str) -> String {
    match caller {
        Caller::Anonymous => format!("accept the licence at {page}, then {GIVE_TOKEN}"),
        Caller::Withheld => format!("accept the licence at {page}; {WITHHELD}"),
        Caller::Token => format!("accept the licence or ask for access at {page} with the token's account"),
    }
}
