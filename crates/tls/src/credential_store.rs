//! The newest credentials of a party: read again when their files have changed, kept as they were
//! if the new ones cannot be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::credentials::Credentials;
use crate::error::TlsError;
use crate::files::{CertificateFiles, FileVersion};
use crate::roles::RoleNames;

/// Credentials that follow their files. Cheap to clone; all clones see the same ones.
#[derive(Clone, Debug)]
pub struct CredentialStore {
    shared: Arc<SharedCredentials>,
}

#[derive(Debug)]
struct SharedCredentials {
    files: CertificateFiles,
    /// The store whose certificate it must be, by these names; `None`: it may be any.
    owner: Option<(RoleNames, String)>,
    current: RwLock<Arc<Credentials>>,
    /// The files as they were read last, with success or without. Held while they are read.
    seen: Mutex<[FileVersion; 3]>,
    /// Times that new files have come into use, and that they could not.
    reloads: AtomicU64,
    failures: AtomicU64,
}

impl CredentialStore {
    /// Reads the files for the first time.
    ///
    /// # Errors
    ///
    /// As [`Credentials::read`].
    pub fn open(files: CertificateFiles) -> Result<Self, TlsError> {
        Self::open_of(files, None)
    }

    /// The same, of a certificate that must be that of the store `name`, now and whenever it is
    /// renewed: the other stores hear no other.
    ///
    /// # Errors
    ///
    /// As [`Credentials::read`], and if it is another one's.
    pub fn open_of_store(
        files: CertificateFiles,
        roles: RoleNames,
        name: &str,
    ) -> Result<Self, TlsError> {
        Self::open_of(files, Some((roles, name.to_owned())))
    }

    fn open_of(
        files: CertificateFiles,
        owner: Option<(RoleNames, String)>,
    ) -> Result<Self, TlsError> {
        // Before they are read: a change in between is then seen as one.
        let seen = files.versions();
        let current = Arc::new(read(&files, owner.as_ref())?);
        let shared = SharedCredentials {
            files,
            owner,
            current: RwLock::new(current),
            seen: Mutex::new(seen),
            reloads: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The newest credentials. Connections that are open keep those that they began with.
    #[must_use]
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.shared.current.read())
    }

    /// Reads the files if they have changed since they were read last. Whether they had. Blocks.
    ///
    /// # Errors
    ///
    /// As [`Credentials::read`]; the credentials stay as they were. Asking again says nothing new
    /// until a file changes.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let mut seen = self.shared.seen.lock();
        let versions = self.shared.files.versions();
        if *seen == versions {
            return Ok(false);
        }
        *seen = versions;
        match read(&self.shared.files, self.shared.owner.as_ref()) {
            Ok(credentials) => {
                *self.shared.current.write() = Arc::new(credentials);
                self.shared.reloads.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) => {
                self.shared.failures.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Times that new files have come into use, and that they could not.
    #[must_use]
    pub fn reload_counts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.shared.reloads), count(&self.shared.failures))
    }
}

fn read(
    files: &CertificateFiles,
    owner: Option<&(RoleNames, String)>,
) -> Result<Credentials, TlsError> {
    let credentials = Credentials::read(files)?;
    if let Some((roles, name)) = owner {
        let identity = roles.identify(credentials.names.clone());
        if !identity.is_store(name) {
            let words = format!(
                "it is no certificate of store {name}: it has the names {}, and a store's is {}",
                identity.names(),
                roles.store
            );
            return Err(TlsError::Unusable { path: files.cert.clone(), words });
        }
    }
    Ok(credentials)
}
