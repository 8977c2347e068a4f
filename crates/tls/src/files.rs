//! The three PEM files of a party: its certificate, its key, and the authority that it trusts.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::TlsError;

/// Bytes of one file at most: some hundred certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names of PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Certificates of the authorities that sign all parties.
    pub ca: PathBuf,
    /// The party's own certificate, followed by those between it and the authority.
    pub cert: PathBuf,
    /// The key of that certificate (PKCS #8, PKCS #1 or SEC 1).
    pub key: PathBuf,
}

/// The contents of the files.
pub(crate) struct CertificateContents {
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// At least one; the first is the party's own.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// The marks of a file that change when it is written or replaced: device, inode, length, time of
/// change.
pub(crate) type FileVersion = Option<(u64, u64, u64, i64, i64)>;

impl CertificateFiles {
    /// The versions of the three files now.
    pub(crate) fn versions(&self) -> [FileVersion; 3] {
        [&self.ca, &self.cert, &self.key].map(|path| {
            let data = fs::metadata(path).ok()?;
            Some((data.dev(), data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
        })
    }

    /// Reads the three files.
    pub(crate) fn read(&self) -> Result<CertificateContents, TlsError> {
        let authorities = certificates(&self.ca)?;
        let chain = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&bytes(&self.key)?).map_err(|_| {
            let words = "there is no private key in it that can be used without a password";
            content(&self.key, words)
        })?;
        Ok(CertificateContents { authorities, chain, key })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = bytes(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if all.is_empty() => Err(content(path, "there is no certificate in it")),
        Ok(all) => Ok(all),
        Err(error) => Err(content(path, &format!("a certificate in it cannot be read: {error}"))),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(read) if read as u64 == FILE_BYTES_MAX => Err(content(path, "it is too long")),
        Ok(_) => Ok(bytes),
        Err(source) => Err(TlsError::Read { path: path.to_owned(), source }),
    }
}

fn content(path: &Path, words: &str) -> TlsError {
    TlsError::Content { path: path.to_owned(), words: words.to_owned() }
}
