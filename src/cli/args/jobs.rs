//! What the verbs that change a job take.

use clap::Args;

/// `muster pause`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Model whose download stops
    #[arg(value_name = "MODEL")]
    pub model: String,
}

/// `muster resume`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Model whose download goes on
    #[arg(value_name = "MODEL")]
    pub model: String,
}

/// `muster cancel`.
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Model whose download is given up
    #[arg(value_name = "MODEL")]
    pub model: String,
}

/// `muster remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Model to take off the volume
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Frees the space at once instead of keeping the files for retire_after
    #[arg(long)]
    pub now: bool,
}
