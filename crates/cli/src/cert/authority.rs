//! An authority, and the certificates that it signs.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate is valid from a little before now: clocks differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// The name of an authority.
const AUTHORITY_NAME: &str = "Flotilla authority";

/// The party that a certificate is for.
pub(super) enum Party {
    /// A store, and where it is reached.
    Store { name: String, hosts: Vec<String> },
    /// A client.
    Client(String),
    /// An operator.
    Operator(String),
}

impl Party {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Store { name, .. } | Self::Client(name) | Self::Operator(name) => name,
        }
    }

    pub(super) fn role(&self) -> &'static str {
        match self {
            Self::Store { .. } => "store",
            Self::Client(_) => "client",
            Self::Operator(_) => "operator",
        }
    }
}

/// An authority with its key.
pub(super) struct CertificateAuthority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// A new one.
    pub(super) fn make(days: u32) -> Result<Self, String> {
        // A name of its own: a certificate of another authority is then of an unknown issuer, and
        // not one whose signature is wrong.
        let name = format!("{AUTHORITY_NAME} {:08x}", fastrand::u32(..));
        let mut params = params(&name, days);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(words)?;
        let pem = params.self_signed(&key).map_err(words)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// The one in these two texts.
    pub(super) fn read(cert: &str, key: &str) -> Result<Self, String> {
        let key = KeyPair::from_pem(key).map_err(words)?;
        let issuer = Issuer::from_ca_cert_pem(cert, key).map_err(words)?;
        Ok(Self { pem: cert.to_owned(), issuer })
    }

    pub(super) fn pem(&self) -> String {
        self.pem.clone()
    }

    pub(super) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A certificate for `party`, and its key.
    pub(super) fn sign(&self, party: &Party, days: u32) -> Result<(String, String), String> {
        let mut params = params(party.name(), days);
        let identity = format!("flotilla://{}/{}", party.role(), party.name());
        params.subject_alt_names.push(SanType::URI(ia5(&identity)?));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Party::Store { hosts, .. } = party {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            for host in hosts {
                params.subject_alt_names.push(match host.parse::<IpAddr>() {
                    Ok(address) => SanType::IpAddress(address),
                    Err(_) => SanType::DnsName(ia5(host)?),
                });
            }
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(words)?;
        let cert = params.signed_by(&key, &self.issuer).map_err(words)?;
        Ok((cert.pem(), key.serialize_pem()))
    }
}

fn params(name: &str, days: u32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + Duration::from_secs(u64::from(days) * 24 * 3600)).into();
    params
}

fn ia5(text: &str) -> Result<Ia5String, String> {
    Ia5String::try_from(text).map_err(|_| format!("{text:?} has other letters than ASCII"))
}

fn words(error: rcgen::Error) -> String {
    error.to_string()
}
