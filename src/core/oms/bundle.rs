//! The signature file: a Sigstore bundle around a DSSE envelope around the statement.
//!
//! Owns the reading of foreign bytes down to a payload that the given key signed. Invariant: a payload
//! that comes out of [`open`] is exactly what that key signed, as exactly this kind of payload. The size
//! is bounded by who reads the bytes, to [`BUNDLE_MAX_BYTES`].

use serde::Deserialize as _;
use serde_json::{Map, Value};
use sigstore_types::bundle::{
    Bundle, MediaType, PublicKeyIdentifier, SignatureContent, VerificationMaterial, VerificationMaterialContent,
};
use sigstore_types::{DsseEnvelope, DsseSignature, KeyId, PayloadBytes, SignatureBytes, pae};
use thiserror::Error;

use super::key::{PrivateKey, PublicKey, SignatureError};
use super::statement::{Statement, StatementError};
use crate::core::digest::Sha256;

/// Largest bundle that is read: some hundred thousand files.
pub const BUNDLE_MAX_BYTES: u64 = 64 << 20;

/// Kind of the payload (in-toto).
const PAYLOAD: &str = "application/vnd.in-toto+json";
/// Longest text of somebody else's that an error repeats.
const SHOWN_MAX: usize = 100;

/// Why a signature file is none of the given key.
#[derive(Debug, Error)]
pub enum BundleError {
    /// Nothing in it.
    #[error("the signature is empty")]
    Empty,
    /// Not JSON.
    #[error("the signature is no JSON")]
    NotJson(#[source] serde_json::Error),
    /// JSON of something else.
    #[error("the signature is no bundle: an object is expected")]
    NotObject,
    /// Another kind of file, or another version of it.
    #[error("the signature is of media type `{found}`, not {}", MediaType::Bundle0_3)]
    MediaType {
        /// Its type.
        found: String,
    },
    /// It does not say by what it was signed.
    #[error("the signature does not say by which key it was made")]
    NoMaterial,
    /// By a certificate, with or without Sigstore's log.
    #[error("it was signed with a certificate, and only signatures by a key are checked here")]
    Certificate,
    /// No envelope.
    #[error("the signature has no envelope with what was signed")]
    NoEnvelope,
    /// None, or several.
    #[error("the envelope has {count} signatures, and exactly one can be checked")]
    Signatures {
        /// How many.
        count: usize,
    },
    /// It names another key outside of what is signed.
    #[error("the envelope names the key `{found}`, and the bundle another")]
    KeyId {
        /// The name.
        found: String,
    },
    /// Anything else about its form.
    #[error("the signature is no bundle")]
    Shape(#[source] serde_json::Error),
    /// Another kind of content.
    #[error("what was signed is of type `{found}`, not {PAYLOAD}")]
    PayloadType {
        /// Its type.
        found: String,
    },
    /// Another key.
    #[error("it was signed by the key {}, and the key that counts is {}…", shown_hint(.found), .expected.short())]
    Key {
        /// The name of the key that counts.
        expected: Sha256,
        /// The name in the bundle.
        found: String,
    },
    /// The signature itself.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// What was signed.
    #[error(transparent)]
    Statement(#[from] StatementError),
}

/// Reads the statement of a bundle that `key` signed.
///
/// # Errors
/// [`BundleError`].
pub fn open(bytes: &[u8], key: &PublicKey) -> Result<Statement, BundleError> {
    let (envelope, hint) = parse(bytes)?;
    let expected = key.hint();
    // Bundles of old have no name of their key: the signature alone decides.
    if let Some(found) = hint.filter(|hint| *hint != expected.to_string()) {
        return Err(BundleError::Key { expected, found });
    }
    key.verify(&pae(&envelope.payload_type, envelope.payload.as_bytes()), envelope.signature.sig.as_bytes())?;
    Ok(Statement::from_json(envelope.payload.as_bytes())?)
}

/// Reads the statement of a bundle, whoever signed it: to find out what it is about, never to believe it.
#[must_use]
pub fn claimed(bytes: &[u8]) -> Option<Statement> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let payload = value.pointer("/dsseEnvelope/payload")?.as_str()?;
    Statement::from_json(PayloadBytes::from_base64(payload).ok()?.as_bytes()).ok()
}

/// The bundle of a statement, signed by `key`.
#[must_use]
pub fn seal(statement: &Statement, key: &PrivateKey) -> Vec<u8> {
    let payload = statement.to_json();
    let signature = key.sign(&pae(PAYLOAD, &payload));
    let signature = DsseSignature::new(SignatureBytes::new(signature), KeyId::default());
    let envelope = DsseEnvelope::new(PAYLOAD, PayloadBytes::new(payload), signature);
    let hint = PublicKeyIdentifier::new(key.public().hint().to_string());
    let bundle = Bundle::new(
        MediaType::Bundle0_3,
        VerificationMaterial::new(VerificationMaterialContent::PublicKey(hint)),
        SignatureContent::DsseEnvelope(envelope),
    );
    let mut json = bundle.to_json().expect("a bundle has string keys only").into_bytes();
    json.push(b'\n');
    json
}

/// The envelope, and how the bundle names its key.
fn parse(bytes: &[u8]) -> Result<(DsseEnvelope, Option<String>), BundleError> {
    if bytes.trim_ascii().is_empty() {
        return Err(BundleError::Empty);
    }
    let mut value: Value = serde_json::from_slice(bytes).map_err(BundleError::NotJson)?;
    let top = value.as_object_mut().ok_or(BundleError::NotObject)?;
    let media_type = top.get("mediaType").and_then(Value::as_str).unwrap_or_default();
    if media_type.parse::<MediaType>().ok() != Some(MediaType::Bundle0_3) {
        return Err(BundleError::MediaType { found: shown(media_type) });
    }
    let hint = hint_of(top)?;
    let signatures = envelope_of(top)?.get_mut("signatures").and_then(Value::as_array_mut);
    let count = signatures.as_ref().map_or(0, |signatures| signatures.len());
    let Some([Value::Object(signature)]) = signatures.map(Vec::as_mut_slice) else {
        return Err(BundleError::Signatures { count });
    };
    // It is nobody's proof (section 4.1 of the specification), and must not be a second opinion either.
    match signature.remove("keyid") {
        None | Some(Value::Null) => {}
        Some(Value::String(id)) if id.is_empty() || Some(&id) == hint.as_ref() => {}
        Some(Value::String(other)) => return Err(BundleError::KeyId { found: shown(&other) }),
        Some(other) => return Err(BundleError::KeyId { found: shown(&other.to_string()) }),
    }
    let bundle = Bundle::deserialize(value).map_err(BundleError::Shape)?;
    let SignatureContent::DsseEnvelope(envelope) = bundle.content else { return Err(BundleError::NoEnvelope) };
    if envelope.payload_type != PAYLOAD {
        return Err(BundleError::PayloadType { found: shown(&envelope.payload_type) });
    }
    Ok((envelope, hint))
}

/// How the bundle names its key. What it says beside that is of no use to who has the key.
fn hint_of(top: &mut Map<String, Value>) -> Result<Option<String>, BundleError> {
    let material = top.get_mut("verificationMaterial").and_then(Value::as_object_mut);
    let material = material.ok_or(BundleError::NoMaterial)?;
    if material.contains_key("certificate") || material.contains_key("x509CertificateChain") {
        return Err(BundleError::Certificate);
    }
    material.retain(|key, _| key == "publicKey");
    let key = material.get_mut("publicKey").and_then(Value::as_object_mut).ok_or(BundleError::NoMaterial)?;
    if key.get("hint").is_some_and(Value::is_null) {
        key.remove("hint");
    }
    let hint = key.get("hint").map(|hint| hint.as_str().ok_or(BundleError::NoMaterial)).transpose()?;
    Ok(hint.filter(|hint| !hint.is_empty()).map(str::to_owned))
}

fn envelope_of(top: &mut Map<String, Value>) -> Result<&mut Map<String, Value>, BundleError> {
    top.get_mut("dsseEnvelope").and_then(Value::as_object_mut).ok_or(BundleError::NoEnvelope)
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

/// As [`Sha256::short`], of a name that may be anything.
fn shown_hint(hint: &str) -> String {
    match Sha256::parse(hint) {
        Ok(hint) => format!("{}…", hint.short()),
        Err(_) => format!("`{}`", shown(hint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::oms::key::Curve;
    use crate::core::oms::key::tests::key;
    use crate::core::repo_path::RepoPath;

    fn statement() -> Statement {
        let file = (RepoPath::parse("a").unwrap(), Sha256::from_bytes([1; 32]));
        Statement::new("model", vec![file], vec![".muster".into()]).unwrap()
    }

    #[test]
    fn a_bundle_is_opened_by_its_key_and_by_no_other() {
        for curve in Curve::ALL {
            let (signer, other) = (key(curve, 1), key(curve, 2));
            let sealed = seal(&statement(), &signer);
            assert_eq!(open(&sealed, &signer.public()).unwrap(), statement());
            assert_eq!(sealed, seal(&statement(), &signer), "it is made the same again");
            assert!(matches!(open(&sealed, &other.public()), Err(BundleError::Key { .. })));
            assert_eq!(claimed(&sealed).unwrap(), statement());
        }
    }

    #[test]
    fn no_bit_of_a_bundle_can_be_changed_without_notice() {
        let signer = key(Curve::P256, 1);
        let (sealed, public) = (seal(&statement(), &signer), signer.public());
        let (mut open_all_the_same, step) = (Vec::new(), 3);
        for at in (0..sealed.len()).step_by(step) {
            let mut spoilt = sealed.clone();
            spoilt[at] ^= 1 << (at % 7);
            // Only of a name that nobody reads, or of space; never of what is said.
            open_all_the_same.extend(open(&spoilt, &public).ok());
        }
        assert!(open_all_the_same.iter().all(|read| *read == statement()));
        assert!(open_all_the_same.len() < sealed.len() / step / 4, "{}", open_all_the_same.len());
    }
}
