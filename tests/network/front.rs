//! What stands between muster and the scripted hub: the far end of TLS, and proxies.
//!
//! Each listens on an address of its own, counts who comes, and ends with its value.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

const HEAD_MAX: usize = 64 << 10;

/// Takes connections and passes their bytes on.
pub struct Front {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
}

impl Front {
    /// Ends TLS in front of a plain server.
    pub fn tls(identity: Arc<ServerConfig>, target: SocketAddr) -> Self {
        let acceptor = TlsAcceptor::from(identity);
        Self::serving("127.0.0.1:0", move |stream| {
            let acceptor = acceptor.clone();
            async move {
                let mut inner = acceptor.accept(stream).await.ok()?;
                let mut outer = TcpStream::connect(target).await.ok()?;
                copy_bidirectional(&mut inner, &mut outer).await.ok()
            }
        })
    }

    /// Only another address of a server.
    pub fn plain(listen: &str, target: SocketAddr) -> Self {
        Self::serving(listen, move |mut inner| async move {
            let mut outer = TcpStream::connect(target).await.ok()?;
            copy_bidirectional(&mut inner, &mut outer).await.ok()
        })
    }

    /// Answers whatever comes in plain HTTP.
    pub fn without_tls() -> Self {
        Self::serving("127.0.0.1:0", |mut stream| async move {
            stream.read_u8().await.ok()?;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.ok()?;
            // Read on, or the answer would be lost with a reset.
            let mut scrap = [0; 4096];
            while stream.read(&mut scrap).await.is_ok_and(|n| n > 0) {}
            Some(())
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(SeqCst)
    }

    fn serving<F, T>(listen: &str, serve: F) -> Self
    where
        F: Fn(TcpStream) -> T + Send + Sync + 'static,
        T: Future + Send + 'static,
        T::Output: Send,
    {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(listen)).unwrap();
        let (address, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&accepted);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, SeqCst);
                tokio::spawn(serve(stream));
            }
        });
        Self { address, accepted, runtime: Some(runtime) }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

/// What a proxy was asked for, and with which credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    /// `host:port` of a tunnel, the host of a plain request.
    pub authority: String,
    pub credentials: Option<String>,
    /// The head of a plain request; nobody sees those in a tunnel.
    pub head: String,
}

/// An HTTP proxy that knows some names and nobody else does.
pub struct Proxy {
    front: Front,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Proxy {
    /// Leads `host:port` to the addresses named.
    pub fn knowing(names: &[(&str, SocketAddr)]) -> Self {
        Self::answering(names, None)
    }

    /// As [`knowing`](Self::knowing), for whoever has these credentials alone; 407 for others.
    pub fn asking_for(credentials: &str, names: &[(&str, SocketAddr)]) -> Self {
        Self::answering(names, Some(credentials.to_owned()))
    }

    fn answering(names: &[(&str, SocketAddr)], wanted: Option<String>) -> Self {
        let names: BTreeMap<_, _> = names.iter().map(|(name, to)| ((*name).to_owned(), *to)).collect();
        let (names, wanted, asked) = (Arc::new(names), Arc::new(wanted), Arc::<Mutex<Vec<Asked>>>::default());
        let log = Arc::clone(&asked);
        let front = Front::serving("127.0.0.1:0", move |stream| {
            let (names, wanted, log) = (Arc::clone(&names), Arc::clone(&wanted), Arc::clone(&log));
            async move { serve(stream, &names, wanted.as_deref(), &log).await }
        });
        Self { front, asked }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.front.address())
    }

    pub fn address(&self) -> SocketAddr {
        self.front.address()
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    mut inner: TcpStream,
    names: &BTreeMap<String, SocketAddr>,
    wanted: Option<&str>,
    log: &Mutex<Vec<Asked>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = inner.read_u8().await.ok()?;
        head.push(byte);
        if head.len() > HEAD_MAX {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let (first, rest) = head.split_once("\r\n")?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let credentials = rest.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("proxy-authorization").then(|| value.to_owned())
    });
    let tunnel = method == "CONNECT";
    let authority = target.strip_prefix("http://").unwrap_or(&target).split('/').next()?.to_owned();
    let entry = Asked { method, authority: authority.clone(), credentials: credentials.clone(), head: head.clone() };
    log.lock().unwrap().push(entry);
    let refuse = if wanted.is_some() && credentials.as_deref() != wanted {
        Some("407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"here\"")
    } else if !names.contains_key(&authority) {
        Some("502 Bad Gateway")
    } else {
        None
    };
    if let Some(refuse) = refuse {
        let answer = format!("HTTP/1.1 {refuse}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return inner.write_all(answer.as_bytes()).await.ok();
    }
    let mut outer = TcpStream::connect(names[&authority]).await.ok()?;
    if tunnel {
        inner.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.ok()?;
    } else {
        // One request a connection: the next one may be for somebody else.
        outer.write_all(format!("{first}\r\nConnection: close\r\n{rest}").as_bytes()).await.ok()?;
    }
    copy_bidirectional(&mut inner, &mut outer).await.ok().map(|_| ())
}
