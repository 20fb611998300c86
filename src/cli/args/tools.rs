//! What the verbs that describe muster itself take.

use clap::Args;
use clap_complete::Shell;

/// `muster schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Name of the schema; without it the names are listed
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}

/// `muster completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell: bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// `muster man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Verb to describe instead of muster as a whole
    #[arg(value_name = "VERB")]
    pub verb: Option<String>,
}
