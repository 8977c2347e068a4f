//! Three stores in one thread: a network, a clock for each, clients, and what must never happen.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::machine::{Answer, Disk, Machine, Rows};
use crate::entry_data;
use crate::*;
use flotilla_kv::raw::{self, RawOp};

pub(super) const REGION: RegionId = RegionId(7);

pub(super) struct Cluster {
    config: Config,
    pub(super) now: u64,
    pub(super) rng: fastrand::Rng,
    pub(super) machines: BTreeMap<u64, Machine>,
    /// Snapshots under way.
    streams: Vec<SnapshotStream>,
    stage_count: u64,
    /// Milliseconds that a snapshot is under way.
    pub(super) snapshot_ms: u64,
    /// Milliseconds until its sender hears of its end, at most.
    pub(super) report_ms: u64,
    /// Tickets whose fate was not learned.
    pub(super) undecided: Vec<Ticket>,
    /// Messages under way, by arrival.
    flying: BTreeMap<(u64, u64), Envelope>,
    flying_notices: BTreeMap<(u64, u64), Notice>,
    /// Those that were sent, each once.
    pub(super) notices: Vec<Notice>,
    sent_count: u64,
    pub(super) loss_percent: u32,
    /// Pairs of stores that do not hear each other.
    cut: BTreeSet<(u64, u64)>,
    /// The common history of each region: the entry applied at each index.
    pub(super) histories: BTreeMap<RegionId, BTreeMap<Index, LogEntry>>,
    waiting: BTreeMap<Ticket, Request>,
    pub(super) answers: BTreeMap<Ticket, Answer>,
    ticket_count: u64,
    /// A hash of the effects of each step.
    pub(super) trace: Vec<u64>,
    pub(super) roles: Vec<(u64, RoleChange)>,
    /// Stores that reported the loss of a part of their log, or wild terms.
    pub(super) lost_logs: Vec<(u64, LostLog)>,
    pub(super) wild_terms: Vec<(u64, WildTerm)>,
    start_count: u64,
    /// The newest value that a completed write or read has shown, by key.
    seen: BTreeMap<Bytes, u64>,
}

/// A snapshot under way.
struct SnapshotStream {
    from: u64,
    /// The start of the sender that knows of it.
    life: u64,
    send: SnapshotSend,
    phase: SnapshotPhase,
    due: u64,
}

enum SnapshotPhase {
    /// The view is not taken yet.
    Queued,
    Sending(SnapshotHead, Rows),
    Reporting(bool),
}

/// A request under way.
struct Request {
    store: u64,
    key: Bytes,
    /// The value to be written; none for a read.
    value: Option<u64>,
    /// The least value that a read may see.
    least: u64,
}

pub(super) fn peer(store: u64) -> Peer {
    Peer { id: PeerId(REGION.0 * 100 + store), store: StoreId(store) }
}

/// A sound replica that a split has made.
pub(super) fn new_replica(descriptor: Descriptor, peer: PeerId, campaigns: bool) -> NewReplica {
    NewReplica { descriptor, peer, campaigns, is_damaged: false }
}

pub(super) fn descriptor(stores: u64) -> Descriptor {
    Descriptor {
        removed: RemovedPeers::default(),
        id: REGION,
        space: Space::Raw,
        start: Bytes::new(),
        end: Bytes::new(),
        epoch: Epoch { conf_version: 1, version: 1 },
        peers: (1..=stores).map(|store| peer(store).into()).collect(),
    }
}

impl Cluster {
    pub(super) fn new(seed: u64, config: Config) -> Self {
        Self::with_stores(seed, config, 3)
    }

    pub(super) fn with_stores(seed: u64, config: Config, stores: u64) -> Self {
        let mut cluster = Self {
            config,
            now: 1000,
            rng: fastrand::Rng::with_seed(seed),
            machines: BTreeMap::new(),
            streams: vec![],
            stage_count: 0,
            snapshot_ms: 10,
            report_ms: 30,
            undecided: vec![],
            flying: BTreeMap::new(),
            flying_notices: BTreeMap::new(),
            notices: vec![],
            sent_count: 0,
            loss_percent: 0,
            cut: BTreeSet::new(),
            histories: BTreeMap::new(),
            waiting: BTreeMap::new(),
            answers: BTreeMap::new(),
            ticket_count: 0,
            trace: vec![],
            roles: vec![],
            lost_logs: vec![],
            wild_terms: vec![],
            start_count: 0,
            seen: BTreeMap::new(),
        };
        for store in 1..=stores {
            let disk = Disk::new(descriptor(stores), peer(store).id);
            let disks = BTreeMap::from([(REGION, disk)]);
            let mut machine = Machine::new(cluster.next_config(), store, disks);
            machine.start(clock(store, cluster.now), store == 1);
            cluster.machines.insert(store, machine);
        }
        cluster
    }

    /// A store that has nothing of the region.
    pub(super) fn add_store(&mut self, store: u64) {
        let mut machine = Machine::new(self.next_config(), store, BTreeMap::new());
        machine.start(clock(store, self.now), false);
        self.machines.insert(store, machine);
    }

    /// A store never had the region's data: others have made the region.
    pub(super) fn without_data_on(&mut self, store: u64) {
        assert_eq!(self.now, 1000, "at the beginning");
        self.add_store(store);
    }

    /// Each start has a seed of its own.
    fn next_config(&mut self) -> Config {
        self.start_count += 1;
        Config { seed: self.config.seed * 1_000_000 + self.start_count, ..self.config.clone() }
    }

    pub(super) fn crash(&mut self, store: u64) {
        let config = self.next_config();
        self.machines.get_mut(&store).unwrap().crash(config, &mut self.rng);
        // Its clients see a broken connection and learn nothing.
        self.waiting.retain(|_, request| request.store != store);
    }

    pub(super) fn restart(&mut self, store: u64) {
        let now = clock(store, self.now);
        self.machines.get_mut(&store).unwrap().start(now, false);
    }

    /// A store starts again on its disk as it was before the entries above `last`.
    pub(super) fn set_back(&mut self, store: u64, last: Index) {
        self.crash(store);
        let disk = self.machines.get_mut(&store).unwrap().disks.get_mut(&REGION).unwrap();
        disk.set_back(last);
        self.restart(store);
    }

    pub(super) fn is_up(&self, store: u64) -> bool {
        self.machines[&store].is_up
    }

    pub(super) fn status(&self, store: u64) -> Status {
        self.machines[&store].shard.status(REGION).unwrap()
    }

    /// The region's state on a store, if the store runs and has its data.
    pub(super) fn find_status(&self, store: u64) -> Option<Status> {
        self.machines[&store].shard.status(REGION)
    }

    /// Takes two stores apart.
    pub(super) fn part(&mut self, one: u64, other: u64) {
        self.cut.insert((one.min(other), one.max(other)));
    }

    pub(super) fn isolate(&mut self, store: u64) {
        for other in self.machines.keys().copied().filter(|other| *other != store) {
            self.cut.insert((store.min(other), store.max(other)));
        }
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    pub(super) fn pause(&mut self, store: u64, paused: bool) {
        self.machines.get_mut(&store).unwrap().paused = paused;
    }

    pub(super) fn push(&mut self, store: u64, event: Event) {
        self.machines.get_mut(&store).unwrap().inbox.push_back(event);
    }

    pub(super) fn put(&mut self, store: u64, key: &str, value: u64) -> Ticket {
        self.put_into(REGION, store, key, value)
    }

    pub(super) fn put_into(
        &mut self,
        region: RegionId,
        store: u64,
        key: &str,
        value: u64,
    ) -> Ticket {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let ticket = self.request(store, key.clone(), Some(value));
        let put = RawOp::put(key, Bytes::copy_from_slice(&value.to_be_bytes()));
        let command = raw::encode(&[put]);
        let precondition = RequestPrecondition { needs_room: true, ..Default::default() };
        self.push(store, Event::Propose { region, ticket, precondition, command });
        ticket
    }

    pub(super) fn read(&mut self, store: u64, key: &str, follower: bool) -> Ticket {
        self.read_of(REGION, store, key, follower)
    }

    pub(super) fn read_of(
        &mut self,
        region: RegionId,
        store: u64,
        key: &str,
        follower: bool,
    ) -> Ticket {
        let ticket = self.request(store, Bytes::copy_from_slice(key.as_bytes()), None);
        let precondition = RequestPrecondition::default();
        self.push(store, Event::Read { region, ticket, precondition, follower });
        ticket
    }

    pub(super) fn split(&mut self, store: u64, split: SplitCommand) -> Ticket {
        let ticket = self.request(store, Bytes::new(), None);
        self.push(store, Event::Split { region: REGION, ticket, split });
        ticket
    }

    /// Asks a store to have the replicas compared.
    pub(super) fn compare(&mut self, store: u64) -> Ticket {
        let ticket = self.request(store, Bytes::new(), None);
        self.push(store, Event::CompareReplicas { region: REGION, ticket, digest_version: 1 });
        ticket
    }

    /// Asks a store for a change of the members, for the region as it has it.
    pub(super) fn change(&mut self, store: u64, change: MembershipChange) -> Ticket {
        let descriptor = self.machines[&store].shard.descriptor(REGION);
        let epoch = descriptor.map(|descriptor| descriptor.epoch).unwrap_or_default();
        self.change_at(store, MembershipCommand { epoch, change })
    }

    pub(super) fn change_at(&mut self, store: u64, command: MembershipCommand) -> Ticket {
        let ticket = self.request(store, Bytes::new(), None);
        self.push(store, Event::ChangeMembership { region: REGION, ticket, command });
        ticket
    }

    /// Asks a store to hand the lead over, to another store or to the best one.
    pub(super) fn transfer(&mut self, store: u64, to: Option<u64>) -> Ticket {
        let ticket = self.request(store, Bytes::new(), None);
        let to = to.map(|store| peer(store).id);
        self.push(store, Event::TransferLeader { region: REGION, to, ticket: Some(ticket) });
        ticket
    }

    /// Takes messages of a kind out of the network, to be delivered later or never.
    pub(super) fn intercept(&mut self, kind: MessageKind) -> Vec<Envelope> {
        let taken = self.flying.extract_if(.., |_, envelope| envelope.message.kind == kind);
        taken.map(|(_, envelope)| envelope).collect()
    }

    fn request(&mut self, store: u64, key: Bytes, value: Option<u64>) -> Ticket {
        self.ticket_count += 1;
        let ticket = Ticket(self.ticket_count);
        let least = self.seen.get(&key).copied().unwrap_or(0);
        self.waiting.insert(ticket, Request { store, key, value, least });
        ticket
    }

    pub(super) fn is_waiting(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket)
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The leader of the highest term.
    pub(super) fn leader(&self) -> Option<u64> {
        let leads = |store: &u64| {
            let status = self.find_status(*store)?;
            (status.role == Role::Leader).then_some((status.term, *store))
        };
        self.machines.keys().filter_map(leads).max().map(|(_, store)| store)
    }

    pub(super) fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1;
            self.deliver();
            self.stream();
            for store in self.machines.keys().copied().collect::<Vec<_>>() {
                self.run_machine(store);
            }
        }
    }

    /// Runs until it holds, which must be within ten seconds.
    pub(super) fn run_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..10_000 {
            if holds(self) {
                return;
            }
            self.run(1);
        }
        panic!("not within ten seconds: {what}");
    }

    /// Runs until a leader serves, and gives it back.
    pub(super) fn elect(&mut self) -> u64 {
        self.run_until("a leader that has committed in its term", |cluster| {
            let status = cluster.leader().map(|leader| cluster.status(leader));
            status.is_some_and(|s| s.commit > Index(0) && s.applied == s.commit)
        });
        self.leader().unwrap()
    }

    pub(super) fn answer(&mut self, ticket: Ticket) -> Answer {
        self.run_until("an answer", |cluster| cluster.answers.contains_key(&ticket));
        self.answers[&ticket].clone()
    }

    fn deliver(&mut self) {
        while let Some(first) = self.flying.first_entry().filter(|e| e.key().0 <= self.now) {
            let envelope = first.remove();
            let (from, to) = (envelope.from.store.0, envelope.to.store.0);
            let is_cut = self.cut.contains(&(from.min(to), from.max(to)));
            if !is_cut && self.is_up(to) {
                self.push(to, Event::Message(envelope));
            }
        }
        while let Some(first) = self.flying_notices.first_entry().filter(|e| e.key().0 <= self.now)
        {
            let notice = first.remove();
            let (from, to) = (notice.from.0, notice.to.0);
            let is_cut = self.cut.contains(&(from.min(to), from.max(to)));
            if !is_cut && self.is_up(to) {
                self.push(to, Event::Notice(notice));
            }
        }
    }

    /// Carries snapshots on.
    fn stream(&mut self) {
        for mut stream in std::mem::take(&mut self.streams) {
            let is_known =
                self.is_up(stream.from) && self.machines[&stream.from].life == stream.life;
            if !is_known || stream.due > self.now {
                if is_known {
                    self.streams.push(stream);
                }
                continue;
            }
            if let Some((phase, ms)) = self.advance_stream(&stream) {
                stream.phase = phase;
                stream.due = self.now + ms;
                self.streams.push(stream);
            }
        }
    }

    fn advance_stream(&mut self, stream: &SnapshotStream) -> Option<(SnapshotPhase, u64)> {
        let SnapshotSend { number, envelope } = &stream.send;
        let (region, number, to) = (envelope.region, *number, envelope.to.id);
        let sender = envelope.from.id;
        match &stream.phase {
            SnapshotPhase::Queued => {
                let disk = self.machines[&stream.from].disks.get(&region);
                let Some(disk) = disk.filter(|disk| disk.peer == sender && disk.has_data()) else {
                    return Some((SnapshotPhase::Reporting(false), 0));
                };
                let (index, term, rows) = disk.applied.clone();
                let descriptor = disk.descriptor.clone();
                let sent = envelope.message.snapshot.as_ref().unwrap();
                assert!(sent.index <= index && sent.term <= term, "a view of the past");
                if term > envelope.message.term || self.chance(self.loss_percent) {
                    return Some((SnapshotPhase::Reporting(false), 0));
                }
                self.push(
                    stream.from,
                    Event::SnapshotBegun { region, from: sender, to, number, index },
                );
                let head = SnapshotHead { index, term, descriptor };
                Some((SnapshotPhase::Sending(head, rows), self.snapshot_ms))
            }
            SnapshotPhase::Sending(head, rows) => {
                let (from, to) = (stream.from, envelope.to.store.0);
                let is_cut = self.cut.contains(&(from.min(to), from.max(to)));
                let target = &self.machines[&to];
                let held = target.holds(&head.descriptor.range(), region)
                    || target.has_ended(region, envelope.to.id);
                if is_cut || !self.is_up(to) || held || self.chance(self.loss_percent) {
                    return Some((SnapshotPhase::Reporting(false), 1));
                }
                self.stage_count += 1;
                let stage = StageId(self.stage_count);
                let mut envelope = envelope.clone();
                envelope.message.snapshot = Some(Box::new(head.clone()));
                let staged = (head.descriptor.clone(), rows.clone());
                self.machines.get_mut(&to).unwrap().stages.insert(stage, staged);
                self.push(to, Event::SnapshotStaged { envelope, stage });
                let ms = self.rng.u64(self.report_ms / 2..=self.report_ms);
                Some((SnapshotPhase::Reporting(true), ms))
            }
            SnapshotPhase::Reporting(ok) => {
                self.push(
                    stream.from,
                    Event::SnapshotSent { region, from: sender, to, number, ok: *ok },
                );
                None
            }
        }
    }

    fn run_machine(&mut self, store: u64) {
        let mut machine = self.machines.remove(&store).unwrap();
        if machine.is_up && !machine.paused {
            machine.complete(self.now, |region, committed, answers| {
                self.note_applied(store, region, committed, answers);
            });
            let now = clock(store, self.now);
            let is_due = machine.shard.next_step().is_some_and(|due| due <= now);
            if is_due || !machine.inbox.is_empty() {
                let mut effects = Effects::default();
                machine.shard.step(now, machine.inbox.drain(..), &mut effects);
                machine.shard.drop_leases_if_late(now.after_ms(machine.late_ms), &mut effects);
                machine.shard.check_invariants();
                self.trace.push(hash(&format!("{store} {now} {effects:?}")));
                self.carry_out(store, &mut machine, effects);
            }
        }
        self.machines.insert(store, machine);
    }

    fn carry_out(&mut self, store: u64, machine: &mut Machine, mut effects: Effects) {
        for envelope in effects.messages.drain(..) {
            let copies = if self.loss_percent == 0 { 1 } else { 1 + u64::from(self.chance(5)) };
            for _ in 0..copies {
                if !self.chance(self.loss_percent) {
                    let delay = if self.chance(self.loss_percent) { 100 } else { 4 };
                    let due = self.now + self.rng.u64(1..=delay);
                    self.sent_count += 1;
                    self.flying.insert((due, self.sent_count), envelope.clone());
                }
            }
        }
        for send in effects.snapshots.drain(..) {
            let (due, life) = (self.now + self.rng.u64(1..4), machine.life);
            let phase = SnapshotPhase::Queued;
            self.streams.push(SnapshotStream { from: store, life, send, phase, due });
        }
        for ticket in effects.answers.undecided.drain(..) {
            self.waiting.remove(&ticket).expect("a ticket comes out once");
            self.undecided.push(ticket);
        }
        for grant in effects.answers.reads.drain(..) {
            let (applied, _, rows) = &machine.disks[&grant.region].applied;
            assert!(*applied >= grant.index, "{grant:?} at {applied}");
            let key = &self.waiting[&grant.ticket].key;
            let value = rows.get(key).cloned();
            self.note_answer(store, grant.ticket, Answer::Value(value));
        }
        for LeaderTransferred { ticket, leader, .. } in effects.answers.transferred.drain(..) {
            self.note_answer(store, ticket, Answer::Transferred(leader));
        }
        for (ticket, why) in effects.answers.rejected.drain(..) {
            self.note_answer(store, ticket, Answer::Rejected(why));
        }
        for notice in effects.notices.drain(..) {
            self.notices.push(notice);
            if !self.chance(self.loss_percent) {
                let due = self.now + self.rng.u64(1..=4);
                self.sent_count += 1;
                self.flying_notices.insert((due, self.sent_count), notice);
            }
        }
        self.roles.extend(effects.roles.drain(..).map(|role| (store, role)));
        self.lost_logs.extend(effects.findings.lost_logs.drain(..).map(|lost| (store, lost)));
        self.wild_terms.extend(effects.findings.wild_terms.drain(..).map(|wild| (store, wild)));
        machine.carry_out(&mut effects, self.now, &mut self.rng);
        assert!(effects.is_empty());
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.u32(0..100) < percent
    }

    /// State machine safety, and that each ticket belongs to its own proposal.
    fn note_applied(
        &mut self,
        store: u64,
        region: RegionId,
        committed: Committed,
        answers: Vec<Answer>,
    ) {
        let Committed { entry, tickets } = committed;
        let history = self.histories.entry(region).or_default();
        let known = history.entry(entry.index).or_insert_with(|| entry.clone());
        assert_eq!(*known, entry, "two replicas applied different entries");
        assert!(tickets.is_empty() || tickets.len() == answers.len(), "a ticket for each proposal");
        if AdminCommand::decode(&entry).unwrap().is_some() {
            for (ticket, answer) in tickets.into_iter().zip(answers) {
                self.note_answer(store, ticket, answer);
            }
            return;
        }
        let proposals: Vec<_> = entry_data::proposals(&entry.data).map(Result::unwrap).collect();
        for ((ticket, answer), proposal) in tickets.into_iter().zip(answers).zip(proposals) {
            let request = &self.waiting[&ticket];
            let ops = raw::decode(proposal.command).unwrap().ops;
            let value = Bytes::copy_from_slice(&request.value.unwrap().to_be_bytes());
            assert_eq!(ops, [RawOp::put(request.key.clone(), value)], "somebody else's");
            self.note_answer(store, ticket, answer);
        }
    }

    /// Each ticket comes out once, where it went in; no read is stale.
    fn note_answer(&mut self, store: u64, ticket: Ticket, answer: Answer) {
        let request = self.waiting.remove(&ticket).expect("a ticket comes out once");
        assert_eq!(request.store, store, "a ticket comes out where it went in");
        let seen = self.seen.entry(request.key).or_default();
        match &answer {
            Answer::Value(value) => {
                let value =
                    value.as_ref().map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
                assert!(value >= request.least, "stale read of {value} after {}", request.least);
                *seen = value.max(*seen);
            }
            Answer::Done => *seen = request.value.unwrap_or_default().max(*seen),
            Answer::Rejected(_) | Answer::Transferred(_) => {}
        }
        self.answers.insert(ticket, answer);
    }
}

/// The clocks of the stores start at different times and run at different speeds.
pub(super) fn clock(store: u64, now: u64) -> Time {
    Time(store * 10_000 + now * (98 + store) / 100)
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
