//! The world around plan and pace: connections as flows that share what the link and the disk
//! carry, answers that take their time, connections that are lost, edges that are slow.
//!
//! It goes from event to event; between two of them every flow has one rate. What the daemon's
//! pool does on an event is done here on the same event; nothing is decided here that `core` decides.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use muster::core::pace::{Pace, WINDOW, Window};
use muster::core::plan::{Assignment, FileId, Next, Plan, Way};
use muster::core::range_set::RangeSet;
use muster::core::retry::{self, Failures};

use super::scenario::{CONNECTIONS, SHARD_BYTES, SHARDS, Scenario};

/// Far more events than any scenario needs.
const EVENTS_MAX: u64 = 5_000_000;
const FIVE_MINUTES_S: f64 = 300.0;

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Ended {
    pub complete: bool,
    pub makespan_s: f64,
    pub requests: u64,
    /// The most that fell in any five minutes.
    pub resolver_requests_in_5_min: usize,
    /// The most connections that were open at once.
    pub connections: usize,
    pub losses: u64,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { complete, makespan_s, requests, resolver_requests_in_5_min: resolver, connections, losses } = self;
        let how = if *complete { "complete" } else { "NOT COMPLETE" };
        write!(
            f,
            "{how} after {makespan_s:.1} s, {requests} requests, {resolver} of the resolver in 5 min, up to \
             {connections} connections, {losses} lost"
        )
    }
}

struct Flow {
    assignment: Assignment,
    /// When the first byte comes.
    starts: f64,
    flowing: bool,
    at: f64,
    most: f64,
    lost_at: f64,
    rate: f64,
}

struct World<'a> {
    scenario: &'a Scenario,
    random: fastrand::Rng,
    now: f64,
    plan: Plan,
    pace: Pace,
    seats: Vec<Option<Flow>>,
    last: Vec<Option<FileId>>,
    received: BTreeMap<FileId, RangeSet>,
    failures: BTreeMap<FileId, Failures>,
    held: BTreeMap<FileId, f64>,
    resolved: Vec<bool>,
    resolver: VecDeque<f64>,
    window: (f64, f64, u32),
    bytes: f64,
    ended: Ended,
}

/// Plays the reference job through a scenario.
pub fn run(scenario: &Scenario, seed: u64) -> Ended {
    let mut plan = Plan::default();
    for id in 0..SHARDS {
        plan.add(FileId(id), SHARD_BYTES, RangeSet::from(0..SHARD_BYTES), Way::Ranges);
    }
    let ended = Ended {
        complete: false,
        makespan_s: 0.0,
        requests: 0,
        resolver_requests_in_5_min: 0,
        connections: 0,
        losses: 0,
    };
    let world = World {
        scenario,
        random: fastrand::Rng::with_seed(!seed),
        now: 0.0,
        plan,
        pace: Pace::adaptive(CONNECTIONS, None),
        seats: (0..CONNECTIONS).map(|_| None).collect(),
        last: vec![None; CONNECTIONS],
        received: BTreeMap::new(),
        failures: BTreeMap::new(),
        held: BTreeMap::new(),
        resolved: vec![false; SHARDS],
        resolver: VecDeque::new(),
        window: (0.0, 0.0, 0),
        bytes: 0.0,
        ended,
    };
    world.play()
}

impl World<'_> {
    fn play(mut self) -> Ended {
        for _ in 0..EVENTS_MAX {
            self.fill();
            if self.plan.remaining() == 0 && self.seats.iter().all(Option::is_none) {
                self.ended.complete = true;
                break;
            }
            self.share();
            self.advance();
            self.happen();
        }
        self.ended.makespan_s = self.now;
        self.ended
    }

    /// Gives every free seat below the level work.
    fn fill(&mut self) {
        for seat in 0..self.pace.level().min(CONNECTIONS) {
            if self.seats[seat].is_some() {
                continue;
            }
            let Next::Fetch(assignment) = self.plan.assign(self.last[seat], self.pace.level()) else { return };
            self.last[seat] = Some(assignment.file);
            self.seats[seat] = Some(self.ask(assignment));
        }
        let open = self.seats.iter().flatten().count();
        self.ended.connections = self.ended.connections.max(open);
    }

    fn ask(&mut self, assignment: Assignment) -> Flow {
        self.ended.requests += 1;
        let Scenario { round_trip_s, first_byte_s, slow_share, slow_speed, connection, loss_every_s, .. } =
            *self.scenario;
        let mut starts = self.now + round_trip_s + first_byte_s * self.random.f64();
        if !std::mem::replace(&mut self.resolved[assignment.file.0], true) {
            starts += round_trip_s + first_byte_s * self.random.f64();
            self.resolver.push_back(self.now);
            self.resolver.retain(|at| self.now - at < FIVE_MINUTES_S);
            let most = &mut self.ended.resolver_requests_in_5_min;
            *most = (*most).max(self.resolver.len());
        }
        let slow = self.random.f64() < slow_share;
        let most = if slow { connection * slow_speed } else { connection };
        let lost_at = starts - loss_every_s * (1.0 - self.random.f64()).ln();
        let at = assignment.range.start as f64;
        Flow { assignment, starts, flowing: false, at, most, lost_at, rate: 0.0 }
    }

    /// What link and disk carry is shared fairly; nobody gets more than its connection carries.
    fn share(&mut self) {
        let open = self.seats.iter().flatten().count();
        let mut left = self.scenario.capacity(open);
        let mut flows: Vec<_> = self.seats.iter_mut().flatten().filter(|flow| flow.flowing).collect();
        flows.sort_by(|a, b| a.most.total_cmp(&b.most));
        let mut others = flows.len();
        for flow in flows {
            flow.rate = flow.most.min(left / others as f64);
            left -= flow.rate;
            others -= 1;
        }
    }

    /// Goes to the next event, and writes what came until then.
    fn advance(&mut self) {
        let mut next = self.window.0 + WINDOW.as_secs_f64();
        for flow in self.seats.iter().flatten() {
            let end = self.plan.end_of(flow.assignment.id) as f64;
            let done = if flow.flowing { self.now + (end - flow.at).max(0.0) / flow.rate } else { flow.starts };
            next = next.min(done).min(flow.lost_at);
        }
        next = self.held.values().fold(next, |next, until| next.min(*until)).max(self.now);
        let span = next - self.now;
        self.now = next;
        for flow in self.seats.iter_mut().flatten().filter(|flow| flow.flowing) {
            let (id, before) = (flow.assignment.id, flow.at as u64);
            let end = self.plan.end_of(id);
            // An event may fall a rounding error short of the byte it is about.
            let mut reached = (flow.at + flow.rate * span).min(end as f64);
            if end as f64 - reached < 0.5 {
                reached = end as f64;
            }
            let after = reached as u64;
            self.plan.take(id, before, after - before);
            self.received.entry(flow.assignment.file).or_default().insert(before..after);
            self.bytes += (after - before) as f64;
            flow.at = reached;
        }
    }

    /// Everything that is due now.
    fn happen(&mut self) {
        for seat in 0..self.seats.len() {
            let Some(flow) = &mut self.seats[seat] else { continue };
            if !flow.flowing && flow.starts <= self.now {
                flow.flowing = true;
                self.plan.answers_ranges(flow.assignment.file);
            }
            let end = self.plan.end_of(flow.assignment.id);
            if flow.flowing && flow.at as u64 >= end {
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

    /// A connection is through with its assignment, or lost.
    fn leave(&mut self, seat: usize, lost: bool) {
        let Some(flow) = self.seats[seat].take() else { return };
        let (file, came) = (flow.assignment.file, flow.at as u64 > flow.assignment.range.start);
        let failures = self.failures.entry(file).or_default();
        if came {
            failures.progressed();
        }
        if lost {
            self.ended.losses += 1;
            self.window.2 += 1;
            let pause = retry::delay(failures.failed(), None, self.random.f64());
            self.plan.hold(file);
            self.held.insert(file, self.now + pause.as_secs_f64());
        }
        self.plan.release(flow.assignment.id, flow.at as u64);
        let hashed = self.received.get(&file).map_or(0, |received| received.run_end(0));
        self.plan.hashed(file, hashed);
    }

    fn observe(&mut self) {
        let (then, before, failures) = std::mem::replace(&mut self.window, (self.now, self.bytes, 0));
        let open = self.seats.iter().flatten().count();
        let span = Duration::from_secs_f64(self.now - then);
        self.plan.look(span);
        self.pace.observe(&Window {
            span,
            bytes: (self.bytes - before) as u64,
            failures,
            busy: open >= self.pace.level(),
        });
        for seat in self.pace.level()..self.seats.len() {
            self.leave(seat, false);
        }
    }
}
