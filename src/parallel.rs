//! Work on many items by a few threads, which end before the call does.
//!
//! For code that blocks anyway; async code goes through [`crate::blocking`].

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Threads that can compute at a time.
#[must_use]
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does `work` on every item, by at most so many threads, the caller's among them. Items are taken
/// in their order; the answers come in it.
pub fn in_parallel<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if threads < 2 || items.len() < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::with_capacity(items.len()));
    let worker = || {
        let mut mine = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            mine.push((at, work(item)));
        }
        answers.lock().unwrap_or_else(PoisonError::into_inner).append(&mut mine);
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            // Where the system gives no more threads, fewer do the work.
            if thread::Builder::new().spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
        worker();
    });
    let mut answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Does work on a thread of its own, which ends before the call does: what the work changes of its thread, such as
/// its priority, goes with it.
pub fn apart<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let work = Mutex::new(Some(work));
    let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let done = thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, || take().map(|work| work()));
        match started.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // Where the system gives no more threads, it is done here.
            Err(_) => take().map(|work| work()),
        }
    });
    done.expect("the work is there until somebody takes it, and one of the two did")
}

/// As [`in_parallel`], for items that the work uses up.
pub fn each_in_parallel<T: Send, R: Send>(threads: usize, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let take = |item: &Mutex<Option<T>>| item.lock().unwrap_or_else(PoisonError::into_inner).take();
    in_parallel(threads, &items, |item| take(item).map(&work)).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_apart_is_done_on_another_thread_and_its_answer_comes_back() {
        let here = thread::current().id();
        assert_ne!(apart(|| thread::current().id()), here);
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        let items: Vec<u32> = (0..1000).collect();
        let doubled: Vec<u32> = items.iter().map(|n| n * 2).collect();
        for threads in [0, 1, 2, 7] {
            assert_eq!(in_parallel(threads, &items, |n| n * 2), doubled);
        }
        assert!(in_parallel(4, &[] as &[u32], |n| *n).is_empty());
        assert_eq!(each_in_parallel(3, vec![Box::new(1), Box::new(2)], |n| *n + 1), [2, 3]);
    }
}
