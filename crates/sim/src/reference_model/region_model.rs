//! One region's agreed log, and what it makes.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::{self, RawCommand, RawOp};
use flotilla_region::entry_data;
use flotilla_region::{
    AdminCommand, Committed, Descriptor, DigestComparison, Index, LogEntry, MembershipCommand,
    PeerId, RegionId, SPLIT_INDEX, SplitCommand, SplitRegions, StoreId, Ticket,
};

use crate::trace::{digest, mix};

/// The key of a row, with its column family.
pub(crate) type RowKey = (ColumnFamily, Bytes);

/// The result of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpResult {
    Done,
    Swapped { succeeded: bool, previous: Option<Bytes> },
    Removed { rows: u64 },
}

/// The result of one proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProposalResult {
    /// The results of its operations.
    Done(Vec<OpResult>),
    /// It has split the region.
    Split,
    /// It has changed the region's replicas, or the list of those that it had.
    Members,
    /// It had no effect: the region had changed, or the split cannot be made.
    Rejected,
}

/// One region's log and what it makes.
#[derive(Debug)]
pub(super) struct RegionModel {
    /// The forms of the region, each with the index that made it.
    descriptors: Vec<(Index, Descriptor)>,
    /// The one of the first regions that this one has come of.
    root: RegionId,
    /// The entry before the first.
    born: Index,
    /// By index, the one behind `born` at 0.
    entries: Vec<AgreedEntry>,
    /// The values that each key has had, each with the index that made it.
    values: BTreeMap<RowKey, Vec<(Index, Option<Bytes>)>>,
    /// When the newest values expire, of those that do, and the latest time that an entry has
    /// named for that.
    expiries: BTreeMap<RowKey, u64>,
    watermark_ms: u64,
    /// The comparisons of its replicas, each with the index of the verdict.
    comparisons: Vec<(Index, DigestComparison)>,
}

/// The entry at one index.
#[derive(Debug)]
struct AgreedEntry {
    print: u64,
    /// The results of each proposal.
    results: Vec<ProposalResult>,
}

/// The results of an entry, and the regions that it has made.
type EntryResults = (Vec<ProposalResult>, Vec<RegionModel>);

impl RegionModel {
    /// One of the first regions of a cluster.
    pub(super) fn first(descriptor: Descriptor) -> Self {
        let (born, root) = (Index(0), descriptor.id);
        let descriptors = vec![(born, descriptor)];
        Self {
            descriptors,
            root,
            born,
            entries: Vec::new(),
            values: BTreeMap::new(),
            expiries: BTreeMap::new(),
            watermark_ms: 0,
            comparisons: Vec::new(),
        }
    }

    pub(super) fn comparisons(&self) -> &[(Index, DigestComparison)] {
        &self.comparisons
    }

    pub(super) fn root(&self) -> RegionId {
        self.root
    }

    pub(super) fn newest(&self) -> &Descriptor {
        &self.descriptors.last().expect("a region has a form from its birth on").1
    }

    pub(super) fn descriptor_at(&self, index: Index) -> Option<&Descriptor> {
        let form = self.descriptors.iter().rev().find(|(from, _)| *from <= index)?;
        Some(&form.1)
    }

    pub(super) fn results(&self, index: Index) -> &[ProposalResult] {
        &self.entries[(index.0 - self.born.0) as usize - 1].results
    }

    pub(super) fn rows(&self, index: Index) -> impl Iterator<Item = (&RowKey, &Bytes)> {
        self.values.iter().filter_map(move |(key, values)| {
            let (_, value) = values.iter().rev().find(|(from, _)| *from <= index)?;
            Some((key, value.as_ref()?))
        })
    }

    /// Takes the next entry, or compares one that is known. Returns the regions that it has made.
    pub(super) fn agree(&mut self, entry: &LogEntry) -> Result<Vec<Self>, String> {
        // The term counts as well: entries of equal bytes and different terms are different ones.
        let print = mix(entry.term.0) ^ digest(&entry.data);
        let known = self.born.0 + self.entries.len() as u64;
        match entry.index.0 {
            index if index <= self.born.0 => Err(format!("applies entry {index}")),
            index if index <= known => {
                if self.entries[(index - self.born.0) as usize - 1].print == print {
                    return Ok(Vec::new());
                }
                let Index(index) = entry.index;
                Err(format!("entry {index} of term {} is not what another applied", entry.term))
            }
            index if index == known + 1 => {
                let (results, born) = self.apply(entry)?;
                self.entries.push(AgreedEntry { print, results });
                Ok(born)
            }
            // Replicas apply in order, so all entries below the newest known one are known: this
            // replica left some out.
            index => Err(format!("applies entry {index} while only {known} are known")),
        }
    }

    /// Checks that each ticket is on the proposal that it was given for.
    pub(super) fn compare_tickets(
        &self,
        committed: &Committed,
        command: &impl Fn(Ticket) -> Option<Bytes>,
    ) -> Result<(), String> {
        let index = committed.entry.index;
        // Proposed elsewhere, or before a crash that forgot the tickets.
        if committed.tickets.is_empty() {
            return Ok(());
        }
        let data = &committed.entry.data;
        // A change of members is wrapped in raft's own encoding.
        let commands: Vec<Bytes> = match AdminCommand::decode(&committed.entry) {
            Ok(Some(command)) => vec![command.encode()],
            Ok(None) => {
                entry_data::proposals(data).flatten().map(|proposal| proposal.command).collect()
            }
            Err(_) => return Err(format!("entry {index} cannot be read")),
        };
        if commands.len() != committed.tickets.len() {
            let (commands, tickets) = (commands.len(), committed.tickets.len());
            return Err(format!("entry {index} has {commands} proposals and {tickets} tickets"));
        }
        for (ticket, proposed) in committed.tickets.iter().zip(commands) {
            if command(*ticket) != Some(proposed) {
                return Err(format!("ticket {ticket} came out with another's proposal at {index}"));
            }
        }
        Ok(())
    }

    /// Applies the next entry and says what its proposals did.
    fn apply(&mut self, entry: &LogEntry) -> Result<EntryResults, String> {
        let unreadable = |_| format!("entry {} cannot be read", entry.index);
        if let Some(command) = AdminCommand::decode(entry).map_err(unreadable)? {
            return match command {
                AdminCommand::Split(split) => Ok(self.split(entry.index, &split)),
                AdminCommand::Membership(change) => {
                    Ok((vec![self.change_members(entry.index, &change)], Vec::new()))
                }
                AdminCommand::Forget(peer) => {
                    Ok((vec![self.forget(entry.index, peer)], Vec::new()))
                }
                AdminCommand::ComputeDigest { .. } => {
                    Ok((vec![ProposalResult::Done(Vec::new())], Vec::new()))
                }
                AdminCommand::VerifyDigests(comparison) => {
                    self.comparisons.push((entry.index, comparison));
                    Ok((Vec::new(), Vec::new()))
                }
            };
        }
        let mut results = Vec::new();
        for proposal in entry_data::proposals(&entry.data) {
            let proposal = proposal.map_err(unreadable)?;
            let command = raw::decode(proposal.command).map_err(unreadable)?;
            let RawCommand { time_ms, family, ops } = command;
            // Each replica has the same version at this place of the log.
            results.push(if proposal.version == self.newest().epoch.version {
                let now_ms = time_ms.max(self.watermark_ms);
                let ops = ops.into_iter().map(|op| self.change(entry.index, family, now_ms, op));
                ProposalResult::Done(ops.collect())
            } else {
                ProposalResult::Rejected
            });
        }
        Ok((results, Vec::new()))
    }

    fn split(&mut self, index: Index, split: &SplitCommand) -> EntryResults {
        let Ok(SplitRegions { parent, children }) = split.divide(self.newest()) else {
            return (vec![ProposalResult::Rejected], Vec::new());
        };
        let rows: BTreeMap<RowKey, Bytes> =
            self.rows(index).map(|(key, value)| (key.clone(), value.clone())).collect();
        let child = |descriptor: Descriptor| {
            let here = rows.iter().filter(|((_, key), _)| descriptor.contains(key));
            let values = here
                .map(|(key, value)| (key.clone(), vec![(SPLIT_INDEX, Some(value.clone()))]))
                .collect();
            let descriptors = vec![(SPLIT_INDEX, descriptor)];
            let entries = Vec::new();
            let here = self.expiries.iter();
            let here = here.filter(|((_, key), _)| descriptors[0].1.contains(key));
            let expiries = here.map(|(key, at)| (key.clone(), *at)).collect();
            let (root, watermark_ms) = (self.root, self.watermark_ms);
            let (born, comparisons) = (SPLIT_INDEX, Vec::new());
            Self { descriptors, root, born, entries, values, expiries, watermark_ms, comparisons }
        };
        let children = children.into_iter().map(child).collect();
        for key in rows.keys().filter(|(_, key)| !parent.contains(key)) {
            self.set(index, key.clone(), None);
        }
        self.descriptors.push((index, parent));
        (vec![ProposalResult::Split], children)
    }

    /// Whether a store had the only vote of the region at any time.
    pub(super) fn had_lone_voter(&self, store: StoreId) -> bool {
        self.descriptors.iter().any(|(_, form)| {
            let mut voters = form.peers.iter().filter(|peer| peer.votes());
            voters.next().is_some_and(|peer| peer.store == store) && voters.next().is_none()
        })
    }

    fn change_members(&mut self, index: Index, command: &MembershipCommand) -> ProposalResult {
        let Ok(next) = command.apply(self.newest()) else { return ProposalResult::Rejected };
        self.descriptors.push((index, next));
        ProposalResult::Members
    }

    fn forget(&mut self, index: Index, peer: PeerId) -> ProposalResult {
        let mut next = self.newest().clone();
        next.removed.unconfirmed.retain(|removed| removed.id != peer);
        self.descriptors.push((index, next));
        ProposalResult::Members
    }

    fn change(&mut self, index: Index, family: ColumnFamily, now_ms: u64, op: RawOp) -> OpResult {
        let region = self.newest();
        let inside = |(of, key): &RowKey, start: &Bytes, end: &Option<Bytes>| {
            *of == family
                && region.contains(key)
                && *key >= *start
                && end.as_ref().is_none_or(|end| *key < *end)
        };
        match op {
            RawOp::Put { key, value, ttl_s } => {
                self.put(index, (family, key), value, (now_ms, ttl_s));
            }
            RawOp::Delete { key } => self.set(index, (family, key), None),
            RawOp::DeleteRange { start, end } => {
                let is_gone = |key: &&RowKey| inside(key, &start, &end);
                let keys: Vec<_> = self.values.keys().filter(is_gone).cloned().collect();
                keys.into_iter().for_each(|key| self.set(index, key, None));
            }
            RawOp::CompareAndSwap { key, expected, value, ttl_s } => {
                let key = (family, key);
                let values = self.values.get(&key).and_then(|values| values.last());
                let mut previous = values.and_then(|(_, value)| value.clone());
                if previous.is_some() && self.has_expired(&key, now_ms) {
                    previous = None;
                    self.watermark_ms = now_ms;
                }
                let succeeded = previous == expected;
                match value {
                    _ if !succeeded => {}
                    Some(value) => self.put(index, key, value, (now_ms, ttl_s)),
                    None => self.set(index, key, None),
                }
                return OpResult::Swapped { succeeded, previous };
            }
            RawOp::RaiseWatermark => self.watermark_ms = now_ms,
            RawOp::RemoveExpired { start, end } => {
                let is_gone =
                    |key: &&RowKey| inside(key, &start, &end) && self.has_expired(key, now_ms);
                let keys: Vec<_> = self.expiries.keys().filter(is_gone).cloned().collect();
                self.watermark_ms = now_ms;
                let rows = keys.len() as u64;
                keys.into_iter().for_each(|key| self.set(index, key, None));
                return OpResult::Removed { rows };
            }
        }
        OpResult::Done
    }

    fn has_expired(&self, key: &RowKey, now_ms: u64) -> bool {
        self.expiries.get(key).is_some_and(|at_ms| *at_ms <= now_ms)
    }

    fn put(&mut self, index: Index, key: RowKey, value: Bytes, (now_ms, ttl_s): (u64, u64)) {
        self.set(index, key.clone(), Some(value));
        if ttl_s > 0 {
            self.expiries.insert(key, now_ms + 1_000 * ttl_s);
        }
    }

    fn set(&mut self, index: Index, key: RowKey, value: Option<Bytes>) {
        self.expiries.remove(&key);
        // All values are kept: a replica is compared at its own index, which may be far behind.
        self.values.entry(key).or_default().push((index, value));
    }
}
