//! Three nodes in one thread, each on a log and a disk of its own, which lose power.
//!
//! Always: no two leaders in one term; an entry that one node has applied at an
//! index no other node applies otherwise, nor does it itself after a restart; an entry acknowledged
//! by a commit is applied by all in the end. Nodes snapshot and compact, fetch through `Fetch`, and
//! keep nearly nothing in memory.

use crate::kit::{GROUP, node, open_log, write};
use flotilla_raftlog::{Commit, Durability, Error, LogBatch, LogEngine};
use flotilla_raftlog_raft_rs::{Config, GroupStorage};
use flotilla_vfs::fault::FaultFs;
use raft::eraftpb::{Entry, Message, Snapshot};
use raft::{RawNode, StateRole, StorageError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const VOTERS: [u64; 3] = [1, 2, 3];
/// The group's own key for what its state machine has applied: index, term, digest of all entries.
const APPLIED_KEY: &[u8] = b"machine";

/// A state machine whose whole state is a digest of what it has applied.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Machine {
    index: u64,
    term: u64,
    digest: u64,
}

impl Machine {
    fn apply(&mut self, entry: &Entry) {
        assert_eq!(entry.index, self.index + 1, "applied in order");
        let mut digest = self.digest ^ entry.term.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in entry.data.iter() {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        *self = Machine { index: entry.index, term: entry.term, digest };
    }

    fn encode(self) -> Vec<u8> {
        [self.index, self.term, self.digest].map(u64::to_le_bytes).concat()
    }

    fn decode(bytes: &[u8]) -> Machine {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Machine { index: number(0), term: number(8), digest: number(16) }
    }
}

/// Facts of the run, which nothing may contradict.
#[derive(Default)]
struct Truth {
    applied: BTreeMap<u64, Machine>,
    leaders: BTreeMap<u64, u64>,
    snapshot_count: u64,
    fetch_count: u64,
}

struct Server {
    id: u64,
    disk: FaultFs,
    log: LogEngine,
    node: RawNode<GroupStorage>,
    machine: Machine,
    /// Written or about to be, in order.
    under_way: Vec<Write>,
    /// The machine as of the last snapshot, shared with the storage's source.
    snapshot: Arc<Mutex<Machine>>,
}

/// The writes that one `Ready` waits for.
struct Write {
    commit: Option<Commit>,
    number: u64,
    messages: Vec<Message>,
    snapshot: Option<u64>,
}

/// The power has gone.
struct Cut;

fn snapshot_of(machine: Machine) -> Snapshot {
    let mut snapshot = Snapshot { data: machine.encode().into(), ..Snapshot::default() };
    let meta = snapshot.mut_metadata();
    (meta.index, meta.term) = (machine.index, machine.term);
    *meta.mut_conf_state() = (VOTERS.to_vec(), vec![]).into();
    snapshot
}

impl Server {
    fn start(id: u64, disk: FaultFs) -> Server {
        let log = open_log(&disk);
        let config = Config { entry_cache_bytes_max: 256, async_fetches: true };
        let mut storage = GroupStorage::open(log.clone(), GROUP, config).expect("it opens");
        let key = log.group(GROUP).and_then(|group| group.get(APPLIED_KEY));
        let machine = key.map(|bytes| Machine::decode(&bytes)).unwrap_or_default();
        if log.group(GROUP).is_none() {
            let mut batch = LogBatch::new();
            storage.persist_conf_state(&mut batch, &(VOTERS.to_vec(), vec![]).into());
            write(&log, batch);
        }
        let snapshot = Arc::new(Mutex::new(machine));
        let newest = snapshot.clone();
        let storage = storage.with_snapshots(Box::new(move |_, _| {
            match *newest.lock().expect("nobody panics with it") {
                Machine { index: 0, .. } => {
                    Err(StorageError::SnapshotTemporarilyUnavailable.into())
                }
                machine => Ok(snapshot_of(machine)),
            }
        }));
        let node = node(id, storage, machine.index);
        Server { id, disk, log, node, machine, under_way: Vec::new(), snapshot }
    }

    fn restart(&mut self, seed: u64) {
        self.disk.power_loss(seed);
        *self = Server::start(self.id, self.disk.clone());
    }

    /// Carries out what is ready: messages of a leader leave at once, all others after the write.
    /// The write may be carried out later, with those that come.
    fn work(&mut self, later: bool, truth: &mut Truth) -> Result<Vec<Message>, Cut> {
        let mut sent = Vec::new();
        loop {
            while self.node.has_ready() {
                self.take_ready(&mut sent, truth);
                for fetch in self.node.store().take_fetches() {
                    truth.fetch_count += 1;
                    fetch.read().deliver_to(&mut self.node).expect("what is written can be read");
                }
            }
            if later || self.under_way.is_empty() {
                break;
            }
            for write in self.under_way.drain(..) {
                match write.commit.map(Commit::wait) {
                    None | Some(Ok(_)) => self.node.on_persist_ready(write.number),
                    Some(Err(Error::Poisoned(_))) => return Err(Cut),
                    Some(Err(other)) => panic!("{other}"),
                }
                if let Some(snapshot) = write.snapshot {
                    self.node.advance_apply_to(snapshot);
                }
                sent.extend(write.messages);
            }
        }
        // Raft draws it from the thread's random source; from term and node, a run repeats exactly.
        let ticks = 10 + (self.node.raft.term.wrapping_mul(7) ^ (3 * self.id)) % 10;
        self.node.raft.set_randomized_election_timeout(ticks as usize);
        if self.node.raft.state == StateRole::Leader {
            let leader = *truth.leaders.entry(self.node.raft.term).or_insert(self.id);
            assert_eq!(leader, self.id, "two leaders in term {}", self.node.raft.term);
        }
        Ok(sent)
    }

    fn take_ready(&mut self, sent: &mut Vec<Message>, truth: &mut Truth) {
        let mut ready = self.node.ready();
        sent.extend(ready.take_messages());
        let mut batch = LogBatch::new();
        self.node.mut_store().persist_ready(&mut batch, &ready).expect("it meets the log");
        let mut snapshot = None;
        if !ready.snapshot().is_empty() {
            self.machine = Machine::decode(&ready.snapshot().data);
            *self.snapshot.lock().expect("nobody panics with it") = self.machine;
            batch.put(GROUP, APPLIED_KEY, &self.machine.encode());
            snapshot = Some(self.machine.index);
            truth.snapshot_count += 1;
        }
        let durability = if ready.must_sync() { Durability::Synced } else { Durability::Buffered };
        let commit = (!batch.is_empty()).then(|| self.log.write(batch, durability));
        let (number, messages) = (ready.number(), ready.take_persisted_messages());
        self.under_way.push(Write { commit, number, messages, snapshot });
        let committed = ready.take_committed_entries();
        self.node.advance_append_async(ready);
        self.apply(&committed, truth);
    }

    fn apply(&mut self, committed: &[Entry], truth: &mut Truth) {
        for entry in committed {
            self.machine.apply(entry);
            let known = *truth.applied.entry(entry.index).or_insert(self.machine);
            assert_eq!(known, self.machine, "node {} applies otherwise", self.id);
        }
        if let Some(last) = committed.last() {
            self.node.advance_apply_to(last.index);
        }
    }

    /// Keeps the machine, and gives up all but the newest entries.
    fn compact(&mut self) -> Result<(), Cut> {
        let mut batch = LogBatch::new();
        batch.put(GROUP, APPLIED_KEY, &self.machine.encode());
        *self.snapshot.lock().expect("nobody panics with it") = self.machine;
        let first = self.machine.index.saturating_sub(2).max(1);
        self.node.mut_store().compact_to(&mut batch, first).expect("it is applied");
        match self.log.write(batch, Durability::Synced).wait() {
            Ok(_) => Ok(()),
            Err(Error::Poisoned(_)) => Err(Cut),
            Err(other) => panic!("{other}"),
        }
    }
}

struct Cluster {
    servers: Vec<Server>,
    network: Vec<Message>,
    truth: Truth,
    rng: fastrand::Rng,
    crash_count: u64,
    /// Whether writes may be carried out late.
    is_late: bool,
}

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let start = |id| Server::start(id, FaultFs::new(seed ^ id));
        let servers = VOTERS.into_iter().map(start).collect();
        let rng = fastrand::Rng::with_seed(seed);
        let (network, truth) = (Vec::new(), Truth::default());
        Cluster { servers, network, truth, rng, crash_count: 0, is_late: true }
    }

    fn work(&mut self, at: usize) {
        let later = self.is_late && self.rng.bool();
        match self.servers[at].work(later, &mut self.truth) {
            Ok(sent) => self.network.extend(sent),
            Err(Cut) => self.crash(at),
        }
    }

    fn crash(&mut self, at: usize) {
        self.crash_count += 1;
        let seed = self.rng.u64(..);
        self.servers[at].restart(seed);
    }

    fn deliver(&mut self) {
        if !self.network.is_empty() {
            let message = self.network.swap_remove(self.rng.usize(..self.network.len()));
            let at = message.to as usize - 1;
            // A message from a node that it does not know is refused, which is right.
            let _ = self.servers[at].node.step(message);
            self.work(at);
        }
    }

    fn tick(&mut self, at: usize) {
        self.servers[at].node.tick();
        self.work(at);
    }

    /// One thing happens.
    fn step(&mut self, number: u64) {
        let at = self.rng.usize(..3);
        match self.rng.u32(..1000) {
            0..300 => self.tick(at),
            300..400 => {
                let data = number.to_le_bytes().repeat(self.rng.usize(1..20));
                // Refused by who is no leader.
                let _ = self.servers[at].node.propose(vec![], data);
                self.work(at);
            }
            400..404 => self.crash(at),
            404..410 => self.servers[at].disk.cut_power_after(self.rng.u64(1..12)),
            410..440 => {
                if self.servers[at].compact().is_err() {
                    self.crash(at);
                }
            }
            440..460 if !self.network.is_empty() => {
                self.network.swap_remove(self.rng.usize(..self.network.len()));
            }
            _ => self.deliver(),
        }
    }

    /// Everything works from now on, until all have applied the same.
    fn settle(&mut self) -> Machine {
        self.is_late = false;
        for at in 0..3 {
            self.crash(at);
        }
        let target = self.truth.applied.keys().last().map_or(0, |last| last + 1);
        for _ in 0..20_000 {
            for at in 0..3 {
                self.tick(at);
                let _ = self.servers[at].node.propose(vec![], b"last".to_vec());
                self.work(at);
            }
            while !self.network.is_empty() {
                self.deliver();
            }
            let machines: Vec<_> = self.servers.iter().map(|server| server.machine).collect();
            if machines[0].index >= target && machines.iter().all(|m| *m == machines[0]) {
                return machines[0];
            }
        }
        panic!("no agreement: {:?}", self.servers.iter().map(|s| s.machine).collect::<Vec<_>>());
    }
}

#[test]
fn three_nodes_agree_whatever_power_they_lose() {
    let (mut entries, mut crashes, mut snapshots, mut fetches) = (0, 0, 0, 0);
    for seed in 0..24 {
        // Shown when the test fails.
        println!("seed {seed}");
        let mut cluster = Cluster::new(seed);
        for number in 0..2_000 {
            cluster.step(number);
        }
        entries += cluster.settle().index;
        crashes += cluster.crash_count;
        snapshots += cluster.truth.snapshot_count;
        fetches += cluster.truth.fetch_count;
    }
    println!("{entries} entries, {crashes} crashes, {snapshots} snapshots, {fetches} fetches");
    assert!(entries > 500 && crashes > 200, "{entries} entries, {crashes} crashes");
    assert!(snapshots > 10 && fetches > 20, "{snapshots} snapshots, {fetches} fetches");
}
