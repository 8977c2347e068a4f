//! One store of the test cluster: a shard, and a disk and a state machine in memory.
//!
//! Nothing is visible before it completes, and a crash loses what has not.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::entry_data::{self, Proposal};
use crate::*;
use flotilla_kv::raw::{self, RawOp};

type Rows = BTreeMap<Bytes, Bytes>;

pub(super) struct Machine {
    pub(super) shard: Shard,
    pub(super) inbox: VecDeque<Event>,
    pub(super) paused: bool,
    /// From reading the clock to handing out what a step has granted.
    pub(super) late_ms: u64,
    /// Log work under way, in order, with the time when it completes.
    writing: VecDeque<(u64, LogWork)>,
    applying: VecDeque<(u64, ApplyTask)>,
    fetching: VecDeque<(u64, LogFetch)>,
    pub(super) disks: BTreeMap<RegionId, Disk>,
}

enum LogWork {
    Write(LogWrite),
    Birth(ReplicaBirth),
    Compact(Compaction),
}

/// A region's disk, and its volatile state.
pub(super) struct Disk {
    descriptor: Descriptor,
    peer: PeerId,
    hard_state: HardState,
    /// Hard states that were written and not synced.
    unsynced: Option<HardState>,
    pub(super) entries: BTreeMap<Index, LogEntry>,
    pub(super) truncated: (Index, Term),
    /// The last checkpoint.
    durable: (Index, Term, Rows),
    /// The state that reads see.
    pub(super) applied: (Index, Term, Rows),
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Rejected(Reject),
    /// Another replica leads.
    Transferred(Peer),
    Value(Option<Bytes>),
}

impl Disk {
    pub(super) fn new(descriptor: Descriptor, peer: PeerId) -> Self {
        let nothing = (Index(0), Term(0), Rows::new());
        Self {
            descriptor,
            peer,
            hard_state: HardState::default(),
            unsynced: None,
            entries: BTreeMap::new(),
            truncated: (Index(0), Term(0)),
            durable: nothing.clone(),
            applied: nothing,
        }
    }

    fn carry_out(&mut self, work: LogWork) {
        match work {
            LogWork::Write(write) => {
                assert!(write.entries.is_empty() || write.hard_state.is_some(), "commit forgotten");
                assert!(write.entries.is_empty() || write.sync, "entries not synced");
                if let Some(first) = write.entries.first().map(|entry| entry.index) {
                    let last = self.entries.keys().next_back().map_or(self.truncated.0, |i| *i);
                    assert!(first.0 <= last.0 + 1, "gap in the log");
                    self.entries.split_off(&first);
                }
                self.entries.extend(write.entries.into_iter().map(|entry| (entry.index, entry)));
                if write.sync {
                    self.hard_state = write.hard_state.or(self.unsynced).unwrap_or(self.hard_state);
                    self.unsynced = None;
                } else {
                    self.unsynced = write.hard_state;
                }
            }
            // The disk was made when the split was applied.
            LogWork::Birth(birth) => assert_eq!(birth.hard_state, self.hard_state),
            LogWork::Compact(compaction) => {
                let before = Index(compaction.first.0 - 1);
                assert!(before <= self.durable.0, "compacted above what is durable");
                let term = self.entries.get(&before).map_or(self.truncated.1, |entry| entry.term);
                assert_eq!(term, compaction.term_before, "term before the first entry");
                self.entries = self.entries.split_off(&compaction.first);
                self.truncated = (before, term);
            }
        }
    }

    /// Makes an older copy of the disk: of nothing at all, or of the log up to `last`.
    pub(super) fn set_back(&mut self, last: Index) {
        if last == Index(0) {
            *self = Self::new(self.descriptor.clone(), self.peer);
            return;
        }
        self.entries.split_off(&Index(last.0 + 1));
        self.hard_state.commit = self.hard_state.commit.min(last);
        assert!(self.durable.0 <= last, "made before the first checkpoint");
    }

    fn recover(&self) -> RecoveredReplica {
        let (index, term) = (self.durable.0, self.durable.1);
        let mut terms: Vec<(Index, Term)> = vec![];
        for entry in self.entries.values() {
            if terms.last().is_none_or(|run| run.1 < entry.term) {
                terms.push((entry.index, entry.term));
            }
        }
        RecoveredReplica {
            descriptor: self.descriptor.clone(),
            peer: self.peer,
            hard_state: self.hard_state,
            applied: (index, term),
            truncated: self.truncated,
            terms,
            last: self.entries.keys().next_back().map_or(self.truncated.0, |index| *index),
            tail: self.entries.range(Index(index.0 + 1)..).map(|(_, e)| e.clone()).collect(),
        }
    }
}

impl Machine {
    pub(super) fn new(config: Config, disks: BTreeMap<RegionId, Disk>) -> Self {
        Self {
            shard: Shard::new(config),
            inbox: VecDeque::new(),
            paused: false,
            late_ms: 0,
            writing: VecDeque::new(),
            applying: VecDeque::new(),
            fetching: VecDeque::new(),
            disks,
        }
    }

    /// Starts every region from its disk.
    pub(super) fn start(&mut self, now: Time, campaign: bool) {
        for disk in self.disks.values_mut() {
            disk.applied = disk.durable.clone();
            self.shard.create(now, disk.recover(), campaign).unwrap();
        }
    }

    /// Loses the shard and what has not completed; a part of it may have by luck.
    pub(super) fn crash(&mut self, config: Config, rng: &mut fastrand::Rng) {
        let lucky = rng.usize(..=self.writing.len());
        for (_, work) in self.writing.drain(..).take(lucky) {
            let region = match &work {
                LogWork::Write(write) => write.region,
                LogWork::Birth(birth) => birth.region,
                LogWork::Compact(compaction) => compaction.region,
            };
            self.disks.get_mut(&region).unwrap().carry_out(work);
        }
        for disk in self.disks.values_mut() {
            let unsynced = disk.unsynced.take().filter(|_| rng.bool());
            disk.hard_state = unsynced.unwrap_or(disk.hard_state);
        }
        *self = Self::new(config, std::mem::take(&mut self.disks));
    }

    pub(super) fn checkpoint(&mut self) {
        for (region, disk) in &mut self.disks {
            disk.durable = disk.applied.clone();
            let (region, applied) = (*region, disk.durable.0);
            self.inbox.push_back(Event::Checkpointed { region, applied });
        }
    }

    /// Queues what a step asked for. Messages and answers are the cluster's.
    pub(super) fn carry_out(&mut self, effects: &mut Effects, now: u64, rng: &mut fastrand::Rng) {
        let done = now + rng.u64(1..4);
        let writes = effects.log.drain(..).map(LogWork::Write);
        let writes = writes.chain(effects.births.drain(..).map(LogWork::Birth));
        let work = writes.chain(effects.compact.drain(..).map(LogWork::Compact));
        self.writing.extend(work.map(|work| (done, work)));
        self.fetching.extend(effects.fetches.drain(..).map(|fetch| (done, fetch)));
        self.inbox.extend(effects.created.drain(..).map(Event::Create));
        effects.ranges.clear();
        effects.split_wishes.clear();
        self.applying.extend(effects.apply.drain(..).map(|task| (done, task)));
    }

    /// Carries a split out, and makes the disks of the new regions.
    fn split(
        &mut self,
        region: RegionId,
        command: AdminCommand,
        index: Index,
    ) -> (Answer, Option<RegionChange>) {
        let AdminCommand::Split(split) = command;
        let parent = self.disks.get_mut(&region).unwrap();
        let regions = match split.divide(&parent.descriptor) {
            Ok(regions) => regions,
            Err(error) => return (Answer::Rejected(Reject::InvalidSplit(error)), None),
        };
        parent.descriptor = regions.parent.clone();
        let store = parent.descriptor.peer(parent.peer).unwrap().store;
        let mut children = vec![];
        for child in &regions.children {
            let inside = parent.applied.2.extract_if(.., |key, _| child.contains(key)).collect();
            let mut disk = Disk::new(child.clone(), child.peer_on(store).unwrap().id);
            disk.truncated = (SPLIT_INDEX, SPLIT_TERM);
            disk.hard_state = RecoveredReplica::hard_state_of_split();
            disk.applied = (SPLIT_INDEX, SPLIT_TERM, inside);
            children.push((child.id, disk));
        }
        assert!(parent.applied.2.keys().all(|key| parent.descriptor.contains(key)));
        self.disks.extend(children);
        (Answer::Done, Some(RegionChange::Split { index, regions }))
    }

    /// Completes what is due. Calls back with each entry that is applied.
    pub(super) fn complete(
        &mut self,
        now: u64,
        mut applied: impl FnMut(RegionId, Committed, Vec<Answer>),
    ) {
        while let Some((_, work)) = self.writing.pop_front_if(|(due, _)| *due <= now) {
            let (region, number) = match &work {
                LogWork::Write(write) => (write.region, Some(write.number)),
                LogWork::Birth(birth) => (birth.region, None),
                LogWork::Compact(compaction) => (compaction.region, None),
            };
            self.disks.get_mut(&region).unwrap().carry_out(work);
            self.inbox.extend(number.map(|number| Event::Persisted { region, number }));
        }
        while let Some((_, fetch)) = self.fetching.pop_front_if(|(due, _)| *due <= now) {
            let LogFetch { region, context, low, high, .. } = fetch;
            let range = self.disks[&region].entries.range(low..high);
            let entries: Vec<_> = range.take(5).map(|(_, entry)| entry.clone()).collect();
            self.inbox.push_back(match entries.first() {
                Some(first) if first.index == low => Event::Fetched { region, context, entries },
                _ => Event::FetchFailed { region, context },
            });
        }
        while let Some((_, task)) = self.applying.pop_front_if(|(due, _)| *due <= now) {
            let region = task.region;
            let index = task.entries.last().unwrap().entry.index;
            let mut changes = vec![];
            for committed in task.entries {
                let disk = self.disks.get_mut(&region).unwrap();
                let mut answers = apply(disk, &committed.entry);
                if let Some(command) = AdminCommand::decode(&committed.entry.data).unwrap() {
                    let (answer, change) = self.split(region, command, committed.entry.index);
                    answers.push(answer);
                    changes.extend(change);
                }
                applied(region, committed, answers);
            }
            self.inbox.push_back(Event::Applied { region, index, changes, size: None });
        }
    }
}

/// Applies one entry, and answers each of its proposals.
fn apply(disk: &mut Disk, entry: &LogEntry) -> Vec<Answer> {
    let state = &mut disk.applied;
    assert_eq!(entry.index.0, state.0.0 + 1, "entries are applied in order, each once");
    (state.0, state.1) = (entry.index, entry.term);
    if AdminCommand::decode(&entry.data).unwrap().is_some() {
        return vec![];
    }
    let mut answers = vec![];
    for proposal in entry_data::proposals(&entry.data) {
        let Proposal { version, command } = proposal.unwrap();
        if version != disk.descriptor.epoch.version {
            let current = vec![disk.descriptor.clone()];
            answers.push(Answer::Rejected(Reject::EpochNotMatch { current }));
            continue;
        }
        for op in raw::decode(command).unwrap() {
            let RawOp::Put { key, value } = op else { panic!("only puts are tested here") };
            state.2.insert(key, value);
        }
        answers.push(Answer::Done);
    }
    answers
}
