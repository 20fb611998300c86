//! A name server that knows a few names, all at 127.0.0.1.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

const A: [u8; 2] = [0, 1];
const NO_SUCH_NAME: u8 = 3;

/// Answers until it goes.
pub struct Dns {
    address: Ipv4Addr,
    asked: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Dns {
    /// On the port that `/etc/resolv.conf` cannot change, at an address that is this process's own.
    pub fn knowing(names: &[&str]) -> Result<Self, String> {
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 53, high, low);
        let socket = UdpSocket::bind((address, 53)).map_err(|e| format!("no name server at {address}:53: {e}"))?;
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let names: Vec<_> = names.iter().map(|name| in_labels(name)).collect();
        let (asked, over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, end) = (Arc::clone(&asked), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            let mut question = [0; 512];
            while !end.load(SeqCst) {
                let Ok((length, from)) = socket.recv_from(&mut question) else { continue };
                if let Some(answer) = answer(&question[..length], &names) {
                    count.fetch_add(1, SeqCst);
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Self { address, asked, over, thread: Some(thread) })
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// How many questions came.
    pub fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn in_labels(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat();
    name.split('.').flat_map(label).chain([0]).collect()
}

/// The answer to a packet with one question (RFC 1035, 4.1).
fn answer(question: &[u8], names: &[Vec<u8>]) -> Option<Vec<u8>> {
    let asked = question.get(12..)?;
    let name = &asked[..=asked.iter().position(|byte| *byte == 0)?];
    let kind = asked.get(name.len()..name.len() + 2)?;
    let known = names.iter().any(|one| one.eq_ignore_ascii_case(name));
    let gives = known && kind == A;
    let mut said = question[..2].to_vec();
    // An answer, with authority, recursion wanted and there; one question, and one record at most.
    said.extend([0x85, 0x80 | if known { 0 } else { NO_SUCH_NAME }, 0, 1, 0, u8::from(gives), 0, 0, 0, 0]);
    said.extend(&asked[..name.len() + 4]);
    if gives {
        // The name of the question, an address, of the internet, for a minute, four bytes.
        said.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(said)
}
