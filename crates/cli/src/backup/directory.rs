//! The files of backups in a directory: written once under their names, a manifest behind all that
//! it names, and one process at a time that writes.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flotilla_backup::{
    BackupError, BackupManifest, BackupRegion, DATA_DIR, DataFileReader, JOURNAL, JournalHead,
    encode_block, encode_end, encode_head, encode_record, file_header, manifest_name,
    manifest_number, read_journal,
};
use flotilla_client::ColumnFamily;
use flotilla_vfs::OpenMode;

use crate::offline::{self, named};
use crate::tool::Error;

/// A data file that is not finished.
const DATA_DRAFT: &str = "data-draft";
/// A manifest that is not finished.
const MANIFEST_DRAFT: &str = "manifest-draft";
/// Bytes of a data file that are written at a time.
const PIECE_BYTES: usize = 1 << 20;
/// The file that the process which writes has locked.
const LOCK: &str = "lock";

/// A directory with backups.
#[derive(Debug)]
pub(super) struct BackupDirectory {
    dir: PathBuf,
    /// Locked while this process writes.
    _lock: Option<File>,
}

impl BackupDirectory {
    /// For reading.
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        fs::read_dir(dir).map_err(|error| named(dir, &error))?;
        Ok(Self { dir: dir.to_owned(), _lock: None })
    }

    /// For a backup that is to be made there; the directory is made if it is missing.
    pub(super) fn open_to_write(dir: &Path) -> Result<Self, Error> {
        let data = dir.join(DATA_DIR);
        // For the user alone: it holds rows.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&data);
        made.map_err(|error| named(&data, &error))?;
        let path = dir.join(LOCK);
        let lock = File::options().create(true).append(true).mode(0o600).open(&path);
        let lock = lock.map_err(|error| named(&path, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let words = format!("{}: another backup is being made there", dir.display());
                return Err(Error::Refused(words));
            }
            Err(TryLockError::Error(error)) => return Err(named(&path, &error)),
        }
        let directory = Self { dir: dir.to_owned(), _lock: Some(lock) };
        directory.sync(&directory.dir)?;
        Ok(directory)
    }

    /// The numbers of all backups, in order.
    pub(super) fn numbers(&self) -> Result<Vec<u64>, Error> {
        let failed = |error| named(&self.dir, &error);
        let mut numbers = vec![];
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            numbers.extend(name.to_str().and_then(manifest_number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The backup of this number.
    pub(super) fn manifest(&self, number: u64) -> Result<BackupManifest, Error> {
        let path = self.dir.join(manifest_name(number));
        let bytes = fs::read(&path).map_err(|error| named(&path, &error))?;
        let manifest = BackupManifest::decode(bytes.into()).map_err(|error| at(&path, &error))?;
        if manifest.number != number {
            let words = format!("{}: it is the manifest {}", path.display(), manifest.number);
            return Err(Error::Data(words));
        }
        Ok(manifest)
    }

    /// The backup of this number, or the last one.
    pub(super) fn manifest_or_last(&self, number: Option<u64>) -> Result<BackupManifest, Error> {
        let last = || Ok::<_, Error>(self.numbers()?.last().copied());
        let number = number.map_or_else(last, |number| Ok(Some(number)))?;
        let words = || format!("{}: there is no backup that is whole", self.dir.display());
        self.manifest(number.ok_or_else(|| Error::Absent(words()))?)
    }

    /// The path of a region's data file.
    pub(super) fn data_path(&self, region: &BackupRegion) -> PathBuf {
        self.dir.join(DATA_DIR).join(region.file_name())
    }

    /// Whether a region's data file is there in its length.
    pub(super) fn has_data(&self, region: &BackupRegion) -> bool {
        let found = fs::metadata(self.data_path(region));
        found.is_ok_and(|found| found.is_file() && found.len() == region.file_bytes)
    }

    /// Begins to read a region's data file.
    pub(super) fn read_data(
        &self,
        region: &BackupRegion,
    ) -> Result<DataFileReader<BufReader<File>>, BackupError> {
        let file = File::open(self.data_path(region))?;
        DataFileReader::open(BufReader::with_capacity(1 << 20, file))
    }

    /// Begins a data file. One that was begun before is given up.
    pub(super) fn create_data(&self) -> Result<DataFileWriter, Error> {
        let path = self.dir.join(DATA_DRAFT);
        let failed = |error| named(&path, &error);
        fs::remove_file(&path).or_else(absent_is_well).map_err(failed)?;
        let file = offline::disk().open(&path, OpenMode::CreateNew).map_err(failed)?;
        Ok(DataFileWriter { path, file, waiting: file_header().to_vec(), written_bytes: 0 })
    }

    /// Makes a finished data file durable under its name. Returns its length.
    pub(super) fn keep_data(
        &self,
        mut draft: DataFileWriter,
        region: &BackupRegion,
    ) -> Result<u64, Error> {
        draft.push(&encode_end(region.totals))?;
        draft.write()?;
        let DataFileWriter { path, file, written_bytes: bytes, .. } = draft;
        file.sync().map_err(|error| named(&path, &error))?;
        let region = BackupRegion { file_bytes: bytes, ..region.clone() };
        let kept = self.data_path(&region);
        // One of the same name has the same rows, and is not written again.
        if self.has_data(&region) {
            fs::remove_file(&path).map_err(|error| named(&path, &error))?;
        } else {
            fs::rename(&path, &kept).map_err(|error| named(&kept, &error))?;
        }
        self.sync(&self.dir.join(DATA_DIR))?;
        Ok(bytes)
    }

    /// Goes on with the backup of this cluster that was interrupted, or begins one: its head, and
    /// the regions that are finished.
    pub(super) fn journal(
        &self,
        fresh: JournalHead,
    ) -> Result<(JournalWriter, JournalHead, Vec<BackupRegion>), Error> {
        let path = self.dir.join(JOURNAL);
        let failed = |error| named(&path, &error);
        let bytes = match fs::read(&path) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Bytes::new(),
            Err(error) => return Err(failed(error)),
        };
        let found = read_journal(&bytes).map_err(|error| at(&path, &error))?;
        let Some((head, finished, whole_bytes)) = found else {
            let mut file = draft(&path)?;
            file.write_all(&encode_head(fresh)).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            self.sync(&self.dir)?;
            return Ok((JournalWriter { path, file }, fresh, vec![]));
        };
        if head.cluster_id != fresh.cluster_id {
            return Err(Error::Refused(format!(
                "{}: a backup of cluster {} was begun there, and this is cluster {}",
                path.display(),
                head.cluster_id,
                fresh.cluster_id
            )));
        }
        let file = File::options().append(true).open(&path).map_err(failed)?;
        file.set_len(whole_bytes as u64).map_err(failed)?;
        let finished = finished.into_iter().filter(|region| self.has_data(region)).collect();
        Ok((JournalWriter { path, file }, head, finished))
    }

    /// Makes a manifest durable, which ends its backup.
    pub(super) fn keep_manifest(&self, manifest: &BackupManifest) -> Result<(), Error> {
        let (path, kept) = (self.dir.join(MANIFEST_DRAFT), manifest_name(manifest.number));
        let mut file = draft(&path)?;
        let written = file.write_all(&manifest.encode()).and_then(|()| file.sync_all());
        written.map_err(|error| named(&path, &error))?;
        let kept = self.dir.join(kept);
        fs::rename(&path, &kept).map_err(|error| named(&kept, &error))?;
        self.sync(&self.dir)?;
        let journal = self.dir.join(JOURNAL);
        fs::remove_file(&journal).map_err(|error| named(&journal, &error))?;
        self.sync(&self.dir)
    }

    fn sync(&self, dir: &Path) -> Result<(), Error> {
        offline::disk().sync_dir(dir).map_err(|error| named(dir, &error))
    }
}

/// An empty file for the user alone, in the place of one that was not finished.
fn draft(path: &Path) -> Result<File, Error> {
    let made = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    made.map_err(|error| named(path, &error))
}

/// Nothing is to be removed where nothing is.
fn absent_is_well(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The error of a file's bytes, with its path.
pub(super) fn at(path: &Path, error: &BackupError) -> Error {
    match error {
        BackupError::Io(error) => named(path, error),
        error => Error::Data(format!("{}: {error}", path.display())),
    }
}

/// A data file that is being written, to the device as it comes: one sync of all of it would be a
/// burst that holds up the logs of stores on the same disk.
#[derive(Debug)]
pub(super) struct DataFileWriter {
    path: PathBuf,
    file: Arc<dyn flotilla_vfs::File>,
    /// Bytes behind those that are written.
    waiting: Vec<u8>,
    written_bytes: u64,
}

impl DataFileWriter {
    /// Appends a block.
    pub(super) fn block(&mut self, family: ColumnFamily, rows: &[u8]) -> Result<(), Error> {
        self.push(&encode_block(family, rows))
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() < PIECE_BYTES { Ok(()) } else { self.write() }
    }

    /// Writes all bytes, and waits until the device has them.
    fn write(&mut self) -> Result<(), Error> {
        let range = self.written_bytes..self.written_bytes + self.waiting.len() as u64;
        let written = self.file.write_at(&self.waiting, range.start);
        let written = written.and_then(|()| self.file.write_back(range.clone()));
        written.map_err(|error| named(&self.path, &error))?;
        self.written_bytes = range.end;
        self.waiting.clear();
        Ok(())
    }
}

/// The list of the regions that are finished.
#[derive(Debug)]
pub(super) struct JournalWriter {
    path: PathBuf,
    file: File,
}

impl JournalWriter {
    /// Makes durable that a region is finished, whose data file is.
    pub(super) fn finish(&mut self, region: &BackupRegion) -> Result<(), Error> {
        let written = self.file.write_all(&encode_record(region));
        written.and_then(|()| self.file.sync_data()).map_err(|error| named(&self.path, &error))
    }
}
