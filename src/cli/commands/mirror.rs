//! `muster mirror`: serves verified models as a read-only Hub.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;
use tokio::net::TcpListener;

use crate::cli::args::MirrorArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::resolve::MirrorAccess;
use crate::cli::signals::Signals;
use crate::cli::ui::Ui;
use crate::cli::{Context, bearer_file, facts, resolve};
use crate::core::code::Code;
use crate::core::manifest::Source;
use crate::mirror::{Mirror, MirrorAuth};

/// Serves verified models as a read-only Hub.
///
/// # Errors
/// What the user is told.
pub fn run(args: MirrorArgs, context: Context) -> Result<Exit, Failure> {
    let Context { settings, ui, here, .. } = context;
    let request = resolve::mirror(args, &settings, &here)?;
    let auth = match &request.access {
        MirrorAccess::Everybody => MirrorAuth::Everybody,
        MirrorAccess::Token(file) => MirrorAuth::Bearer(bearer_file::read(file)?),
    };
    let path = &settings.volume.value;
    let volume = facts::open(&settings.volume)?;
    let mirror = Mirror::of(volume, auth);
    let served = mirror.served().map_err(|error| CliError::from(&error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot start the runtime"))?;
    runtime.block_on(serve(mirror, request.listen, &served, &ui, path))
}

async fn serve(mirror: Mirror, listen: SocketAddr, served: &[Source], ui: &Ui, volume: &Path) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let listener = TcpListener::bind(listen).await.map_err(|error| cannot_listen(listen, &error))?;
    let address = listener.local_addr().map_err(|error| cannot_listen(listen, &error))?;
    announce(ui, address, served, volume)?;
    let stopped = async {
        signals.next().await;
    };
    mirror.serve(listener, stopped).await;
    Ok(Exit::Success)
}

fn announce(ui: &Ui, address: SocketAddr, served: &[Source], volume: &Path) -> Result<(), Failure> {
    let url = format!("http://{address}");
    if ui.is_json() {
        let models: Vec<_> = served
            .iter()
            .map(|source| {
                json!({
                    "repo": source.repo.id,
                    "repo_type": source.repo.kind,
                    "revision": source.revision,
                    "commit": source.commit,
                })
            })
            .collect();
        return ui.result_json(&json!({ "schema": 1, "url": url, "models": models }));
    }
    ui.result(&url)?;
    match served {
        [] => {
            ui.warn(&format!("no verified model in {} yet; what comes is served without a restart", volume.display()));
        }
        [first, ..] => {
            for source in served {
                ui.note(&format!("serving {}  {}  commit {}", source.repo, source.revision, source.commit.short()));
            }
            ui.note(&format!("try: HF_ENDPOINT={url} hf download {}", first.repo.id));
        }
    }
    Ok(())
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> CliError {
    let told = CliError::from_error(Code::Usage, error).context(format!("cannot listen on {address}"));
    match error.kind() {
        std::io::ErrorKind::AddrInUse => told.hint("something listens there already: choose another with --listen"),
        _ => told,
    }
}
