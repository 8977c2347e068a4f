//! Fuzzes a live region with arbitrary messages, notices and snapshots, among other events: all
//! that a decodable frame or an offer from another store may hold.
//!
//! Nothing panics, the core's invariants hold after each step, each ticket comes out once, a term
//! grows within its bound, no message leaves with a term that is not on disk, and a late step
//! serves nothing by a lease.
#![no_main]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use flotilla_kv::raw;
use flotilla_region::{
    AdminCommand, ApplyTask, Config, Descriptor, Effects, EndTask, EntryKind, Envelope, Epoch,
    Event, HardState, Index, InstallTask, LogEntry, LogFetch, LogWrite, MembershipChange,
    MembershipCommand, Message, MessageKind, Notice, NoticeKind, Peer, PeerId, RecoveredReplica,
    RegionChange, RegionId, RemovedPeers, RequestPrecondition, Shard, SnapshotHead, SnapshotSend,
    Space, StageId, Status, StoreId, Term, Ticket, Time,
};
use libfuzzer_sys::fuzz_target;

const REGION: RegionId = RegionId(7);
/// How far above ours a term may be.
const TERM_LEAD_MAX: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut input = Input { data };
    let mut live = Live::new(&mut input);
    while !input.data.is_empty() && !live.is_over {
        live.go_on(&mut input);
    }
    live.end();
});

/// Reads choices from the bytes; zeros behind their end.
struct Input<'a> {
    data: &'a [u8],
}

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        *first
    }

    fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    /// Mostly something near, sometimes something wild.
    fn near(&mut self, number: u64) -> u64 {
        match self.below(16) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1 << 60) - 1,
            4 => number + TERM_LEAD_MAX,
            5 => number + TERM_LEAD_MAX + 1,
            6..=9 => number,
            _ => (number + u64::from(self.below(16))).saturating_sub(8),
        }
    }
}

/// Effects that were asked for and are not done yet.
enum Work {
    Write(LogWrite),
    Fetch(LogFetch),
    Apply(ApplyTask),
    /// The rows of a snapshot, and a durable root for them.
    Install(InstallTask),
    /// A snapshot to another store; whether its stream has begun.
    Send(SnapshotSend, bool),
    /// An end, and a durable root for it.
    End(EndTask),
}

struct Live {
    shard: Shard,
    effects: Effects,
    now: Time,
    work: VecDeque<Work>,
    log: BTreeMap<Index, LogEntry>,
    persisted_term: Term,
    ticket_count: u64,
    stages: BTreeSet<StageId>,
    stage_count: u64,
    waiting: BTreeSet<Ticket>,
    /// As far as entries were applied.
    region: Descriptor,
    /// The entries that have asked for digests.
    digests: Vec<Index>,
    /// The store has to end, or the replica has.
    is_over: bool,
}

fn descriptor() -> Descriptor {
    Descriptor {
        id: REGION,
        space: Space::Raw,
        start: Bytes::new(),
        end: Bytes::new(),
        epoch: Epoch { conf_version: 1, version: 1 },
        peers: (1..=3).map(|store| peer(store).into()).collect(),
        removed: RemovedPeers::default(),
    }
}

fn peer(store: u64) -> Peer {
    Peer { id: PeerId(700 + store), store: StoreId(store) }
}

impl Live {
    fn new(input: &mut Input<'_>) -> Self {
        let config = Config {
            seed: 1,
            window: flotilla_region::WindowConfig {
                tail_bytes_max: 20,
                tail_count_max: 2,
                ..Default::default()
            },
            reads: flotilla_region::ReadConfig { leases: true, retry_ms: 100, tries_max: 3 },
            ..Config::default()
        };
        let mut shard = Shard::new(config);
        let mut found = RecoveredReplica::fresh(descriptor(), peer(1).id);
        let (count, campaign) = (u64::from(input.below(8)), input.byte() % 2 == 0);
        let entry = |index| LogEntry {
            index: Index(index),
            term: Term(3),
            kind: EntryKind::Normal,
            data: Bytes::new(),
        };
        let tail: Vec<_> = (1..=count).map(entry).collect();
        if count > 0 {
            found.hard_state = HardState { term: Term(3), vote: None, commit: Index(count / 2) };
            found.terms = vec![(Index(1), Term(3))];
            found.last = Index(count);
            found.tail.clone_from(&tail);
        }
        let persisted_term = found.hard_state.term;
        shard.create(Time(0), found, campaign).expect("a sound replica");
        Self {
            shard,
            effects: Effects::default(),
            now: Time(0),
            work: VecDeque::new(),
            log: tail.into_iter().map(|entry| (entry.index, entry)).collect(),
            persisted_term,
            ticket_count: 0,
            stages: BTreeSet::new(),
            stage_count: 0,
            waiting: BTreeSet::new(),
            region: descriptor(),
            digests: Vec::new(),
            is_over: false,
        }
    }

    fn go_on(&mut self, input: &mut Input<'_>) {
        let event = match input.below(12) {
            8 => Some(self.staged(input)),
            9 => Some(self.notice(input)),
            10 => Some(self.change(input)),
            11 => Some(self.digested(input)),
            0 => self.work.pop_front().map(|work| self.complete(work)),
            1 => {
                // Everything that is on its way is done.
                while !self.is_over
                    && let Some(work) = self.work.pop_front()
                {
                    let event = self.complete(work);
                    self.step(Some(event), 0);
                }
                if self.is_over {
                    return;
                }
                None
            }
            2 => Some(self.request(input)),
            3 => {
                self.now = self.now.after_ms(u64::from(input.byte()) * 4);
                None
            }
            4 if input.below(4) == 0 => Some(Event::Campaign { region: REGION }),
            _ => Some(Event::Message(self.envelope(input))),
        };
        let late_ms = if input.below(8) == 0 { u64::from(input.byte()) } else { 0 };
        self.step(event, late_ms);
    }

    fn step(&mut self, event: Option<Event>, late_ms: u64) {
        let before = self.status();
        self.shard.step(self.now, event.into_iter(), &mut self.effects);
        self.is_over |= self.shard.status(REGION).is_none();
        if !self.is_over {
            let after = self.status();
            // One message, one election, or both.
            let term_max = before.term.0 + TERM_LEAD_MAX + 2;
            assert!(before.last == Index(0) || after.term.0 <= term_max, "{before:?} to {after:?}");
        }
        let served = self.now.after_ms(late_ms);
        if self.shard.drop_leases_if_late(served, &mut self.effects) {
            assert!(
                self.effects.answers.reads.iter().all(|grant| !grant.by_lease),
                "{:?}",
                self.effects
            );
            self.now = served;
        }
        self.shard.check_invariants();
        self.carry_out();
    }

    fn carry_out(&mut self) {
        let effects = &mut self.effects;
        self.is_over |= !effects.findings.lost_logs.is_empty();
        for envelope in effects.messages.drain(..) {
            let Message { kind, term, .. } = envelope.message;
            let is_vain =
                matches!(kind, MessageKind::RequestPreVote | MessageKind::RequestPreVoteResponse);
            assert!(is_vain || term <= self.persisted_term, "{kind:?} of {term} leaves too early");
        }
        self.work.extend(effects.log.writes.drain(..).map(Work::Write));
        self.work.extend(effects.fetches.drain(..).map(Work::Fetch));
        self.work.extend(effects.apply.drain(..).map(Work::Apply));
        let granted = effects.answers.reads.drain(..).map(|grant| grant.ticket);
        let tickets = granted.chain(effects.answers.rejected.drain(..).map(|(ticket, _)| ticket));
        let tickets = tickets.chain(effects.answers.undecided.drain(..));
        for ticket in tickets {
            assert!(self.waiting.remove(&ticket), "ticket {ticket} comes out again");
        }
        for stage in effects.discards.drain(..) {
            assert!(self.stages.remove(&stage), "stage {stage} is dropped, and was not there");
        }
        for install in effects.installs.drain(..) {
            assert!(self.stages.remove(&install.stage), "{install:?} has no stage");
            self.work.push_back(Work::Install(install));
        }
        self.work.extend(effects.snapshots.drain(..).map(|send| Work::Send(send, false)));
        self.work.extend(effects.ends.drain(..).map(Work::End));
        effects.clear();
    }

    fn complete(&mut self, work: Work) -> Event {
        match work {
            Work::Install(InstallTask { stage, head, hard_state, .. }) => {
                self.persisted_term = self.persisted_term.max(hard_state.term);
                let (applied, installed) = (head.index, Some(stage));
                self.region = head.descriptor;
                Event::Checkpointed { region: REGION, applied, installed }
            }
            Work::Send(send, is_begun) => {
                let (from, to) = (send.envelope.from.id, send.envelope.to.id);
                let number = send.number;
                if is_begun {
                    return Event::SnapshotSent { region: REGION, from, to, number, ok: true };
                }
                let head = send.envelope.message.snapshot.as_ref();
                let index = head.map_or(send.envelope.message.index, |head| head.index);
                self.work.push_back(Work::Send(send, true));
                Event::SnapshotBegun { region: REGION, from, to, number, index }
            }
            Work::Write(write) => {
                if write.reset.is_some() {
                    self.log.clear();
                }
                if let Some(first) = write.entries.first() {
                    self.log.split_off(&first.index);
                }
                self.log.extend(write.entries.into_iter().map(|entry| (entry.index, entry)));
                if let Some(state) = write.hard_state {
                    self.persisted_term = state.term;
                }
                Event::Persisted { region: REGION, number: write.number }
            }
            Work::End(EndTask { region, peer }) => Event::Ended { region, peer },
            Work::Fetch(LogFetch { region, peer, context, low, high, .. }) => {
                let entries: Vec<_> = self.log.range(low..high).map(|(_, e)| e.clone()).collect();
                match entries.first() {
                    Some(first) if first.index == low => {
                        Event::Fetched { region, peer, context, entries }
                    }
                    _ => Event::FetchFailed { region, peer, context },
                }
            }
            Work::Apply(task) => {
                for committed in &task.entries {
                    for ticket in &committed.tickets {
                        assert!(self.waiting.remove(ticket), "ticket {ticket} comes out again");
                    }
                }
                let index = task.entries.last().expect("never none").entry.index;
                let changes = task.entries.iter().filter_map(|one| self.applied(&one.entry));
                let changes = changes.collect();
                Event::Applied { region: REGION, index, changes, size: None }
            }
        }
    }

    /// The change of the region by an entry, as a store makes it.
    fn applied(&mut self, entry: &LogEntry) -> Option<RegionChange> {
        // Entries of other stores are arbitrary bytes: a store would stop at a damaged one.
        let command = AdminCommand::decode(entry).ok().flatten()?;
        let index = entry.index;
        match command {
            AdminCommand::Membership(command) => {
                self.region = command.apply(&self.region).ok()?;
                let (change, descriptor) = (command.change, self.region.clone());
                Some(RegionChange::Membership { index, change, descriptor })
            }
            AdminCommand::Forget(peer) => {
                let unconfirmed = &mut self.region.removed.unconfirmed;
                let at = unconfirmed.iter().position(|removed| removed.id == peer)?;
                unconfirmed.remove(at);
                Some(RegionChange::Forgotten { index, peer, descriptor: self.region.clone() })
            }
            AdminCommand::ComputeDigest { .. } => {
                self.digests.push(index);
                Some(RegionChange::DigestDue { index })
            }
            AdminCommand::VerifyDigests(comparison) => {
                let verdict = comparison.verdict(&self.region);
                Some(RegionChange::Compared { index, verdict })
            }
            AdminCommand::Split(_) => None,
        }
    }

    fn status(&self) -> Status {
        self.shard.status(REGION).expect("it is here")
    }

    /// A word about this replica, another one, or one that cannot be.
    fn notice(&mut self, input: &mut Input<'_>) -> Event {
        let index = self.digests.last().copied().unwrap_or_default();
        let digest = Some(u64::from(input.below(2)));
        let kinds = [
            NoticeKind::WhoIs,
            NoticeKind::Gone,
            NoticeKind::End,
            NoticeKind::Ended,
            NoticeKind::Digest { index, digest },
        ];
        let kind = kinds[usize::from(input.below(5))];
        let peer = PeerId(input.near(peer(1).id.0));
        let conf_version = input.near(self.region.epoch.conf_version);
        let epoch = Epoch { conf_version, version: 1 };
        let (from, to) = (StoreId(u64::from(2 + input.below(2))), StoreId(1));
        Event::Notice(Notice { region: REGION, from, to, kind, peer, epoch })
    }

    /// The digest of the rows here, or the wish for a comparison.
    fn digested(&mut self, input: &mut Input<'_>) -> Event {
        let (region, peer) = (REGION, peer(1).id);
        if !self.digests.is_empty() && input.below(2) == 0 {
            // Of an earlier entry, too: the store may have taken long.
            let nth = usize::from(input.below(4)) % self.digests.len();
            let index = self.digests[self.digests.len() - 1 - nth];
            let digest = (input.below(4) > 0).then(|| u64::from(input.below(2)));
            return Event::Digested { region, peer, index, digest };
        }
        self.ticket_count += 1;
        let ticket = Ticket(self.ticket_count);
        self.waiting.insert(ticket);
        Event::CompareReplicas { region, ticket, digest_version: 1 }
    }

    /// A change of the members that somebody wants.
    fn change(&mut self, input: &mut Input<'_>) -> Event {
        self.ticket_count += 1;
        let (region, ticket) = (REGION, Ticket(self.ticket_count));
        self.waiting.insert(ticket);
        let mut id = || PeerId(input.near(peer(3).id.0));
        let (one, other) = (id(), id());
        let change = match input.below(5) {
            0 => MembershipChange::LeaveJoint,
            1 => MembershipChange::Remove(one),
            2 => MembershipChange::Vote { promoted: vec![one], demoted: vec![other] },
            3 => MembershipChange::Vote { promoted: vec![], demoted: vec![one] },
            _ => MembershipChange::Add(Peer { id: one, store: StoreId(input.near(4)) }),
        };
        let command = MembershipCommand { epoch: self.region.epoch, change };
        Event::ChangeMembership { region, ticket, command }
    }

    /// A snapshot that has come, with any head.
    fn staged(&mut self, input: &mut Input<'_>) -> Event {
        let mut envelope = self.envelope(input);
        let status = self.status();
        let index = Index(input.near(status.commit.0));
        let term = Term(input.near(status.term.0));
        envelope.message = Message {
            kind: MessageKind::Snapshot,
            term: Term(input.near(status.term.0)),
            index,
            snapshot: Some(Box::new(SnapshotHead { index, term, descriptor: descriptor() })),
            ..Message::default()
        };
        self.stage_count += 1;
        let stage = StageId(self.stage_count);
        self.stages.insert(stage);
        Event::SnapshotStaged { envelope, stage }
    }

    fn request(&mut self, input: &mut Input<'_>) -> Event {
        self.ticket_count += 1;
        let (region, ticket, precondition) =
            (REGION, Ticket(self.ticket_count), RequestPrecondition::default());
        self.waiting.insert(ticket);
        if input.byte() % 2 == 0 {
            return Event::Read { region, ticket, precondition, follower: input.byte() % 2 == 0 };
        }
        let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(b"v"));
        let command = raw::encode(&[raw::RawOp::put(key, value)]);
        Event::Propose { region, ticket, precondition, command }
    }

    fn envelope(&mut self, input: &mut Input<'_>) -> Envelope {
        let status = self.status();
        let kinds = (0..20).filter_map(MessageKind::from_number);
        let kinds: Vec<_> = kinds.filter(|kind| *kind != MessageKind::Snapshot).collect();
        let kind = kinds[usize::from(input.byte()) % kinds.len()];
        let index = input.near(status.last.0);
        let entries = (1..=u64::from(input.below(4))).map(|nth| LogEntry {
            index: Index(index.saturating_add(nth)),
            term: Term(input.near(status.term.0)),
            kind: if input.below(8) == 0 { EntryKind::ConfChangeV2 } else { EntryKind::Normal },
            data: Bytes::from_static(b"?"),
        });
        let entries = if kind == MessageKind::Append { entries.collect() } else { vec![] };
        let term = if kind == MessageKind::ReadIndex { 0 } else { input.near(status.term.0) };
        Envelope {
            region: REGION,
            from: peer(u64::from(2 + input.below(2))),
            to: peer(1),
            epoch: Epoch { conf_version: 1, version: 1 },
            gc_floor: Index(if input.below(4) == 0 { input.near(status.commit.0) } else { 0 }),
            range: (input.below(4) == 0).then(|| Box::new(descriptor().range())),
            message: Message {
                kind,
                term: Term(term),
                log_term: Term(input.near(status.term.0)),
                index: Index(index),
                entries,
                commit: Index(if input.byte() % 2 == 0 { 0 } else { input.near(status.commit.0) }),
                commit_term: Term(input.near(status.term.0)),
                reject: input.byte() % 2 == 0,
                reject_hint: Index(input.near(status.last.0)),
                context: self.context(input),
                request_snapshot: Index(if input.below(8) == 0 {
                    input.near(status.last.0)
                } else {
                    0
                }),
                snapshot: None,
            },
        }
    }

    /// The name of a read, sometimes that of one that this replica has asked.
    fn context(&self, input: &mut Input<'_>) -> Bytes {
        match input.below(4) {
            0 => Bytes::new(),
            1 => vec![input.byte(); usize::from(input.below(40))].into(),
            _ => {
                let parts = [peer(1).id.0, 1, u64::from(input.below(16))];
                parts.iter().flat_map(|part| part.to_be_bytes()).collect::<Vec<_>>().into()
            }
        }
    }

    /// Each ticket comes out at last.
    fn end(mut self) {
        for ticket in self.shard.drain(&mut self.effects) {
            assert!(self.waiting.remove(&ticket), "ticket {ticket} comes out again");
        }
        self.carry_out();
        for work in std::mem::take(&mut self.work) {
            if let Work::Apply(task) = work {
                self.complete(Work::Apply(task));
            }
        }
        assert!(self.waiting.is_empty(), "tickets {:?} are lost", self.waiting);
    }
}
