//! Shared by the tests: a small log on a faulty disk, and short ways to write to it.

use bytes::Bytes;
use flotilla_raftlog::{Config, Durability, Entry, Error, LogBatch, LogEngine, RecoveryReport};
use flotilla_vfs::fault::FaultFs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the log of a test lies on its disk.
pub(crate) const DIR: &str = "/log";

/// Segments as small as they may be, nothing compressed, and nothing left to chance.
pub(crate) fn small() -> Config {
    let compress_above_bytes = u64::MAX;
    Config::default().segment_bytes(4096).compress_above_bytes(compress_above_bytes).salt(Some(42))
}

/// The same, with much compressed, and a cache for a few blocks.
pub(crate) fn squeezed() -> Config {
    small().compress_above_bytes(700).cache_bytes_max(8 << 10)
}

/// The same, and whatever lies in old segments is moved all the time, a little in each purge.
pub(crate) fn moving() -> Config {
    squeezed().purge_above_bytes(5000).move_bytes_max(700).move_live_ratio_max(0.8)
}

pub(crate) fn open(disk: &FaultFs) -> Result<(LogEngine, RecoveryReport), Error> {
    open_with(disk, small())
}

pub(crate) fn open_with(
    disk: &FaultFs,
    config: Config,
) -> Result<(LogEngine, RecoveryReport), Error> {
    LogEngine::open_with(Arc::new(disk.clone()), Path::new(DIR), config)
}

pub(crate) fn reopen(disk: &FaultFs) -> LogEngine {
    open(disk).expect("the log opens").0
}

pub(crate) fn segment_path(segment: u64) -> PathBuf {
    Path::new(DIR).join(format!("{segment:020}.log"))
}

/// Entries `first ..` of one term, one for each length.
pub(crate) fn entries(first: u64, term: u64, lengths: &[usize]) -> Vec<Entry> {
    lengths.iter().zip(first..).map(|(len, index)| entry(index, term, *len)).collect()
}

/// An entry whose data follows from its index and term, and has no zeros.
pub(crate) fn entry(index: u64, term: u64, len: usize) -> Entry {
    let byte = (index.wrapping_mul(31) ^ term.wrapping_mul(7)) as u8 | 1;
    Entry { index, term, kind: (index % 3) as u8, data: Bytes::from(vec![byte; len]) }
}

/// An entry whose data cannot be compressed.
pub(crate) fn random_entry(index: u64, term: u64, len: usize) -> Entry {
    let mut data = vec![0; len];
    fastrand::Rng::with_seed(index).fill(&mut data);
    Entry { data: data.into(), ..entry(index, term, 0) }
}

/// An entry of words, which lz4 makes smaller by half or so.
pub(crate) fn text_entry(index: u64, term: u64, len: usize) -> Entry {
    const WORDS: [&[u8]; 8] =
        [b"log ", b"entry ", b"of ", b"a ", b"group, ", b"index ", b"and ", b"term. "];
    let mut rng = fastrand::Rng::with_seed(index);
    let mut data = Vec::with_capacity(len + 8);
    while data.len() < len {
        data.extend_from_slice(WORDS[rng.usize(..8)]);
    }
    data.truncate(len);
    Entry { data: data.into(), ..entry(index, term, 0) }
}

pub(crate) fn batch(build: impl FnOnce(&mut LogBatch)) -> LogBatch {
    let mut batch = LogBatch::new();
    build(&mut batch);
    batch
}

/// Writes one batch and waits until it is synced.
pub(crate) fn write(log: &LogEngine, build: impl FnOnce(&mut LogBatch)) -> Result<u64, Error> {
    Ok(log.write(batch(build), Durability::Synced).wait()?.lsn)
}

/// All entries of a group.
pub(crate) fn read_all(log: &LogEngine, group: u64) -> Vec<Entry> {
    let group = log.group(group).expect("the group exists");
    let range = group.first_index()..group.last_index() + 1;
    group.entries(range, u64::MAX).expect("what is in the index can be read")
}
