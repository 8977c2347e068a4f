//! Reads entries back from the log for followers that are far behind, and looks whether the store
//! has an objection to a replica that is not here.
//!
//! It has a thread of its own, because the entries may have left memory, and a shard must not wait
//! for a disk. A region has few reads under way at once, each bounded in bytes.
//!
//! The entries in the log were acknowledged, and a leader that can never send one would stop its
//! follower for good. So a replica with a damaged one is given up if another store has a replica
//! of its region, and built anew by a snapshot. Else, and if the disk fails, the node ends; only a
//! want of memory passes.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_region::{Envelope, Event, LogFetch};
use flotilla_store::{Error, LogError, Store};

use super::page_damage;
use super::work_queue::WorkQueue;
use crate::driver::shard_message::Mailboxes;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// Least time between two log lines about reads that failed.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A question to the disk.
pub(crate) enum LookupTask {
    /// Entries of the log.
    Fetch(LogFetch),
    /// May the replica that this message is for be made here?
    Admit(Envelope),
}

/// The log reader's thread, before it runs.
pub(crate) struct LogReader {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) queue: Arc<WorkQueue<LookupTask>>,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) failure: NodeFailure,
}

impl LogReader {
    /// Runs until the queue is closed or an entry cannot be read.
    pub(crate) fn run(self) {
        let mut lookups: Vec<LookupTask> = Vec::new();
        let mut logged: Option<Instant> = None;
        while let Some(bytes) = self.queue.take(&mut lookups) {
            for lookup in lookups.drain(..) {
                let event = match lookup {
                    LookupTask::Fetch(fetch) => self.fetch(&fetch, &mut logged),
                    LookupTask::Admit(envelope) => self.admit(envelope),
                };
                let Some(event) = event else { return };
                self.mailboxes.complete_all([event]);
            }
            self.queue.finish(bytes);
        }
    }

    /// None if the node has to stop.
    fn admit(&self, envelope: Envelope) -> Option<Event> {
        match self.store.admit(&envelope) {
            Ok(Ok(())) => Some(Event::Admitted(envelope)),
            Ok(Err(why)) => Some(Event::NotAdmitted { envelope, why }),
            Err(error) => {
                let region = envelope.region;
                self.failure.report(&format!("region {region}: rows cannot be read: {error}"));
                None
            }
        }
    }

    /// None if the node has to stop.
    fn fetch(&self, fetch: &LogFetch, logged: &mut Option<Instant>) -> Option<Event> {
        let (region, peer, context) = (fetch.region, fetch.peer, fetch.context);
        let event = match self.store.fetch(fetch) {
            Ok(entries) if !entries.is_empty() => {
                debug_assert_eq!(entries[0].index, fetch.low, "entries of another range");
                debug_assert!(entries.len() as u64 <= fetch.high.0 - fetch.low.0);
                Event::Fetched { region, peer, context, entries }
            }
            Ok(_) => Event::FetchFailed { region, peer, context },
            // Compacted or replaced in the meantime: raft looks again at what there is.
            Err(error) if error.is_gone() => {
                tracing::debug!(%region, "log entries are not read: {error}");
                Event::FetchFailed { region, peer, context }
            }
            Err(error) => {
                let what = unread(fetch, &error);
                if is_log_damage(&error) && self.gives_up(fetch) {
                    // Reads that were under way meet it as well.
                    if is_line_due(logged) {
                        tracing::error!("{what}; a snapshot of another store takes its place");
                    }
                    return Some(Event::FetchFailed { region, peer, context });
                }
                if !passes(&error) {
                    self.failure.report(&what);
                    return None;
                }
                // Raft asks again with its next heartbeat, which may be often.
                if is_line_due(logged) {
                    let failed = self.store.stats().log_reads_failed;
                    tracing::error!("{what}; {failed} reads of the log have failed so far");
                }
                Event::FetchFailed { region, peer, context }
            }
        };
        Some(event)
    }
}

impl LogReader {
    /// Gives a replica up whose log is damaged, if another store has one of the region.
    fn gives_up(&self, fetch: &LogFetch) -> bool {
        match self.store.give_up_log(fetch.peer) {
            Ok(None) => false,
            Ok(Some(replica)) => {
                self.mailboxes.complete_all([page_damage::event(replica)]);
                true
            }
            Err(error) => {
                let region = fetch.region;
                self.failure.report(&format!("region {region}: rows cannot be read: {error}"));
                true
            }
        }
    }
}

/// Whether the log has other bytes than were written, and it is known which entry they are of.
fn is_log_damage(error: &Error) -> bool {
    matches!(error, Error::Log(LogError::Corrupt { .. }))
}

/// Whether the last line is long enough ago for another one, which then counts as logged.
fn is_line_due(logged: &mut Option<Instant>) -> bool {
    let is_due = logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
    if is_due {
        *logged = Some(Instant::now());
    }
    is_due
}

fn unread(fetch: &LogFetch, error: &Error) -> String {
    let LogFetch { region, low, high, .. } = fetch;
    format!("region {region}: log entries from {low} to below {high} cannot be read: {error}")
}

/// Whether a retry of the read may succeed: the kernel had no memory to map a file.
fn passes(error: &Error) -> bool {
    matches!(error, Error::Log(LogError::Io(error)) if error.kind() == ErrorKind::OutOfMemory)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;

    use flotilla_region::{
        Descriptor, EntryKind, Epoch, HardState, Index, LogEntry, LogWrite, Peer, PeerId, RegionId,
        Space, StoreId, Term,
    };
    use flotilla_vfs::fault::FaultFs;

    use super::*;
    use crate::driver::shard_message::ShardMessage;
    use crate::test_store;
    use flotilla_dispatch::OpenLanes;
    use flotilla_region::RemovedPeers;

    const REGION: RegionId = RegionId(2);
    const PEER: PeerId = PeerId(201);

    /// A fetcher over a log with the entries 1 to 4 of a region.
    fn log_reader(disk: &FaultFs) -> LogReader {
        let region = |id, peer, space| Descriptor {
            removed: RemovedPeers::default(),
            id,
            space,
            start: "".into(),
            end: "".into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: vec![Peer { id: peer, store: StoreId(1) }.into()],
        };
        let regions =
            [region(RegionId(1), PeerId(101), Space::System), region(REGION, PEER, Space::Raw)];
        let store = test_store::open(disk, &regions);
        let entries = (1..5).map(|index| LogEntry {
            index: Index(index),
            term: Term(1),
            kind: EntryKind::Normal,
            data: vec![7; 100].into(),
        });
        let hard_state = Some(HardState { term: Term(1), vote: None, commit: Index(0) });
        let (entries, sync) = (entries.collect(), true);
        let (region, peer, number, reset) = (REGION, PEER, 1, None);
        let write = LogWrite { region, peer, number, hard_state, entries, sync, reset };
        store.write_log(&[write], &[], &[], &[]).wait().expect("a good disk");
        LogReader {
            store: crate::drop_notify::drop_notify(store).0,
            queue: Arc::new(WorkQueue::new()),
            mailboxes: Mailboxes::new(1, 1 << 20),
            failure: NodeFailure::new(|| ()),
        }
    }

    /// Carries out one fetch, with whatever that does.
    fn fetch(log_reader: LogReader, low: u64, high: u64) -> (Option<Event>, Option<String>, u64) {
        let (store, mailboxes) = (Arc::clone(&log_reader.store), log_reader.mailboxes.clone());
        let (failure, (low, high)) = (log_reader.failure.clone(), (Index(low), Index(high)));
        let fetch =
            LogFetch { region: REGION, peer: PEER, context: 9, low, high, bytes_max: 1 << 20 };
        log_reader.queue.push_all([(LookupTask::Fetch(fetch), 1)]);
        log_reader.queue.drain();
        log_reader.run();
        let mut messages = VecDeque::new();
        let open = OpenLanes { appends: true, clients: true };
        mailboxes.at(0).take(&mut messages, open, Some(Instant::now()));
        let event = messages.pop_front().map(|message| match message {
            ShardMessage::Event(event) => event,
            ShardMessage::Inspect(_) | ShardMessage::Reconfigure(..) | ShardMessage::Disks(_) => {
                panic!("nobody looks")
            }
        });
        (event, failure.reason(), store.stats().log_reads_failed)
    }

    #[test]
    fn what_is_there_comes_and_what_is_gone_is_no_failure() {
        let (event, reason, failed) = fetch(log_reader(&FaultFs::new(1)), 2, 5);
        let Some(Event::Fetched { entries, context: 9, .. }) = event else { panic!("{event:?}") };
        assert_eq!((entries.len(), reason, failed), (3, None, 0));
        let (event, reason, failed) = fetch(log_reader(&FaultFs::new(1)), 5, 7);
        assert!(matches!(event, Some(Event::FetchFailed { context: 9, .. })), "{event:?}");
        assert_eq!((reason, failed), (None, 0));
    }

    #[test]
    fn an_entry_that_the_disk_refuses_ends_the_node() {
        let disk = FaultFs::new(1);
        let log_reader = log_reader(&disk);
        disk.fail_reads(true);
        let (event, reason, failed) = fetch(log_reader, 2, 5);
        assert!(event.is_none(), "{event:?}");
        let reason = reason.expect("it has failed");
        let expected = "region 2: log entries from 2 to below 5 cannot be read: log: input";
        assert!(reason.starts_with(expected), "{reason}");
        assert_eq!(failed, 1);
    }

    #[test]
    fn a_want_of_memory_passes_and_nothing_else_does() {
        let of = |error: io::Error| Error::Log(LogError::from(error));
        assert!(passes(&of(ErrorKind::OutOfMemory.into())));
        assert!(!passes(&of(io::Error::from_raw_os_error(5))));
        assert!(!passes(&of(ErrorKind::UnexpectedEof.into())));
        assert!(!passes(&Error::Corrupt("an entry".to_owned())));
    }
}
