//! Two families of addresses: one that leads nowhere must not cost more than a moment.

use std::process::Command;

use super::*;

/// Runs a test of this binary once more in a network and a file system of its own, where `hosts` is
/// the table of names and packets to `2001:db8:1::2` vanish. True in there.
fn in_own_network(test: &str, hosts: &str) -> bool {
    const INSIDE: &str = "MUSTER_TEST_OWN_NETWORK";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("hosts");
    std::fs::write(&table, hosts).unwrap();
    let arrange = format!(
        "set -e; mount --bind '{}' /etc/hosts; ip link set lo up\n\
         ip link add here type veth peer name there; ip link set here up; ip link set there up\n\
         ip -6 addr add 2001:db8:1::1/64 dev here nodad\n\
         ip -6 neigh add 2001:db8:1::2 lladdr 02:00:00:00:00:02 dev here\n",
        table.display()
    );
    let own = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap());
        command.env(INSIDE, "1").output()
    };
    match own(&arrange) {
        Ok(out) if out.status.success() => {}
        Ok(out) => {
            skip(&format!("no network of its own: {}", String::from_utf8_lossy(&out.stderr).trim()));
            return false;
        }
        Err(error) => {
            skip(&format!("no `unshare`: {error}"));
            return false;
        }
    }
    let out = own(&format!("{arrange}exec \"$1\" --exact {test} --nocapture")).unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("1 passed"), "{said}");
    false
}

// class: network
#[test]
fn an_address_that_leads_nowhere_beside_a_good_one_costs_a_moment() {
    let name = "families::an_address_that_leads_nowhere_beside_a_good_one_costs_a_moment";
    if !in_own_network(name, "2001:db8:1::2 hub.test cdn.test\n127.0.0.1 hub.test cdn.test localhost\n") {
        return;
    }
    // The name has the address that swallows everything first.
    let found: Vec<_> = std::net::ToSocketAddrs::to_socket_addrs("hub.test:80").unwrap().collect();
    assert!(
        found.iter().any(std::net::SocketAddr::is_ipv6) && found.iter().any(std::net::SocketAddr::is_ipv4),
        "{found:?}"
    );
    let swallowed =
        std::net::TcpStream::connect_timeout(&"[2001:db8:1::2]:80".parse().unwrap(), Duration::from_millis(800));
    assert_eq!(swallowed.unwrap_err().kind(), std::io::ErrorKind::TimedOut, "a control: nobody says no");
    let hub = Hub::start(repo());
    for (origin, name) in [(Origin::Hub, "hub.test"), (Origin::Cdn, "cdn.test")] {
        hub.stands_behind(origin, &format!("http://{name}:{}", hub.address(origin).port()));
    }
    // With the timeouts that everybody has: ten seconds for a connection.
    let world = Muster::on(&hub);
    let child = world.args(["pull", "org/model"]).spawn();
    let began = std::time::Instant::now();
    wait_until("the first byte", SOON, || hub.total_body_bytes() > 0);
    let first = began.elapsed();
    child.wait(SOON).expect_code(0);
    assert_complete(&world.model("org/model"), &repo());
    assert!(first < Duration::from_secs(9), "the first byte came after {first:?}");
}

// class: network
#[test]
fn a_network_of_the_new_family_alone_is_enough() {
    let name = "families::a_network_of_the_new_family_alone_is_enough";
    if !in_own_network(name, "::1 hub.test cdn.test localhost\n") {
        return;
    }
    let hub = Hub::start(repo());
    let fronts = [(Origin::Hub, "hub.test"), (Origin::Cdn, "[::1]")].map(|(origin, name)| {
        let front = Front::plain("[::1]:0", hub.address(origin));
        hub.stands_behind(origin, &format!("http://{name}:{}", front.address().port()));
        front
    });
    let world = Muster::on(&hub);
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo());
    // The Hub as a literal address, which may carry the token: it is this machine.
    let hub_at = format!("http://[::1]:{}", fronts[0].address().port());
    hub.stands_behind(Origin::Hub, &hub_at);
    hub.require_token(TOKEN);
    let world = Muster::on(&hub).env("HF_TOKEN", TOKEN);
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_eq!(hub.authorization_seen_by_cdn(), Vec::<String>::new());
}
