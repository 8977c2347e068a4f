//! Shared by the tests: types, a format, a log on a faulty disk.

use flotilla_raftlog::{Config, LogEngine};
use flotilla_raftlog_openraft::{Flusher, Format, GroupLog};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use flotilla_vfs::hooked::{HookedFs, Operation};
use openraft::storage::RaftLogStorage;
use openraft::testing::log_id;
use openraft::{Entry, EntryPayload, RaftLogReader, Vote};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use tokio::sync::Notify;

openraft::declare_raft_types!(pub(crate) Types);

pub(crate) type Log = GroupLog<Types, Json>;

pub(crate) struct Json;

impl Format for Json {
    fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(value)?)
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

pub(crate) fn config() -> Config {
    Config::default().segment_bytes(64 << 10).salt(Some(42))
}

pub(crate) fn open_with(disk: &FaultFs, config: Config) -> Flusher {
    open_on(Arc::new(disk.clone()), config)
}

fn open_on(disk: Arc<dyn FileSystem>, config: Config) -> Flusher {
    let (log, _) = LogEngine::open_with(disk, Path::new("/log"), config).expect("the log opens");
    Flusher::start(log).expect("there are threads")
}

pub(crate) fn open(disk: &FaultFs) -> Flusher {
    open_with(disk, config())
}

pub(crate) fn group(flusher: &Flusher, group: u64) -> Log {
    Log::open(flusher, group).expect("the group is ours")
}

pub(crate) fn entry(term: u64, index: u64, data: &str) -> Entry<Types> {
    Entry { log_id: log_id(term, 1, index), payload: EntryPayload::Normal(data.to_owned()) }
}

/// Entries `first ..` of one term.
pub(crate) fn entries(term: u64, first: u64, count: u64) -> Vec<Entry<Types>> {
    (first..first + count).map(|index| entry(term, index, &format!("{index} in {term}"))).collect()
}

pub(crate) async fn read_all(log: &mut Log) -> Vec<Entry<Types>> {
    log.try_get_log_entries(..).await.expect("what is there can be read")
}

/// Stands before the flusher's syncs. Those of the thread that maintains the log pass: it makes
/// segments that a flush may wait for.
#[derive(Clone, Default)]
pub(crate) struct SyncGate(Arc<Gate>);

#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    holds: Notify,
}

/// A shut gate. It opens when this is dropped.
pub(crate) struct Shut(SyncGate);

impl SyncGate {
    /// A log on the disk behind an open gate.
    pub(crate) fn before(disk: &FaultFs, config: Config) -> (SyncGate, Flusher) {
        let gate = SyncGate::default();
        let syncs = gate.clone();
        let disk = HookedFs::new(Arc::new(disk.clone()), move |operation| {
            if operation == Operation::Sync && thread::current().name() == Some("raftlog-flusher") {
                syncs.pass();
            }
        });
        (gate, open_on(Arc::new(disk), config))
    }

    /// Shuts the gate and waits until the flusher stands before it with the log in its hands:
    /// no thread writes what is queued from then on until the gate opens.
    pub(crate) async fn shut(&self, flusher: &Flusher) -> Shut {
        *self.0.is_shut.lock().expect("nothing panics with the lock") = true;
        let shut = Shut(self.clone());
        let (mut other, vote) = (group(flusher, 98), Vote::new(1, 1));
        loop {
            tokio::select! {
                () = self.0.holds.notified() => return shut,
                // The other thread came by, vouched for the log, and wrote this too.
                saved = other.save_vote(&vote) => saved.expect("it is synced"),
            }
        }
    }

    fn pass(&self) {
        let mut is_shut = self.0.is_shut.lock().expect("nothing panics with the lock");
        while *is_shut {
            self.0.holds.notify_one();
            is_shut = self.0.opened.wait(is_shut).expect("nothing panics with the lock");
        }
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        *self.0.0.is_shut.lock().expect("nothing panics with the lock") = false;
        self.0.0.opened.notify_all();
    }
}
