//! An authority for tests, and certificates with any faults.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use flotilla_tls::CertificateFiles;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};

/// An authority, in memory.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate to be made.
pub(crate) struct Leaf {
    pub(crate) name: String,
    pub(crate) identity: Option<String>,
    pub(crate) hosts: Vec<String>,
    pub(crate) seconds: u64,
    pub(crate) usages: Vec<ExtendedKeyUsagePurpose>,
}

impl Leaf {
    pub(crate) fn client(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            identity: None,
            hosts: vec![],
            seconds: 3600,
            usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
        }
    }

    pub(crate) fn store(name: &str) -> Self {
        Self { identity: Some(format!("flotilla://store/{name}")), ..Self::client(name) }
            .at("127.0.0.1")
            .serving()
    }

    pub(crate) fn at(self, host: &str) -> Self {
        Self { hosts: vec![host.to_owned()], ..self }
    }

    pub(crate) fn serving(mut self) -> Self {
        self.usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        self
    }

    pub(crate) fn valid_for(self, seconds: u64) -> Self {
        Self { seconds, ..self }
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        let key = KeyPair::generate().unwrap();
        // Each has a name of its own, or a certificate of another would be one with a wrong
        // signature.
        let name = format!("authority {:?}", &key.public_key_raw()[..8]);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes the authority, and a certificate with its key as `file.pem` and `file-key.pem`.
    pub(crate) fn leaf(&self, dir: &Path, file: &str, leaf: Leaf) -> CertificateFiles {
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, leaf.name);
        let now = SystemTime::now();
        params.not_before = (now - Duration::from_secs(60)).into();
        params.not_after = (now + Duration::from_secs(leaf.seconds)).into();
        params.extended_key_usages = leaf.usages;
        if let Some(identity) = &leaf.identity {
            let uri = Ia5String::try_from(identity.as_str()).unwrap();
            params.subject_alt_names.push(SanType::URI(uri));
        }
        for host in &leaf.hosts {
            params.subject_alt_names.push(match host.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(Ia5String::try_from(host.as_str()).unwrap()),
            });
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let path = |name: &str| dir.join(name);
        let files = CertificateFiles {
            ca: path(&format!("{file}-ca.pem")),
            cert: path(&format!("{file}.pem")),
            key: path(&format!("{file}-key.pem")),
        };
        fs::write(&files.ca, &self.pem).unwrap();
        fs::write(&files.cert, cert.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}
