//! What the tests share: types, a format, a log on a faulty disk.

use flotilla_raftlog::{Config, LogEngine};
use flotilla_raftlog_openraft::{Flusher, Format, GroupLog};
use flotilla_vfs::fault::FaultFs;
use openraft::testing::log_id;
use openraft::{Entry, EntryPayload, RaftLogReader};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::Arc;

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
    Config { segment_bytes: 64 << 10, salt: Some(42), ..Config::default() }
}

pub(crate) fn open_with(disk: &FaultFs, config: Config) -> Flusher {
    let disk = Arc::new(disk.clone());
    let (log, _) = LogEngine::open(disk, Path::new("/log"), config).expect("the log opens");
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
