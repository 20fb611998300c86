//! The network as companies have it: private authorities, proxies, two families of addresses.
//!
//! Real TLS and real proxies stand in front of the scripted hub; the real binary has to find its way.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    unreachable_pub,
    dead_code,
    reason = "a test arranges its own world"
)]

#[path = "../support/mod.rs"]
mod support;

mod authority;
mod front;

mod families;
mod proxies;
mod tls;

use std::time::Duration;

use authority::{Authority, Oddity};
use front::{Front, Proxy};
use support::*;

const SOON: Duration = Duration::from_secs(60);
const TOKEN: &str = "hf_TheSecretOfThisTest0123456789abcd";

fn repo() -> RepoSpec {
    RepoSpec::new("org/model")
        .plain("config.json", "{ \"a\": 1 }\n")
        .lfs("a.bin", Content::generated(1, 300_000))
        .lfs("b.bin", Content::generated(2, 200_000))
}

/// A hub and its storage, each behind TLS.
struct Secure {
    hub: Hub,
    world: Muster,
    fronts: [Front; 2],
}

impl Secure {
    /// Hub and storage as these authorities vouch for them.
    fn behind(of_hub: &Authority, of_storage: &Authority, oddity: Oddity) -> Self {
        let hub = Hub::start(repo());
        let names = ["127.0.0.1", "localhost", "hub.test", "cdn.test"];
        let ends = [
            (Origin::Hub, of_hub.vouches_for(&names, oddity)),
            (Origin::Cdn, of_storage.vouches_for(&names, Oddity::None)),
        ];
        let fronts = ends.map(|(origin, identity)| {
            let front = Front::tls(identity, hub.address(origin));
            hub.stands_behind(origin, &format!("https://{}", front.address()));
            front
        });
        let world = patient(Muster::on(&hub));
        Self { hub, world, fronts }
    }

    /// As names that only a proxy knows, on the port that needs no mention.
    fn by_name(self) -> (Self, Proxy) {
        let [hub, cdn] = self.fronts.each_ref().map(Front::address);
        let proxy = Proxy::knowing(&[("hub.test:443", hub), ("cdn.test:443", cdn)]);
        self.hub.stands_behind(Origin::Hub, "https://hub.test");
        self.hub.stands_behind(Origin::Cdn, "https://cdn.test");
        let world = self.world.clone().endpoint(&self.hub);
        (Self { world, ..self }, proxy)
    }

    fn trusting(mut self, authority: &Authority) -> Self {
        let certificate = authority.certificate_in(self.world.home());
        self.world = self.world.env("SSL_CERT_FILE", certificate);
        self
    }

    fn pull(&self) -> Invocation {
        self.world.args(["pull", "org/model", "--log", "info"])
    }

    #[track_caller]
    fn assert_complete(&self) {
        assert_complete(&self.world.model("org/model"), &repo());
    }
}

/// Soon out of patience with silence, and never with trouble.
fn patient(world: Muster) -> Muster {
    world
        .env("MUSTER_CONNECT_TIMEOUT", "2s")
        .env("MUSTER_HEADER_TIMEOUT", "2s")
        .env("MUSTER_IDLE_TIMEOUT", "2s")
        .env("MUSTER_RETRY_FOR", "1h")
}
