//! The reserve: a file that only takes room, so that there is some when the disk has none.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flotilla_dispatch::{DiskLimits, DiskMonitor, DiskSpace, ReserveAction};
use flotilla_vfs::{FileSystem, OpenMode};

/// The file's name in the data directory.
const NAME: &str = "reserve";

/// The reserve of a data directory.
#[derive(Clone, Debug)]
pub(crate) struct DiskReserve {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
}

impl DiskReserve {
    /// That of `data_dir`, whether it is there or not.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, data_dir: &Path) -> Self {
        Self { fs, path: data_dir.join(NAME) }
    }

    /// Whether it is there, whole.
    pub(crate) fn is_held(&self, bytes: u64) -> bool {
        let file = self.fs.open(&self.path, OpenMode::Read);
        file.and_then(|file| file.len()).is_ok_and(|len| bytes > 0 && len == bytes)
    }

    /// Takes the room of `bytes`, in place of a former reserve.
    ///
    /// # Errors
    ///
    /// The disk has no room for it, or refuses it: then nothing of it is left.
    pub(crate) fn make(&self, bytes: u64) -> io::Result<()> {
        self.release()?;
        let made =
            self.fs.open(&self.path, OpenMode::CreateNew).and_then(|file| file.allocate(0..bytes));
        made.inspect_err(|_| {
            // Half a reserve would count as none, and take room all the same.
            let _ = self.release();
        })
    }

    /// Gives its room back. It is no error if it is not there.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub(crate) fn release(&self) -> io::Result<()> {
        match self.fs.remove(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Gives it up before a start, if the start might find no room otherwise: it writes that it was
    /// made. Where it is of another size than the settings say it goes as well.
    pub(crate) fn make_way(&self, limits: &DiskLimits, space: Option<DiskSpace>) {
        let is_held = self.is_held(limits.reserve_bytes);
        let space = space.map(|space| DiskSpace { is_reserve_held: is_held, ..space });
        let look = space.map(|space| DiskMonitor::default().look(limits, space));
        let is_short = look.is_some_and(|look| look.reserve == Some(ReserveAction::Release));
        if is_held && !is_short {
            return;
        }
        if let Err(error) = self.release() {
            tracing::warn!("the reserve {} cannot be removed: {error}", self.path.display());
        }
    }
}

/// The space of the file system with `data_dir`; none if it does not say.
pub(crate) fn space_of(data_dir: &Path) -> Option<DiskSpace> {
    let disk = rustix::fs::statvfs(data_dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some(DiskSpace {
        total_bytes: bytes(disk.f_blocks),
        free_bytes: bytes(disk.f_bavail),
        ..DiskSpace::default()
    })
}

#[cfg(test)]
mod tests {
    use flotilla_vfs::fault::FaultFs;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_there_whole_or_not_at_all() {
        let disk = FaultFs::new(1);
        disk.create_dir_all(Path::new("/data")).unwrap();
        let reserve = DiskReserve::new(Arc::new(disk.clone()), Path::new("/data"));
        assert!(!reserve.is_held(MIB));
        reserve.release().unwrap();
        disk.set_capacity(Some(MIB / 2));
        assert_eq!(reserve.make(MIB).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.list(Path::new("/data")).unwrap(), Vec::<String>::new());
        disk.set_capacity(None);
        reserve.make(MIB).unwrap();
        reserve.make(MIB).unwrap();
        assert!(reserve.is_held(MIB) && !reserve.is_held(2 * MIB) && !reserve.is_held(0));
        reserve.release().unwrap();
        assert!(!reserve.is_held(MIB));
    }

    #[test]
    fn a_start_on_a_disk_without_room_gives_it_up() {
        let disk = FaultFs::new(1);
        disk.create_dir_all(Path::new("/data")).unwrap();
        let reserve = DiskReserve::new(Arc::new(disk), Path::new("/data"));
        let limits = DiskLimits {
            almost_full_ratio: 0.0,
            full_bytes: 80 * MIB,
            full_ratio: 0.0,
            reserve_bytes: 4 * MIB,
            log_bytes_max: None,
            log_segment_bytes: MIB,
        };
        let space = |free_bytes| {
            Some(DiskSpace { total_bytes: 100 * MIB, free_bytes, ..DiskSpace::default() })
        };
        reserve.make(4 * MIB).unwrap();
        for kept in [space(20 * MIB), None] {
            reserve.make_way(&limits, kept);
            assert!(reserve.is_held(4 * MIB), "{kept:?}");
        }
        reserve.make_way(&limits, space(MIB));
        assert!(!reserve.is_held(4 * MIB));
        reserve.make(5 * MIB).unwrap();
        reserve.make_way(&limits, space(90 * MIB));
        assert!(!reserve.is_held(5 * MIB), "the settings say another size");
    }
}
