//! A certificate and its key as two files of one directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::tool::Error;

/// Two files. They are written whole or not at all, and replaced only if that is asked for.
pub(super) struct PemPair {
    dir: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl PemPair {
    pub(super) fn in_dir(dir: &Path, name: &str) -> Self {
        let file = |suffix: &str| dir.join(format!("{name}{suffix}.pem"));
        Self { dir: dir.to_owned(), cert: file(""), key: file("-key") }
    }

    pub(super) fn cert(&self) -> &Path {
        &self.cert
    }

    pub(super) fn key(&self) -> &Path {
        &self.key
    }

    /// The contents of both.
    pub(super) fn read(&self) -> Result<(String, String), Error> {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|error| failed("cannot be read", path, &error))
        };
        Ok((read(&self.cert)?, read(&self.key)?))
    }

    /// Writes both; the key for its owner's eyes only.
    pub(super) fn write(&self, cert: &str, key: &str, replaces: bool) -> Result<(), Error> {
        let there = [&self.cert, &self.key].into_iter().find(|path| path.exists());
        if let Some(path) = there.filter(|_| !replaces) {
            return Err(Error::Argument(format!(
                "{} is there; --renew replaces it",
                path.display()
            )));
        }
        fs::create_dir_all(&self.dir)
            .map_err(|error| failed("cannot be made", &self.dir, &error))?;
        // A store that reads in between finds a key that is not that of the certificate, goes on
        // with those it has, and reads again.
        for (path, text, mode) in [(&self.key, key, 0o600), (&self.cert, cert, 0o644)] {
            replace(path, text, mode).map_err(|error| failed("cannot be written", path, &error))?;
        }
        let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
        synced.map_err(|error| failed("cannot be synced", &self.dir, &error))
    }
}

fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_extension("pem.new");
    // Left by an attempt that was cut short.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::Refused(format!("{} {what}: {error}", path.display()))
}
