//! The plan: which byte range which connection fetches next.
//!
//! Owns the missing ranges of every file of one job. Invariant: each missing byte is in exactly
//! one place, unassigned or in one assignment. Across files first, largest first; a file larger
//! than its fair share is handed out in order and in steps, not far ahead of its hash and ever smaller; when
//! nothing is left to hand out, the assignment that will take longest is split, so that all
//! connections work until the last byte. One far slower than the others is taken away. A second
//! connection joins a file only once its server has answered a range with that range. Each question
//! costs the logarithm of the number of files.

mod file;
mod steps;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use self::file::File;
use super::range_set::RangeSet;
use super::speed::{Speed, Usual};

/// Longest range asked of a server in one request: huge files pass a CDN only so (its end is near
/// 50 GB), and each request more costs a fast connection the time of an answer.
const REQUEST_MAX: u64 = 4 << 30;
/// Files up to this size are never handed out in steps.
const LARGE: u64 = 64 << 20;
/// Longest steps that each connection of a file may be ahead of the file's hash.
const STEPS_AHEAD: u64 = 2;
/// What both halves of a split have at least: less would be on its way already, and travel twice.
const SPLIT_MIN: u64 = 8 << 20;
/// What a split assignment has left at least, in seconds: the other half begins with waiting.
const SPLIT_LEFT_S: f64 = 1.0;

/// At most one connection in this many is taken away after a look.
const RELIEVED_ONE_IN: usize = 4;
/// Slow connections that a file loses before it takes twice as many looks.
const RELIEVED_MAX: u32 = 4;
/// What a slow connection has left at least, in seconds at its speed, when it is taken away.
const SLOW_LEFT_S: f64 = 5.0;

/// Index of a file in the job's manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub usize);

/// Names one assignment for as long as it is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssignmentId(u64);

/// One connection's work: fetch this range of this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Its name.
    pub id: AssignmentId,
    /// The file.
    pub file: FileId,
    /// The bytes; the end may shrink while it is worked on, see [`Plan::end_of`].
    pub range: Range<u64>,
    /// Whether the server ignores ranges: the answer is the whole file, of which only `range`
    /// is wanted.
    pub whole: bool,
}

/// What a connection that has nothing to do should do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Fetch this.
    Fetch(Assignment),
    /// Nothing now; ask again when something was released, hashed or taken off hold.
    Wait,
    /// Every byte has been fetched.
    Done,
}

/// How a file may be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Any number of connections, any ranges.
    Ranges,
    /// One connection, in order: after bytes came that were not the file's.
    Sequential,
    /// One connection, the whole file in one answer: the server ignores ranges.
    Whole,
}

#[derive(Debug)]
struct Active {
    file: FileId,
    position: u64,
    end: u64,
    speed: Speed,
}

/// The missing ranges of a job and who fetches them.
#[derive(Debug, Default)]
pub struct Plan {
    files: BTreeMap<FileId, File>,
    active: BTreeMap<AssignmentId, Active>,
    /// Files nobody works on that may be worked on, by how much they lack.
    waiting: BTreeSet<(u64, Reverse<FileId>)>,
    remaining: u64,
    next_id: u64,
    usual: Usual,
}

impl Plan {
    /// Adds a file that lacks these bytes of `0..size`. A file that lacks none needs no plan.
    pub fn add(&mut self, id: FileId, size: u64, missing: RangeSet, way: Way) {
        self.remove(id);
        self.remaining += missing.len_bytes();
        self.files.insert(id, File::new(size, missing, way));
        self.rank(id);
    }

    /// The file that will be begun next and was not named before: whoever has time may find out where
    /// it lies.
    pub fn look_ahead(&mut self) -> Option<FileId> {
        let mut waiting = self.waiting.iter().rev().map(|(_, Reverse(id))| *id);
        let next = waiting.find(|id| self.files.get(id).is_some_and(|file| !file.named))?;
        self.files.get_mut(&next)?.named = true;
        Some(next)
    }

    /// Gives a connection work. `last` is the file it came from, so that it stays with it;
    /// `connections` is how many share the work.
    pub fn assign(&mut self, last: Option<FileId>, connections: usize) -> Next {
        if self.remaining == 0 {
            return Next::Done;
        }
        if let Some(file) = self.choose(last) {
            return Next::Fetch(self.hand_out(file, connections));
        }
        self.split().map_or(Next::Wait, Next::Fetch)
    }

    /// Looks at how far each connection got in the last `span`, and takes what is left away from
    /// the slowest that are far slower than usual: whoever asks next goes on with it.
    pub fn look(&mut self, span: Duration) {
        for active in self.active.values_mut() {
            active.speed.look(active.position, span);
        }
        self.usual.look(self.active.values().filter_map(|active| active.speed.known()));
        self.relieve();
    }

    /// How many of `len` bytes that came at `at` are still this assignment's to write. They
    /// count as fetched from here on, so nobody else can be given them.
    pub fn take(&mut self, id: AssignmentId, at: u64, len: u64) -> u64 {
        let Some(active) = self.active.get_mut(&id) else { return 0 };
        let end = (at + len).min(active.end);
        self.remaining -= end.saturating_sub(active.position);
        active.position = active.position.max(end);
        end.saturating_sub(at)
    }

    /// Where an assignment ends now; 0 when it counts for nothing any more.
    #[must_use]
    pub fn end_of(&self, id: AssignmentId) -> u64 {
        self.active.get(&id).map_or(0, |active| active.end)
    }

    /// A connection stops working on an assignment, having fetched everything before
    /// `reached`; the rest is unassigned again.
    pub fn release(&mut self, id: AssignmentId, reached: u64) {
        let Some(active) = self.active.remove(&id) else { return };
        let Some(file) = self.files.get_mut(&active.file) else { return };
        self.usual.ended(active.speed.at_least(active.position));
        let rest = reached.min(active.end)..active.end;
        self.remaining = self.remaining - (active.end - active.position) + (rest.end - rest.start);
        file.active -= 1;
        file.unassigned.insert(rest);
        self.rank(active.file);
    }

    /// The file's hash has taken everything before `position`.
    pub fn hashed(&mut self, id: FileId, position: u64) {
        if let Some(file) = self.files.get_mut(&id) {
            file.hashed = position;
        }
    }

    /// A connection's request was answered after this time.
    pub fn answered(&mut self, after: Duration) {
        self.usual.answered(after);
    }

    /// The server has answered a range of this file with that range.
    pub fn answers_ranges(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.proven = true;
        }
    }

    /// Whether it has.
    #[must_use]
    pub fn has_answered_ranges(&self, id: FileId) -> bool {
        self.files.get(&id).is_some_and(|file| file.proven)
    }

    /// From now on the file comes whole, over one connection. Says no, and changes nothing,
    /// where that would bring bytes once more that were fetched behind a gap, or are being
    /// fetched.
    pub fn stream_whole(&mut self, id: FileId) -> bool {
        let Some(file) = self.files.get_mut(&id) else { return false };
        let mut rest = file.unassigned.iter();
        let one = rest.next().is_none_or(|range| range.end == file.size) && rest.next().is_none();
        drop(rest);
        if one && file.active == 0 {
            file.way = Way::Whole;
        }
        one && file.active == 0
    }

    /// Hands nothing of this file out until [`Plan::unhold`].
    pub fn hold(&mut self, id: FileId) {
        self.set_held(id, true);
    }

    /// Ends a hold.
    pub fn unhold(&mut self, id: FileId) {
        self.set_held(id, false);
    }

    /// Starts a file again with these bytes missing, in the same way unless another is given,
    /// and still held if it was. Assignments of it that run count for nothing any more; their
    /// connections find an end of 0.
    pub fn restart(&mut self, id: FileId, missing: RangeSet, way: Option<Way>) {
        let Some(File { size, held, way: before, .. }) = self.files.get(&id) else { return };
        let (size, held, way) = (*size, *held, way.unwrap_or(*before));
        self.add(id, size, missing, way);
        self.set_held(id, held);
    }

    /// Takes a file out: it is complete, or given up.
    pub fn remove(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else { return };
        self.remaining -= file.unassigned.len_bytes();
        if file.active > 0 {
            let gone = self.active.extract_if(.., |_, active| active.file == id);
            self.remaining -= gone.map(|(_, active)| active.end - active.position).sum::<u64>();
        }
        if let Some(rank) = file.rank {
            self.waiting.remove(&(rank, Reverse(id)));
        }
    }

    /// Connections that work on a file.
    #[must_use]
    pub fn connections_of(&self, id: FileId) -> usize {
        self.files.get(&id).map_or(0, |file| file.active)
    }

    /// Bytes not fetched yet, assigned or not.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Files that are not fetched to their last byte.
    #[must_use]
    pub fn unfetched(&self) -> usize {
        self.files.values().filter(|file| file.active > 0 || !file.unassigned.is_empty()).count()
    }

    /// The file to hand out from: the last one if it has more, else the largest that nobody
    /// works on, else the one that has most per connection.
    fn choose(&self, last: Option<FileId>) -> Option<FileId> {
        let step = steps::longest(&self.usual);
        let stay = last.filter(|id| self.files.get(id).is_some_and(|file| file.may_start(file.active, step)));
        let untouched = || self.waiting.last().map(|(_, Reverse(id))| *id);
        let join = || {
            let started = self.active.values().filter_map(|active| Some((active.file, self.files.get(&active.file)?)));
            let open = started.filter(|(_, file)| file.may_start(file.active, step));
            let share = |file: &File| file.unassigned.len_bytes() / (file.active as u64 + 1);
            open.max_by_key(|(id, file)| (share(file), Reverse(*id))).map(|(id, _)| id)
        };
        stay.or_else(untouched).or_else(join)
    }

    fn hand_out(&mut self, id: FileId, connections: usize) -> Assignment {
        let connections = connections.max(1) as u64;
        let fair = self.remaining / connections;
        let (step, least) = (steps::usual(&self.usual), steps::least(&self.usual));
        let file = self.files.get_mut(&id).expect("the chosen file is in the plan");
        let first = file.unassigned.first().expect("the chosen file lacks a range");
        let range = match file.way {
            Way::Whole => first.start..file.size,
            Way::Ranges if file.unassigned.len_bytes() > fair && file.size > LARGE => {
                let step = step.min((file.unassigned.len_bytes() / connections).max(least));
                first.start..first.end.min((first.start + step).next_multiple_of(steps::ALIGN))
            }
            Way::Ranges | Way::Sequential => first.start..first.end.min(first.start + REQUEST_MAX),
        };
        file.unassigned.remove(range.clone());
        let whole = file.way == Way::Whole;
        self.start(id, range, whole)
    }

    fn relieve(&mut self) {
        let (files, usual) = (&self.files, &self.usual);
        let slow = |active: &Active| {
            let file = files.get(&active.file).filter(|file| file.may_be_shared())?;
            let rate = usual.slow(&active.speed, 1 << (file.relieved / RELIEVED_MAX).min(16))?;
            ((active.end - active.position) as f64 > rate * SLOW_LEFT_S).then_some(rate)
        };
        let mut rates: Vec<_> = self.active.iter().filter_map(|(id, active)| Some((*id, slow(active)?))).collect();
        rates.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
        for (id, _) in rates.into_iter().take((self.active.len() / RELIEVED_ONE_IN).max(1)) {
            let Some(active) = self.active.get_mut(&id) else { continue };
            let Some(file) = self.files.get_mut(&active.file) else { continue };
            file.unassigned.insert(active.position..std::mem::replace(&mut active.end, active.position));
            file.relieved += 1;
            let file = active.file;
            self.rank(file);
        }
    }

    /// Takes the second half of the assignment that will take longest.
    fn split(&mut self) -> Option<Assignment> {
        let (id, left_s) = self.longest()?;
        let active = self.active.get_mut(&id)?;
        let left = active.end - active.position;
        if left <= 2 * SPLIT_MIN || left_s < SPLIT_LEFT_S {
            return None;
        }
        let middle = (active.position + left / 2).next_multiple_of(4096);
        let range = middle..active.end;
        active.end = middle;
        let file = active.file;
        Some(self.start(file, range, false))
    }

    /// The assignment of a file that others may join which will take longest, and how long in
    /// seconds; one that nothing is known of goes at the usual speed.
    fn longest(&self) -> Option<(AssignmentId, f64)> {
        let open = self.active.iter().filter(|(_, active)| {
            active.position < active.end && self.files.get(&active.file).is_some_and(File::may_be_shared)
        });
        let left_s = |active: &Active| {
            let rate = active.speed.known().unwrap_or(self.usual.rate()).max(1.0);
            (active.end - active.position) as f64 / rate
        };
        open.map(|(id, active)| (*id, left_s(active))).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn start(&mut self, id: FileId, range: Range<u64>, whole: bool) -> Assignment {
        let name = AssignmentId(self.next_id);
        self.next_id += 1;
        let speed = Speed::starting_at(range.start);
        self.active.insert(name, Active { file: id, position: range.start, end: range.end, speed });
        if let Some(file) = self.files.get_mut(&id) {
            file.active += 1;
        }
        self.rank(id);
        Assignment { id: name, file: id, range, whole }
    }

    fn set_held(&mut self, id: FileId, held: bool) {
        if let Some(file) = self.files.get_mut(&id) {
            file.held = held;
            self.rank(id);
        }
    }

    /// Brings the file's place among those that wait up to date.
    fn rank(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let waits = file.active == 0 && !file.held && !file.unassigned.is_empty();
        let rank = waits.then(|| file.unassigned.len_bytes());
        let before = std::mem::replace(&mut file.rank, rank);
        if before != rank {
            before.map(|before| self.waiting.remove(&(before, Reverse(id))));
            rank.map(|rank| self.waiting.insert((rank, Reverse(id))));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn plan(sizes: &[u64]) -> Plan {
        let mut plan = Plan::default();
        for (id, size) in sizes.iter().enumerate() {
            plan.add(FileId(id), *size, RangeSet::from(0..*size), Way::Ranges);
            plan.answers_ranges(FileId(id));
        }
        plan
    }

    /// What `remaining` counts as it goes, counted anew.
    fn count(plan: &Plan) -> u64 {
        let unassigned: u64 = plan.files.values().map(|file| file.unassigned.len_bytes()).sum();
        unassigned + plan.active.values().map(|active| active.end - active.position).sum::<u64>()
    }

    fn fetch(next: Next) -> Assignment {
        match next {
            Next::Fetch(assignment) => assignment,
            other => panic!("expected work, got {other:?}"),
        }
    }

    #[test]
    fn shards_are_handed_out_whole_and_largest_first() {
        let mut plan = plan(&[10 * MIB, 30 * MIB, 20 * MIB]);
        let order: Vec<_> = (0..3).map(|_| fetch(plan.assign(None, 2))).collect();
        assert_eq!(order.iter().map(|a| a.file.0).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(order[0].range, 0..30 * MIB);
    }

    #[test]
    fn each_file_that_waits_is_named_once_before_its_turn() {
        let mut plan = plan(&[10 * MIB, 30 * MIB, 20 * MIB, 5 * MIB]);
        let first = fetch(plan.assign(None, 1));
        assert_eq!(first.file, FileId(1));
        plan.hold(FileId(3));
        assert_eq!((0..3).map(|_| plan.look_ahead()).collect::<Vec<_>>(), [Some(FileId(2)), Some(FileId(0)), None]);
        plan.unhold(FileId(3));
        assert_eq!((plan.look_ahead(), plan.look_ahead()), (Some(FileId(3)), None));
    }

    #[test]
    fn an_idle_connection_takes_half_of_the_largest_rest() {
        let mut plan = plan(&[40 * MIB]);
        let first = fetch(plan.assign(None, 1));
        assert_eq!(plan.take(first.id, 0, 8 * MIB), 8 * MIB);
        let second = fetch(plan.assign(None, 1));
        assert_eq!(second.range, 24 * MIB..40 * MIB);
        assert_eq!(plan.end_of(first.id), 24 * MIB);
        plan.release(first.id, 24 * MIB);
        plan.release(second.id, 40 * MIB);
        assert_eq!(plan.assign(None, 1), Next::Done);
    }

    #[test]
    fn what_is_left_is_taken_away_from_a_connection_far_slower_than_the_others() {
        let mut plan = plan(&[200 * MIB; 4]);
        let work: Vec<_> = (0..4).map(|_| fetch(plan.assign(None, 4))).collect();
        let second = |plan: &mut Plan, second: u64, slow: &Assignment, rate: u64| {
            for one in &work[..3] {
                plan.take(one.id, second * 20 * MIB, 20 * MIB);
            }
            plan.take(slow.id, second * rate, rate);
            plan.look(Duration::from_secs(1));
        };
        for at in 0..2 {
            second(&mut plan, at, &work[3], 1000);
            assert_eq!(plan.end_of(work[3].id), 200 * MIB, "too early to judge");
        }
        second(&mut plan, 2, &work[3], 1000);
        assert_eq!(plan.end_of(work[3].id), 3000);
        assert_eq!(plan.take(work[3].id, 3000, 10), 0, "what still comes is nobody's");
        plan.release(work[3].id, 3000);
        assert_eq!(plan.remaining(), count(&plan));
        let again = fetch(plan.assign(None, 4));
        assert_eq!((again.file, again.range.start), (work[3].file, 3000));
    }

    #[test]
    fn when_all_become_slow_one_at_a_time_is_asked_anew() {
        let mut plan = plan(&[200 * MIB; 4]);
        let work: Vec<_> = (0..4).map(|_| fetch(plan.assign(None, 4))).collect();
        for second in 0..20 {
            let rate = if second < 5 { 20 * MIB } else { 1000 };
            for one in &work {
                let at = if second < 5 { second * rate } else { 100 * MIB + (second - 5) * 1000 };
                plan.take(one.id, at, rate);
            }
            let before = work.iter().filter(|one| plan.end_of(one.id) < 200 * MIB).count();
            plan.look(Duration::from_secs(1));
            let after = work.iter().filter(|one| plan.end_of(one.id) < 200 * MIB).count();
            assert!(after <= before + 1);
        }
    }

    #[test]
    fn a_large_file_is_handed_out_in_steps_not_far_ahead_of_its_hash() {
        const CONNECTIONS: usize = 8;
        let mut plan = plan(&[100_000 * MIB]);
        let work: Vec<_> = (0..CONNECTIONS).map(|_| fetch(plan.assign(None, CONNECTIONS))).collect();
        assert!(work.iter().all(|work| (8 * MIB..LARGE).contains(&(work.range.end - work.range.start))));
        // The first one, which the hash waits for, brings nothing; the others go on.
        let limit = STEPS_AHEAD * steps::longest(&plan.usual) * CONNECTIONS as u64;
        let (mut furthest, mut last) = (0, work[1].clone());
        while furthest <= limit {
            plan.take(last.id, last.range.start, last.range.end - last.range.start);
            plan.release(last.id, last.range.end);
            let Next::Fetch(next) = plan.assign(Some(last.file), CONNECTIONS) else { break };
            furthest = furthest.max(next.range.start);
            last = next;
        }
        assert!((limit / 2..=limit).contains(&furthest), "{furthest} of {limit}");
    }

    #[test]
    fn a_step_lasts_long_where_answers_take_long() {
        let step = |answer: u64| {
            let mut plan = plan(&[100_000 * MIB]);
            let work: Vec<_> = (0..4).map(|_| fetch(plan.assign(None, 4))).collect();
            for second in 0..6 {
                for one in &work {
                    plan.take(one.id, one.range.start + second * 2 * MIB, 2 * MIB);
                }
                plan.look(Duration::from_secs(1) / 10);
            }
            plan.answered(Duration::from_millis(answer));
            steps::usual(&plan.usual) / MIB
        };
        // At 20 MiB a second.
        assert_eq!([1, 30, 90, 5000].map(step), [8, 24, 72, 80]);
    }

    #[test]
    fn the_steps_of_a_large_file_become_smaller_so_that_all_connections_work_until_its_end() {
        const CONNECTIONS: usize = 64;
        let size = 8192 * MIB;
        let mut plan = plan(&[size]);
        // All of them equally fast, and begun one after another; where each is, and what it works on.
        let mut busy = Vec::new();
        for _ in 0..CONNECTIONS {
            let work = fetch(plan.assign(None, CONNECTIONS));
            busy.push((work.range.start, work));
            for (at, work) in &mut busy {
                *at += plan.take(work.id, *at, MIB);
            }
        }
        let (mut requests, mut left) = (CONNECTIONS, size);
        while busy.len() == CONNECTIONS {
            left = plan.remaining();
            busy.retain_mut(|(at, work)| {
                *at += plan.take(work.id, *at, MIB / 4);
                plan.hashed(work.file, *at);
                if *at < plan.end_of(work.id) {
                    return true;
                }
                plan.release(work.id, *at);
                let Next::Fetch(next) = plan.assign(Some(work.file), CONNECTIONS) else { return false };
                requests += 1;
                (*at, *work) = (next.range.start, next);
                true
            });
        }
        assert!(left < size / 50 && requests < 12 * CONNECTIONS, "{left} bytes left, {requests} requests");
    }

    #[test]
    fn a_connection_stays_with_its_file() {
        let mut plan = plan(&[3 * REQUEST_MAX, 3 * REQUEST_MAX]);
        let a = fetch(plan.assign(None, 2));
        let b = fetch(plan.assign(None, 2));
        assert_ne!(a.file, b.file);
        assert_eq!(a.range, 0..REQUEST_MAX);
        plan.release(a.id, REQUEST_MAX);
        plan.hashed(a.file, REQUEST_MAX);
        let next = fetch(plan.assign(Some(a.file), 2));
        assert_eq!((next.file, next.range.start), (a.file, REQUEST_MAX));
    }

    #[test]
    fn a_held_file_does_not_stop_the_others() {
        let mut plan = plan(&[30 * MIB, 20 * MIB]);
        let bad = fetch(plan.assign(None, 2));
        plan.hold(bad.file);
        plan.release(bad.id, 0);
        assert_eq!(fetch(plan.assign(Some(bad.file), 2)).file, FileId(1));
        assert!(!matches!(plan.assign(None, 2), Next::Fetch(Assignment { file: FileId(0), .. })));
        plan.unhold(bad.file);
        assert_eq!(fetch(plan.assign(None, 2)).file, FileId(0));
    }

    #[test]
    fn a_sequential_file_has_one_connection() {
        let mut plan = plan(&[30 * MIB]);
        let first = fetch(plan.assign(None, 4));
        plan.restart(first.file, RangeSet::from(0..30 * MIB), Some(Way::Sequential));
        assert_eq!(plan.end_of(first.id), 0, "the old assignment counts for nothing");
        let again = fetch(plan.assign(None, 4));
        assert_eq!(again.range, 0..30 * MIB);
        assert_eq!(plan.assign(None, 4), Next::Wait);
    }

    #[test]
    fn nobody_joins_a_file_before_its_server_has_answered_a_range() {
        let mut plan = Plan::default();
        plan.add(FileId(0), 300 * MIB, RangeSet::from(0..300 * MIB), Way::Ranges);
        let first = fetch(plan.assign(None, 4));
        assert_eq!(plan.assign(None, 4), Next::Wait, "it may ignore ranges");
        plan.answers_ranges(first.file);
        assert_eq!(fetch(plan.assign(None, 4)).range.start, first.range.end);
    }

    #[test]
    fn a_server_that_ignores_ranges_sends_the_rest_whole_over_one_connection() {
        let mut plan = Plan::default();
        plan.add(FileId(0), 100 * MIB, RangeSet::from(40 * MIB..100 * MIB), Way::Ranges);
        let refused = fetch(plan.assign(None, 4));
        assert!(!plan.stream_whole(FileId(0)), "somebody fetches");
        plan.release(refused.id, 40 * MIB);
        assert!(plan.stream_whole(FileId(0)));
        let whole = fetch(plan.assign(None, 4));
        assert_eq!((whole.range, whole.whole), (40 * MIB..100 * MIB, true));
        assert_eq!(plan.assign(None, 4), Next::Wait);
        assert_eq!(plan.take(whole.id, 40 * MIB, 5 * MIB), 5 * MIB);
        plan.release(whole.id, 45 * MIB);
        assert_eq!(fetch(plan.assign(None, 4)).range, 45 * MIB..100 * MIB, "what came is not taken again");
        let mut scattered = Plan::default();
        scattered.add(FileId(0), 100 * MIB, RangeSet::from(vec![(0, MIB), (9 * MIB, 100 * MIB)]), Way::Ranges);
        assert!(!scattered.stream_whole(FileId(0)));
    }

    #[test]
    fn twenty_thousand_files_are_handed_out_in_no_time() {
        let sizes: Vec<u64> = (1..=20_000).collect();
        let mut plan = plan(&sizes);
        let mut last = u64::MAX;
        for _ in 0..sizes.len() {
            let work = fetch(plan.assign(None, 32));
            assert!(work.range.end <= last, "largest first");
            last = work.range.end;
            plan.take(work.id, 0, work.range.end);
            plan.release(work.id, work.range.end);
            plan.remove(work.file);
        }
        assert_eq!((plan.remaining(), plan.assign(None, 32)), (0, Next::Done));
    }

    proptest! {
        #[test]
        fn every_byte_is_fetched_exactly_once(
            sizes in prop::collection::vec(1u64..300 * MIB, 1..12),
            connections in 1usize..9,
            steps in prop::collection::vec((0usize..9, 1u64..80 * MIB, any::<bool>()), 1..400),
        ) {
            let mut plan = plan(&sizes);
            let mut got: Vec<RangeSet> = sizes.iter().map(|_| RangeSet::new()).collect();
            let mut busy: Vec<Option<(Assignment, u64)>> = vec![None; connections];
            let endless = std::iter::repeat((0, 64 * MIB, false)).enumerate().map(|(i, s)| (i % connections, s.1, s.2));
            for (turn, (who, amount, fails)) in steps.into_iter().chain(endless).take(20_000).enumerate() {
                if turn % 5 == 0 {
                    plan.look(Duration::from_secs(1));
                }
                let who = who % connections;
                let Some((work, at)) = busy[who].take() else {
                    match plan.assign(None, connections) {
                        Next::Fetch(work) => { let at = work.range.start; busy[who] = Some((work, at)); }
                        Next::Wait => {}
                        Next::Done => break,
                    }
                    continue;
                };
                let to = at + plan.take(work.id, at, amount);
                let fresh = RangeSet::from(at..to);
                prop_assert_eq!(got[work.file.0].difference(&fresh).len_bytes(), got[work.file.0].len_bytes(), "no byte twice");
                got[work.file.0].insert(at..to);
                let prefix = got[work.file.0].run_end(0);
                plan.hashed(work.file, prefix);
                prop_assert_eq!(plan.remaining(), count(&plan));
                if fails || to >= plan.end_of(work.id) {
                    plan.release(work.id, to);
                } else {
                    busy[who] = Some((work, to));
                }
            }
            prop_assert_eq!(plan.remaining(), 0);
            for (set, size) in got.iter().zip(&sizes) {
                prop_assert!(set.is_whole(*size));
            }
        }

        #[test]
        fn whatever_happens_on_the_way_every_file_that_is_not_given_up_ends_whole(
            sizes in prop::collection::vec(1u64..300 * MIB, 1..6),
            steps in prop::collection::vec((0u8..12, 0usize..6, 0usize..6, 1u64..80 * MIB), 1..300),
        ) {
            const CONNECTIONS: usize = 6;
            let mut world = World::new(&sizes);
            for (what, who, file, amount) in steps {
                let file = FileId(file % sizes.len());
                match what {
                    0..=5 => { world.work(who, CONNECTIONS, amount); }
                    6 => world.fail(who),
                    7 => world.begin_again(file, Some(Way::Sequential)),
                    8 => world.begin_again(file, None),
                    9 => world.plan.hold(file),
                    10 => world.plan.unhold(file),
                    _ if amount % 4 == 0 => world.give_up(file),
                    _ => drop(world.plan.stream_whole(file)),
                }
                world.check();
            }
            (0..sizes.len()).for_each(|file| world.plan.unhold(FileId(file)));
            let mut left = 20_000;
            while left > 0 && world.work(left % CONNECTIONS, CONNECTIONS, 64 * MIB) {
                left -= 1;
                world.check();
            }
            prop_assert!(left > 0, "it ends");
            for (file, size) in sizes.iter().enumerate() {
                prop_assert!(world.given_up.contains(&file) || world.got[file].is_whole(*size), "file {}", file);
            }
        }
    }

    /// A plan, the connections that follow it, and what they have brought.
    struct World {
        plan: Plan,
        sizes: Vec<u64>,
        got: Vec<RangeSet>,
        busy: Vec<Option<(Assignment, u64)>>,
        given_up: BTreeSet<usize>,
    }

    impl World {
        fn new(sizes: &[u64]) -> Self {
            let mut plan = Plan::default();
            for (id, size) in sizes.iter().enumerate() {
                plan.add(FileId(id), *size, RangeSet::from(0..*size), Way::Ranges);
            }
            let got = vec![RangeSet::new(); sizes.len()];
            Self { plan, sizes: sizes.to_vec(), got, busy: vec![None; 6], given_up: BTreeSet::new() }
        }

        /// One step of one connection; `false` when there is nothing more to do for anybody.
        fn work(&mut self, who: usize, connections: usize, amount: u64) -> bool {
            let Some((work, at)) = self.busy[who].take() else {
                match self.plan.assign(None, connections) {
                    Next::Fetch(work) => {
                        let at = work.range.start;
                        self.busy[who] = Some((work, at));
                    }
                    Next::Wait => {}
                    Next::Done => return false,
                }
                return true;
            };
            let file = work.file;
            let to = at + self.plan.take(work.id, at, amount);
            if to > at {
                let got = &mut self.got[file.0];
                assert_eq!(got.difference(&RangeSet::from(at..to)), *got, "no byte twice");
                got.insert(at..to);
                let prefix = got.run_end(0);
                self.plan.hashed(file, prefix);
                if !work.whole {
                    self.plan.answers_ranges(file);
                }
            }
            if to >= self.plan.end_of(work.id) {
                self.plan.release(work.id, to);
            } else {
                self.busy[who] = Some((work, to));
            }
            true
        }

        fn fail(&mut self, who: usize) {
            if let Some((work, at)) = self.busy[who].take() {
                self.plan.release(work.id, at);
            }
        }

        /// Wrong bytes came: all of it is to be fetched again.
        fn begin_again(&mut self, file: FileId, way: Option<Way>) {
            if !self.given_up.contains(&file.0) {
                self.got[file.0] = RangeSet::new();
                self.plan.restart(file, RangeSet::from(0..self.sizes[file.0]), way);
            }
        }

        fn give_up(&mut self, file: FileId) {
            self.given_up.insert(file.0);
            self.plan.remove(file);
        }

        /// Each byte is in exactly one place: fetched, being fetched, or not handed out.
        fn check(&self) {
            assert_eq!(self.plan.remaining(), count(&self.plan));
            for (id, file) in &self.plan.files {
                let active: Vec<_> = self.plan.active.values().filter(|active| active.file == *id).collect();
                assert_eq!(active.len(), file.active);
                assert!(file.way == Way::Ranges || active.len() <= 1, "one connection, in order");
                let mut all = self.got[id.0].clone();
                let mut bytes = all.len_bytes();
                for range in file.unassigned.iter().chain(active.iter().map(|active| active.position..active.end)) {
                    bytes += range.end - range.start;
                    all.insert(range);
                }
                assert_eq!((all.is_whole(file.size), bytes), (true, file.size));
            }
            assert!(self.plan.active.values().all(|active| !self.given_up.contains(&active.file.0)));
        }
    }
}
