//! Making a file of the streams of a backup.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use flotilla_vfs::{File, FileSystem, OpenMode};

use super::backup::BackupIndex;
use super::copy::NewFile;
use super::file::PageFile;
use super::walk::{Progress, Walk};
use crate::bits::Bits;
use crate::error::{Error, Result};
use crate::freelist::{Freelist, META_UNITS, region_of};
use crate::leaf::Extent;
use crate::meta::Meta;
use crate::page::{UNIT_BYTES, units_for};
use crate::regions::{Regions, region_count};

/// What [`restore`] has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The last transaction in it: that of the last stream's snapshot.
    pub txid: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// Makes the new file `to` of the streams of a backup: one that is whole, and those that follow it, in
/// order. When this returns it is durable, and every page and long value was read back and checked.
/// Until then it is called `to.part`; if this fails it is taken away.
///
/// # Errors
///
/// Those of [`BackupIndex::read`]; [`Error::Corrupt`] if the streams do not make a whole state;
/// [`Error::Io`], of the kind `AlreadyExists` if there is a file `to`.
pub fn restore(
    fs: &Arc<dyn FileSystem>,
    streams: &mut [&mut dyn Read],
    to: &Path,
    look: &mut dyn FnMut(Progress),
) -> Result<Restored> {
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
    let mut meta = Meta {
        number: 1,
        txid: last.txid,
        catalogue: last.catalogue,
        trash: last.trash,
        mark: last.mark,
        end,
        ..Meta::empty()
    };
    // Long values end where they end, and the last unit may be theirs.
    file.set_len(end * UNIT_BYTES as u64)?;
    let used = reached(&file, &meta, fs, new.part(), look)?;
    seal(&*file, &mut meta, used)?;
    drop(file);
    new.finish()?;
    Ok(Restored { txid: meta.txid, bytes: meta.end * UNIT_BYTES as u64 })
}

/// Proves that all is there that the state reaches. Returns the units of it, counted from the first
/// region on.
fn reached(
    file: &Arc<dyn File>,
    meta: &Meta,
    fs: &Arc<dyn FileSystem>,
    part: &Path,
    look: &mut dyn FnMut(Progress),
) -> Result<Bits> {
    let pages = PageFile::of(Arc::clone(file), meta.clone(), super::file::lock(&**fs, part)?)?;
    let mut walk = Walk::new(&pages, true, look);
    let mut all = |_: super::walk::Visit<'_>| ControlFlow::Continue(());
    let trees = walk.catalogue(&mut all);
    for (name, entry) in &trees {
        let _ = walk.tree(name, *entry, &mut all);
    }
    walk.trash(&mut all);
    if let Some(problem) = walk.problems.named.first() {
        return Err(Error::Corrupt { page: problem.page, what: problem.what });
    }
    let mut used = Bits::default();
    for unit in walk.seen.iter() {
        used.insert(unit - META_UNITS);
    }
    Ok(used)
}

/// Writes free space and meta page of a file that has all else, and makes it durable.
fn seal(file: &dyn File, meta: &mut Meta, mut used: Bits) -> Result<()> {
    let mut changed = Bits::default();
    for unit in used.iter() {
        changed.insert(region_of(unit + META_UNITS) as u64);
    }
    let mut regions = Regions::default();
    let plan = regions.plan(&changed, &used);
    let mut free = Freelist::restore(&used, meta.end);
    let len = plan.directory_bytes(region_count(meta.end) + 1, 0);
    let full = "the file's limit of 2^32 pages is reached";
    let span = free.allocate(units_for(len)).ok_or(Error::Io(std::io::Error::other(full)))?;
    for unit in span.start..span.end() {
        used.insert(unit - META_UNITS);
    }
    changed.insert(region_of(span.start) as u64);
    let bitmaps = regions.update(&plan, &changed, &used, meta.txid);
    meta.end = free.end();
    let directory = regions.encode(region_count(meta.end), len);
    meta.directory = Extent {
        start: span.start,
        len: u32::try_from(len).expect("some bytes for each 127 MiB of at most 16 TiB"),
        crc: crc32c::crc32c(&directory),
        birth: meta.txid,
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
