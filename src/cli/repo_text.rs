//! The ways a repository can be written on the command line.

use crate::core::repo::{Repo, RepoId, RepoKind, Revision};

use super::exit::CliError;

/// A repository as it was written, with the revision if one was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoText {
    /// The repository.
    pub repo: Repo,
    /// What followed `@`.
    pub revision: Option<Revision>,
}

const FORMS: &str = "write org/name, org/name@revision, or hf://datasets/org/name";

impl RepoText {
    /// Parses `org/name`, `org/name@rev` and `hf://[datasets/|spaces/]org/name[@rev]`.
    ///
    /// `kind` is what `--repo-type` says; it must not contradict the prefix of an `hf://` text.
    ///
    /// # Errors
    /// A usage error that says how to write it.
    pub fn parse(text: &str, kind: Option<RepoKind>) -> Result<Self, CliError> {
        let refuse = |why: String| CliError::usage(why).hint(FORMS);
        if text.starts_with("http://") || text.starts_with("https://") {
            return Err(refuse("REPO is a repository id, not a web address; --endpoint names the server".to_owned()));
        }
        let (path, revision) = match text.split_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (text, None),
        };
        let revision = revision.map(Revision::parse).transpose().map_err(|error| refuse(format!("REPO: {error}")))?;
        let (prefixed, id) = match path.strip_prefix("hf://") {
            Some(rest) => split_kind(rest),
            None => (None, path),
        };
        if let (Some(prefixed), Some(kind)) = (prefixed, kind)
            && prefixed != kind
        {
            return Err(refuse(format!("REPO is a {prefixed}, and --repo-type says {kind}")));
        }
        let id = RepoId::parse(id.trim_end_matches('/')).map_err(|error| {
            let too_long = id.matches('/').count() > 1;
            let hint = if too_long { "give files after REPO, and the kind by --repo-type" } else { FORMS };
            CliError::usage(format!("REPO: {error}")).hint(hint)
        })?;
        let kind = prefixed.or(kind).unwrap_or_default();
        Ok(Self { repo: Repo { kind, id }, revision })
    }
}

fn split_kind(text: &str) -> (Option<RepoKind>, &str) {
    let prefixes = [("datasets/", RepoKind::Dataset), ("spaces/", RepoKind::Space), ("models/", RepoKind::Model)];
    let known = prefixes.into_iter().find_map(|(prefix, kind)| Some((Some(kind), text.strip_prefix(prefix)?)));
    known.unwrap_or((None, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, kind: Option<RepoKind>) -> Result<(String, Option<String>), String> {
        let found = RepoText::parse(text, kind).map_err(|error| error.one_line())?;
        Ok((found.repo.to_string(), found.revision.map(|revision| revision.as_str().to_owned())))
    }

    #[test]
    fn every_form_is_understood() {
        let at = |revision: &str| Some(revision.to_owned());
        for (text, kind, repo, revision) in [
            ("org/name", None, "org/name", None),
            ("gpt2", None, "gpt2", None),
            ("org/name@v1.0", None, "org/name", at("v1.0")),
            ("hf://org/name", None, "org/name", None),
            ("hf://datasets/org/data@refs/pr/1", None, "datasets/org/data", at("refs/pr/1")),
            ("hf://spaces/org/app", Some(RepoKind::Space), "spaces/org/app", None),
            ("org/data", Some(RepoKind::Dataset), "datasets/org/data", None),
        ] {
            assert_eq!(parsed(text, kind), Ok((repo.to_owned(), revision)), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_way_out() {
        assert!(parsed("https://huggingface.co/org/name", None).unwrap_err().contains("--endpoint"));
        assert!(parsed("hf://datasets/org/x", Some(RepoKind::Model)).unwrap_err().contains("--repo-type says model"));
        for text in ["", "a/b/c", "../x", "org/name@", "org//name"] {
            assert!(RepoText::parse(text, None).is_err(), "{text}");
        }
        assert!(RepoText::parse("datasets/org/x", None).unwrap_err().hint.unwrap().contains("--repo-type"));
    }
}
