//! What the manager of a service (systemd) is told: ready, reloading, stopping, how it stands, that it lives.
//!
//! One datagram a message to `NOTIFY_SOCKET`, by the protocol of `sd_notify(3)`. Invariant: nothing waits for the
//! manager; a message that it does not take is lost, and only the log knows. Without a manager nothing happens.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tracing::{debug, warn};

use crate::clock;
use crate::config::Environment;

/// Most bytes of a status line; a manager shows one line.
const STATUS_MAX: usize = 240;

/// The manager of this service, if it has one that listens.
#[derive(Debug, Default)]
pub struct Notifier {
    manager: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The manager that started the process `pid`, which is this one.
    #[must_use]
    pub fn of(environment: &Environment, pid: u32) -> Self {
        let text = |name: &'static str| environment.text(name).ok().flatten();
        let Some(place) = text("NOTIFY_SOCKET") else { return Self::default() };
        let manager = match reach(place) {
            Ok(manager) => Some(manager),
            Err(error) => {
                warn!(%error, socket = place, "the manager of the service cannot be told anything");
                None
            }
        };
        // One for another process was inherited by mistake.
        let is_ours = text("WATCHDOG_PID").is_none_or(|text| text.parse() == Ok(pid));
        let watchdog = text("WATCHDOG_USEC").filter(|_| is_ours && manager.is_some());
        let watchdog = watchdog.and_then(|text| text.parse().ok()).filter(|usec| *usec > 0);
        Self { manager, watchdog: watchdog.map(Duration::from_micros) }
    }

    /// Whether anybody listens.
    #[must_use]
    pub const fn has_manager(&self) -> bool {
        self.manager.is_some()
    }

    /// How long the manager bears not to hear [`Self::alive`].
    #[must_use]
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// It does its work; after a reload again.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// It reads its configuration again; [`Self::ready`] follows.
    pub fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", clock::monotonic().as_micros()));
    }

    /// It ends.
    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={}", line(status)));
    }

    /// How it stands, for people.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", line(status)));
    }

    /// It needs up to `span` more for what it is about: to start, say.
    pub fn extend(&self, span: Duration, status: &str) {
        self.send(&format!("EXTEND_TIMEOUT_USEC={}\nSTATUS={}", span.as_micros(), line(status)));
    }

    /// It lives.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        let Some((socket, manager)) = &self.manager else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), manager) {
            debug!(%error, message, "the manager of the service did not take a message");
        }
    }
}

/// A path, or a name without one (`@…`).
fn reach(place: &str) -> std::io::Result<(UnixDatagram, SocketAddr)> {
    let manager = match place.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, manager))
}

/// One line, however its parts are written: a line break would begin another message.
fn line(status: &str) -> String {
    let mut line: String = status.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.truncate(line.floor_char_boundary(STATUS_MAX));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(extra: &[(&'static str, &str)]) -> (UnixDatagram, Notifier) {
        let name = format!("muster-notify-{}-{}", std::process::id(), fastrand::u64(..));
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut variables = vec![("NOTIFY_SOCKET", format!("@{name}"))];
        variables.extend(extra.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        (listener, Notifier::of(&Environment::of(&variables), 7))
    }

    fn heard(listener: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let length = listener.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_message_is_one_datagram_and_a_status_one_line() {
        let (listener, notifier) = environment(&[]);
        notifier.ready("owns /shared\nREADY=0");
        assert_eq!(heard(&listener), "READY=1\nSTATUS=owns /shared READY=0");
        notifier.reloading();
        let said = heard(&listener);
        let usec = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap().parse::<u64>().unwrap();
        assert!(u128::from(usec) <= clock::monotonic().as_micros(), "{said}");
        notifier.extend(Duration::from_secs(30), &"ä".repeat(4096));
        let said = heard(&listener);
        assert!(said.starts_with("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=ä") && said.len() < 300, "{said}");
    }

    #[test]
    fn the_watchdog_is_that_of_this_process_or_none() {
        let seconds = |extra: &[(&'static str, &str)]| environment(extra).1.watchdog().map(|span| span.as_secs());
        assert_eq!(seconds(&[("WATCHDOG_USEC", "3000000")]), Some(3));
        assert_eq!(seconds(&[("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", "7")]), Some(3));
        assert_eq!(seconds(&[("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", "8")]), None, "another's");
        assert_eq!(seconds(&[("WATCHDOG_USEC", "soon")]), None);
        let alone = Notifier::of(&Environment::of(&[("WATCHDOG_USEC", "3000000")]), 7);
        assert!(alone.watchdog().is_none() && !alone.has_manager(), "nobody listens");
    }

    #[test]
    fn a_manager_that_is_gone_or_full_holds_nobody_up() {
        let (listener, notifier) = environment(&[]);
        for _ in 0..100_000 {
            notifier.alive();
        }
        drop(listener);
        notifier.alive();
        let nowhere = Notifier::of(&Environment::of(&[("NOTIFY_SOCKET", "/nonexistent/notify")]), 7);
        nowhere.stopping("ends");
        let long = "x".repeat(200);
        assert!(!Notifier::of(&Environment::of(&[("NOTIFY_SOCKET", &long)]), 7).has_manager(), "too long a path");
    }
}
