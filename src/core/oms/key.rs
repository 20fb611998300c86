//! Keys that sign models: ECDSA over P-256, P-384 or P-521, as PEM.
//!
//! Owns which hash goes with which curve (SHA-256, SHA-384, SHA-512, as Sigstore has it) and how a key is
//! named: by the SHA-256 of its public half as PEM, which is the `hint` of a bundle. Invariant: nothing
//! that is shown, logged or told of a private key has any of its bytes.

use std::fmt;

use p256::elliptic_curve::zeroize::Zeroizing;
use p256::pkcs8::der::{Document, SecretDocument};
use p256::pkcs8::{
    DecodePrivateKey as _, EncodePrivateKey as _, EncodePublicKey as _, LineEnding, ObjectIdentifier,
    PrivateKeyInfoRef, SubjectPublicKeyInfoRef,
};
use sha2::Digest as _;
use thiserror::Error;

use crate::core::digest::Sha256;

/// Longest text that is taken for a key.
pub const KEY_MAX_BYTES: u64 = 64 << 10;

/// `id-ecPublicKey` and the three curves of the format (RFC 5480).
const ELLIPTIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const P521: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.35");

const PKCS8: &str = "PRIVATE KEY";
const SEC1: &str = "EC PRIVATE KEY";
const ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";
const SPKI: &str = "PUBLIC KEY";
/// What `openssl ecparam -genkey` writes in front of the key.
const PARAMETERS: &str = "EC PARAMETERS";
/// Width of a line of PEM.
const LINE: usize = 64;

/// The curve of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// P-256, with SHA-256.
    P256,
    /// P-384, with SHA-384.
    P384,
    /// P-521, with SHA-512.
    P521,
}

impl Curve {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::P256, Self::P384, Self::P521];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P256 => "p256",
            Self::P384 => "p384",
            Self::P521 => "p521",
        }
    }

    fn of(oid: ObjectIdentifier) -> Result<Self, KeyError> {
        match oid {
            P256 => Ok(Self::P256),
            P384 => Ok(Self::P384),
            P521 => Ok(Self::P521),
            other => Err(KeyError::Curve { oid: other.to_string() }),
        }
    }
}

/// Why a text is not the key that is needed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// No PEM.
    #[error("it holds no key in PEM form")]
    NotPem,
    /// Needs a password.
    #[error("the private key is encrypted, and nobody is there to type its password")]
    Encrypted,
    /// The other half.
    #[error("it is a public key, and the private key is needed here")]
    PublicForPrivate,
    /// The other half.
    #[error("it is a private key, and the public key is needed here")]
    PrivateForPublic,
    /// PEM of something else.
    #[error("it holds a {label}, and a key for ECDSA is needed")]
    Label {
        /// What the PEM says it is.
        label: String,
    },
    /// RSA, Ed25519 and others.
    #[error("it is a key of algorithm {oid}, and only ECDSA keys sign models")]
    Algorithm {
        /// Its object identifier.
        oid: String,
    },
    /// Another curve.
    #[error("its curve is {oid}, and only P-256, P-384 and P-521 are possible")]
    Curve {
        /// Its object identifier.
        oid: String,
    },
    /// No such number is a key.
    #[error("the key is damaged, or of another curve than P-256, P-384 and P-521")]
    Damaged,
    /// The source of randomness gives nothing usable.
    #[error("no random number became a key")]
    NotRandom,
}

/// A key that signs.
#[derive(Clone)]
pub struct PrivateKey(Secret);

#[derive(Clone)]
enum Secret {
    P256(p256::ecdsa::SigningKey),
    P384(p384::ecdsa::SigningKey),
    P521(p521::ecdsa::SigningKey),
}

/// A key that checks signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    point: Point,
    hint: Sha256,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    P256(p256::ecdsa::VerifyingKey),
    P384(p384::ecdsa::VerifyingKey),
    P521(p521::ecdsa::VerifyingKey),
}

/// Why a signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SignatureError {
    /// Not two numbers of this curve in DER.
    #[error("the signature is no ECDSA signature of this key's curve")]
    Malformed,
    /// Numbers, and wrong.
    #[error("the signature is not this key's signature of this content")]
    Wrong,
}

/// The same expression for whichever curve it is; with the curve's crate by a name, where it is asked for.
macro_rules! each_curve {
    ($kind:ident, $value:expr, $key:ident => $body:expr) => {
        match $value {
            $kind::P256($key) => $body,
            $kind::P384($key) => $body,
            $kind::P521($key) => $body,
        }
    };
    ($kind:ident, $value:expr, $krate:ident, $key:ident => $body:expr) => {
        match $value {
            $kind::P256($key) => {
                use p256 as $krate;
                $body
            }
            $kind::P384($key) => {
                use p384 as $krate;
                $body
            }
            $kind::P521($key) => {
                use p521 as $krate;
                $body
            }
        }
    };
}

impl PrivateKey {
    /// Reads PEM: PKCS#8 or SEC1, not encrypted.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let Block { label, pem } = first_block(text)?;
        match label.as_str() {
            PKCS8 => Self::of_pkcs8(&pem),
            SEC1 => Self::of_sec1(&pem),
            ENCRYPTED => Err(KeyError::Encrypted),
            SPKI => Err(KeyError::PublicForPrivate),
            _ => Err(KeyError::Label { label }),
        }
    }

    /// Makes a key from randomness that `fill` writes.
    ///
    /// # Errors
    /// [`KeyError::NotRandom`].
    pub fn generate(curve: Curve, mut fill: impl FnMut(&mut [u8])) -> Result<Self, KeyError> {
        // One number in 2^32 is no key, at most.
        for _ in 0..16 {
            let mut bytes = Zeroizing::new([0; 66]);
            let secret = match curve {
                Curve::P256 => {
                    fill(&mut bytes[..32]);
                    p256::ecdsa::SigningKey::from_slice(&bytes[..32]).map(Secret::P256)
                }
                Curve::P384 => {
                    fill(&mut bytes[..48]);
                    p384::ecdsa::SigningKey::from_slice(&bytes[..48]).map(Secret::P384)
                }
                Curve::P521 => {
                    fill(&mut bytes[..]);
                    // 521 bits are 65 bytes and one bit.
                    bytes[0] &= 1;
                    p521::ecdsa::SigningKey::from_slice(&bytes[..]).map(Secret::P521)
                }
            };
            if let Ok(secret) = secret {
                return Ok(Self(secret));
            }
        }
        Err(KeyError::NotRandom)
    }

    /// Its curve.
    #[must_use]
    pub const fn curve(&self) -> Curve {
        match self.0 {
            Secret::P256(_) => Curve::P256,
            Secret::P384(_) => Curve::P384,
            Secret::P521(_) => Curve::P521,
        }
    }

    /// The other half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey::of(match &self.0 {
            Secret::P256(key) => Point::P256(*key.verifying_key()),
            Secret::P384(key) => Point::P384(*key.verifying_key()),
            Secret::P521(key) => Point::P521(*key.verifying_key()),
        })
    }

    /// PKCS#8 PEM, erased from memory when it is dropped.
    ///
    /// # Errors
    /// [`KeyError::Damaged`], which no key of ours is.
    pub fn to_pem(&self) -> Result<Zeroizing<String>, KeyError> {
        each_curve!(Secret, &self.0, key => key.to_pkcs8_pem(LineEnding::LF)).map_err(|_| KeyError::Damaged)
    }

    /// The signature of `message` in DER. The same message gives the same bytes (RFC 6979).
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        each_curve!(Secret, &self.0, curve, key => {
            use curve::ecdsa::signature::Signer as _;
            let signature: curve::ecdsa::Signature = key.sign(message);
            signature.to_der().as_bytes().to_vec()
        })
    }

    fn of_pkcs8(pem: &str) -> Result<Self, KeyError> {
        let (_, document) = SecretDocument::from_pem(pem).map_err(|_| KeyError::Damaged)?;
        let info = PrivateKeyInfoRef::try_from(document.as_bytes()).map_err(|_| KeyError::Damaged)?;
        let curve = curve_of(info.algorithm.oid, info.algorithm.parameters_oid().ok())?;
        let secret = match curve {
            Curve::P256 => p256::ecdsa::SigningKey::from_pkcs8_der(document.as_bytes()).map(Secret::P256),
            Curve::P384 => p384::ecdsa::SigningKey::from_pkcs8_der(document.as_bytes()).map(Secret::P384),
            Curve::P521 => p521::ecdsa::SigningKey::from_pkcs8_der(document.as_bytes()).map(Secret::P521),
        };
        secret.map(Self).map_err(|_| KeyError::Damaged)
    }

    /// Such a key may leave its curve unsaid: the length of its number tells.
    fn of_sec1(pem: &str) -> Result<Self, KeyError> {
        let (_, document) = SecretDocument::from_pem(pem).map_err(|_| KeyError::Damaged)?;
        let der = document.as_bytes();
        let p256 = || p256::SecretKey::from_sec1_der(der).ok().map(|key| Secret::P256(key.into()));
        let p384 = || p384::SecretKey::from_sec1_der(der).ok().map(|key| Secret::P384(key.into()));
        let p521 = || p521::SecretKey::from_sec1_der(der).ok().map(|key| Secret::P521(key.into()));
        p256().or_else(p384).or_else(p521).map(Self).ok_or(KeyError::Damaged)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({}, …)", self.curve().name())
    }
}

impl PublicKey {
    /// Reads PEM: SPKI.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let Block { label, pem } = first_block(text)?;
        match label.as_str() {
            SPKI => {}
            PKCS8 | SEC1 | ENCRYPTED => return Err(KeyError::PrivateForPublic),
            _ => return Err(KeyError::Label { label }),
        }
        let (_, document) = Document::from_pem(&pem).map_err(|_| KeyError::Damaged)?;
        let info = SubjectPublicKeyInfoRef::try_from(document.as_bytes()).map_err(|_| KeyError::Damaged)?;
        let curve = curve_of(info.algorithm.oid, info.algorithm.parameters_oid().ok())?;
        let point = match curve {
            Curve::P256 => p256::ecdsa::VerifyingKey::try_from(info).map(Point::P256),
            Curve::P384 => p384::ecdsa::VerifyingKey::try_from(info).map(Point::P384),
            Curve::P521 => p521::ecdsa::VerifyingKey::try_from(info).map(Point::P521),
        };
        point.map(Self::of).map_err(|_| KeyError::Damaged)
    }

    /// SPKI PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem_of(&self.point)
    }

    /// Its name in bundles: SHA-256 of the PEM form (section 4.1 of the specification).
    #[must_use]
    pub const fn hint(&self) -> Sha256 {
        self.hint
    }

    /// Checks a signature of `message`, in DER.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), SignatureError> {
        each_curve!(Point, &self.point, curve, key => {
            use curve::ecdsa::signature::Verifier as _;
            let signature = curve::ecdsa::Signature::from_der(signature).map_err(|_| SignatureError::Malformed)?;
            key.verify(message, &signature).map_err(|_| SignatureError::Wrong)
        })
    }

    fn of(point: Point) -> Self {
        let hint = Sha256::from_bytes(sha2::Sha256::digest(pem_of(&point)).into());
        Self { point, hint }
    }
}

fn pem_of(point: &Point) -> String {
    let pem = each_curve!(Point, point, key => key.to_public_key_pem(LineEnding::LF));
    pem.expect("invariant: a point of these curves has a form in DER")
}

fn curve_of(algorithm: ObjectIdentifier, curve: Option<ObjectIdentifier>) -> Result<Curve, KeyError> {
    if algorithm != ELLIPTIC {
        return Err(KeyError::Algorithm { oid: algorithm.to_string() });
    }
    Curve::of(curve.ok_or(KeyError::Damaged)?)
}

struct Block {
    label: String,
    /// In lines of the usual width.
    pem: Zeroizing<String>,
}

/// The first block of PEM that is more than parameters.
fn first_block(text: &str) -> Result<Block, KeyError> {
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) else {
            continue;
        };
        let end = format!("-----END {label}-----");
        let mut body = Zeroizing::new(String::new());
        let mut is_whole = false;
        for line in lines.by_ref() {
            if line == end {
                is_whole = true;
                break;
            }
            // The header of what OpenSSL encrypted before PKCS#8.
            if line.starts_with("Proc-Type:") && line.ends_with("ENCRYPTED") {
                return Err(KeyError::Encrypted);
            }
            body.push_str(line);
        }
        if !is_whole || !body.is_ascii() {
            return Err(KeyError::NotPem);
        }
        if label != PARAMETERS {
            let mut pem = Zeroizing::new(format!("-----BEGIN {label}-----\n"));
            for line in body.as_bytes().chunks(LINE) {
                pem.extend(line.iter().map(|byte| char::from(*byte)));
                pem.push('\n');
            }
            pem.push_str(&end);
            pem.push('\n');
            let label = label.chars().take(40).flat_map(char::escape_debug).collect();
            return Ok(Block { label, pem });
        }
    }
    Err(KeyError::NotPem)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A key for tests, the same for the same seed.
    pub(crate) fn key(curve: Curve, seed: u8) -> PrivateKey {
        let mut next = seed;
        let fill = |bytes: &mut [u8]| {
            for byte in bytes {
                next = next.wrapping_mul(31).wrapping_add(7);
                *byte = next;
            }
        };
        PrivateKey::generate(curve, fill).unwrap()
    }

    #[test]
    fn a_key_of_each_curve_survives_its_pem_form_and_checks_what_it_signed() {
        for curve in Curve::ALL {
            let made = key(curve, 1);
            let read = PrivateKey::parse(&made.to_pem().unwrap()).unwrap();
            let public = PublicKey::parse(&made.public().to_pem()).unwrap();
            assert_eq!((read.curve(), read.public(), &public), (curve, public.clone(), &made.public()));
            let signature = read.sign(b"content");
            assert_eq!(signature, made.sign(b"content"), "it needs no randomness");
            assert_eq!(public.verify(b"content", &signature), Ok(()));
            assert_eq!(public.verify(b"contents", &signature), Err(SignatureError::Wrong));
            assert_eq!(key(curve, 2).public().verify(b"content", &signature), Err(SignatureError::Wrong));
            assert_eq!(public.verify(b"content", &signature[1..]), Err(SignatureError::Malformed));
            assert_eq!(public.verify(b"content", b""), Err(SignatureError::Malformed));
        }
    }

    #[test]
    fn a_signature_of_another_curve_never_counts() {
        for (curve, other) in [(Curve::P256, Curve::P384), (Curve::P384, Curve::P521), (Curve::P521, Curve::P256)] {
            let signature = key(other, 1).sign(b"content");
            assert!(key(curve, 1).public().verify(b"content", &signature).is_err());
        }
    }

    #[test]
    fn nothing_of_a_private_key_is_shown() {
        let made = key(Curve::P256, 3);
        assert_eq!(format!("{made:?}"), "PrivateKey(p256, …)");
    }

    #[test]
    fn what_is_not_the_key_that_is_needed_is_told_apart() {
        let made = key(Curve::P256, 1);
        let (private, public) = (made.to_pem().unwrap(), made.public().to_pem());
        assert_eq!(PrivateKey::parse(&public).unwrap_err(), KeyError::PublicForPrivate);
        assert_eq!(PublicKey::parse(&private).unwrap_err(), KeyError::PrivateForPublic);
        for nothing in ["", "key", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PUBLIC KEY-----\nAAAA\n"] {
            assert_eq!(PrivateKey::parse(nothing).unwrap_err(), KeyError::NotPem, "{nothing}");
        }
        let block = |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
        assert_eq!(PrivateKey::parse(&block(ENCRYPTED, "AAAA")).unwrap_err(), KeyError::Encrypted);
        let old = block(SEC1, "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA");
        assert_eq!(PrivateKey::parse(&old).unwrap_err(), KeyError::Encrypted);
        for label in ["RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "CERTIFICATE"] {
            let error = PrivateKey::parse(&block(label, "AAAA")).unwrap_err();
            assert_eq!(error, KeyError::Label { label: label.to_owned() });
        }
        assert_eq!(PrivateKey::parse(&block(PKCS8, "AAAA")).unwrap_err(), KeyError::Damaged);
        assert_eq!(PrivateKey::parse(&block(SEC1, "AAAA")).unwrap_err(), KeyError::Damaged);
        // Ed25519, whole.
        let other = block(PKCS8, "MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF");
        assert_eq!(PrivateKey::parse(&other).unwrap_err(), KeyError::Algorithm { oid: "1.3.101.112".into() });
    }

    #[test]
    fn a_text_around_the_key_and_other_line_ends_do_no_harm() {
        let made = key(Curve::P384, 1);
        let text = format!("# ours\r\n{}\n", made.to_pem().unwrap().replace('\n', "\r\n"));
        assert_eq!(PrivateKey::parse(&text).unwrap().public(), made.public());
        let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
        let text = format!("{parameters}{}", made.to_pem().unwrap().as_str());
        assert_eq!(PrivateKey::parse(&text).unwrap().public(), made.public());
    }

    #[test]
    fn no_randomness_is_no_key() {
        assert_eq!(PrivateKey::generate(Curve::P256, |_| ()).unwrap_err(), KeyError::NotRandom);
    }
}
