//! Names and times in a certificate (RFC 5280).

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// The names and the times of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateFacts {
    /// Its common names, then its alternative names that are of a host or a URI.
    pub(crate) names: Vec<String>,
    /// The last second at which it is valid, since 1970.
    pub(crate) expires: i64,
}

impl CertificateFacts {
    /// Reads the certificate in `der`; `None` if it cannot be read.
    pub(crate) fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let common = certificate.subject().iter_common_name();
        let mut names: Vec<_> =
            common.filter_map(|name| Some(name.as_str().ok()?.to_owned())).collect();
        if let Some(alternative) = certificate.subject_alternative_name().ok()? {
            for name in &alternative.value.general_names {
                match name {
                    GeneralName::DNSName(name) | GeneralName::URI(name) => {
                        names.push((*name).to_owned());
                    }
                    _ => {}
                }
            }
        }
        Some(Self { names, expires: certificate.validity().not_after.timestamp() })
    }
}
