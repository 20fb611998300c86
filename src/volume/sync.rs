//! Every sync of this layer.
//!
//! Invariant (P3): what has to be durable before the next step is synced here and nowhere else,
//! so that a test can see the order of syncs and of the names given between them. Nothing is
//! repeated: a second sync after an error proves nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// Makes the bytes of the file shown as `name` durable, through the descriptor that wrote them.
pub(super) fn data(file: &File, name: &str) -> io::Result<()> {
    step("data", name);
    file.sync_data()
}

/// Makes bytes and times durable.
pub(super) fn all(file: &File, name: &str) -> io::Result<()> {
    step("all", name);
    file.sync_all()
}

/// Makes the names in a folder durable.
pub(super) fn names(folder: &impl AsFd, name: &str) -> Result<(), Errno> {
    step("names", name);
    rustix::fs::fsync(folder)
}

/// An entry has got a name: nothing to sync, and the step that syncs are about.
pub(super) fn named(name: &str) {
    step("named", name);
}

#[cfg(not(test))]
const fn step(_what: &str, _name: &str) {}

#[cfg(test)]
use seen::step;

#[cfg(test)]
pub(super) mod seen {
    //! The steps that a test's own thread made.

    use std::cell::RefCell;

    thread_local! {
        static STEPS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn step(what: &str, name: &str) {
        STEPS.with_borrow_mut(|steps| steps.push(format!("{what} {name}")));
    }

    /// The steps since the last call.
    pub(crate) fn take() -> Vec<String> {
        STEPS.take()
    }
}
