//! One run: faults, then a healing phase in which the cluster must recover, then the audit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fastrand::Rng;
use flotilla_region::{Config, QueueLimits, WindowConfig};
use flotilla_store::PageOptions;

use crate::audit;
use crate::checker::CheckedCounts;
use crate::coverage::Coverage;
use crate::executor::TaskDelays;
use crate::faults::Swarm;
use crate::layout;
use crate::node::RunSettings;
use crate::options::Options;
use crate::reference_model::CheckFailure;
use crate::split_planner::SplitPlanner;
use crate::trace::Trace;
use crate::workload::ClientCounts;
use crate::world::{EventCounts, SimWorld};

/// The report of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimReport {
    /// The seed.
    pub seed: u64,
    /// The violation that was found.
    pub failure: Option<String>,
    /// A hash over all that happened: equal runs have equal ones.
    pub trace: u64,
    /// How long the cluster lived.
    pub simulated_us: u64,
    /// The events by kind.
    pub counts: EventCounts,
    /// Requests.
    pub tally: ClientCounts,
    /// The numbers of the linearizability checker.
    pub checked: CheckedCounts,
    /// Batches of timestamps given away.
    pub stamps: u64,
    /// How far into its corners the run came.
    pub coverage: Coverage,
    /// Syncs of all disks.
    pub syncs: u64,
}

/// Runs one seed to its end, in the calling thread. The same seed and options give the same report.
#[must_use]
pub fn run(seed: u64, options: Options) -> SimReport {
    // A broken assertion of the core is what the run is looking for.
    let ran = catch_unwind(AssertUnwindSafe(|| run_to_the_end(seed, options)));
    ran.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let failure = format!("panic: {}", words.unwrap_or_default());
        SimReport { seed, failure: Some(failure), ..SimReport::default() }
    })
}

fn run_to_the_end(seed: u64, options: Options) -> SimReport {
    let mut rng = Rng::with_seed(seed);
    let mut swarm = Swarm::draw(&mut rng, options.stores);
    if !options.transfers {
        swarm.without_transfers();
    }
    if !options.membership {
        swarm.without_membership();
    }
    if !options.bit_rot {
        swarm.without_bit_rot();
    }
    let splits = if options.splits { SplitPlanner::draw(seed) } else { SplitPlanner::idle(seed) };
    let mut settings = settings(&swarm, &mut rng);
    settings.region.split = splits.limits().clone();
    settings.store.size_check_bytes = splits.size_check_bytes();
    draw_bounds(&mut settings.region, seed);
    let trace = Trace::new(seed, options.printed);
    trace.say(0, format_args!("{swarm:?}"));
    let mut world = SimWorld::new(swarm, splits, settings, rng, trace);
    let mut report = SimReport { seed, ..SimReport::default() };
    let lived = live(&mut world, options.events);
    let is_lost = lived.is_err() && world.has_lost_rows();
    // All that was served until then is right all the same.
    match if is_lost { world.workload().check() } else { lived } {
        Ok(checked) => report.checked = checked,
        Err(broken) => report.failure = Some(broken),
    }
    report.counts = world.counts();
    report.tally = world.workload().tally();
    report.stamps = world.stamps().count();
    world.nodes().iter().for_each(|node| report.coverage += node.coverage());
    report.coverage.driver.disks.lost = u64::from(is_lost);
    report.simulated_us = world.now();
    report.syncs = world.nodes().iter().map(|node| node.disk().syncs).sum();
    // With the syncs, so that a disk that works otherwise changes the trace even if no message
    // does.
    report.trace = world.trace().hash() ^ report.syncs;
    report
}

pub(crate) fn settings(swarm: &Swarm, rng: &mut Rng) -> RunSettings {
    // Drawn apart, so that old seeds draw the rest as ever.
    let mut later = Rng::with_seed(!rng.clone().u64(..));
    let region = Config {
        merge_bytes_max: choose(rng, &[100, 10_000, 256 << 10]),
        pipeline_depth: choose(rng, &[1, 4]),
        messages_max: choose(rng, &[1, 4, 64]),
        message_bytes_max: choose(rng, &[100, 10_000, 512 << 10]) as u64,
        window: WindowConfig {
            tail_bytes_max: choose(rng, &[0, 1_000, 64 << 10]) as u64,
            tail_count_max: choose(rng, &[1, 8, 128]),
            // So little in most runs that a store which was away needs snapshots.
            log_kept_region_bytes: choose(&mut later, &[0, 500, 4_000, 64 << 20]) as u64,
            log_kept_bytes_max: choose(&mut later, &[500, 16_000, 1 << 30]) as u64,
        },
        ..Config::default()
    };
    let regions = layout::bootstrap(swarm.stores, swarm.data_regions, rng);
    let mut store = store_config(swarm, rng);
    let (is_spilling, scan_us_max) =
        draw_spills(&mut store, Rng::with_seed(!later.clone().u64(..)));
    RunSettings {
        stores: swarm.stores,
        regions,
        region,
        store,
        delays: TaskDelays {
            sync_us_max: swarm.sync_us_max,
            apply_us_min: 1,
            apply_us_max: swarm.apply_us_max,
            notify_us_max: 300,
            scan_us_max,
        },
        chunk_bytes: choose(&mut later, &[64, 1_000, 1 << 20]),
        queue_bytes_max: choose(&mut later, &[1_000, 20_000, QUEUE_BYTES]),
        backlog_max: choose(&mut later, &[2, 20, QUEUE_BYTES]),
        is_spilling,
        is_comparing: true,
    }
}

/// One choice of four is the small one.
fn rare(small: usize, usual: usize) -> [usize; 4] {
    [small, usual, usual, usual]
}

/// Draws how much may wait in a region, in most runs more than ever does. From a generator of its
/// own, so that old seeds draw the rest as ever.
fn draw_bounds(region: &mut Config, seed: u64) {
    let mut rng = Rng::with_seed(seed ^ BOUNDS_SALT);
    let usual = Config::default();
    region.queue = QueueLimits {
        bytes_max: choose(&mut rng, &rare(1_000, usual.queue.bytes_max)),
        count_max: choose(&mut rng, &rare(2, usual.queue.count_max)),
    };
    let lag_bytes_max = usual.apply_lag_bytes_max as usize;
    region.apply_lag_bytes_max = choose(&mut rng, &rare(500, lag_bytes_max)) as u64;
    let entry_bytes_max = choose(&mut rng, &rare(2_000, usual.entry_bytes_max));
    region.entry_bytes_max = entry_bytes_max.max(region.merge_bytes_max);
}

/// Parts the generator of bounds from the others of a seed.
const BOUNDS_SALT: u64 = 0xb0d5_0000;

/// In one run of four hardly anything that old snapshots need may stay in memory, or on the disk,
/// and scans are long. Returns the time between two parts of a scan.
fn draw_spills(store: &mut flotilla_store::Config, mut rng: Rng) -> (bool, u64) {
    if rng.u8(..4) > 0 {
        return (false, 0);
    }
    let bounds = [(0, 1_000_000), (0, 300_000), (4 << 20, 1_000_000), (1 << 30, 3_000)];
    let (disk_bytes, scan_us_max) = bounds[rng.usize(..bounds.len())];
    store.pages = (store.pages.clone())
        .old_version_bytes(choose(&mut rng, &[0, 3 * 4096]) as u64)
        .old_version_disk_bytes(disk_bytes);
    (true, scan_us_max)
}

/// More than ever waits.
pub(crate) const QUEUE_BYTES: usize = 64 << 20;

/// So short that most runs scrub their files some times.
const SCRUB_INTERVAL: Duration = Duration::from_secs(1);

/// Longer than the file of any run.
const TRIM_NEVER_BYTES: u64 = 1 << 40;

/// Small files, so that segments are sealed and freed and pages are used again within a run.
fn store_config(swarm: &Swarm, rng: &mut Rng) -> flotilla_store::Config {
    let defaults = flotilla_store::Config::default();
    let segment_bytes = choose(rng, &[16 << 10, 64 << 10, 1 << 20]) as u64;
    let salt = rng.u64(..);
    // Drawn apart, so that old seeds draw the rest as ever.
    let mut log_rng = Rng::with_seed(salt);
    let mut config = flotilla_store::Config {
        // A run has one thread.
        log: defaults
            .log
            .recovery_threads(1)
            .commit_thread(false)
            .segment_bytes(segment_bytes)
            .salt(Some(salt))
            .purge_above_bytes(choose(&mut log_rng, &[0, 64 << 10, 1 << 30]) as u64)
            .move_bytes_max(choose(&mut log_rng, &[4 << 10, 1 << 20]) as u64)
            .move_live_ratio_max([0.5, 1.0][log_rng.usize(..2)]),
        pages: PageOptions::default()
            .cache_bytes(1 << 20)
            .growth_bytes(choose(rng, &[0, 64 << 10]) as u64)
            .trim_bytes(choose(&mut log_rng, &[0, 16 << 10, 64 << 10]) as u64)
            .punch_bytes(0)
            .checkpoint_interval(Some(Duration::from_micros(swarm.checkpoint_us / 8)))
            .scrub_interval(Some(SCRUB_INTERVAL))
            .defragment(
                choose(&mut log_rng, &[0, 8 << 10, 1 << 20]) as u64,
                [0.0, 0.25][log_rng.usize(..2)],
            ),
        log_scrub_interval: Some(SCRUB_INTERVAL),
        ..defaults
    };
    if swarm.keeps_end {
        config.pages = config.pages.trim_bytes(TRIM_NEVER_BYTES).defragment(0, 1.0);
    }
    // So little that applying has to wait for checkpoints.
    if log_rng.u8(..4) == 0 {
        config.pages = config.pages.dirty_bytes(32 << 10, 128 << 10);
    }
    let at_once_bytes = choose(&mut log_rng, &[0, 0, 4 << 10]) as u64;
    config.pages = config.pages.reclaim_at_once_bytes(at_once_bytes);
    config
}

fn choose(rng: &mut Rng, of: &[usize]) -> usize {
    of[rng.usize(..of.len())]
}

/// A run from the first start to the audit.
fn live(world: &mut SimWorld, events: u64) -> Result<CheckedCounts, CheckFailure> {
    while world.counts().events < events {
        world.advance()?;
    }
    conclude(world)
}

/// The end of a run: all faults end, and the cluster must recover.
pub(crate) fn conclude(world: &mut SimWorld) -> Result<CheckedCounts, CheckFailure> {
    world.end_faults()?;
    audit::writes(world)?;
    // After the writes: they have to be served next to the clients' load. Before the reads, so that
    // replicas can come to rest.
    world.stop_clients();
    audit::reads(world)?;
    audit::replicas(world)?;
    world.workload().check()
}
