//! Shared by the tests: a log on a faulty disk, entries, and nodes.

use flotilla_raftlog::{Config as LogConfig, Durability, LogBatch, LogEngine};
use flotilla_raftlog_raft_rs::{Config, GroupStorage};
use flotilla_vfs::fault::FaultFs;
use raft::eraftpb::{Entry, Message, MessageType};
use raft::{GetEntriesContext, RawNode, Storage};
use std::path::Path;
use std::sync::Arc;

/// The group of the tests that need only one.
pub(crate) const GROUP: u64 = 7;

pub(crate) fn open_log(disk: &FaultFs) -> LogEngine {
    let config = LogConfig::default().segment_bytes(64 << 10).salt(Some(42));
    LogEngine::open_with(Arc::new(disk.clone()), Path::new("/log"), config)
        .expect("the log opens")
        .0
}

/// Everything below the tail is read from disk, everything written leaves the tail.
pub(crate) fn no_tail() -> Config {
    Config { entry_cache_bytes_max: 0, ..Config::default() }
}

pub(crate) fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, data: format!("{index} in {term}").into(), ..Entry::default() }
}

/// Entries `first ..`, one of each term.
pub(crate) fn entries(first: u64, terms: &[u64]) -> Vec<Entry> {
    terms.iter().zip(first..).map(|(term, index)| entry(index, *term)).collect()
}

pub(crate) fn write(log: &LogEngine, batch: LogBatch) {
    log.write(batch, Durability::Synced).wait().expect("the batch is right and the disk works");
}

/// Puts entries into the log, and waits until they are there.
pub(crate) fn append(log: &LogEngine, storage: &mut GroupStorage, entries: &[Entry]) {
    let mut batch = LogBatch::new();
    storage.persist_entries(&mut batch, entries).expect("they meet the log");
    write(log, batch);
}

/// A log whose first entry is 3, with one entry of each of these terms, twice: all from disk, and
/// all from memory.
pub(crate) fn from_three(terms: &[u64]) -> [(LogEngine, GroupStorage); 2] {
    [no_tail(), Config::default()].map(|config| {
        let log = open_log(&FaultFs::new(1));
        let mut batch = LogBatch::new();
        batch.compact_to(GROUP, 3, 2);
        write(&log, batch);
        let mut storage = GroupStorage::open(log.clone(), GROUP, config.clone()).expect("opens");
        append(&log, &mut storage, &entries(3, terms));
        if config.entry_cache_bytes_max == 0 {
            storage = GroupStorage::open(log.clone(), GROUP, config).expect("it opens again");
        }
        (log, storage)
    })
}

pub(crate) fn read(
    storage: &GroupStorage,
    low: u64,
    high: u64,
    max: u64,
) -> raft::Result<Vec<Entry>> {
    storage.entries(low, high, max, GetEntriesContext::empty(false))
}

pub(crate) fn node(id: u64, storage: GroupStorage, applied: u64) -> RawNode<GroupStorage> {
    let config = raft::Config {
        id,
        applied,
        election_tick: 10,
        heartbeat_tick: 3,
        max_size_per_msg: 1 << 10,
        ..raft::Config::default()
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, storage, &logger).expect("the storage has a sound state")
}

/// A message of the term's leader: these entries follow the one at `index`, of `log_term`.
pub(crate) fn append_message(
    to: u64,
    term: u64,
    (index, log_term): (u64, u64),
    entries: Vec<Entry>,
    commit: u64,
) -> Message {
    let mut message = Message { from: 2, to, term, index, log_term, commit, ..Message::default() };
    message.set_msg_type(MessageType::MsgAppend);
    message.set_entries(entries.into());
    message
}
