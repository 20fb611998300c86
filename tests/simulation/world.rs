//! The world around plan and pace: connections as flows that share what the link and the disk
//! carry, answers that take their time, connections that start slowly and are lost, edges that are
//! slow, a resolver with a quota.
//!
//! It goes from event to event; between two of them every flow has one rate. What the daemon's
//! pool does on an event is done here on the same event; nothing is decided here that `core` decides
//! (unless `Broken` says so: then the world is deaf to one thing that `core` says).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use muster::core::budget::{Budget, Traffic};
use muster::core::pace::{Pace, WINDOW, Window};
use muster::core::plan::{Assignment, FileId, Next, Plan, Way};
use muster::core::range_set::RangeSet;
use muster::core::retry::{self, Failures};
use muster::limits;

use super::hub::{Hub, Verdict};
use super::scenario::{SMALL, Scenario};

/// Far more events than any scenario needs.
const EVENTS_MAX: u64 = 5_000_000;
/// What a new connection sends in its first round trip, bytes: ten segments (RFC 6928).
const FIRST_WINDOW: f64 = 14_600.0;
/// Round trips until a new connection has sent its first request: TCP, TLS 1.3.
const HANDSHAKES: f64 = 2.0;
/// How long a location is good, s.
const LOCATION_S: f64 = 3600.0;
/// Requests that come before the first file: the commit, and the list in one page.
const FIRST_REQUESTS: u64 = 2;
/// What a connection of the world that makes small requests asks for at a time.
const SMALL_REQUEST: f64 = 16e6;
/// The share of the bytes that the tail has.
const TAIL: f64 = 0.02;

/// What of the core's advice is not followed, to see what it is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// Nobody takes a part of what another connection has begun.
    Splits,
    /// Nobody asks where a file lies before its turn has come.
    Ahead,
    /// Nobody looks how fast connections are: slow ones are not replaced.
    Looks,
    /// It stays with as many connections as it begins with.
    Growth,
    /// There are never fewer connections than there were.
    StepsBack,
    /// As many connections as there may be, whatever they bring.
    Restraint,
    /// Requests are small, however long answers take.
    LargeRequests,
    /// A lost connection loses what came over it.
    Resume,
    /// A file waits a minute after each loss.
    Retries,
    /// What the Hub says of its quota is not heard; what is refused is asked again a second later.
    Quota,
}

/// How a run ended.
#[derive(Debug, Clone, Default)]
pub struct Ended {
    pub complete: bool,
    pub makespan_s: f64,
    /// Requests of any kind.
    pub requests: u64,
    /// The most that counted against the quota of the resolver in one of its windows.
    pub resolver_in_a_window: u32,
    /// Requests that were refused.
    pub refused: u64,
    /// The most connections that were open at once.
    pub connections: usize,
    pub losses: u64,
    /// The most memory that the daemon needed, by what it has and what each connection has.
    pub memory: u64,
    /// The share of the time of all allowed connections before the tail in which they had work.
    pub busy: f64,
    /// The share of the bytes that had come when first a connection had no work any more.
    pub busy_until: f64,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.complete { "complete" } else { "NOT COMPLETE" };
        write!(
            f,
            "{how} after {:.1} s, {} requests, {} of the resolver in a window, {} refused, up to {} connections, {} \
             lost, {:.0} MiB",
            self.makespan_s,
            self.requests,
            self.resolver_in_a_window,
            self.refused,
            self.connections,
            self.losses,
            self.memory as f64 / f64::from(1 << 20),
        )
    }
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// That it may ask: the Hub where a file is, or whoever has its bytes.
    Leave(Traffic),
    /// The Hub's answer about where the file is.
    Locating(Verdict),
    /// The first byte.
    Answering,
    /// The last byte.
    Flowing,
}

struct Flow {
    assignment: Assignment,
    step: Step,
    /// When the step ends; of a flow, when its window grows.
    due: f64,
    /// How long its server takes to answer what was asked last.
    answer_s: f64,
    /// Its own number, which spreads waiters.
    random: f64,
    at: f64,
    wire: Wire,
    lost_at: f64,
    rate: f64,
    /// Whether it has asked where another file lies.
    asked_ahead: bool,
}

/// A connection to the storage: what it carries at most, and what its window lets through.
#[derive(Debug, Clone, Copy)]
struct Wire {
    most: f64,
    window: f64,
}

#[derive(Default)]
struct Seat {
    flow: Option<Flow>,
    last: Option<FileId>,
    /// An open connection that can be used again.
    wire: Option<Wire>,
    /// Whether it has one to the Hub.
    at_hub: bool,
}

struct World<'a> {
    scenario: &'a Scenario,
    broken: Broken,
    files: &'a [u64],
    bytes: f64,
    random: fastrand::Rng,
    now: f64,
    plan: Plan,
    pace: Pace,
    level: usize,
    hub: Hub,
    budget: Budget,
    seats: Vec<Seat>,
    received: BTreeMap<FileId, RangeSet>,
    failures: BTreeMap<FileId, Failures>,
    held: BTreeMap<FileId, f64>,
    /// When the answer came, or comes, where a file lies.
    located: Vec<f64>,
    window: (f64, f64, u32),
    came: f64,
    /// Time of connections in all, and without work.
    spent: (f64, f64),
    was_full: bool,
    ended: Ended,
}

/// Fetches `files` through a scenario.
pub fn run(scenario: &Scenario, files: &[u64], pace: Pace, broken: Broken, seed: u64) -> Ended {
    let mut plan = Plan::default();
    for (id, size) in files.iter().enumerate() {
        plan.add(FileId(id), *size, RangeSet::from(0..*size), Way::Ranges);
    }
    let pace = match broken {
        Broken::Growth => Pace::pinned(pace.level()),
        Broken::Restraint => Pace::pinned(pace.max()),
        _ => pace,
    };
    let world = World {
        scenario,
        broken,
        files,
        bytes: files.iter().sum::<u64>() as f64,
        random: fastrand::Rng::with_seed(!seed),
        now: 0.0,
        plan,
        level: pace.level(),
        hub: Hub::of(scenario),
        budget: Budget::default(),
        seats: (0..pace.max()).map(|_| Seat::default()).collect(),
        pace,
        received: BTreeMap::new(),
        failures: BTreeMap::new(),
        held: BTreeMap::new(),
        located: vec![f64::NEG_INFINITY; files.len()],
        window: (0.0, 0.0, 0),
        came: 0.0,
        spent: (0.0, 0.0),
        was_full: false,
        ended: Ended { requests: FIRST_REQUESTS, busy_until: 1.0, ..Ended::default() },
    };
    world.play()
}

impl World<'_> {
    fn play(mut self) -> Ended {
        for _ in 0..EVENTS_MAX {
            self.fill();
            if self.plan.remaining() == 0 && self.seats.iter().all(|seat| seat.flow.is_none()) {
                self.ended.complete = true;
                break;
            }
            self.share();
            self.advance();
            self.happen();
        }
        let (all, idle) = self.spent;
        let (in_a_window, refused) = (self.hub.most_in_a_window, self.hub.refused);
        Ended { makespan_s: self.now, resolver_in_a_window: in_a_window, refused, busy: 1.0 - idle / all, ..self.ended }
    }

    /// Gives every free seat below the level work.
    fn fill(&mut self) {
        for seat in 0..self.level {
            if self.seats[seat].flow.is_some() {
                continue;
            }
            if self.broken == Broken::Splits && self.unassigned() < 1.0 {
                break;
            }
            let Next::Fetch(assignment) = self.plan.assign(self.seats[seat].last, self.level) else {
                if self.was_full && self.ended.busy_until >= 1.0 {
                    self.ended.busy_until = self.came / self.bytes;
                }
                continue;
            };
            self.seats[seat].last = Some(assignment.file);
            let at = assignment.range.start as f64;
            let flow = Flow {
                assignment,
                step: Step::Leave(Traffic::Resolve),
                due: self.now,
                answer_s: 0.0,
                random: self.random.f64(),
                at,
                wire: Wire { most: 0.0, window: 0.0 },
                lost_at: f64::INFINITY,
                rate: 0.0,
                asked_ahead: false,
            };
            self.seats[seat].flow = Some(flow);
        }
        let open = self.seats.iter().filter(|seat| seat.flow.is_some()).count();
        self.was_full |= open >= self.level;
        self.ended.connections = self.ended.connections.max(open);
        let ranges: usize = self.received.values().map(|received| received.iter().count()).sum();
        let state = (self.files.len() * 512 + ranges * 16) as u64;
        let memory = limits::MEMORY_BASE + open as u64 * limits::MEMORY_EACH + state;
        self.ended.memory = self.ended.memory.max(memory);
    }

    /// Bytes that no connection has been given.
    fn unassigned(&self) -> f64 {
        let given = self.seats.iter().filter_map(|seat| seat.flow.as_ref());
        let given: f64 =
            given.map(|flow| (self.plan.end_of(flow.assignment.id) as f64 - flow.at.floor()).max(0.0)).sum();
        self.plan.remaining() as f64 - given
    }

    /// Takes a connection whose step has ended to the next one.
    fn proceed(&mut self, seat: usize) {
        let (scenario, broken) = (self.scenario, self.broken);
        let answer_s = scenario.round_trip_s + scenario.jitter_s * self.random.f64();
        let handshakes = |open: bool| if open { 0.0 } else { HANDSHAKES * scenario.round_trip_s };
        let Seat { flow: Some(flow), wire, at_hub, .. } = &mut self.seats[seat] else { return };
        let file = flow.assignment.file;
        let at_the_hub = self.files[file.0] < SMALL;
        match flow.step {
            // Another connection has asked.
            Step::Leave(Traffic::Resolve) if self.located[file.0] > self.now => flow.due = self.located[file.0],
            Step::Leave(Traffic::Resolve) if self.now - self.located[file.0] < LOCATION_S => {
                flow.step = Step::Leave(Traffic::Data);
            }
            Step::Leave(traffic) => {
                let counts = at_the_hub || traffic == Traffic::Resolve;
                let now = Duration::from_secs_f64(self.now);
                if let Err(again) = self.budget.admit(traffic, now, flow.random)
                    && counts
                    && broken != Broken::Quota
                {
                    flow.due = again.as_secs_f64().max(self.now + 1e-6);
                    return;
                }
                self.ended.requests += 1;
                let verdict = counts.then(|| self.hub.answer(self.now));
                let open = if counts { std::mem::replace(at_hub, true) } else { wire.is_some() };
                flow.answer_s = handshakes(open) + answer_s;
                flow.due = self.now + flow.answer_s;
                if let Some(verdict) = verdict
                    && (traffic == Traffic::Resolve || verdict.status == 429)
                {
                    flow.step = Step::Locating(verdict);
                    return;
                }
                let slow = self.random.f64() < scenario.slow_share;
                let most = if slow { scenario.connection * scenario.slow_speed } else { scenario.connection };
                flow.wire = wire.unwrap_or(Wire { most, window: FIRST_WINDOW / scenario.round_trip_s });
                flow.lost_at = flow.due - scenario.loss_every_s * (1.0 - self.random.f64()).ln();
                flow.step = Step::Answering;
            }
            Step::Locating(Verdict { status, limits }) => {
                self.budget.observe(Traffic::Resolve, status, limits, Duration::from_secs_f64(self.now));
                if status == 302 {
                    self.located[file.0] = self.now;
                } else if broken == Broken::Quota {
                    flow.due += 1.0;
                }
                flow.step = Step::Leave(Traffic::Resolve);
            }
            Step::Answering => {
                self.plan.answered(Duration::from_secs_f64(flow.answer_s));
                self.plan.answers_ranges(file);
                flow.step = Step::Flowing;
                flow.due = self.now + scenario.round_trip_s;
            }
            Step::Flowing => {
                flow.wire.window *= 2.0;
                flow.due = self.now + scenario.round_trip_s;
            }
        }
    }

    /// What link and disk carry is shared fairly; nobody gets more than its connection carries.
    fn share(&mut self) {
        let flows = self.seats.iter_mut().filter_map(|seat| seat.flow.as_mut());
        let mut flows: Vec<_> = flows.filter(|flow| matches!(flow.step, Step::Answering | Step::Flowing)).collect();
        let mut left = self.scenario.capacity(flows.len());
        flows.retain(|flow| matches!(flow.step, Step::Flowing));
        flows.sort_by(|a, b| a.wire.now().total_cmp(&b.wire.now()));
        let mut others = flows.len();
        for flow in flows {
            flow.rate = flow.wire.now().min(left / others as f64);
            left -= flow.rate;
            others -= 1;
        }
    }

    /// Goes to the next event, and writes what came until then.
    fn advance(&mut self) {
        let mut next = self.window.0 + WINDOW.as_secs_f64();
        for flow in self.seats.iter().filter_map(|seat| seat.flow.as_ref()) {
            next = next.min(flow.lost_at);
            if flow.is_flowing() {
                let end = (self.plan.end_of(flow.assignment.id) as f64).min(self.leaves_at(flow));
                next = next.min(self.now + (end - flow.at).max(0.0) / flow.rate);
            }
            if !flow.is_flowing() || flow.is_held_back() {
                next = next.min(flow.due);
            }
        }
        next = self.held.values().fold(next, |next, until| next.min(*until)).max(self.now);
        let span = next - self.now;
        self.now = next;
        if self.came < self.bytes * (1.0 - TAIL) && self.was_full {
            let idle = self.seats[..self.level].iter().filter(|seat| seat.flow.is_none()).count();
            self.spent.0 += span * self.level as f64;
            self.spent.1 += span * idle as f64;
        }
        for flow in self.seats.iter_mut().filter_map(|seat| seat.flow.as_mut()).filter(|flow| flow.is_flowing()) {
            let (id, before) = (flow.assignment.id, flow.at as u64);
            let end = self.plan.end_of(id);
            // An event may fall a rounding error short of the byte it is about.
            let mut reached = (flow.at + flow.rate * span).min(end as f64);
            if end as f64 - reached < 0.5 {
                reached = end as f64;
            }
            let after = reached as u64;
            self.plan.take(id, before, after.saturating_sub(before));
            self.received.entry(flow.assignment.file).or_default().insert(before..after);
            self.came += after.saturating_sub(before) as f64;
            flow.at = reached.max(flow.at);
        }
    }

    /// Where a connection that makes small requests leaves.
    fn leaves_at(&self, flow: &Flow) -> f64 {
        let small = self.broken == Broken::LargeRequests;
        if small { flow.assignment.range.start as f64 + SMALL_REQUEST } else { f64::INFINITY }
    }

    /// Everything that is due now.
    fn happen(&mut self) {
        for seat in 0..self.seats.len() {
            while let Some(flow) = &self.seats[seat].flow
                && flow.due <= self.now
                && (!flow.is_flowing() || flow.is_held_back())
            {
                self.proceed(seat);
            }
            self.look_ahead(seat);
            let Some(flow) = &self.seats[seat].flow else { continue };
            let end = self.plan.end_of(flow.assignment.id);
            if flow.is_flowing() && (flow.at as u64 >= end || flow.at + 0.5 >= self.leaves_at(flow)) {
                self.leave(seat, false);
            } else if flow.lost_at <= self.now {
                self.leave(seat, true);
            }
        }
        let due: Vec<_> = self.held.iter().filter(|(_, until)| **until <= self.now).map(|(id, _)| *id).collect();
        for id in due {
            self.held.remove(&id);
            self.plan.unhold(id);
        }
        if self.now >= self.window.0 + WINDOW.as_secs_f64() {
            self.observe();
        }
    }

    /// Asks where the next file lies, once half of an assignment has come. What is refused is asked again by whoever
    /// reads it.
    fn look_ahead(&mut self, seat: usize) {
        let Some(flow) = &mut self.seats[seat].flow else { return };
        let half = (flow.assignment.range.start + flow.assignment.range.end) as f64 / 2.0;
        if flow.asked_ahead || flow.at < half || self.broken == Broken::Ahead {
            return;
        }
        flow.asked_ahead = true;
        let (now, random) = (Duration::from_secs_f64(self.now), flow.random);
        let Some(next) = self.plan.look_ahead() else { return };
        let known = self.files[next.0] < SMALL || self.now - self.located[next.0] < LOCATION_S;
        if known || self.budget.admit(Traffic::Resolve, now, random).is_err() {
            return;
        }
        self.ended.requests += 1;
        let Verdict { status, limits } = self.hub.answer(self.now);
        self.budget.observe(Traffic::Resolve, status, limits, now);
        if status == 302 {
            self.located[next.0] = self.now + self.scenario.round_trip_s + self.scenario.jitter_s * self.random.f64();
        }
    }

    /// A connection is through with its assignment, or lost.
    fn leave(&mut self, seat: usize, lost: bool) {
        let Some(flow) = self.seats[seat].flow.take() else { return };
        let Assignment { id, file, range, .. } = flow.assignment;
        let failures = self.failures.entry(file).or_default();
        if flow.at as u64 > range.start {
            failures.progressed();
        }
        // One whose answer was read to its end can be used again.
        let whole = flow.at as u64 >= range.end || self.broken == Broken::LargeRequests;
        self.seats[seat].wire = (whole && !lost).then_some(flow.wire);
        let mut reached = flow.at as u64;
        if lost {
            self.ended.losses += 1;
            self.window.2 += 1;
            let delay = retry::delay(failures.failed(), None, self.random.f64()).as_secs_f64();
            let pause = if self.broken == Broken::Retries { 60.0 } else { delay };
            self.plan.hold(file);
            self.held.insert(file, self.now + pause);
            if self.broken == Broken::Resume {
                reached = range.start;
            }
        }
        self.plan.release(id, reached);
        let hashed = self.received.get(&file).map_or(0, |received| received.run_end(0));
        self.plan.hashed(file, hashed);
    }

    fn observe(&mut self) {
        let (then, before, failures) = std::mem::replace(&mut self.window, (self.now, self.came, 0));
        let open = self.seats.iter().filter(|seat| seat.flow.is_some()).count();
        let span = Duration::from_secs_f64(self.now - then);
        if self.broken != Broken::Looks {
            self.plan.look(span);
        }
        let bytes = (self.came - before) as u64;
        let held_up = |seat: &Seat| seat.flow.as_ref().is_some_and(|flow| matches!(flow.step, Step::Leave(_)));
        let busy = open >= self.level && !self.seats.iter().any(held_up);
        let files = self.plan.unfetched();
        let level = self.pace.observe(&Window { span, bytes, failures, busy, files });
        self.level = if self.broken == Broken::StepsBack { level.max(self.level) } else { level };
        for seat in self.level..self.seats.len() {
            self.leave(seat, false);
        }
    }
}

impl Wire {
    /// What it carries now.
    fn now(self) -> f64 {
        self.most.min(self.window)
    }
}

impl Flow {
    fn is_flowing(&self) -> bool {
        matches!(self.step, Step::Flowing)
    }

    /// Whether its window is what holds it back.
    fn is_held_back(&self) -> bool {
        self.wire.window < self.wire.most && self.rate >= self.wire.window * 0.999
    }
}
