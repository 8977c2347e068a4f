//! Read-ahead of the rows that a batch of entries changes.
//!
//! Each put reads its leaf when its turn comes, so where the rows are not in memory the disk would
//! be asked for one after the other: at 80 us a read that is 12,000 rows a second, though it has
//! several times as many for who asks for them at once. So the pages of all rows of a batch are
//! read before its first entry is carried out, wherever the disk had to be asked for those of the
//! batch before, or for some of this one. In memory that costs the way down for three rows a batch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use flotilla_identity::SYSTEM_REGION;
use flotilla_kv::raw::{self, RawOp};
use flotilla_pagestore::WriteTxn;
use flotilla_region::entry_data;
use flotilla_region::{AdminCommand, ApplyTask, LogEntry, Space};

use crate::schema::{self, FamilyTrees};

/// Keys by the tree that holds a row of each.
type KeysByTree = BTreeMap<&'static str, Vec<Bytes>>;

/// Whether rows have to be read ahead, as far as the last batch tells.
#[derive(Debug, Default)]
pub(crate) struct RowReadAhead {
    /// One thread applies, and nothing else follows from it, so its accesses have no order.
    was_asked: AtomicBool,
}

impl RowReadAhead {
    /// Reads the pages of the rows that these tasks change, if they are not in memory. A page that
    /// cannot be read is left to the entry that meets it.
    pub(crate) fn read(&self, txn: &mut WriteTxn<'_>, tasks: &[ApplyTask]) {
        if !self.was_asked.load(Ordering::Relaxed) && !read_pages(txn, some_rows(tasks)) {
            return;
        }
        let is_asked = read_pages(txn, entries_with_rows(tasks).flat_map(rows_of));
        self.was_asked.store(is_asked, Ordering::Relaxed);
    }
}

/// The first two rows, and one of the last entry.
fn some_rows(tasks: &[ApplyTask]) -> impl Iterator<Item = (&'static FamilyTrees, Bytes)> {
    let mut entries = entries_with_rows(tasks);
    let first = entries.next().into_iter().flat_map(|entry| rows_of(entry).take(2));
    first.chain(entries.next_back().into_iter().flat_map(|entry| rows_of(entry).take(1)))
}

/// The entries of tasks that change rows of clients: those of placement are few, and in use.
fn entries_with_rows(tasks: &[ApplyTask]) -> impl DoubleEndedIterator<Item = &LogEntry> {
    let tasks = tasks.iter().filter(|task| task.region != SYSTEM_REGION);
    let entries = tasks.flat_map(|task| &task.entries).map(|committed| &committed.entry);
    entries.filter(|entry| !AdminCommand::is_in(entry))
}

/// The keys whose rows an entry changes, each with the trees that hold them.
fn rows_of(entry: &LogEntry) -> impl Iterator<Item = (&'static FamilyTrees, Bytes)> + use<> {
    let proposals = entry_data::proposals(&entry.data).map_while(Result::ok);
    let commands = proposals.filter_map(|proposal| raw::decode(proposal.command).ok());
    commands.flat_map(|command| {
        let trees = schema::family_trees(Space::Raw, command.family);
        let keys = command.ops.into_iter().filter_map(key_of);
        keys.filter_map(move |key| trees.map(|trees| (trees, key)))
    })
}

/// The key of an operation that changes one row.
fn key_of(op: RawOp) -> Option<Bytes> {
    match op {
        RawOp::Put { key, .. } | RawOp::Delete { key } | RawOp::CompareAndSwap { key, .. } => {
            Some(key)
        }
        // These read from leaf to leaf, or none.
        RawOp::DeleteRange { .. } | RawOp::RemoveExpired { .. } | RawOp::RaiseWatermark => None,
    }
}

/// Reads the pages of rows, tree by tree. Returns whether the disk was asked for some at once.
fn read_pages(
    txn: &mut WriteTxn<'_>,
    rows: impl Iterator<Item = (&'static FamilyTrees, Bytes)>,
) -> bool {
    let mut keys = KeysByTree::new();
    for (trees, key) in rows {
        // A put looks for a time that the row had.
        if let Some(tree) = trees.expiries {
            keys.entry(tree).or_default().push(key.clone());
        }
        keys.entry(trees.rows).or_default().push(key);
    }
    // One alone is read by its entry. No tree is left out: a later one may be the one to ask for.
    keys.iter().filter(|(_, keys)| keys.len() > 1).fold(false, |is_asked, (tree, keys)| {
        txn.tree(tree).is_ok_and(|tree| tree.read_ahead(keys)) | is_asked
    })
}

#[cfg(test)]
mod tests {
    use flotilla_region::{Committed, RegionId};

    use super::*;
    use crate::tests::ops;

    fn key(number: u64) -> Bytes {
        number.to_string().into()
    }

    fn put(number: u64) -> RawOp {
        RawOp::put(key(number), Bytes::new())
    }

    fn task(region: RegionId, entries: Vec<LogEntry>) -> ApplyTask {
        let committed = |entry| Committed { entry, tickets: vec![] };
        ApplyTask { region, entries: entries.into_iter().map(committed).collect() }
    }

    fn keys(rows: impl Iterator<Item = (&'static FamilyTrees, Bytes)>) -> Vec<Bytes> {
        rows.map(|(_, key)| key).collect()
    }

    #[test]
    fn rows_of_clients_are_read_ahead_and_nothing_else_is() {
        let range = RawOp::DeleteRange { start: key(90), end: None };
        let swap = RawOp::CompareAndSwap { key: key(3), expected: None, value: None, ttl_s: 0 };
        let data = AdminCommand::ComputeDigest { version: 1 }.encode();
        let admin = LogEntry { data, ..LogEntry::default() };
        let tasks = [
            task(SYSTEM_REGION, vec![ops(1, &[put(91)])]),
            task(RegionId(2), vec![admin, ops(1, &[put(1), put(2), range, swap]), ops(2, &[])]),
            task(RegionId(3), vec![ops(1, &[RawOp::Delete { key: key(4) }]), ops(2, &[put(5)])]),
        ];
        let all = keys(entries_with_rows(&tasks).flat_map(rows_of));
        assert_eq!(all, [1, 2, 3, 4, 5].map(key));
        assert_eq!(keys(some_rows(&tasks)), [1, 2, 5].map(key));
        assert_eq!(keys(some_rows(&tasks[1..2])), [1, 2].map(key));
        assert_eq!(keys(some_rows(&[])), [] as [Bytes; 0]);
    }
}
