//! The real binary in a world of its own: a clean environment, a home and a volume in a temporary
//! folder, bounded waits, and no process left when a handle goes, not even a detached one.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::Hub;

const TIME_LIMIT: Duration = Duration::from_secs(60);
const MAX_OUTPUT: usize = 16 << 20;
/// How long the rest of a line may take. What is written without an end is taken as it is then.
const REST_OF_A_LINE: Duration = Duration::from_secs(1);

/// Where `muster` runs: volume, home, environment. Clones share the folders, which go with the last.
#[derive(Clone)]
pub struct Muster {
    volume: PathBuf,
    environment: Vec<(OsString, OsString)>,
    home: Arc<Home>,
}

/// The temporary folder; at its end everything that was started with it as `HOME` is killed.
struct Home(tempfile::TempDir);

impl Muster {
    /// A world with this volume and no endpoint but a closed port.
    pub fn new(volume: impl AsRef<Path>) -> Self {
        Self::in_home(volume.as_ref().to_owned(), Home::new()).env("HF_ENDPOINT", "http://127.0.0.1:1")
    }

    /// A world with a fresh volume whose endpoint is the hub.
    pub fn on(hub: &Hub) -> Self {
        let home = Home::new();
        let volume = home.0.path().join("volume");
        std::fs::create_dir(&volume).expect("a fresh volume");
        Self::in_home(volume, home).endpoint(hub)
    }

    fn in_home(volume: PathBuf, home: Home) -> Self {
        let home = Arc::new(home);
        let at = |name: &str| home.0.path().join(name);
        for folder in ["run", "tmp"] {
            std::fs::create_dir(at(folder)).expect("a folder in the temporary home");
        }
        let world = Self { volume: volume.clone(), environment: Vec::new(), home: Arc::clone(&home) };
        world
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home.0.path())
            .env("HF_HOME", at("hf"))
            .env("TMPDIR", at("tmp"))
            .env("XDG_RUNTIME_DIR", at("run"))
            .env("NO_COLOR", "1")
            .env("MUSTER_VOLUME", volume)
    }

    pub fn endpoint(self, hub: &Hub) -> Self {
        self.env("HF_ENDPOINT", hub.url())
    }

    /// Sets or replaces a variable of the environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self = self.without_env(&name);
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    pub fn without_env(mut self, name: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(known, _)| known != name.as_ref());
        self
    }

    pub fn volume(&self) -> &Path {
        &self.volume
    }

    /// The model directory of this name.
    pub fn model(&self, name: &str) -> PathBuf {
        self.volume.join(name)
    }

    pub fn home(&self) -> &Path {
        self.home.0.path()
    }

    /// Bytes of this model that were written by whoever pulls it, as its status says. What a hub has sent may still be
    /// in the buffers of sockets.
    pub fn received(&self, model: &str) -> u64 {
        let status = std::fs::read(self.volume.join(".muster/status.json")).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        let mut models = status["models"].as_array().into_iter().flatten();
        models
            .find_map(|entry| (entry["id"] == model).then(|| entry["bytes"]["received"].as_u64())?)
            .unwrap_or_default()
    }

    /// Waits until so many of them are.
    #[track_caller]
    pub fn wait_for_received(&self, model: &str, bytes: u64, limit: Duration) {
        super::wait_until(&format!("{bytes} bytes of {model}"), limit, || self.received(model) >= bytes);
    }

    /// Every running process that was started in this world, however deep and detached.
    pub fn processes(&self) -> Vec<u32> {
        self.home.processes().into_iter().map(|(pid, _)| pid).collect()
    }

    /// One call of the binary.
    pub fn args<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Invocation {
        self.program(env!("CARGO_BIN_EXE_muster"), args)
    }

    /// One call of another program in the same world: a witness.
    pub fn program<A: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = A>,
    ) -> Invocation {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let program = program.as_ref().to_owned();
        Invocation { world: self.clone(), program, args, time_limit: TIME_LIMIT, folder: None }
    }
}

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary home"))
    }

    /// Processes with this home in their environment, each with a handle that no later process of
    /// the same id can get.
    fn processes(&self) -> Vec<(u32, std::os::fd::OwnedFd)> {
        let mut wanted = OsString::from("HOME=");
        wanted.push(self.0.path());
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter_map(|id| {
            let handle = pidfd_open(Pid::from_raw(id as i32)?, PidfdFlags::empty()).ok()?;
            let environment = std::fs::read(format!("/proc/{id}/environ")).ok()?;
            let ours = environment.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes());
            ours.then_some((id, handle))
        })
        .collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A killed process goes soon, and could start another before: look again, so often at most.
        for _ in 0..500 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for (_, handle) in left {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// One call, not yet started.
pub struct Invocation {
    world: Muster,
    program: OsString,
    args: Vec<OsString>,
    time_limit: Duration,
    folder: Option<PathBuf>,
}

/// What a call left.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Output {
    /// Panics with both outputs unless the exit code is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// Stdout as one JSON value.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {self}"))
    }

    /// Both outputs, to look for what must not be in either.
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, signal, stdout, stderr, took } = self;
        writeln!(f, "code {code:?}, signal {signal:?}, after {took:?}")?;
        write!(f, "--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

impl Invocation {
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.world = self.world.env(name, value);
        self
    }

    /// The working directory; the home otherwise.
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.folder = Some(folder.as_ref().to_owned());
        self
    }

    /// After so long [`run`](Self::run) kills the process and panics; a minute at first.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    #[track_caller]
    pub fn run(self) -> Output {
        let limit = self.time_limit;
        self.spawn().wait(limit)
    }

    #[track_caller]
    pub fn spawn(self) -> Child {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(self.world.environment.iter().map(|(n, v)| (n, v)))
            .current_dir(self.folder.as_deref().unwrap_or(self.world.home()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = Instant::now();
        let mut process = command.spawn().expect("the binary starts");
        let stdout = Stream::follow(process.stdout.take().expect("piped"));
        let stderr = Stream::follow(process.stderr.take().expect("piped"));
        let name = Path::new(&self.program).file_name().unwrap_or_default().display();
        let line = format!("{name} {:?}", self.args);
        Child { process, stdout, stderr, started, line, _world: self.world }
    }
}

/// A running call; dropped, it is killed and reaped.
pub struct Child {
    process: std::process::Child,
    stdout: Stream,
    stderr: Stream,
    started: Instant,
    line: String,
    _world: Muster,
}

impl Child {
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// SIGTERM.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// SIGINT.
    pub fn interrupt(&mut self) {
        self.signal(Signal::INT);
    }

    /// Signals the process if it was not reaped: its id cannot belong to another then.
    pub fn signal(&mut self, signal: Signal) {
        if matches!(self.process.try_wait(), Ok(None)) {
            let pid = Pid::from_child(&self.process);
            let _ = kill_process(pid, signal);
        }
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    pub fn stdout_so_far(&self) -> String {
        self.stdout.so_far()
    }

    pub fn stderr_so_far(&self) -> String {
        self.stderr.so_far()
    }

    /// What became of it and what it said last, past the capture of output: a drill's thread may fail
    /// where another test's output is captured.
    fn tell(&mut self) {
        let (state, said) = (self.process.try_wait(), self.stderr_so_far());
        let last: Vec<_> = said.lines().rev().take(20).collect();
        let last = last.into_iter().rev().fold(String::new(), |text, line| text + "  " + line + "\n");
        let text = format!("\nbeside a failure: {}: {state:?}, and it said last:\n{last}", self.line);
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// Waits until stdout or stderr holds `text`, and for the rest of its line: a line may come in pieces.
    #[track_caller]
    pub fn wait_for_text(&mut self, text: &str, limit: Duration) {
        let start = Instant::now();
        let mut found = None;
        loop {
            let running = self.is_running();
            let outputs = [self.stdout_so_far(), self.stderr_so_far()];
            let mut rests = outputs.iter().filter_map(|said| said.find(text).map(|at| &said[at..]));
            if let Some(rest) = rests.next() {
                let since = found.get_or_insert_with(Instant::now);
                if rest.contains('\n') || !running || since.elapsed() > REST_OF_A_LINE {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            if !running || start.elapsed() > limit {
                let (out, err) = (self.stdout_so_far(), self.stderr_so_far());
                panic!("{} never said {text:?}\n--- stdout\n{out}\n--- stderr\n{err}", self.line);
            }
            thread::sleep(Duration::from_millis(3));
        }
    }

    /// Waits for the end; past `limit` it kills the process and panics with its outputs.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Output {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("the child is ours") {
                break status;
            }
            if start.elapsed() > limit {
                self.kill();
                let _ = self.process.wait();
                let (out, err) = (self.stdout_so_far(), self.stderr_so_far());
                panic!("{} ran past {limit:?}\n--- stdout\n{out}\n--- stderr\n{err}", self.line);
            }
            thread::sleep(Duration::from_millis(2));
        };
        let took = self.started.elapsed();
        let stdout = self.stdout.finish(&self.line);
        let stderr = self.stderr.finish(&self.line);
        Output { code: status.code(), signal: status.signal(), stdout, stderr, took }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell();
        }
        self.kill();
        let _ = self.process.wait();
    }
}

/// Output read as it comes, by a thread that ends with the pipe.
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    ended: mpsc::Receiver<()>,
}

impl Stream {
    fn follow(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = mpsc::channel();
        let sink = Arc::clone(&text);
        thread::spawn(move || {
            let mut buf = [0; 8192];
            while let Ok(n) = pipe.read(&mut buf)
                && n > 0
            {
                let mut text = sink.lock().unwrap();
                let room = MAX_OUTPUT.saturating_sub(text.len());
                text.extend_from_slice(&buf[..n.min(room)]);
            }
            let _ = end.send(());
        });
        Self { text, ended }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// All of it. A descendant that keeps the pipe open after its parent is a failure.
    #[track_caller]
    fn finish(&self, line: &str) -> String {
        let ended = self.ended.recv_timeout(Duration::from_secs(5)).is_ok();
        assert!(ended, "something that {line} started keeps its output open:\n{}", self.so_far());
        self.so_far()
    }
}
