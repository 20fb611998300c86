//! Who may see what: tokens, private, gated, disabled and missing repositories, with the Hub's words.

use super::http::{Request, Response};
use super::repo::{RepoSpec, Visibility};

/// The tokens the hub knows. Without any, every token is good.
#[derive(Debug, Default)]
pub struct Access {
    /// With access to everything; once set, public repositories are private.
    pub member: Option<String>,
    /// Valid, but without access to private and gated repositories.
    pub strangers: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Anonymous,
    BadToken,
    Stranger,
    Member,
}

/// What is asked of a repository.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Listing,
    Bytes,
}

impl Access {
    pub fn caller(&self, request: &Request) -> Caller {
        let Some(authorization) = request.header("authorization") else {
            return Caller::Anonymous;
        };
        let token = authorization.strip_prefix("Bearer ").unwrap_or("");
        let any_known = self.member.is_some() || !self.strangers.is_empty();
        if token.is_empty() {
            Caller::BadToken
        } else if self.member.as_deref() == Some(token) || !any_known {
            Caller::Member
        } else if self.strangers.iter().any(|known| known == token) {
            Caller::Stranger
        } else {
            Caller::BadToken
        }
    }

    /// Whether the caller sees true digests.
    pub fn has_access(&self, repo: &RepoSpec, caller: Caller) -> bool {
        caller == Caller::Member || self.visibility(repo) == Visibility::Public
    }

    /// The repository, or the refusal the Hub would answer.
    pub fn admit<'a>(&self, repo: Option<&'a RepoSpec>, caller: Caller, wish: Wish) -> Result<&'a RepoSpec, Response> {
        if caller == Caller::BadToken {
            let message = "Invalid credentials in Authorization header";
            return Err(Response::error(401, None, message));
        }
        let visible = repo.filter(|repo| self.has_access(repo, caller) || self.visibility(repo) == Visibility::Gated);
        let Some(repo) = visible else {
            return Err(match caller {
                Caller::Anonymous => Response::error(401, Some("RepoNotFound"), "Invalid username or password."),
                _ => Response::error(404, Some("RepoNotFound"), "Repository not found"),
            });
        };
        if repo.disabled {
            let message = "Access to this resource is disabled.";
            return Err(Response::error(403, None, message));
        }
        if wish == Wish::Bytes && !self.has_access(repo, caller) {
            return Err(gated(repo, caller));
        }
        Ok(repo)
    }

    fn visibility(&self, repo: &RepoSpec) -> Visibility {
        match repo.visibility {
            Visibility::Public if self.member.is_some() => Visibility::Private,
            other => other,
        }
    }
}

fn gated(repo: &RepoSpec, caller: Caller) -> Response {
    let id = &repo.id;
    let (status, rest) = match caller {
        Caller::Anonymous => (401, "You must have access to it and be authenticated to access it."),
        _ => (403, "and you are not in the authorized list. Ask for access on its page."),
    };
    Response::error(status, Some("GatedRepo"), &format!("Access to {id} is restricted. {rest}"))
}
