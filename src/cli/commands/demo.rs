//! `muster demo`: tells the whole story on a made-up model.
//!
//! Everything the story shows is done by the program itself, started as a user would start it.
//! Owns the working directory, the mirror and the children, and ends them all on every way out.

mod child;
mod place;
mod story;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use crate::cli::args::DemoArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::resolve::DemoRequest;
use crate::cli::signals::Signals;
use crate::cli::ui::Ui;
use crate::cli::{Context, resolve};
use crate::config::Environment;
use crate::core::code::Code;
use crate::core::units;
use crate::demo::shape::{self, DemoFile};
use crate::volume::Volume;
use place::Place;
use story::Story;

/// What the model's files do not account for: folders, manifests, a bad file set aside.
const SPARE: u64 = 64 << 20;

/// Told to everything that works for the story.
#[derive(Debug, Clone, Default)]
struct Stop {
    token: CancellationToken,
    flag: Arc<AtomicBool>,
}

impl Stop {
    fn stop(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.token.cancel();
    }
}

/// Tells the whole story on a made-up model.
///
/// # Errors
/// What the user is told: the step that went otherwise than it should.
pub fn run(args: DemoArgs, context: Context) -> Result<Exit, Failure> {
    let Context { ui, environment, here, .. } = context;
    let request = resolve::demo(args, &here);
    let files = shape::files(u32::from(request.shards), request.shard_bytes)
        .map_err(|error| CliError::from_error(Code::Usage, &error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot start the runtime"))?;
    let place = Place::make(&request)?;
    let outcome =
        check_space(&place, &files).and_then(|()| runtime.block_on(tell(&request, files, &place, &ui, &environment)));
    // The runtime ends before the directory goes: nothing of ours writes there any more.
    drop(runtime);
    let kept = place.leave()?;
    if let Some(kept) = kept {
        ui.note(&format!("kept: {}", kept.display()));
    }
    outcome
}

async fn tell(
    request: &DemoRequest,
    files: Vec<DemoFile>,
    place: &Place,
    ui: &Ui,
    environment: &Environment,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let stop = Stop::default();
    let story = Story::new(request, place, ui, environment, stop.clone())?.tell(files);
    let mut story = std::pin::pin!(story);
    let exit = tokio::select! {
        told = &mut story => return told.map(|()| Exit::Success),
        exit = signals.next() => exit,
    };
    stop.stop();
    // Children are ended and waited for in there; what it says of the broken step is no news.
    let _broken_off = story.await;
    Ok(exit)
}

/// The repository and its copy lie there at the same time.
fn check_space(place: &Place, files: &[DemoFile]) -> Result<(), Failure> {
    let size: u64 = files.iter().map(|file| file.content.size()).sum();
    let needed = 2 * size + SPARE;
    let free =
        Volume::open(place.path()).and_then(|volume| volume.space()).map_err(|error| CliError::from(&error))?.free;
    if free >= needed {
        return Ok(());
    }
    let shown = (units::bytes(needed), units::bytes(free));
    let told = CliError::new(
        Code::NoSpace,
        format!("the demo needs {} in {}, which has {} free", shown.0, place.path().display(), shown.1),
    );
    Err(told.hint("work elsewhere with --dir DIR, or with less: --shard-size 1MB").into())
}
