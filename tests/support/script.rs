//! Which request gets which behaviour: rules in the order of their making, each a queue.

use std::collections::VecDeque;

use super::behaviour::Behaviour;
use super::http::Request;
use super::hub::Hub;
use super::record::{Origin, Recorded};

/// A pattern for requests. Paths are compared percent-decoded.
#[derive(Clone, Debug, Default)]
pub struct Match {
    origin: Option<Origin>,
    method: Option<&'static str>,
    contains: String,
    suffix: String,
    query: String,
    ranged: Option<bool>,
    covers: Option<u64>,
}

impl Match {
    /// Every request to both origins.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests to the hub origin whose path contains `part` (empty: all).
    pub fn hub(part: &str) -> Self {
        Self { origin: Some(Origin::Hub), contains: part.to_owned(), ..Self::default() }
    }

    /// Requests to the CDN origin whose path contains `part` (empty: all).
    pub fn cdn(part: &str) -> Self {
        Self { origin: Some(Origin::Cdn), contains: part.to_owned(), ..Self::default() }
    }

    /// Requests about the revision of any repository.
    pub fn info() -> Self {
        Self::hub("/revision/")
    }

    /// Pages of a tree.
    pub fn tree() -> Self {
        Self::hub("/tree/")
    }

    /// The resolver (not the `/api/resolve-cache/` hop) for paths that end in `file`.
    pub fn resolve(file: &str) -> Self {
        Self::hub("/resolve/").suffix(file)
    }

    /// The hop that serves plain files that end in `file`.
    pub fn plain(file: &str) -> Self {
        Self::hub("/api/resolve-cache/").suffix(file)
    }

    pub fn suffix(mut self, suffix: &str) -> Self {
        suffix.clone_into(&mut self.suffix);
        self
    }

    /// The raw query contains `part`.
    pub fn query(mut self, part: &str) -> Self {
        part.clone_into(&mut self.query);
        self
    }

    pub fn get(mut self) -> Self {
        self.method = Some("GET");
        self
    }

    pub fn head(mut self) -> Self {
        self.method = Some("HEAD");
        self
    }

    pub fn with_range(mut self) -> Self {
        self.ranged = Some(true);
        self
    }

    pub fn without_range(mut self) -> Self {
        self.ranged = Some(false);
        self
    }

    /// The asked range (the whole file when none is asked) holds this offset.
    pub fn covering(mut self, offset: u64) -> Self {
        self.covers = Some(offset);
        self
    }

    pub(super) fn fits(&self, origin: Origin, request: &Request) -> bool {
        let path = (request.path.as_str(), request.query.as_str());
        self.fits_parts(origin, &request.method, path, request.range())
    }

    pub(super) fn fits_recorded(&self, seen: &Recorded) -> bool {
        let path = (seen.path.as_str(), seen.query.as_str());
        self.fits_parts(seen.origin, &seen.method, path, seen.range)
    }

    fn fits_parts(
        &self,
        origin: Origin,
        method: &str,
        (path, query): (&str, &str),
        range: Option<(u64, Option<u64>)>,
    ) -> bool {
        let (first, last) = range.unwrap_or((0, None));
        let covered = |offset| first <= offset && last.is_none_or(|last| offset <= last);
        self.origin.is_none_or(|wanted| wanted == origin)
            && self.method.is_none_or(|wanted| wanted == method)
            && path.contains(&self.contains)
            && path.ends_with(&self.suffix)
            && query.contains(&self.query)
            && self.ranged.is_none_or(|wanted| wanted == range.is_some())
            && self.covers.is_none_or(covered)
    }
}

/// A rule: for requests that fit, the queue is played, each entry as often as it says.
#[derive(Debug)]
pub(super) struct Rule {
    matching: Match,
    queue: VecDeque<(Behaviour, Option<u64>)>,
}

#[derive(Debug, Default)]
pub(super) struct Script {
    rules: Vec<Rule>,
}

impl Script {
    fn push(&mut self, matching: Match) -> usize {
        self.rules.push(Rule { matching, queue: VecDeque::new() });
        self.rules.len() - 1
    }

    /// The next behaviour of the first rule that fits and has one left.
    pub fn next(&mut self, origin: Origin, request: &Request) -> Option<Behaviour> {
        let rule = self.rules.iter_mut().find(|rule| !rule.queue.is_empty() && rule.matching.fits(origin, request))?;
        let (behaviour, left) = rule.queue.front_mut()?;
        let behaviour = behaviour.clone();
        match left {
            None => {}
            Some(1) => drop(rule.queue.pop_front()),
            Some(n) => *n -= 1,
        }
        Some(behaviour)
    }

    /// How many plays of counted behaviours are left.
    pub fn left(&self) -> u64 {
        self.rules.iter().flat_map(|rule| &rule.queue).filter_map(|(_, left)| *left).sum()
    }

    pub fn clear(&mut self) {
        // Emptied, not removed: a `Scripted` may still hold an index.
        self.rules.iter_mut().for_each(|rule| rule.queue.clear());
    }
}

/// The builder [`Hub::on`] returns: `hub.on(m).then(a).times(2).then(b).always()`.
pub struct Scripted<'a> {
    hub: &'a Hub,
    rule: usize,
}

impl<'a> Scripted<'a> {
    pub(super) fn new(hub: &'a Hub, matching: Match) -> Self {
        let rule = hub.script().push(matching);
        Self { hub, rule }
    }

    /// Plays `behaviour` once, after what was queued before.
    pub fn then(self, behaviour: Behaviour) -> Self {
        self.hub.script().rules[self.rule].queue.push_back((behaviour, Some(1)));
        self
    }

    /// Plays the last queued behaviour `n` times in all.
    pub fn times(self, n: u64) -> Self {
        assert!(n > 0, "times(0) is no behaviour");
        self.amend(Some(n))
    }

    /// Plays the last queued behaviour for ever.
    pub fn always(self) -> Self {
        self.amend(None)
    }

    fn amend(self, plays: Option<u64>) -> Self {
        let mut script = self.hub.script();
        if let Some(last) = script.rules[self.rule].queue.back_mut() {
            last.1 = plays;
        }
        drop(script);
        self
    }
}
