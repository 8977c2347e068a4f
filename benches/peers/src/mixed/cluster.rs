//! Three stores in one process, with the threads that a node gives each: a shard, a log writer, a
//! log reader, an applier, a checkpointer. Messages between the stores go from queue to queue.
//!
//! Where the node's own code can be had without its sockets it is used: the work queues, the delay
//! before a group commit, the short time slices.

use super::checkpointer::CheckpointSignal;
use super::logs::{self, ReplicaLog};
use super::mailbox::{Inbox, Mailbox};
use super::work_queue::WorkQueue;
use super::{shard, workers};
use crate::engines::Contender;
use crate::log::Result;
use flotilla_identity::{
    BootstrapPlan, BootstrapWrite, ClusterSettings, ClusterSpec, StoreUuid, first_campaigner,
    first_regions,
};
use flotilla_region::{
    ApplyTask, Config, Descriptor, Event, LogFetch, RecoveredReplica, RegionId, Reject, Shard,
    SplitLimits, Ticket, Time,
};
use flotilla_store::{Config as StoreConfig, LogConfig, StartSeed, Store, StoreDirectory};
use flotilla_vfs::os::OsFs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Stores, each with a replica of every region.
pub const STORES: usize = 3;
/// The id of the first region of clients' keys; that of placement has the one before.
const FIRST_REGION: u64 = 2;
/// The version of all ranges.
pub const VERSION: u64 = 1;

/// News for a thread of clients.
pub enum Answer {
    /// The write was applied.
    Applied(Ticket),
    /// The read may take its snapshot.
    Granted(Ticket),
    /// The request had no effect.
    Rejected(Ticket, Reject),
}

/// One store and the queues of its threads.
pub struct StoreContext {
    /// Its place, one less than its id.
    pub at: usize,
    /// Pages, and of `raftlog` the log.
    pub store: Arc<Store>,
    /// The log of the replicas.
    pub log: Box<dyn ReplicaLog>,
    /// For the shard.
    pub mailbox: Mailbox,
    /// For the log writer.
    pub writes: WorkQueue<workers::LogTask>,
    /// For the applier.
    pub applies: WorkQueue<ApplyTask>,
    /// For the log reader.
    pub fetches: WorkQueue<LogFetch>,
    /// For the checkpointer.
    pub signal: CheckpointSignal,
    /// Where its files are.
    pub dir: PathBuf,
}

/// All of it.
pub struct Cluster {
    /// The stores.
    pub stores: Vec<StoreContext>,
    /// One inbox for each thread of clients.
    pub inboxes: Vec<Inbox<Answer>>,
    /// The leader of each region, as a place of `stores`.
    leaders: Vec<AtomicUsize>,
    begin: Instant,
    failure: Mutex<Option<String>>,
}

impl Cluster {
    /// Makes a new cluster in `dir`, starts its threads, and ends them when `act` has returned.
    ///
    /// # Errors
    ///
    /// Those of `act`, of an engine, of the disk.
    pub fn run<T>(
        engine: Contender,
        dir: &Path,
        regions: u64,
        client_threads: usize,
        act: impl FnOnce(&Cluster) -> Result<T>,
    ) -> Result<T> {
        let descriptors = first_regions(STORES, (regions, b""), &[], STORES);
        let (mut stores, mut shards) = (Vec::new(), Vec::new());
        for at in 0..STORES {
            let (context, recovered) = open(engine, &dir.join(format!("{at}")), at, &descriptors)?;
            stores.push(context);
            shards.push(make_shard(at, recovered)?);
        }
        let first = |region: &Descriptor| {
            let store = first_campaigner(region).expect("every region has replicas");
            AtomicUsize::new(store.0 as usize - 1)
        };
        let cluster = Cluster {
            stores,
            inboxes: std::iter::repeat_with(Inbox::default).take(client_threads).collect(),
            // The system region is not the clients'.
            leaders: descriptors.iter().skip(1).map(first).collect(),
            begin: Instant::now(),
            failure: Mutex::new(None),
        };
        let done = std::thread::scope(|scope| {
            for (context, shard) in cluster.stores.iter().zip(shards) {
                let cluster = &cluster;
                scope.spawn(move || cluster.guard(|| shard::run(cluster, context, shard)));
                scope.spawn(move || cluster.guard(|| workers::write_log(context)));
                scope.spawn(move || cluster.guard(|| workers::read_log(context)));
                scope.spawn(move || cluster.guard(|| workers::apply(cluster, context)));
                scope.spawn(move || cluster.guard(|| workers::checkpoint(context)));
            }
            let done = act(&cluster);
            cluster.close();
            done
        });
        cluster.check()?;
        done
    }

    /// Runs a thread; its error ends the whole.
    fn guard(&self, run: impl FnOnce() -> Result<()>) {
        super::sched::set_sched_slice();
        if let Err(error) = run() {
            let mut failure = self.failure.lock().expect("nobody panics with it");
            failure.get_or_insert(error.to_string());
            drop(failure);
            self.close();
        }
    }

    /// The first error of a thread.
    ///
    /// # Errors
    ///
    /// That one.
    pub fn check(&self) -> Result<()> {
        match &*self.failure.lock().expect("nobody panics with it") {
            None => Ok(()),
            Some(error) => Err(error.clone().into()),
        }
    }

    fn close(&self) {
        for context in &self.stores {
            context.mailbox.close();
            context.writes.halt();
            context.applies.halt();
            context.fetches.halt();
            context.signal.stop();
        }
    }

    /// The time of the regions.
    pub fn now(&self) -> Time {
        Time(self.begin.elapsed().as_millis() as u64)
    }

    /// The moment of a time of the regions.
    pub fn instant(&self, time: Time) -> Instant {
        self.begin + Duration::from_millis(time.0)
    }

    /// The store that leads the region at `place`.
    pub fn leader(&self, place: usize) -> usize {
        self.leaders[place].load(Ordering::Relaxed)
    }

    /// The region at `place` has another leader.
    pub fn note_leader(&self, region: RegionId, at: usize) {
        if let Some(leader) = region.0.checked_sub(FIRST_REGION) {
            self.leaders[leader as usize].store(at, Ordering::Relaxed);
        }
    }

    /// Hands answers to the threads of clients that the tickets name.
    pub fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        let mut by_thread: Vec<Vec<Answer>> = Vec::new();
        by_thread.resize_with(self.inboxes.len(), Vec::new);
        for answer in answers {
            let (Answer::Applied(ticket) | Answer::Granted(ticket) | Answer::Rejected(ticket, _)) =
                &answer;
            by_thread[super::client::thread_of(*ticket)].push(answer);
        }
        for (inbox, answers) in self.inboxes.iter().zip(by_thread) {
            if !answers.is_empty() {
                inbox.push_all(answers);
            }
        }
    }

    /// Sends messages of one store to another's shard.
    pub fn send(&self, to: usize, messages: Vec<Event>) {
        if !messages.is_empty() {
            self.stores[to].mailbox.send_all(messages);
        }
    }

    /// The stores' counters of bytes that their pages have written.
    pub fn pages_written(&self) -> u64 {
        self.stores.iter().map(|context| context.store.stats().pages.written_bytes).sum()
    }
}

/// The id of the region at `place`.
pub fn region_id(place: usize) -> RegionId {
    RegionId(FIRST_REGION + place as u64)
}

/// Where the log of the replicas is.
pub fn log_dir(engine: Contender, dir: &Path) -> PathBuf {
    dir.join(if engine == Contender::Raftlog { "log" } else { "replica-log" })
}

fn open(
    engine: Contender,
    dir: &Path,
    at: usize,
    regions: &[Descriptor],
) -> Result<(StoreContext, Vec<RecoveredReplica>)> {
    let log = match engine {
        Contender::Raftlog => LogConfig::default().purge_above_bytes(logs::PURGE_ABOVE_BYTES),
        // Holds the store's identity and nothing else.
        _ => LogConfig::default().segment_bytes(1 << 20),
    };
    let config = StoreConfig { log, ..StoreConfig::default() };
    let uuid = |at: usize| StoreUuid(1 + at as u128);
    let seed = StartSeed { uuid: uuid(at), nonce: 1 };
    std::fs::create_dir_all(dir)?;
    let mut directory = StoreDirectory::open(Arc::new(OsFs::new()), dir, config, seed)?;
    let spec = ClusterSpec {
        stores: ClusterSpec::parse_stores("s1=h:1,s2=h:2,s3=h:3")?,
        settings: ClusterSettings::default(),
        regions: regions.len() as u64 - 1,
        split_keys: vec![],
        cluster_id: 0,
    };
    let uuids = (0..STORES).map(uuid).collect();
    let plan = BootstrapPlan { cluster_id: 1, round: 1, uuids, spec, regions: regions.to_vec() };
    directory.write(&BootstrapWrite::Form { plan: Box::new(plan), place: at })?;
    directory.write(&BootstrapWrite::Member)?;
    let (store, recovered) = Store::start(directory)?;
    let store = Arc::new(store);
    let log = logs::open(engine, &store, &log_dir(engine, dir))?;
    let context = StoreContext {
        at,
        store,
        log,
        mailbox: Mailbox::default(),
        writes: WorkQueue::new(),
        applies: WorkQueue::new(),
        fetches: WorkQueue::new(),
        signal: CheckpointSignal::new(),
        dir: dir.to_owned(),
    };
    Ok((context, recovered.replicas))
}

fn make_shard(at: usize, recovered: Vec<RecoveredReplica>) -> Result<Shard> {
    // The regions of a run stay as they are.
    let split = SplitLimits { automatic: false, ..SplitLimits::default() };
    let mut shard = Shard::new(Config { seed: 1 + at as u64, split, ..Config::default() });
    for replica in recovered {
        let campaigns = first_campaigner(&replica.descriptor).is_some_and(|s| s.0 == at as u64 + 1);
        shard.create(Time(0), replica, campaigns)?;
    }
    Ok(shard)
}
