//! The scripted hub itself, driven over raw sockets: what other tests believe is proved here.

mod support;

#[test]
fn it_starts_and_stops() {
    drop(support::Hub::start(support::RepoSpec::kimi(2, 4096, 6)));
}
