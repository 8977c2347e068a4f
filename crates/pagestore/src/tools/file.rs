//! A page file that is open for reading only.

use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::{File, FileSystem, LockGuard, OpenMode};

use crate::config::{Options, ReadMode};
use crate::error::{Error, Result};
use crate::memory::meta::MetaPage;
use crate::memory::page_reader::PageReader;
use crate::page::layout::group_count;
use crate::page::unit_set::UnitSet;
use crate::space::alloc_groups::AllocGroups;
use crate::store::{self, read_meta_pages};

/// A page file as its last checkpoint has left it. Nothing in it is changed.
///
/// The redo records beyond that checkpoint are counted by [`PageFile::info`] and checked by
/// [`PageFile::check`], but not part of the trees: opening a store replays them.
pub struct PageFile {
    pub(super) page_reader: PageReader,
    /// The two meta pages; nothing where none of a page's copies is whole.
    pub(super) metas: [Option<MetaPage>; 2],
    /// The one that counts.
    pub(super) meta: MetaPage,
    /// A mask of the whole copies of each.
    pub(super) copies: [u8; 2],
    /// Length of the file.
    pub(super) bytes: u64,
    _lock: Box<dyn LockGuard>,
}

impl PageFile {
    /// Opens the file `path` for reading. The lock file `path.lock` is made if missing.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] while a store, or another tool, has it open; [`Error::Corrupt`] if neither
    /// meta page is whole; [`Error::Unsupported`]; [`Error::Io`], of the kind `NotFound` if there
    /// is no such file.
    pub fn open(fs: &dyn FileSystem, path: &Path) -> Result<PageFile> {
        PageFile::open_at(fs, path, MetaPage::newest)
    }

    /// Opens the file at the state of the older of its meta pages: that of one checkpoint before.
    /// Pages that only that state had may have been overwritten since; [`PageFile::check`] says.
    ///
    /// # Errors
    ///
    /// Those of [`PageFile::open`]; [`Error::Corrupt`] also if only one meta page is whole.
    pub fn open_older(fs: &dyn FileSystem, path: &Path) -> Result<PageFile> {
        PageFile::open_at(fs, path, |pages| {
            let [first, second] = MetaPage::both(pages)?;
            let what = "there is no older meta page that is whole";
            let both = first.zip(second).ok_or(Error::Corrupt { page: 0, what })?;
            Ok(if both.0.number < both.1.number { both.0 } else { both.1 })
        })
    }

    fn open_at(
        fs: &dyn FileSystem,
        path: &Path,
        choose: impl FnOnce(&[u8]) -> Result<MetaPage>,
    ) -> Result<PageFile> {
        let file = fs.open(path, OpenMode::Read)?;
        let lock = store::lock(fs, path)?;
        let pages = read_meta_pages(&*file)?;
        let (metas, copies) = (MetaPage::both(&pages)?, MetaPage::copies(&pages));
        Ok(PageFile { metas, copies, ..PageFile::of(file, choose(&pages)?, lock)? })
    }

    /// A file that has no meta page yet, as one that says `meta`.
    pub(super) fn of(
        file: Arc<dyn File>,
        meta: MetaPage,
        lock: Box<dyn LockGuard>,
    ) -> Result<PageFile> {
        meta.verify_places()?;
        let bytes = file.len()?;
        // Read, not mapped: a medium that fails is then an error and not a signal.
        let page_reader = PageReader::new(file, &Options::default().read_mode(ReadMode::Cached))?;
        Ok(PageFile { page_reader, metas: [None, None], meta, copies: [0, 0], bytes, _lock: lock })
    }

    /// The last transaction that the state contains.
    pub fn txid(&self) -> u64 {
        self.meta.txid
    }

    /// The commit metadata of the state.
    pub fn commit_metadata(&self) -> &[u8] {
        &self.meta.commit_metadata
    }

    /// The units in use, counted from the first group on, as the file says.
    pub(super) fn used(&self) -> Result<UnitSet> {
        if self.meta.directory.len == 0 {
            return Ok(UnitSet::default());
        }
        let directory = self.page_reader.read_extent(&self.meta.directory)?;
        let (at, count) = (self.meta.directory.start, group_count(self.meta.end));
        let loaded =
            AllocGroups::load(&directory, at, count, self.page_reader.file(), self.meta.txid);
        loaded.map(|(_, used)| used)
    }
}

impl std::fmt::Debug for PageFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageFile").field("meta", &self.meta).finish_non_exhaustive()
    }
}
