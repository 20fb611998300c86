//! The static binary where there is nothing else: in a root that holds it, `/etc/hosts` and a certificate, as in a
//! container made from nothing, under a user id that nobody knows.
//!
//! The binary comes from `tests/run`, which builds it (`MUSTER_TEST_STATIC`, several with `:` between them).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(unreachable_pub, dead_code, reason = "parts of another test are used here, too")]

mod support;

#[path = "network/authority.rs"]
mod authority;
#[path = "static_binary/dns.rs"]
mod dns;
#[path = "network/front.rs"]
mod front;

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use authority::{Authority, Oddity};
use dns::Dns;
use front::Front;
use support::*;

const SOON: Duration = Duration::from_secs(60);
/// As in `config/container/Containerfile`.
const NOBODY: u32 = 65532;

fn repo() -> RepoSpec {
    RepoSpec::kimi(4, 1 << 20, 2).named("org/model")
}

/// The static binaries to try, if the runner built any and this process may change its root.
fn binaries() -> Vec<PathBuf> {
    let named = std::env::var_os("MUSTER_TEST_STATIC").unwrap_or_default();
    let found: Vec<_> = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if found.is_empty() {
        skip("MUSTER_TEST_STATIC names no static binary; tests/run builds one");
        return Vec::new();
    }
    if !rustix::process::geteuid().is_root() {
        skip("only root may change the root");
        return Vec::new();
    }
    found
}

/// A root with nothing in it but the binary; and a hub behind TLS.
struct Nothing {
    hub: Hub,
    fronts: [Front; 2],
    company: Authority,
    world: Muster,
    root: tempfile::TempDir,
}

impl Nothing {
    fn with(binary: &Path) -> Self {
        let hub = Hub::start(repo());
        let company = Authority::new("company");
        let fronts = [Origin::Hub, Origin::Cdn].map(|origin| {
            let identity = company.vouches_for(&["hub.test", "cdn.test"], Oddity::None);
            Front::tls(identity, hub.address(origin))
        });
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::copy(binary, root.path().join("muster")).unwrap();
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        std::fs::create_dir(root.path().join("volume")).unwrap();
        chown(root.path().join("volume"), Some(NOBODY), Some(NOBODY)).unwrap();
        let world = Muster::new("/volume").env("MUSTER_CONNECT_TIMEOUT", "4s").env("MUSTER_RETRY_FOR", "10s");
        let nothing = Self { hub, fronts, company, world, root };
        nothing.named("hub.test", "cdn.test")
    }

    /// Hub and storage by these names.
    fn named(mut self, hub: &str, cdn: &str) -> Self {
        for (origin, name, front) in [(Origin::Hub, hub, &self.fronts[0]), (Origin::Cdn, cdn, &self.fronts[1])] {
            self.hub.stands_behind(origin, &format!("https://{name}:{}", front.address().port()));
        }
        self.world = self.world.endpoint(&self.hub);
        self
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Both names, in the only file that tells of them.
    fn with_hosts(self) -> Self {
        self.write("etc/hosts", "127.0.0.1 localhost\n127.0.0.1\thub.test cdn.test # both\n");
        self
    }

    /// Runs it with this root, as a user without a name.
    fn muster(&self, args: &[&str]) -> Output {
        let user = format!("--userspec={NOBODY}:{NOBODY}");
        let root = self.root.path().to_str().unwrap();
        let words = [&[&user, root, "/muster"], args].concat();
        self.world.program("chroot", words).time_limit(SOON).run()
    }

    fn pull(&self) -> Output {
        self.muster(&["pull", "org/model"])
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("volume/org/model")
    }
}

// class: network
#[test]
fn a_static_binary_pulls_over_tls_and_gates_where_there_is_nothing_else() {
    for binary in binaries() {
        let nothing = Nothing::with(&binary).with_hosts();
        nothing.company.certificate_in(nothing.root.path());
        let nothing = Nothing { world: nothing.world.clone().env("SSL_CERT_FILE", "/authority.pem"), ..nothing };
        nothing.pull().expect_code(0);
        assert_complete(&nothing.directory(), &repo());
        // The launcher is all that there is.
        let out = nothing.muster(&["gate", "org/model", "--", "/muster", "gate", "{}"]).expect_code(0);
        assert!(out.stdout.contains("all 4 shards present and verified"), "{out}");
        assert!(out.stderr.contains("all 4 shards present and verified"), "{out}");
        nothing.muster(&["status"]).expect_code(0);
        flip_byte(&nothing.directory().join("model-00002-of-000004.safetensors"), 100_000);
        nothing.muster(&["gate", "org/model", "--", "/muster", "--version"]).expect_code(11);
        nothing.pull().expect_code(0);
        nothing.muster(&["gate", "org/model"]).expect_code(0);
    }
}

// class: network
#[test]
fn authorities_are_those_that_are_named_or_the_machines_or_those_that_came_with_it() {
    for binary in binaries() {
        // None on the machine: those that came with it count, and do not know this company.
        let nothing = Nothing::with(&binary).with_hosts();
        let out = nothing.pull().expect_code(18);
        assert!(out.stderr.contains("UnknownIssuer") && out.stderr.contains("SSL_CERT_FILE"), "{out}");
        // Whoever names a file means it.
        let world = nothing.world.clone();
        let nothing = Nothing { world: world.clone().env("SSL_CERT_FILE", "/nowhere.pem"), ..nothing };
        let out = nothing.pull().expect_code(18);
        assert!(out.stderr.contains("no certificate of an authority where SSL_CERT_FILE says"), "{out}");
        // The machine's own.
        let nothing = Nothing { world, ..nothing };
        let file = nothing.company.certificate_in(nothing.root.path());
        nothing.write("etc/ssl/certs/ca-certificates.crt", &std::fs::read_to_string(&file).unwrap());
        std::fs::remove_file(file).unwrap();
        nothing.pull().expect_code(0);
        assert_complete(&nothing.directory(), &repo());
    }
}

// class: network
#[test]
fn names_come_from_the_hosts_file_or_the_name_server_or_from_nobody() {
    for binary in binaries() {
        let nothing = Nothing::with(&binary);
        nothing.company.certificate_in(nothing.root.path());
        let nothing = Nothing { world: nothing.world.clone().env("SSL_CERT_FILE", "/authority.pem"), ..nothing };
        // Neither file is there: nobody is asked.
        let out = nothing.pull().expect_code(18);
        assert!(out.stderr.contains("https://hub.test"), "{out}");
        // A cluster's way: short names, a list of domains to try, and a server that knows some.
        let server = match Dns::knowing(&["hub.test", "cdn.test"]) {
            Ok(server) => server,
            Err(why) => return skip(&why),
        };
        let text = format!("search nowhere.test test\nnameserver {}\noptions ndots:5 timeout:1\n", server.address());
        nothing.write("etc/resolv.conf", &text);
        nothing.pull().expect_code(0);
        assert_complete(&nothing.directory(), &repo());
        assert!(server.asked() > 0, "it told the addresses");
        // What the hosts file says comes first.
        let before = server.asked();
        let nothing = nothing.with_hosts();
        std::fs::remove_file(nothing.directory().join("config.json")).unwrap();
        nothing.pull().expect_code(0);
        assert_eq!(server.asked(), before);
    }
}
