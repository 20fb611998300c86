//! Addresses of hosts for a static binary: `/etc/hosts`, then the name servers of `/etc/resolv.conf`.
//!
//! The C library's name service loads its parts at run time, which a static binary cannot do on every machine.
//! Both files are read for each question, as the C library does: what they say may change under a daemon. Without
//! a name server nobody is asked in its place.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};

use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use reqwest::dns::{Addrs, Name as Host, Resolve, Resolving};

type Failure = Box<dyn Error + Send + Sync>;

/// Finds addresses.
#[derive(Debug)]
pub(super) struct Names;

impl Resolve for Names {
    fn resolve(&self, host: Host) -> Resolving {
        Box::pin(async move {
            let addresses = look_up(host.as_str()).await?;
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

async fn look_up(host: &str) -> Result<Vec<IpAddr>, Failure> {
    let listed = in_hosts_file(&Name::from_utf8(host)?);
    if !listed.is_empty() {
        return Ok(listed);
    }
    let mut builder =
        TokioResolver::builder_tokio().map_err(|error| format!("no name server in /etc/resolv.conf: {error}"))?;
    builder.options_mut().ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
    Ok(builder.build()?.lookup_ip(host).await?.iter().collect())
}

fn in_hosts_file(name: &Name) -> Vec<IpAddr> {
    // Without the file nothing is listed.
    let hosts = Hosts::from_system().unwrap_or_default();
    let of = |kind| hosts.lookup_static_host(&Query::query(name.clone(), kind));
    let found = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of);
    found
        .flat_map(|lookup| lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>())
        .collect()
}
