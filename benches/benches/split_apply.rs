//! What does the apply of a split cost the thread that applies?
//!
//! A store on real files, one region with a million rows, split into a thousand and one: one child
//! an entry. Each apply is one split alone; a root is written after each hundred, so that most of
//! the pages that a split changes are copied again. Shown are the thread's CPU time and the time on
//! the clock. No row moves: the cost is that of the descriptors' and forms' rows.
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
use flotilla_store::{ApplyOutcome, Config, StartSeed, Store, StoreDirectory};
use flotilla_vfs::os::OsFs;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

const PARENT: (RegionId, PeerId) = (RegionId(2), PeerId(201));
/// Rows written by one entry.
const ROWS_AT_ONCE: u64 = 1000;
const SPLITS_A_ROOT: u64 = 100;

fn main() {
    let is_test = std::env::args().any(|argument| argument == "--test");
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (rows, splits) = match numbers[..] {
        _ if is_test => (10_000, 20),
        [rows, splits] => (rows, splits),
        _ => (1_000_000, 1_000),
    };
    let dir = tempfile::tempdir().expect("there is a place for temporary files");
    let mut bench = Bench::new(dir.path());
    bench.fill(rows);
    let (mut on_cpu, mut on_clock) = (histogram(), histogram());
    for number in 1..=splits {
        let (cpu, clock) = bench.split(rows * number / (splits + 1));
        record(&mut on_cpu, cpu);
        record(&mut on_clock, clock);
        if number % SPLITS_A_ROOT == 0 {
            bench.store.checkpoint().expect("a root is written");
        }
    }
    bench.store.check().expect("the rows are whole");
    println!("{splits} splits of a region with {rows} rows");
    println!("        p50 us  p90 us  p99 us  p99.9 us  max us");
    for (name, of) in [("CPU", on_cpu), ("clock", on_clock)] {
        let at = |quantile| of.value_at_quantile(quantile) as f64 / 1e3;
        let (p50, p90, p99, p999) = (at(0.5), at(0.9), at(0.99), at(0.999));
        println!("{name:6} {p50:7.1} {p90:7.1} {p99:7.1} {p999:9.1} {:7.1}", of.max() as f64 / 1e3);
    }
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
        Self { store, version: 1, index: 0, next_id: 10 }
    }

    fn fill(&mut self, rows: u64) {
        for first in (0..rows).step_by(ROWS_AT_ONCE as usize) {
            let put = |row| RawOp::put(key(row), Bytes::from_static(&[b'v'; 100]));
            let ops: Vec<RawOp> = (first..rows.min(first + ROWS_AT_ONCE)).map(put).collect();
            self.run(proposal(self.version, &raw::encode(&ops)));
        }
    }

    /// Gives all keys of the parent below a row to a new region; returns the CPU time and the time
    /// of the apply.
    fn split(&mut self, row: u64) -> (Duration, Duration) {
        let id = RegionId(self.next_id);
        let peer = PeerId(id.0 * 100 + 1);
        self.next_id += 1;
        let child = SplitChild { id, end: key(row), peers: vec![peer] };
        let epoch = Epoch { conf_version: 1, version: self.version };
        let split = AdminCommand::Split(SplitCommand { epoch, children: vec![child] }).encode();
        let task = self.logged(split);
        let (began, cpu_began) = (Instant::now(), cpu_time());
        let applied = self.store.apply(&[task]).expect("the split is applied");
        let times = (cpu_time() - cpu_began, began.elapsed());
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
        times
    }

    /// Writes an entry to the log and applies it.
    fn run(&mut self, data: Bytes) {
        let task = self.logged(data);
        let applied = self.store.apply(&[task]).expect("the entry is applied");
        assert_eq!(applied.outcomes[0].1, ApplyOutcome::Done);
    }

    /// Writes an entry to the log; returns the task that applies it.
    fn logged(&mut self, data: Bytes) -> ApplyTask {
        self.index += 1;
        let entry =
            LogEntry { index: Index(self.index), term: Term(1), kind: EntryKind::Normal, data };
        let write = LogWrite {
            region: PARENT.0,
            peer: PARENT.1,
            number: 1,
            hard_state: Some(self.hard_state()),
            entries: vec![entry.clone()],
            sync: true,
            reset: None,
        };
        self.store.write_log(&[write], &[], &[], &[]).wait().expect("the log is written");
        let tickets = vec![Ticket(self.index)];
        ApplyTask { region: PARENT.0, entries: vec![Committed { entry, tickets }] }
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
