//! Signatures that others can check: the format `OpenSSF` Model Signing 1.0 (OMS), made and read.
//!
//! Owns what of that format is muster's: one statement a model, method `files`, signed with a key.
//! Invariants: a statement that was read speaks of well-formed paths, each once, each with one SHA-256,
//! and was signed by the key that was given; what is not understood is refused with its own sentence.
//! Envelope and bundle are those of DSSE and Sigstore, by the types of `sigstore-types`; the curves are
//! `RustCrypto`'s. It must not read keys or files: bytes come in, bytes go out.

pub mod bundle;
pub mod cover;
pub mod key;
pub mod statement;

use super::repo_path::OWN_DIR;

/// What the specification leaves out of every signature, at the model's root (its section 6.2).
pub const GIT_PATHS: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];

/// Where the official client keeps its notes about a directory that it filled.
pub const CLIENT_NOTES: &str = ".cache/huggingface";

/// Whether `path` is `ignored` or in it.
#[must_use]
pub fn is_below(path: &str, ignored: &str) -> bool {
    path.strip_prefix(ignored).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether no signature speaks of this path, whatever it says: version control at the root, and our
/// own folder.
#[must_use]
pub fn is_left_out(path: &str) -> bool {
    GIT_PATHS.iter().chain([&OWN_DIR]).any(|ignored| is_below(path, ignored))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_at_the_root_and_nowhere_else() {
        for path in [".git", ".git/config", ".gitattributes", ".github/w.yml", ".gitignore", ".muster/model.sig"] {
            assert!(is_left_out(path), "{path}");
        }
        for path in [".gitmodules", "sub/.git", "sub/.gitattributes", ".gitattributes2", "a.muster", ".musterx"] {
            assert!(!is_left_out(path), "{path}");
        }
    }
}
