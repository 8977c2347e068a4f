//! Restore: makes a file of the streams of a backup.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::{File, FileSystem, OpenMode};

use super::backup::BackupIndex;
use super::copy::NewFile;
use super::file::PageFile;
use super::walk::{FileWalk, ScanProgress};
use crate::error::{Error, Result};
use crate::memory::meta::MetaPage;
use crate::page::layout::{META_UNITS, group_count, group_of};
use crate::page::leaf::ValueExtent;
use crate::page::unit_set::UnitSet;
use crate::page::{UNIT_BYTES, units_for};
use crate::space::alloc_groups::AllocGroups;
use crate::space::freelist::Freelist;
use crate::store;

/// Report of [`restore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The last transaction in it: that of the last stream's snapshot.
    pub txid: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// Makes the new file `to` of the streams of a backup: one that is whole, and those that follow it,
/// in order. When this returns it is durable, and every page and long value was read back and
/// checked. Until then it is called `to.part`; if this fails it is taken away.
///
/// # Errors
///
/// Those of [`BackupIndex::read`]; [`Error::Corrupt`] if the streams do not make a whole state;
/// [`Error::Io`], of the kind `AlreadyExists` if there is a file `to`.
pub fn restore(
    fs: &Arc<dyn FileSystem>,
    streams: &mut [&mut dyn Read],
    to: &Path,
    look: &mut dyn FnMut(ScanProgress),
) -> Result<RestoreReport> {
    let new = NewFile::begin(fs, to)?;
    let file = fs.open(new.part(), OpenMode::CreateNew)?;
    let mut index = BackupIndex::default();
    let mut last = None;
    let mut end = META_UNITS;
    for (i, stream) in streams.iter_mut().enumerate() {
        let mut put = |unit: u64, bytes: &[u8]| {
            end = end.max(unit + u64::from(units_for(bytes.len())));
            file.write_at(bytes, unit * UNIT_BYTES as u64).map_err(Error::from)
        };
        last = Some(index.follow(i as u64, *stream, &mut put)?);
    }
    let last = last.ok_or(Error::Backup { stream: 0, what: "it is missing" })?;
    let mut meta = MetaPage {
        number: 1,
        txid: last.txid,
        catalogue: last.catalogue,
        deferred_free: last.deferred_free,
        commit_metadata: last.commit_metadata,
        end,
        ..MetaPage::empty()
    };
    // Long values end where they end, and the last unit may be theirs.
    file.set_len(end * UNIT_BYTES as u64)?;
    let used = reached(&file, &meta, fs, new.part(), look)?;
    write_meta(&*file, &mut meta, used)?;
    drop(file);
    new.finish()?;
    Ok(RestoreReport { txid: meta.txid, bytes: meta.end * UNIT_BYTES as u64 })
}

/// Proves that all is there that the state reaches. Returns the units of it, counted from the first
/// group on.
fn reached(
    file: &Arc<dyn File>,
    meta: &MetaPage,
    fs: &Arc<dyn FileSystem>,
    part: &Path,
    look: &mut dyn FnMut(ScanProgress),
) -> Result<UnitSet> {
    let pages = PageFile::of(Arc::clone(file), meta.clone(), store::lock(&**fs, part)?)?;
    let mut walk = FileWalk::new(&pages, true, look);
    let mut all = |_: super::walk::Visit<'_>| ControlFlow::Continue(());
    let trees = walk.catalogue(&mut all);
    for (name, entry) in &trees {
        let _ = walk.tree(name, *entry, &mut all);
    }
    walk.deferred_free(&mut all);
    if let Some(problem) = walk.problems.named.first() {
        return Err(Error::Corrupt { page: problem.page, what: problem.what });
    }
    let mut used = UnitSet::default();
    for unit in walk.seen.iter() {
        used.insert(unit - META_UNITS);
    }
    Ok(used)
}

/// Writes free space and meta page of a file that has all else, and makes it durable.
fn write_meta(file: &dyn File, meta: &mut MetaPage, mut used: UnitSet) -> Result<()> {
    let mut changed = UnitSet::default();
    for unit in used.iter() {
        changed.insert(group_of(unit + META_UNITS) as u64);
    }
    let mut groups = AllocGroups::default();
    let plan = groups.plan(&changed, &used);
    let mut free = Freelist::restore(&used, meta.end);
    let len = plan.directory_bytes(group_count(meta.end) + 1, 0);
    let full = "the file's limit of 2^32 pages is reached";
    let span = free.allocate(units_for(len)).ok_or(Error::Io(std::io::Error::other(full)))?;
    for unit in span.start..span.end() {
        used.insert(unit - META_UNITS);
    }
    changed.insert(group_of(span.start) as u64);
    let bitmaps = groups.update(&plan, &changed, &used, meta.txid);
    meta.end = free.end();
    let directory = groups.encode(group_count(meta.end), len);
    meta.directory = ValueExtent {
        start: span.start,
        len: u32::try_from(len).expect("some bytes for each 127 MiB of at most 16 TiB"),
        crc: crc32c::crc32c(&directory),
        created_txid: meta.txid,
    };
    file.set_len(meta.end * UNIT_BYTES as u64)?;
    for (unit, bytes) in bitmaps.iter().chain([&(span.start, directory)]) {
        file.write_at(bytes, unit * UNIT_BYTES as u64)?;
    }
    file.sync()?;
    file.write_at(&meta.encode(), meta.unit() * UNIT_BYTES as u64)?;
    file.sync()?;
    Ok(())
}
