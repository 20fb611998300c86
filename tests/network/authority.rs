//! A private authority, as a company has one, and the identities it vouches for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, SupportedProtocolVersion, crypto, version};

/// Signs, and is trusted by whoever has its certificate.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// What is odd about an identity.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Oddity {
    None,
    Expired,
    NotYet,
    OldTls,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its certificate, for `SSL_CERT_FILE`.
    pub fn certificate_in(&self, folder: &Path) -> PathBuf {
        let path = folder.join("authority.pem");
        std::fs::write(&path, &self.pem).unwrap();
        path
    }

    /// What a server needs to be believed to be one of these names or addresses.
    pub fn vouches_for(&self, names: &[&str], oddity: Oddity) -> Arc<ServerConfig> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        (params.not_before, params.not_after) = match oddity {
            Oddity::Expired => (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1)),
            Oddity::NotYet => (date_time_ymd(2200, 1, 1), date_time_ymd(2201, 1, 1)),
            Oddity::None | Oddity::OldTls => (date_time_ymd(2000, 1, 1), date_time_ymd(2200, 1, 1)),
        };
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let old: &[&SupportedProtocolVersion] = &[&version::TLS12];
        let versions = if oddity == Oddity::OldTls { old } else { &[&version::TLS12, &version::TLS13] };
        let builder = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
        let builder = builder.with_protocol_versions(versions).unwrap().with_no_client_auth();
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }
}
