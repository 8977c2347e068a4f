//! One store of the test cluster: a shard, and a disk and a state machine in memory.
//!
//! Nothing is visible before it completes, and a crash loses what has not.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;

use crate::entry_data::{self, Proposal};
use crate::*;
use flotilla_kv::raw::{self, RawOp};

pub(super) type Rows = BTreeMap<Bytes, Bytes>;

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
    installing: VecDeque<(u64, InstallTask)>,
    asking: VecDeque<(u64, Envelope)>,
    /// Roots that are made for regions with a snapshot.
    rooting: VecDeque<(u64, RegionId)>,
    /// Ends that were asked for, and those that wait for a root.
    ending: VecDeque<(u64, EndTask)>,
    rooting_ends: VecDeque<(u64, EndTask)>,
    /// The greatest replica of each region that has ended: published, and in a root.
    pub(super) tombstones: (BTreeMap<RegionId, PeerId>, BTreeMap<RegionId, PeerId>),
    store: StoreId,
    /// Snapshots that have arrived.
    pub(super) stages: BTreeMap<StageId, (Descriptor, Rows)>,
    pub(super) is_up: bool,
    /// Another one with each start.
    pub(super) life: u64,
    /// From an install's rows to the root that has them.
    pub(super) root_ms: u64,
    pub(super) disks: BTreeMap<RegionId, Disk>,
    /// Splits that were asked for.
    pub(super) split_wishes: Vec<SplitWish>,
    pub(super) loads: Vec<RegionLoad>,
    /// Whether it computes digests, or gives each up.
    pub(super) has_digests: bool,
}

enum LogWork {
    Write(LogWrite),
    Birth(ReplicaBirth),
    Compact(Compaction),
}

/// A region's disk, and its volatile state.
pub(super) struct Disk {
    pub(super) descriptor: Descriptor,
    pub(super) peer: PeerId,
    /// Whether its rows are gone, and no root has that.
    has_ended: bool,
    /// Whether the log has its birth.
    is_born: bool,
    /// In the last checkpoint; none without data.
    durable_descriptor: Option<Descriptor>,
    /// In the rows: of the last snapshot that was installed, and as of the last checkpoint.
    row_states: (HardState, HardState),
    /// Installed since the last checkpoint.
    installed: Option<StageId>,
    pub(super) hard_state: HardState,
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
            durable_descriptor: Some(descriptor.clone()),
            row_states: Default::default(),
            installed: None,
            is_born: true,
            has_ended: false,
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

    /// Of a replica without data.
    fn without_data(region: RegionId, peer: PeerId) -> Self {
        let descriptor = Descriptor {
            removed: RemovedPeers::default(),
            id: region,
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch::default(),
            peers: vec![],
        };
        let disk = Self::new(descriptor, peer);
        Self { durable_descriptor: None, is_born: false, ..disk }
    }

    pub(super) fn has_data(&self) -> bool {
        !self.descriptor.peers.is_empty() && !self.has_ended
    }

    fn carry_out(&mut self, work: LogWork) {
        match work {
            LogWork::Write(write) => {
                if let Some(reset) = write.reset {
                    let LogReset { index, term } = reset;
                    assert_eq!((self.durable.0, self.durable.1), (index, term), "no root has it");
                    assert!(write.entries.is_empty() && write.sync);
                    self.entries.clear();
                    self.truncated = (index, term);
                }
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
            LogWork::Birth(birth) if birth.origin == BirthOrigin::Message => {
                assert_eq!(birth.hard_state, self.hard_state, "in one batch with its first write");
                self.is_born = true;
            }
            // The disk was made when the split was applied.
            LogWork::Birth(birth) => {
                self.is_born = true;
                self.hard_state = self.hard_state.merge(birth.hard_state);
            }
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

    /// As the store's recovery does: a log that does not connect with the rows is reset.
    fn mend(&mut self) {
        self.applied = self.durable.clone();
        self.installed = None;
        self.has_ended = false;
        self.row_states.0 = self.row_states.1;
        self.descriptor = self.durable_descriptor.clone().expect("it has rows");
        let (index, term) = (self.durable.0, self.durable.1);
        let logged = self.entries.get(&index).map(|entry| entry.term);
        let connects = (index, term) == self.truncated || logged == Some(term);
        if !connects {
            self.entries.clear();
            self.truncated = (index, term);
        }
        self.hard_state = self.row_states.0.merge(self.hard_state);
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
            is_damaged: false,
        }
    }
}

impl Machine {
    pub(super) fn new(config: Config, store: u64, disks: BTreeMap<RegionId, Disk>) -> Self {
        Self {
            ending: VecDeque::new(),
            rooting_ends: VecDeque::new(),
            tombstones: Default::default(),
            store: StoreId(store),
            inbox: VecDeque::new(),
            paused: false,
            late_ms: 0,
            writing: VecDeque::new(),
            applying: VecDeque::new(),
            fetching: VecDeque::new(),
            installing: VecDeque::new(),
            asking: VecDeque::new(),
            rooting: VecDeque::new(),
            stages: BTreeMap::new(),
            is_up: false,
            life: config.seed,
            root_ms: 5,
            shard: Shard::new(config),
            disks,
            split_wishes: vec![],
            loads: vec![],
            has_digests: true,
        }
    }

    /// Starts every region from its disk.
    pub(super) fn start(&mut self, now: Time, campaign: bool) {
        self.is_up = true;
        for (region, disk) in &mut self.disks {
            if disk.durable_descriptor.is_none() {
                let (region, peer, hard_state) = (*region, disk.peer, disk.hard_state);
                *disk = Disk { hard_state, is_born: true, ..Disk::without_data(region, peer) };
                let found = UninitialisedReplica { region, peer, hard_state };
                self.shard.keep_uninitialised(found).unwrap();
                continue;
            }
            disk.mend();
            self.shard.create(now, disk.recover(), campaign).unwrap();
        }
    }

    /// Loses the shard and what has not completed; a part of it may have by luck.
    pub(super) fn crash(&mut self, config: Config, rng: &mut fastrand::Rng) {
        let lucky = rng.usize(..=self.writing.len());
        for (_, work) in std::mem::take(&mut self.writing).into_iter().take(lucky) {
            let region = match &work {
                LogWork::Write(write) => write.region,
                LogWork::Birth(birth) => birth.region,
                LogWork::Compact(compaction) => compaction.region,
            };
            self.carry_out_log(region, work);
        }
        // A batch is there whole or not at all.
        self.disks.retain(|_, disk| disk.is_born);
        for disk in self.disks.values_mut() {
            let unsynced = disk.unsynced.take().filter(|_| rng.bool());
            disk.hard_state = unsynced.unwrap_or(disk.hard_state);
        }
        let of_root = std::mem::take(&mut self.tombstones.1);
        *self = Self::new(config, self.store.0, std::mem::take(&mut self.disks));
        self.tombstones = (of_root.clone(), of_root);
    }

    pub(super) fn checkpoint(&mut self) {
        for region in self.disks.keys().copied().collect::<Vec<_>>() {
            self.checkpoint_region(region);
        }
    }

    fn checkpoint_region(&mut self, region: RegionId) {
        let disk = self.disks.get_mut(&region).filter(|disk| disk.has_data());
        let Some(disk) = disk else { return };
        disk.durable = disk.applied.clone();
        disk.durable_descriptor = Some(disk.descriptor.clone());
        disk.row_states.1 = disk.row_states.0;
        let (applied, installed) = (disk.durable.0, disk.installed.take());
        self.inbox.push_back(Event::Checkpointed { region, applied, installed });
    }

    fn carry_out_log(&mut self, region: RegionId, work: LogWork) {
        let peer = match &work {
            LogWork::Write(write) => write.peer,
            LogWork::Birth(birth) => birth.peer,
            LogWork::Compact(compaction) => compaction.peer,
        };
        let new = || Disk::without_data(region, peer);
        self.disks.entry(region).or_insert_with(new).carry_out(work);
    }

    /// Whether a part of the range is in another region here, or promised to its snapshot (R16).
    pub(super) fn holds(&self, range: &KeyRange, region: RegionId) -> bool {
        let before = |end: &Bytes, start: &Bytes| !end.is_empty() && end <= start;
        let overlaps = |other: &Descriptor| {
            other.id != region
                && !before(&range.end, &other.start)
                && !before(&other.end, &range.start)
        };
        let held = self.disks.values().filter(|disk| disk.has_data()).map(|disk| &disk.descriptor);
        held.chain(self.stages.values().map(|(descriptor, _)| descriptor)).any(overlaps)
    }

    /// Whether a message may make a replica: no region here holds a part of its range.
    fn answer(&self, envelope: Envelope) -> Event {
        let range = envelope.range.as_deref();
        let is_free = range.is_some_and(|range| !self.holds(range, envelope.region));
        if self.has_ended(envelope.region, envelope.to.id) {
            return Event::NotAdmitted { envelope, why: NotAdmitted::Gone };
        }
        if is_free {
            return Event::Admitted(envelope);
        }
        Event::NotAdmitted { envelope, why: NotAdmitted::Held }
    }

    pub(super) fn has_ended(&self, region: RegionId, peer: PeerId) -> bool {
        self.tombstones.0.get(&region).is_some_and(|ended| *ended >= peer)
    }

    /// Ends a replica, if it is here; no root has it yet.
    fn end(&mut self, task: EndTask) {
        let EndTask { region, peer } = task;
        if let Some(disk) = self.disks.get_mut(&region).filter(|disk| disk.peer <= peer) {
            assert!(!self.applying.iter().any(|(_, other)| other.region == region));
            let is_written =
                |work: &LogWork| matches!(work, LogWork::Write(w) if w.peer == disk.peer);
            assert!(!self.writing.iter().any(|(_, work)| is_written(work)), "a write is under way");
            disk.has_ended = true;
        }
        let tombstone = self.tombstones.0.entry(region).or_default();
        *tombstone = (*tombstone).max(peer);
    }

    /// A root has the end.
    fn root_end(&mut self, task: EndTask) {
        let EndTask { region, peer } = task;
        let is_this = |disk: &Disk| disk.peer <= peer && disk.has_ended;
        if self.disks.get(&region).is_some_and(is_this) {
            self.disks.remove(&region);
        }
        let tombstone = self.tombstones.1.entry(region).or_default();
        *tombstone = (*tombstone).max(peer);
        self.inbox.push_back(Event::Ended { region, peer });
    }

    /// Puts a snapshot's rows in.
    fn install(&mut self, task: InstallTask) {
        let InstallTask { peer, stage, head, hard_state } = task;
        let region = head.descriptor.id;
        let (_, rows) = self.stages.remove(&stage).expect("a stage is installed once");
        assert!(rows.keys().all(|key| head.descriptor.contains(key)));
        assert!(!self.holds(&head.descriptor.range(), region), "a row has two owners");
        let disk = self.disks.get_mut(&region).expect("it was born before");
        assert_eq!(disk.peer, peer);
        assert!(head.index >= disk.applied.0 && head.term <= hard_state.term);
        assert_eq!(hard_state.commit, head.index);
        disk.applied = (head.index, head.term, rows);
        disk.descriptor = head.descriptor;
        disk.row_states.0 = hard_state;
        disk.installed = Some(stage);
    }

    /// Queues what a step asked for. Messages and answers are the cluster's.
    pub(super) fn carry_out(&mut self, effects: &mut Effects, now: u64, rng: &mut fastrand::Rng) {
        let done = now + rng.u64(1..4);
        let writes = effects.log.writes.drain(..).map(LogWork::Write);
        let writes = writes.chain(effects.log.births.drain(..).map(LogWork::Birth));
        let work = writes.chain(effects.log.compact.drain(..).map(LogWork::Compact));
        self.writing.extend(work.map(|work| (done, work)));
        self.fetching.extend(effects.fetches.drain(..).map(|fetch| (done, fetch)));
        self.inbox.extend(effects.created.drain(..).map(Event::Create));
        effects.ranges.clear();
        self.split_wishes.append(&mut effects.load.split_wishes);
        self.loads.append(&mut effects.load.regions);
        self.applying.extend(effects.apply.drain(..).map(|task| (done, task)));
        self.installing.extend(effects.installs.drain(..).map(|task| (done, task)));
        self.ending.extend(effects.ends.drain(..).map(|task| (done, task)));
        for peer in effects.log.removals.drain(..) {
            // R12: the log of a replica goes when a root has its end.
            assert!(self.disks.values().all(|disk| disk.peer != peer), "{peer} has no root");
        }
        self.asking.extend(effects.unknown.drain(..).map(|envelope| (done, envelope)));
        for stage in effects.discards.drain(..) {
            self.stages.remove(&stage).expect("a stage is discarded once");
        }
    }

    /// Carries a change of the region out.
    fn change(
        &mut self,
        region: RegionId,
        command: AdminCommand,
        index: Index,
    ) -> (Answer, Option<RegionChange>) {
        let disk = self.disks.get_mut(&region).unwrap();
        match command {
            AdminCommand::Split(_) => self.split(region, command, index),
            AdminCommand::Membership(command) => match command.apply(&disk.descriptor) {
                Ok(descriptor) => {
                    disk.descriptor = descriptor.clone();
                    let change = command.change;
                    (Answer::Done, Some(RegionChange::Membership { index, change, descriptor }))
                }
                Err(error) => (Answer::Rejected(Reject::InvalidMembership(error.into())), None),
            },
            AdminCommand::Forget(peer) => {
                let before = disk.descriptor.removed.unconfirmed.len();
                disk.descriptor.removed.unconfirmed.retain(|removed| removed.id != peer);
                let descriptor = disk.descriptor.clone();
                let is_listed = descriptor.removed.unconfirmed.len() < before;
                let change = RegionChange::Forgotten { index, peer, descriptor };
                (Answer::Done, is_listed.then_some(change))
            }
            AdminCommand::ComputeDigest { .. } => {
                let mut hasher = DefaultHasher::new();
                disk.applied.2.hash(&mut hasher);
                let digest = self.has_digests.then(|| hasher.finish());
                let peer = disk.peer;
                // Mostly later; a small region has its digest before the entry is reported.
                self.inbox.push_back(Event::Digested { region, peer, index, digest });
                (Answer::Done, Some(RegionChange::DigestDue { index }))
            }
            AdminCommand::VerifyDigests(comparison) => {
                let verdict = comparison.verdict(&disk.descriptor);
                (Answer::Done, Some(RegionChange::Compared { index, verdict }))
            }
        }
    }

    /// Carries a split out, and makes the disks of the new regions.
    fn split(
        &mut self,
        region: RegionId,
        command: AdminCommand,
        index: Index,
    ) -> (Answer, Option<RegionChange>) {
        let AdminCommand::Split(split) = command else { panic!("{command:?}") };
        let parent = self.disks.get_mut(&region).unwrap();
        let mut regions = match split.divide(&parent.descriptor) {
            Ok(regions) => regions,
            Err(error) => return (Answer::Rejected(Reject::InvalidSplit(error)), None),
        };
        parent.descriptor = regions.parent.clone();
        let mut children = vec![];
        let (tombstones, store) = (&self.tombstones.0, self.store);
        for child in std::mem::take(&mut regions.children) {
            let inside = parent.applied.2.extract_if(.., |key, _| child.contains(key)).collect();
            let Some(peer) = child.peer_on(store) else { continue };
            if tombstones.get(&child.id).is_some_and(|ended| *ended >= peer.id) {
                continue;
            }
            let mut disk = Disk::new(child.clone(), peer.id);
            disk.truncated = (SPLIT_INDEX, SPLIT_TERM);
            disk.hard_state = RecoveredReplica::hard_state_of_split();
            disk.applied = (SPLIT_INDEX, SPLIT_TERM, inside);
            children.push((child.id, disk));
            regions.children.push(child);
        }
        assert!(parent.applied.2.keys().all(|key| parent.descriptor.contains(key)));
        for (id, mut disk) in children {
            if let Some(before) = self.disks.get(&id) {
                assert!(!before.has_data(), "a row has two owners");
                // The slot has a later replica: the child is ended when it is to be made (R17).
                if before.peer > disk.peer {
                    continue;
                }
                disk.hard_state = disk.hard_state.merge(before.hard_state);
            }
            self.disks.insert(id, disk);
        }
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
            self.carry_out_log(region, work);
            self.inbox.extend(number.map(|number| Event::Persisted { region, number }));
        }
        while let Some((_, fetch)) = self.fetching.pop_front_if(|(due, _)| *due <= now) {
            let LogFetch { region, peer, context, low, high, .. } = fetch;
            let disk = self.disks.get(&region).filter(|disk| disk.peer == peer);
            let range = disk.into_iter().flat_map(|disk| disk.entries.range(low..high));
            let entries: Vec<_> = range.take(5).map(|(_, entry)| entry.clone()).collect();
            self.inbox.push_back(match entries.first() {
                Some(first) if first.index == low => {
                    Event::Fetched { region, peer, context, entries }
                }
                _ => Event::FetchFailed { region, peer, context },
            });
        }
        while let Some((_, task)) = self.applying.pop_front_if(|(due, _)| *due <= now) {
            let region = task.region;
            let index = task.entries.last().unwrap().entry.index;
            let mut changes = vec![];
            for committed in task.entries {
                let disk = self.disks.get_mut(&region).unwrap();
                let mut answers = apply(disk, &committed.entry);
                if let Some(command) = AdminCommand::decode(&committed.entry).unwrap() {
                    let (answer, change) = self.change(region, command, committed.entry.index);
                    answers.push(answer);
                    changes.extend(change);
                }
                applied(region, committed, answers);
            }
            // A byte for a row: tests count rows.
            let keys = self.disks[&region].applied.2.len() as u64;
            let size = Some(RegionSize { bytes: keys, keys });
            self.inbox.push_back(Event::Applied { region, index, changes, size });
        }
        while let Some((_, task)) = self.installing.pop_front_if(|(due, _)| *due <= now) {
            let region = task.head.descriptor.id;
            assert!(!self.applying.iter().any(|(_, other)| other.region == region));
            self.install(task);
            self.rooting.push_back((now + self.root_ms, region));
        }
        while let Some((_, region)) = self.rooting.pop_front_if(|(due, _)| *due <= now) {
            self.checkpoint_region(region);
        }
        while let Some((_, task)) = self.ending.pop_front_if(|(due, _)| *due <= now) {
            self.end(task);
            self.rooting_ends.push_back((now + self.root_ms, task));
        }
        while let Some((_, task)) = self.rooting_ends.pop_front_if(|(due, _)| *due <= now) {
            self.root_end(task);
        }
        while let Some((_, envelope)) = self.asking.pop_front_if(|(due, _)| *due <= now) {
            let answer = self.answer(envelope);
            self.inbox.push_back(answer);
        }
    }
}

/// Applies one entry, and answers each of its proposals.
fn apply(disk: &mut Disk, entry: &LogEntry) -> Vec<Answer> {
    let state = &mut disk.applied;
    assert_eq!(entry.index.0, state.0.0 + 1, "entries are applied in order, each once");
    (state.0, state.1) = (entry.index, entry.term);
    if AdminCommand::decode(entry).unwrap().is_some() {
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
        for op in raw::decode(command).unwrap().ops {
            let RawOp::Put { key, value, .. } = op else { panic!("only puts are tested here") };
            state.2.insert(key, value);
        }
        answers.push(Answer::Done);
    }
    answers
}
