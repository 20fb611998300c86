//! The program itself, run as a user would run it.
//!
//! Children get the user's environment without what would change the story: settings of muster
//! and the Hub's tools, proxies, tokens. They are ended by their id, and waited for.

#![allow(clippy::disallowed_methods, reason = "the demo starts the program it shows")]

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;

use super::Stop;
use super::place::Place;
use crate::config::Environment;

/// Most bytes of a child's output that are looked at.
const OUTPUT_MAX: u64 = 1 << 20;
const FOREIGN: [&str; 4] = ["MUSTER_", "HF_", "HUGGING_FACE_", "HUGGINGFACE_"];
const PROXIES: [&str; 8] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// How to start a child.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    removed: Vec<std::ffi::OsString>,
    set: Vec<(&'static str, PathBuf)>,
    /// Whether people may watch its stderr.
    shown: bool,
}

/// How a child ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// By itself.
    By(ExitStatus, Said),
    /// Because the demo was stopped.
    Stopped,
}

/// What a child wrote that people have not seen, in the order in which a terminal would show it.
pub(super) type Said = String;

impl Program {
    /// This very program; with `shown` its stderr is the demo's while it is watched.
    pub(super) fn this(place: &Place, environment: &Environment, shown: bool) -> io::Result<Self> {
        let is_foreign = |name: &&std::ffi::OsStr| {
            let text = name.to_string_lossy();
            PROXIES.contains(&&*text) || FOREIGN.iter().any(|prefix| text.starts_with(prefix))
        };
        Ok(Self {
            path: std::env::current_exe()?,
            removed: environment.names().filter(is_foreign).map(ToOwned::to_owned).collect(),
            // Neither the user's settings nor the user's memory of hashed files.
            set: vec![
                ("HF_HOME", place.join("hf")),
                ("XDG_CONFIG_HOME", place.join("config")),
                ("XDG_STATE_HOME", place.join("state")),
            ],
            shown,
        })
    }

    /// Runs it to its end, or to the demo's. With `watched`, stderr goes where the demo's goes.
    pub(super) async fn run(&self, arguments: &[String], watched: bool, stop: &Stop) -> io::Result<Ended> {
        // One pipe for both streams keeps their order.
        let (said, writer) = io::pipe()?;
        let errors = if watched && self.shown { Stdio::inherit() } else { writer.try_clone()?.into() };
        let mut command = Command::new(&self.path);
        command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(errors).kill_on_drop(true);
        for name in &self.removed {
            command.env_remove(name);
        }
        for (name, value) in &self.set {
            command.env(name, value);
        }
        let mut child = command.spawn()?;
        // It holds our ends of the pipe, which ends with the last of them.
        drop(command);
        let said = Receiver::from_owned_fd(OwnedFd::from(said))?;
        let reading = async { tokio::join!(read(said), child.wait()) };
        let ended = tokio::select! {
            (said, status) = reading => Some((status?, said?)),
            () = stop.token.cancelled() => None,
        };
        if let Some((status, said)) = ended {
            return Ok(Ended::By(status, said));
        }
        child.kill().await?;
        Ok(Ended::Stopped)
    }
}

async fn read(mut pipe: Receiver) -> io::Result<Said> {
    let mut bytes = Vec::new();
    (&mut pipe).take(OUTPUT_MAX).read_to_end(&mut bytes).await?;
    // What is more is read all the same: a full pipe would hold the child up.
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
