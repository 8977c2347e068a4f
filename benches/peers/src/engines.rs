//! The engines that are compared, by name.

#[cfg(feature = "raft-engine")]
mod raft_engine;
mod raftlog;
#[cfg(feature = "rocksdb")]
mod rocksdb;

#[cfg(all(feature = "raft-engine", feature = "mixed"))]
pub(crate) use raft_engine::{Indexed, config as raft_engine_config};
#[cfg(all(feature = "rocksdb", feature = "mixed"))]
pub(crate) use rocksdb::{keys as rocksdb_keys, options as rocksdb_options};

use crate::log::{RaftLog, Result, Settings};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// An engine, set up as its own documentation advises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// This project's log engine.
    Raftlog,
    /// raft-engine, defaults.
    RaftEngine,
    /// raft-engine with files written full of zeros beforehand, so that it never grows one.
    RaftEnginePrefilled,
    /// RocksDB with a key for each entry and the settings that TiKV has for its raft database.
    Rocksdb,
}

impl Contender {
    /// The engines that this program was built with, without the special ones.
    pub fn built() -> Vec<Contender> {
        let mut built = vec![Contender::Raftlog];
        if cfg!(feature = "raft-engine") {
            built.push(Contender::RaftEngine);
        }
        if cfg!(feature = "rocksdb") {
            built.push(Contender::Rocksdb);
        }
        built
    }

    /// Opens the log in `dir`, which is made if missing.
    ///
    /// # Errors
    ///
    /// Errors of the engine, or that this program was built without it.
    pub fn open(self, dir: &Path, settings: Settings) -> Result<Box<dyn RaftLog>> {
        match self {
            Contender::Raftlog => raftlog::open(dir, settings),
            #[cfg(feature = "raft-engine")]
            Contender::RaftEngine => raft_engine::open(dir, settings, false),
            #[cfg(feature = "raft-engine")]
            Contender::RaftEnginePrefilled => raft_engine::open(dir, settings, true),
            #[cfg(feature = "rocksdb")]
            Contender::Rocksdb => rocksdb::open(dir, settings),
            #[cfg(not(all(feature = "raft-engine", feature = "rocksdb")))]
            _ => Err(format!("{self} is not built into this program").into()),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contender::Raftlog => "raftlog",
            Contender::RaftEngine => "raft-engine",
            Contender::RaftEnginePrefilled => "raft-engine-prefilled",
            Contender::Rocksdb => "rocksdb",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Append;
    use bytes::Bytes;

    #[test]
    fn every_engine_keeps_what_it_was_given() {
        for engine in Contender::built() {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let data: Vec<Bytes> =
                (1..=8).map(|i| Bytes::from(vec![i; 100 * i as usize])).collect();
            let log = engine.open(dir.path(), Settings::default()).expect("it opens");
            let state = Some(&b"term 1"[..]);
            for group in 1..=3 {
                let append = Append { group, first: 1, data: &data, state, sync: true };
                log.writer().append(append).expect("appended");
                let append = Append { first: 9, data: &data[..1], sync: false, ..append };
                log.writer().append(append).expect("appended");
            }
            log.compact(2, 4).expect("compacted");
            log.close().expect("closed");

            let log = engine.open(dir.path(), Settings::default()).expect("it opens again");
            assert_eq!(log.last_index(1).expect("an index"), 9, "{engine}");
            assert_eq!(log.last_index(9).expect("an index"), 0, "{engine}");
            let fetched = log.fetch(1, 2..5).expect("they are there");
            assert_eq!((fetched.entries, fetched.bytes), (3, 900), "{engine}");
            assert_eq!(log.fetch(2, 4..10).expect("they are there").entries, 6, "{engine}");
            assert!(log.fetch(2, 3..10).is_err(), "{engine}: compacted");
            assert!(log.fetch(3, 3..11).is_err(), "{engine}: never written");
        }
    }
}
