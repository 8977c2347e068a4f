//! The engines that are compared, by name.

#[cfg(feature = "canopydb")]
mod canopydb;
#[cfg(feature = "lmdb")]
mod lmdb;
mod pagestore;
#[cfg(feature = "redb")]
mod redb;

use crate::serve::serve;
use clap::ValueEnum;
use peers::Result;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// An engine, set up as its own documentation advises.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    /// This project's page store.
    Pagestore,
    /// redb 4.
    Redb,
    /// LMDB.
    Lmdb,
    /// LMDB that writes through its mapping.
    LmdbWritemap,
    /// bbolt with the hashmap freelist, which is not written with commits.
    Bbolt,
    /// bbolt with the hashmap freelist, written with each commit.
    BboltSynced,
    /// bbolt with the array freelist, which is not written with commits.
    BboltArray,
    /// canopydb.
    Canopydb,
}

impl Contender {
    /// The engines that this program was built with. bbolt is a program of its own.
    pub fn built() -> Vec<Contender> {
        let mut built = vec![Contender::Pagestore];
        if cfg!(feature = "redb") {
            built.push(Contender::Redb);
        }
        if cfg!(feature = "lmdb") {
            built.extend([Contender::Lmdb, Contender::LmdbWritemap]);
        }
        if cfg!(feature = "canopydb") {
            built.push(Contender::Canopydb);
        }
        built
    }

    /// Whether it is one of bbolt's.
    pub fn is_bbolt(self) -> bool {
        matches!(self, Contender::Bbolt | Contender::BboltSynced | Contender::BboltArray)
    }

    /// Opens the store in `dir` and does what is asked on standard input until it is closed. If the
    /// process may use only so much memory, the engine is set up for that.
    ///
    /// # Errors
    ///
    /// Errors of the engine, or that this program was built without it.
    pub fn serve(self, dir: &Path, durable: bool, memory_mib: Option<u64>) -> Result<()> {
        match self {
            Contender::Pagestore => serve(|| pagestore::open(dir, durable, memory_mib)),
            #[cfg(feature = "redb")]
            Contender::Redb => serve(|| redb::open(dir, memory_mib)),
            #[cfg(feature = "lmdb")]
            Contender::Lmdb => serve(|| lmdb::open(dir, durable, false, memory_mib)),
            #[cfg(feature = "lmdb")]
            Contender::LmdbWritemap => serve(|| lmdb::open(dir, durable, true, memory_mib)),
            #[cfg(feature = "canopydb")]
            Contender::Canopydb => serve(|| canopydb::open(dir, durable)),
            _ => Err(format!("{self} is not built into this program, durable: {durable}").into()),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contender::Pagestore => "pagestore",
            Contender::Redb => "redb",
            Contender::Lmdb => "lmdb",
            Contender::LmdbWritemap => "lmdb-writemap",
            Contender::Bbolt => "bbolt",
            Contender::BboltSynced => "bbolt-synced",
            Contender::BboltArray => "bbolt-array",
            Contender::Canopydb => "canopydb",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Load, Outcome};
    use crate::loads;
    use crate::store::{Reader, Store};

    fn keeps_what_it_is_given<S: Store>(open: impl Fn(&Path) -> Result<S>) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = open(dir.path()).expect("it opens");
        let done = |store: &S, load| loads::run(store, load).expect("it is done");
        done(&store, Load::Fill { first: 0, keys: 2500, value_bytes: 150, in_order: false });
        done(&store, Load::Prove { keys: 2500 });
        assert!(loads::run(&store, Load::Prove { keys: 2499 }).is_err());
        let commits = Load::Commits {
            keys: 2500,
            value_bytes: 99,
            commits: 3,
            puts: 9,
            reads_ahead: true,
            seed: 1,
            ms: 0,
        };
        done(&store, commits);
        let threads = 2;
        done(
            &store,
            Load::Durable { keys: 2500, value_bytes: 99, threads, ms: 5, seed: 1, batch: false },
        );
        done(&store, Load::Gets { keys: 2500, threads, ms: 5, seed: 1 });
        done(&store, Load::GetBatches { keys: 2500, length: 20, ms: 5, seed: 1 });
        done(&store, Load::Scans { keys: 2500, length: 20, ms: 5, seed: 1 });
        done(&store, Load::Prove { keys: 2500 });
        done(&store, Load::DeleteHalf { keys: 2500 });
        store
            .read(|reader| {
                assert!(!reader.get(&crate::keys::key(8), |_| {})?);
                assert!(reader.get(&crate::keys::key(9), |_| {})?);
                assert_eq!(reader.scan(&[], 9999, |_, _| {})?, 1250);
                Ok(())
            })
            .expect("it reads");
        assert_ne!(done(&store, Load::Status), Outcome::default());
        store.close().expect("it closes");
    }

    #[test]
    fn every_engine_keeps_what_it_is_given() {
        for is_durable in [false, true] {
            keeps_what_it_is_given(|dir| pagestore::open(dir, is_durable, None));
        }
        #[cfg(feature = "redb")]
        keeps_what_it_is_given(|dir| redb::open(dir, None));
        #[cfg(feature = "lmdb")]
        for has_write_map in [false, true] {
            keeps_what_it_is_given(|dir| lmdb::open(dir, true, has_write_map, None));
        }
        #[cfg(feature = "canopydb")]
        keeps_what_it_is_given(|dir| canopydb::open(dir, true));
    }
}
