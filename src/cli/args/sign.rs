//! What the verbs about signatures take: `keygen`, `sign`.

use std::path::PathBuf;

use clap::Args;

use crate::core::oms::key::Curve;

const KEYGEN_EXAMPLES: &str = "\
Examples:
  muster keygen
  muster keygen /etc/muster/release --curve p384

Writes the private key into FILE, for its owner alone (mode 600), and the public key into FILE.pub.
Neither replaces a file. ECDSA keys of any other tool will do as well: PEM, PKCS#8 or SEC1, not
encrypted.";

const SIGN_EXAMPLES: &str = "\
Examples:
  muster sign kimi-k2.5-nvfp4 --key /etc/muster/release
  model_signing verify key DIR --signature DIR/.muster/model.sig --public_key release.pub

Signs a model whose gate is open, as OpenSSF Model Signing 1.0 has it: every file with its SHA-256.
Large files are not read for it, unless they changed on disk since they were verified. Files that were
changed on purpose are signed as they are here. Exit codes: 0 signed, 2 no usable key, and those of
muster gate, when the model is not verified.";

/// `muster keygen`.
#[derive(Debug, Args)]
#[command(after_help = KEYGEN_EXAMPLES)]
pub struct KeygenArgs {
    /// File of the private key; the public one gets .pub after its name
    #[arg(value_name = "FILE", default_value = "muster.key")]
    pub file: PathBuf,
    /// Curve: p256, p384 or p521
    #[arg(long, value_name = "CURVE", env = "MUSTER_CURVE", default_value = "p256", value_parser = parse_curve)]
    pub curve: Curve,
}

/// `muster sign`.
#[derive(Debug, Args)]
#[command(after_help = SIGN_EXAMPLES)]
pub struct SignArgs {
    /// Model: a name on the volume, a repository id, or the path of a model directory
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Private key
    #[arg(long, value_name = "FILE", env = "MUSTER_SIGN_KEY")]
    pub key: Option<PathBuf>,
}

fn parse_curve(text: &str) -> Result<Curve, String> {
    let found = Curve::ALL.into_iter().find(|curve| curve.name() == text);
    found.ok_or_else(|| "it is none of p256, p384, p521".to_owned())
}
