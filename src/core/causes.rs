//! An error and what caused it, in one line: for logs, records and reasons.

use std::error::Error;

/// The error and its causes, outermost first, joined by colons.
#[must_use]
pub fn in_words(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot save x")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_outermost_comes_first() {
        assert_eq!(in_words(&Outer(std::io::Error::other("disk on fire"))), "cannot save x: disk on fire");
        assert_eq!(in_words(&std::io::Error::other("alone")), "alone");
    }
}
