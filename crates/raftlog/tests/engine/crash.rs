//! Random histories against the oracle, with restarts, and with the power cut at every operation.

use crate::kit::{DIR, moving, reopen, segment_path, write};
use crate::oracle::Oracle;
use flotilla_raftlog::{Commit, Config, Durability, Error, LogEngine, RecoveryReport};
use flotilla_vfs::FileSystem;
use flotilla_vfs::fault::FaultFs;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// A run of a log beside the oracle's states, which are numbered as the batches are.
struct Run {
    config: &'static Config,
    disk: FaultFs,
    segment_bytes: u64,
    rng: fastrand::Rng,
    /// The state after each batch that may be in the log.
    states: Vec<Oracle>,
    /// Acknowledged as synced up to here.
    synced_lsn: u64,
    /// How often there was a file to be used again.
    spare_count: u64,
    /// How much was moved, and how often only a part of what a segment held.
    moved_count: u64,
    moved_in_part_count: u64,
    /// How many segments were reduced to their tombstones.
    reduced_count: u64,
}

/// More frames than one purge writes.
const FRAMES_OF_PURGE_MAX: u64 = 200;

/// There are few segments, and starting threads takes longer than reading those; so does asking the
/// system how many there should be.
static MOVING: LazyLock<Config> = LazyLock::new(|| moving().recovery_threads(1));

/// Little is moved, so that segments die between others, and are reduced.
static REDUCING: LazyLock<Config> = LazyLock::new(|| {
    MOVING.clone().purge_above_bytes(0).move_bytes_max(2000).move_live_ratio_max(0.25)
});

/// With longer segments than the shortest, those after opening grow, and have room for zeros.
const SEGMENT_BYTES: [u64; 2] = [4096, 16 << 10];

/// The power has gone.
#[derive(Debug)]
struct Cut;

impl Run {
    fn new(seed: u64) -> Run {
        let (disk, rng) = (FaultFs::new(seed), fastrand::Rng::with_seed(seed));
        Run {
            config: if seed.is_multiple_of(2) { &MOVING } else { &REDUCING },
            disk,
            segment_bytes: SEGMENT_BYTES[seed as usize / 2 % SEGMENT_BYTES.len()],
            rng,
            states: vec![Oracle::default()],
            synced_lsn: 0,
            spare_count: 0,
            moved_count: 0,
            moved_in_part_count: 0,
            reduced_count: 0,
        }
    }

    /// Some steps on a log that is opened first.
    fn live(&mut self, steps: usize) -> Result<(), Cut> {
        let mut log = self.open()?.0;
        for _ in 0..steps {
            match self.rng.u8(0..20) {
                0 => {
                    let is_closed = self.rng.bool();
                    if is_closed {
                        self.close(&log)?;
                    }
                    drop(log);
                    let writes = self.disk.stats().writes;
                    let (again, report) = self.open()?;
                    let writes = self.disk.stats().writes - writes;
                    assert!(!is_closed || writes == 0, "a log that was closed is written to");
                    assert_eq!(report.torn_bytes, 0, "nobody has torn anything");
                    log = again;
                    self.check_last(report.last_lsn);
                    self.states[report.last_lsn as usize].check(&log);
                }
                1..=3 => self.purge(&log)?,
                4..=8 => self.maintain(&log)?,
                _ => self.write(&log)?,
            }
        }
        self.states.last().expect("there is one").check(&log);
        Ok(())
    }

    fn open(&self) -> Result<(LogEngine, RecoveryReport), Cut> {
        let config = self.config.clone().segment_bytes(self.segment_bytes);
        match LogEngine::open_with(Arc::new(self.disk.clone()), Path::new(DIR), config) {
            Ok(opened) => Ok(opened),
            Err(Error::Io(_)) => Err(Cut),
            Err(other) => panic!("{other}"),
        }
    }

    /// Queues one to four batches and flushes them together.
    fn write(&mut self, log: &LogEngine) -> Result<(), Cut> {
        let mut commits: Vec<(Commit, Durability, u64)> = Vec::new();
        for _ in 0..self.rng.usize(1..=4) {
            let mut state = self.states.last().expect("there is one").clone();
            let batch = state.change(&mut self.rng);
            self.states.push(state);
            let durability =
                if self.rng.bool() { Durability::Synced } else { Durability::Buffered };
            let lsn = self.states.len() as u64 - 1;
            commits.push((log.write(batch, durability), durability, lsn));
        }
        log.flush();
        for (mut commit, durability, lsn) in commits {
            match commit.try_take().expect("it was flushed") {
                Ok(receipt) => assert_eq!(receipt.lsn, lsn),
                Err(Error::Poisoned(_)) => return Err(Cut),
                Err(other) => panic!("{other}"),
            }
            if durability == Durability::Synced {
                self.synced_lsn = lsn;
                assert!(log.durable_lsn() >= lsn);
            }
        }
        Ok(())
    }

    fn close(&mut self, log: &LogEngine) -> Result<(), Cut> {
        match log.close() {
            Ok(()) => {
                self.synced_lsn = self.states.len() as u64 - 1;
                Ok(())
            }
            Err(Error::Poisoned(_)) => Err(Cut),
            Err(other) => panic!("{other}"),
        }
    }

    fn maintain(&mut self, log: &LogEngine) -> Result<(), Cut> {
        let before = log.stats().batches;
        let maintained = log.maintain();
        // It may have written a frame that changes nothing.
        if maintained.is_err() || log.stats().batches > before {
            self.states.push(self.states.last().expect("there is one").clone());
        }
        self.spare_count += log.stats().recycled_segments;
        match maintained {
            Ok(_) => Ok(()),
            Err(Error::Poisoned(_)) => Err(Cut),
            Err(other) => panic!("{other}"),
        }
    }

    fn purge(&mut self, log: &LogEngine) -> Result<(), Cut> {
        let before = log.stats();
        let purged = log.purge_expired_files();
        let after = log.stats();
        // It may have written batches of its own, which change no group; and if it failed, one of
        // which the test does not know.
        let batches = after.batches - before.batches + u64::from(purged.is_err());
        assert!(batches < FRAMES_OF_PURGE_MAX, "{batches} batches for one purge");
        let last = self.states.last().expect("there is one").clone();
        self.states.extend((0..batches).map(|_| last.clone()));
        let moved = after.purge.rewritten_records - before.purge.rewritten_records;
        self.moved_count += moved;
        self.reduced_count += after.purge.reduced_segments - before.purge.reduced_segments;
        match purged {
            Ok(purged) => {
                let is_in_part = moved > 0 && purged.segments == 0;
                self.moved_in_part_count += u64::from(is_in_part);
                last.check(log);
                Ok(())
            }
            Err(Error::Io(_) | Error::Poisoned(_)) => Err(Cut),
            Err(other) => panic!("{other}"),
        }
    }

    fn check_last(&mut self, last_lsn: u64) {
        assert!(last_lsn >= self.synced_lsn, "{} was synced, {last_lsn} is left", self.synced_lsn);
        assert!((last_lsn as usize) < self.states.len(), "more is left than was written");
        self.states.truncate(last_lsn as usize + 1);
        self.synced_lsn = last_lsn;
    }

    /// The power comes back, and perhaps goes again while the log is opened.
    fn recover(&mut self) -> u64 {
        let mut torn_bytes = 0;
        for _ in 0..self.rng.usize(0..3) {
            self.disk.power_loss(self.rng.u64(..));
            self.disk.cut_power_after(self.rng.u64(1..6));
            if let Ok((_, report)) = self.open() {
                torn_bytes += report.torn_bytes;
                self.check_last(report.last_lsn);
            }
        }
        self.disk.power_loss(self.rng.u64(..));
        let (log, report) = self.open().expect("the power is on");
        self.check_last(report.last_lsn);
        self.states.last().expect("there is one").check(&log);
        torn_bytes + report.torn_bytes
    }
}

#[test]
fn random_histories_agree_with_the_oracle() {
    let (mut spare_count, mut moved_count, mut moved_in_part_count) = (0, 0, 0);
    let mut reduced_count = 0;
    for seed in 0..seed_count(10) {
        let mut run = Run::new(seed);
        run.live(120).expect("the power stays on");
        spare_count += run.spare_count;
        moved_count += run.moved_count;
        moved_in_part_count += run.moved_in_part_count;
        reduced_count += run.reduced_count;
    }
    assert!(reduced_count > 10, "{reduced_count} segments were reduced");
    assert!(spare_count > 0, "no file was ever used again");
    assert!(moved_count > 500 && moved_in_part_count > 5, "{moved_count}, {moved_in_part_count}");
}

/// Counts of the outcomes of crashes over some histories.
#[derive(Clone, Copy, Debug, Default)]
struct Crashes {
    count: u64,
    torn: u64,
    /// Segments that the histories reduce if the power stays on.
    reduced: u64,
}

/// Cuts the power at each operation of one history.
fn crash_everywhere(seed: u64) -> Crashes {
    let mut crashes = Crashes::default();
    let mut whole = Run::new(seed);
    whole.live(40).expect("the power stays on");
    crashes.reduced = whole.reduced_count;
    for operation in 1..=whole.disk.operations() {
        let mut run = Run::new(seed);
        run.disk.cut_power_after(operation);
        run.live(40).expect_err("the power goes");
        crashes.torn += u64::from(run.recover() > 0);
        // Goes on behind the cut; nothing of what was cut off may come up again.
        run.live(6).expect("the power stays on");
        drop(run.open().expect("the power is on"));
        run.disk.power_loss(operation);
        run.recover();
        crashes.count += 1;
    }
    crashes
}

#[test]
fn no_crash_loses_what_was_synced_or_tears_a_batch() {
    let seeds = seed_count(2);
    let next = AtomicU64::new(0);
    let total = Mutex::new(Crashes::default());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < seeds
                {
                    let crashes = panic::catch_unwind(|| crash_everywhere(seed));
                    let crashes = crashes.unwrap_or_else(|_| panic!("seed {seed} fails"));
                    let mut total = total.lock().expect("whole");
                    total.count += crashes.count;
                    total.torn += crashes.torn;
                    total.reduced += crashes.reduced;
                }
            });
        }
    });
    let Crashes { count, torn, reduced } = total.into_inner().expect("whole");
    println!("{count} crashes, {torn} of them left a torn tail, {reduced} segments were reduced");
    assert!(count > 200, "{count} crashes are too few to say anything");
    assert!(torn > count / 20, "{torn} of {count} left a torn tail");
}

#[test]
fn a_name_that_only_memory_holds_is_made_durable_by_opening() {
    for seed in 0..8 {
        let disk = FaultFs::new(seed);
        assert!(reopen(&disk).maintain().expect("the first segment is made"));
        // As if the process had gone between the rename of a new segment and the directory's sync.
        let (name, other) = (segment_path(1), segment_path(1).with_extension("tmp"));
        disk.rename(&name, &other).expect("renamed");
        disk.sync_dir(Path::new(DIR)).expect("synced");
        disk.rename(&other, &name).expect("renamed");
        let log = reopen(&disk);
        write(&log, |b| b.put(1, b"k", b"v")).expect("written");
        disk.power_loss(seed);
        assert!(reopen(&disk).group(1).is_some(), "seed {seed}: a synced batch is gone");
    }
}

/// How many seeds to try; `RAFTLOG_SEEDS` asks for more than there is time for on every build.
fn seed_count(usual: u64) -> u64 {
    std::env::var("RAFTLOG_SEEDS").map_or(usual, |seeds| seeds.parse().expect("a number"))
}
