//! The hub as tests hold it: addresses, repositories, modes, behaviours, and what was seen.
//!
//! Dropping it ends and joins every thread, and reports mistakes of the script.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::behaviour::Behaviour;
use super::chaos::{Chaos, Odds, Played};
use super::record::{Origin, Recorded};
use super::repo::RepoSpec;
use super::script::{Match, Script, Scripted};
use super::server::{Door, Quota, State, UNLIMITED};
use super::wait_until;

/// A scripted Hub and its CDN on two ports of 127.0.0.1, running until dropped.
pub struct Hub {
    state: Arc<State>,
    doors: [Door; 2],
}

impl Hub {
    pub fn start(repo: RepoSpec) -> Self {
        Self::with([repo])
    }

    pub fn with(repos: impl IntoIterator<Item = RepoSpec>) -> Self {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to loopback");
        let listeners = [bind(), bind()];
        let addresses = listeners.each_ref().map(|l| l.local_addr().expect("bound"));
        let repos = repos.into_iter().map(RepoSpec::sealed).collect();
        let state = Arc::new(State::new(addresses, repos));
        let doors = [Origin::Hub, Origin::Cdn].map(Door::new);
        for (door, listener) in doors.iter().zip(listeners) {
            door.open(listener, &state);
        }
        Self { state, doors }
    }

    // ---- addresses -------------------------------------------------------------------------

    /// The endpoint (`HF_ENDPOINT`), without a slash at its end.
    pub fn url(&self) -> String {
        self.state.url(Origin::Hub)
    }

    pub fn cdn_url(&self) -> String {
        self.state.url(Origin::Cdn)
    }

    /// Clients reach the origin there: the hub names that address from now on, and goes on listening
    /// at its own.
    pub fn stands_behind(&self, origin: Origin, url: &str) {
        self.state.fronts.lock().unwrap()[origin as usize] = Some(url.to_owned());
    }

    pub fn address(&self, origin: Origin) -> SocketAddr {
        self.state.address(origin)
    }

    // ---- repositories ----------------------------------------------------------------------

    /// The repository as it is now; its working tree is that of the last edit.
    #[track_caller]
    pub fn repo(&self, id: &str) -> RepoSpec {
        let repos = self.state.repos.lock().unwrap();
        repos.iter().find(|repo| repo.id == id).unwrap_or_else(|| panic!("no repo {id}")).clone()
    }

    /// The commit that `revision` names now.
    #[track_caller]
    pub fn commit(&self, id: &str, revision: &str) -> String {
        self.repo(id).resolve(revision).unwrap_or_else(|| panic!("no {revision}")).to_owned()
    }

    /// Commits an edit on top of a branch and moves the branch there; the new commit id.
    pub fn push(&self, id: &str, branch: &str, edit: impl FnOnce(RepoSpec) -> RepoSpec) -> String {
        let edited = edit(self.repo(id).checked_out(branch)).branch(branch);
        self.replace(id, edited);
        self.commit(id, branch)
    }

    /// Points a branch at an older commit.
    pub fn move_branch(&self, id: &str, branch: &str, commit: &str) {
        let mut repo = self.repo(id);
        repo.point(branch, commit);
        self.replace(id, repo);
    }

    /// Changes what is no file: visibility, names, tags.
    pub fn alter(&self, id: &str, change: impl FnOnce(RepoSpec) -> RepoSpec) {
        self.replace(id, change(self.repo(id)));
    }

    fn replace(&self, id: &str, with: RepoSpec) {
        let mut repos = self.state.repos.lock().unwrap();
        *repos.iter_mut().find(|repo| repo.id == id).expect("looked up above") = with;
    }

    // ---- modes -----------------------------------------------------------------------------

    /// Only this token has access; public repositories become private, gated ones stay visible.
    pub fn require_token(&self, token: &str) {
        self.state.access.lock().unwrap().member = Some(token.to_owned());
    }

    /// A valid token without access to private and gated repositories.
    pub fn know_token(&self, token: &str) {
        self.state.access.lock().unwrap().strangers.push(token.to_owned());
    }

    /// Entries on a page of the tree; 1000 at first.
    pub fn page_size(&self, entries: usize) {
        self.state.settings.lock().unwrap().page_size = entries.max(1);
    }

    /// The CDN answers 400 to a request for more than so many bytes without a range.
    pub fn max_whole_body(&self, bytes: u64) {
        self.state.settings.lock().unwrap().max_whole_body = bytes;
    }

    /// Body bytes a second for each connection of both origins.
    pub fn pace(&self, bytes_per_s: u64) {
        self.state.pace.store(bytes_per_s.max(1), SeqCst);
    }

    pub fn unpaced(&self) {
        self.state.pace.store(UNLIMITED, SeqCst);
    }

    /// After so many more body bytes (both origins together) every body stands still.
    pub fn hold_after(&self, bytes: u64) {
        self.state.allowance.store(bytes, SeqCst);
    }

    /// Ends [`hold_after`](Self::hold_after).
    pub fn release(&self) {
        self.state.allowance.store(UNLIMITED, SeqCst);
    }

    /// URLs signed from now on are good for so long (an hour at first).
    pub fn signed_urls_last(&self, time: Duration) {
        self.state.signer.lock().unwrap().lifetime = time;
    }

    /// Every URL signed until now is refused from now on, whatever its `Expires` says.
    pub fn expire_signed_urls(&self) {
        self.state.signer.lock().unwrap().generation += 1;
    }

    /// Enforces a quota on a bucket (`api`, `resolvers`): 429 and `r=0` when it is used up.
    pub fn quota(&self, bucket: &'static str, limit: u64, window: Duration) {
        let quota = Quota { limit, window, used: 0, since: Instant::now() };
        self.state.quotas.lock().unwrap().insert(bucket, quota);
    }

    /// The origin stops listening and its connections are cut.
    pub fn unreachable(&self, origin: Origin) {
        self.door(origin).close_for_now(&self.state);
        self.cut(origin);
    }

    /// Listens again, on the same port.
    pub fn reachable(&self, origin: Origin) {
        self.door(origin).open_again(&self.state);
    }

    /// New connections of the origin are accepted and then left without a byte, or no longer so.
    pub fn mute(&self, origin: Origin, mute: bool) {
        self.door(origin).mute(mute);
    }

    /// So many more connections to the origin are reset before a byte was exchanged.
    pub fn turn_away(&self, origin: Origin, connections: u64) {
        self.door(origin).turn_away(connections);
    }

    /// Ends the open connections of an origin; it goes on listening.
    pub fn cut(&self, origin: Origin) {
        self.state.cut(Some(origin));
    }

    // ---- behaviours ------------------------------------------------------------------------

    /// A rule for requests that fit; see [`Scripted`].
    pub fn on(&self, matching: Match) -> Scripted<'_> {
        Scripted::new(self, matching)
    }

    pub fn always(&self, matching: Match, behaviour: Behaviour) {
        self.on(matching).then(behaviour).always();
    }

    /// Forgets every behaviour that was not played yet.
    pub fn behave(&self) {
        self.script().clear();
    }

    /// Spoils answers by chance, where no rule says what is to happen.
    pub fn chaos(&self, seed: u64, odds: Odds) {
        *self.state.chaos.lock().unwrap() = Some(Chaos::new(seed, odds));
    }

    /// How many answers chance has spoilt.
    pub fn spoilt(&self) -> Played {
        self.state.chaos.lock().unwrap().as_ref().map(|chaos| chaos.played).unwrap_or_default()
    }

    /// Plays left of counted behaviours: 0 when all that was scripted has happened.
    pub fn plays_left(&self) -> u64 {
        self.script().left()
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.state.script.lock().unwrap()
    }

    // ---- what was seen ---------------------------------------------------------------------

    /// All requests in the order of their arrival.
    pub fn requests(&self) -> Vec<Recorded> {
        self.state.log.lock().unwrap().iter().map(|entry| entry.snapshot()).collect()
    }

    pub fn matching(&self, matching: Match) -> Vec<Recorded> {
        let mut all = self.requests();
        all.retain(|seen| matching.fits_recorded(seen));
        all
    }

    pub fn count(&self, matching: Match) -> usize {
        self.matching(matching).len()
    }

    /// Forgets the requests recorded so far.
    pub fn forget(&self) {
        self.state.log.lock().unwrap().clear();
    }

    /// Requests to the resolver for this file of a repository, HEAD and GET.
    pub fn resolves_of(&self, file: &str) -> usize {
        let mut all = self.matching(Match::hub("/resolve/"));
        all.retain(|seen| seen.file.as_deref() == Some(file));
        all.len()
    }

    /// Body bytes of this file sent by either origin, redirects left out.
    pub fn bytes_sent_for(&self, file: &str) -> u64 {
        self.sum(|seen| seen.file.as_deref() == Some(file) && !(300..400).contains(&seen.status))
    }

    /// Body bytes of files sent by both origins, redirects and API left out.
    pub fn total_body_bytes(&self) -> u64 {
        self.sum(|seen| seen.file.is_some() && !(300..400).contains(&seen.status))
    }

    /// The values of `Authorization` that reached the CDN origin: must be none.
    pub fn authorization_seen_by_cdn(&self) -> Vec<String> {
        let seen = self.matching(Match::cdn(""));
        seen.iter().filter_map(|one| one.header("authorization")).map(str::to_owned).collect()
    }

    pub fn open_connections(&self, origin: Origin) -> usize {
        self.state.connections.lock().unwrap().open(origin)
    }

    /// The most connections of the origin that were ever open at once.
    pub fn peak_connections(&self, origin: Origin) -> usize {
        self.state.connections.lock().unwrap().peak(origin)
    }

    /// Waits until so many body bytes of files were sent.
    #[track_caller]
    pub fn wait_for_bytes(&self, bytes: u64, limit: Duration) {
        wait_until(&format!("{bytes} bytes sent"), limit, || self.total_body_bytes() >= bytes);
    }

    fn sum(&self, counts: impl Fn(&Recorded) -> bool) -> u64 {
        self.requests().iter().filter(|seen| counts(seen)).map(|seen| seen.body_bytes_sent).sum()
    }

    fn door(&self, origin: Origin) -> &Door {
        &self.doors[origin as usize]
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.state.stop.stop();
        for door in &self.doors {
            door.close();
        }
        self.state.cut(None);
        self.state.join();
        let mistakes = std::mem::take(&mut *self.state.mistakes.lock().unwrap());
        assert!(thread::panicking() || mistakes.is_empty(), "mistakes in the script: {mistakes:#?}");
    }
}
