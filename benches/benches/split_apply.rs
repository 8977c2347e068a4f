//! What does the apply of a split cost the thread that applies?
//!
//! A store on real files, one region with a million rows, split into a thousand and one: one child
//! an entry, each alone in its apply. Every second split comes alone: the thread has waited for the
//! disk, and the CPU's caches have little of what it needs. The others stand in the log behind some
//! puts and are applied right after them, as under load. Checkpoints come when the store's policy
//! asks for them, as on a node, but between the applies. No row moves: the cost is that of the
//! descriptors' and forms' rows.
//!
//! Shown is the thread's CPU time. All is done five times, each time with the same splits: once for
//! all the times that were taken, and once for the median of each split, in which what the machine
//! did beside is not.
//!
//! `cargo bench --bench split_apply`, and `-- ROWS SPLITS` behind it for other than 1,000,000 and
//! 1,000. With `--test` both are small.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_identity::{
    BootstrapPlan, BootstrapWrite, ClusterSettings, ClusterSpec, SYSTEM_REGION, StoreUuid,
};
use flotilla_kv::raw::{self, RawOp};
use flotilla_region::{
    AdminCommand, ApplyTask, BirthOrigin, Committed, Descriptor, EntryKind, Epoch, HardState,
    Index, LogEntry, LogWrite, Peer, PeerId, RecoveredReplica, RegionChange, RegionId,
    RemovedPeers, ReplicaBirth, Space, SplitChild, SplitCommand, StoreId, Term, Ticket,
};
use flotilla_store::{ApplyOutcome, Config, StartSeed, Store, StoreDirectory, StoreMaintenance};
use flotilla_vfs::os::OsFs;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

const PARENT: (RegionId, PeerId) = (RegionId(2), PeerId(201));
/// Rows written by one entry.
const ROWS_AT_ONCE: u64 = 1000;
const ROUNDS: usize = 5;
/// Puts before a split that is applied under load: about as many as there are of each split where
/// a region becomes a thousand in some seconds.
const PUTS_AHEAD: u64 = 16;

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (rows, splits) = match numbers[..] {
        _ if is_test => (10_000, 20),
        [rows, splits] => (rows, splits),
        _ => (1_000_000, 1_000),
    };
    // By split, the times of all rounds.
    let mut times = vec![Vec::new(); usize::try_from(splits).expect("they fit into memory")];
    for _ in 0..ROUNDS {
        let dir = tempfile::tempdir().expect("there is a place for temporary files");
        let mut bench = Bench::new(dir.path());
        bench.fill(rows);
        for (number, times) in (1..).zip(&mut times) {
            bench.maintain();
            let puts = if is_loaded(number) { PUTS_AHEAD } else { 0 };
            times.push(bench.split(rows * number / (splits + 1), puts));
        }
        bench.store.check().expect("the rows are whole");
    }
    println!(
        "{splits} splits of a region with {rows} rows, {ROUNDS} rounds; CPU time of the apply"
    );
    println!("                        p50 us  p90 us  p99 us  p99.9 us  max us");
    for (name, loaded) in [("alone", false), ("behind puts", true)] {
        let (mut all, mut medians) = (histogram(), histogram());
        for (_, times) in (1..).zip(&mut times).filter(|(number, _)| is_loaded(*number) == loaded) {
            times.sort_unstable();
            times.iter().for_each(|time| record(&mut all, *time));
            record(&mut medians, times[ROUNDS / 2]);
        }
        for (of, histogram) in [("all", all), ("medians", medians)] {
            let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
            let (p50, p90, p99, p999, max) = (at(0.5), at(0.9), at(0.99), at(0.999), at(1.0));
            println!("{name:11}  {of:9} {p50:8.1} {p90:7.1} {p99:7.1} {p999:9.1} {max:7.1}");
        }
    }
}

/// Whether the split comes behind puts.
fn is_loaded(number: u64) -> bool {
    number.is_multiple_of(2)
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("the precision is one that there is")
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).expect("a split takes no centuries");
    histogram.record(nanos).expect("the histogram grows");
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a thread has run for some time")
}

fn key(row: u64) -> Bytes {
    format!("row{row:013}").into()
}

/// A store with one region, of which it has the only replica.
struct Bench {
    store: Store,
    began: Instant,
    version: u64,
    index: u64,
    next_id: u64,
}

impl Bench {
    fn new(dir: &Path) -> Self {
        let seed = StartSeed { uuid: StoreUuid(1), nonce: 1 };
        let mut directory =
            StoreDirectory::open(Arc::new(OsFs::new()), dir, Config::default(), seed)
                .expect("it opens");
        let stores = ClusterSpec::parse_stores("s1=127.0.0.1:1").expect("the list is well-formed");
        let (settings, uuid) = (ClusterSettings::default(), directory.identity().uuid);
        let spec =
            ClusterSpec { stores, settings, regions: 1, split_keys: Vec::new(), cluster_id: 0 };
        let regions = vec![
            descriptor(SYSTEM_REGION, PeerId(101), Space::System),
            descriptor(PARENT.0, PARENT.1, Space::Raw),
        ];
        let plan = BootstrapPlan { cluster_id: 1, round: 1, uuids: vec![uuid], spec, regions };
        for write in
            [BootstrapWrite::Form { plan: Box::new(plan), place: 0 }, BootstrapWrite::Member]
        {
            directory.write(&write).expect("the store becomes a member");
        }
        let (store, _) = Store::start(directory).expect("the store starts");
        Self { store, began: Instant::now(), version: 1, index: 0, next_id: 10 }
    }

    fn fill(&mut self, rows: u64) {
        for first in (0..rows).step_by(ROWS_AT_ONCE as usize) {
            let put = |row| RawOp::put(key(row), Bytes::from_static(&[b'v'; 100]));
            let ops: Vec<RawOp> = (first..rows.min(first + ROWS_AT_ONCE)).map(put).collect();
            self.maintain();
            self.run(proposal(self.version, &raw::encode(&ops)));
        }
    }

    /// Does what the store's policy asks for now.
    fn maintain(&self) {
        let next = || self.store.maintain(self.began.elapsed()).expect("the disk has room");
        while !matches!(next(), StoreMaintenance::Rest { .. }) {}
    }

    /// Gives all keys of the parent below a row to a new region, behind puts of rows that it keeps;
    /// returns the CPU time of the split's apply.
    fn split(&mut self, row: u64, puts: u64) -> Duration {
        let id = RegionId(self.next_id);
        let peer = PeerId(id.0 * 100 + 1);
        self.next_id += 1;
        let child = SplitChild { id, end: key(row), peers: vec![peer] };
        let epoch = Epoch { conf_version: 1, version: self.version };
        let split = AdminCommand::Split(SplitCommand { epoch, children: vec![child] }).encode();
        let put = |number| RawOp::put(key(row + number), Bytes::from_static(&[b'w'; 100]));
        let put = |number| proposal(self.version, &raw::encode(&[put(number)]));
        let mut tasks = self.logged((0..puts).map(put).chain([split]).collect());
        let split = tasks.pop().expect("it is the last");
        self.store.apply(&tasks).expect("the puts are applied");
        let began = cpu_time();
        let applied = self.store.apply(&[split]).expect("the split is applied");
        let time = cpu_time() - began;
        let changes = &applied.replicas[0].changes;
        assert!(matches!(changes[..], [RegionChange::Split { .. }]), "{changes:?}");
        self.version += 1;
        let birth = ReplicaBirth {
            region: id,
            peer,
            hard_state: RecoveredReplica::hard_state_of_split(),
            origin: BirthOrigin::Split {
                parent: PARENT,
                parent_hard_state: self.hard_state(),
                index: Index(self.index),
            },
        };
        self.store.write_log(&[], &[birth], &[], &[]).wait().expect("the birth is written");
        time
    }

    /// Writes an entry to the log and applies it.
    fn run(&mut self, data: Bytes) {
        let tasks = self.logged(vec![data]);
        let applied = self.store.apply(&tasks).expect("the entry is applied");
        assert_eq!(applied.outcomes[0].1, ApplyOutcome::Done);
    }

    /// Writes entries to the log; returns the tasks that apply them, one each.
    fn logged(&mut self, data: Vec<Bytes>) -> Vec<ApplyTask> {
        let entry = |data| {
            self.index += 1;
            LogEntry { index: Index(self.index), term: Term(1), kind: EntryKind::Normal, data }
        };
        let entries: Vec<_> = data.into_iter().map(entry).collect();
        let write = LogWrite {
            region: PARENT.0,
            peer: PARENT.1,
            number: 1,
            hard_state: Some(self.hard_state()),
            entries: entries.clone(),
            sync: true,
            reset: None,
        };
        self.store.write_log(&[write], &[], &[], &[]).wait().expect("the log is written");
        let task = |entry: LogEntry| {
            let tickets = vec![Ticket(entry.index.0)];
            ApplyTask { region: PARENT.0, entries: vec![Committed { entry, tickets }] }
        };
        entries.into_iter().map(task).collect()
    }

    fn hard_state(&self) -> HardState {
        HardState { term: Term(1), vote: None, commit: Index(self.index) }
    }
}

/// The data of an entry with one proposal: format, version, length, command.
fn proposal(version: u64, command: &[u8]) -> Bytes {
    let mut data = vec![1];
    for mut number in [version, command.len() as u64] {
        while number >= 0x80 {
            data.push(number as u8 | 0x80);
            number >>= 7;
        }
        data.push(number as u8);
    }
    data.extend_from_slice(command);
    data.into()
}

fn descriptor(id: RegionId, peer: PeerId, space: Space) -> Descriptor {
    Descriptor {
        id,
        space,
        start: Bytes::new(),
        end: Bytes::new(),
        epoch: Epoch { conf_version: 1, version: 1 },
        peers: vec![Peer { id: peer, store: StoreId(1) }.into()],
        removed: RemovedPeers::default(),
    }
}
