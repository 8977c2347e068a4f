//! A log under the load of a store with many regions: append, compact, purge, and what is left.
//!
//! Entries of 32 KiB go to regions drawn from a normal distribution N(128, 96), so some are busy
//! and some nearly idle. Now and then a region is compacted up to some entries before its end, a
//! number drawn from N(32, 16). After each round the log is purged.
//!
//! Purge removes whole segments, oldest first. Nearly idle regions hold old segments, and all
//! behind them. When the log is over its limit, purge moves what little such regions hold; those
//! that hold much it names, and they are compacted by force, up to seven entries before their end;
//! the column `forced` counts them. A line a second tells how it stands; `amplified` is what was
//! written to the log, moves among it, for each byte of entries.

use clap::Parser;
use comfy_table::{Cell, CellAlignment, Table, presets};
use flotilla_raftlog::{BlockingGroup, Config, Durability, Entry, Error, LogBatch, LogEngine};
use flotilla_vfs::os::OsFs;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRY_BYTES: usize = 32 << 10;
const ROUND_WRITES: u64 = 1024;
/// How many entries a region keeps that is compacted by force.
const KEPT_BY_FORCE: u64 = 7;
const LAST_INDEX: &[u8] = b"last index";

/// Appends, compacts and purges, and shows what is on disk.
#[derive(Parser)]
struct Options {
    /// Stop after so many writes.
    #[arg(long)]
    writes: Option<u64>,
    /// Stop after so many seconds; 10 if nothing is said.
    #[arg(long)]
    seconds: Option<u64>,
    /// Sync each write.
    #[arg(long)]
    sync: bool,
    /// Size of all segments in MiB above which purge makes room.
    #[arg(long, default_value_t = 1024)]
    limit_mib: u64,
    /// Where the log is kept; a temporary directory if nothing is said.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Seed of what is drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<(), Error> {
    let options = Options::parse();
    let temporary = tempfile::tempdir()?;
    let dir = options.dir.as_deref().unwrap_or(temporary.path());
    let config = Config::default().purge_above_bytes(options.limit_mib << 20);
    let (log, report) = LogEngine::open_with(Arc::new(OsFs::new()), dir, config)?;
    let _maintenance = log.maintain_in_background()?;
    println!("{}: {report:?}", dir.display());

    let seconds = options.seconds.or(if options.writes.is_none() { Some(10) } else { None });
    let mut load = Load::new(log, &options);
    let bar = bar(options.writes, seconds);
    println!("{}", COLUMNS.map(|name| format!("{name:>11}")).concat());
    let mut shown = Instant::now();
    while !load.is_over(options.writes, seconds.map(Duration::from_secs)) {
        load.round(options.writes)?;
        bar.set_position(options.writes.map_or(load.begun.elapsed().as_secs(), |_| load.writes));
        if shown.elapsed() >= Duration::from_secs(1) {
            bar.suspend(|| println!("{}", load.figures().map(|f| format!("{f:>11}")).concat()));
            shown = Instant::now();
        }
    }
    bar.finish_and_clear();
    println!("\n{}", load.summary());
    Ok(())
}

/// How far the load is: by writes if they are bounded, else by time.
fn bar(writes: Option<u64>, seconds: Option<u64>) -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed} [{wide_bar}] {pos}/{len} {msg}");
    let bar = ProgressBar::new(writes.or(seconds).unwrap_or(1));
    bar.set_style(style.expect("the template is valid"));
    bar.set_message(if writes.is_some() { "writes" } else { "seconds" });
    bar
}

/// Reports of the load. Sizes are in MiB.
const COLUMNS: [&str; 11] = [
    "writes",
    "written",
    "amplified",
    "live",
    "on disk",
    "files",
    "purged",
    "moved",
    "forced",
    "purge ms",
    "held by",
];

/// The load, and what it has counted.
struct Load {
    log: LogEngine,
    rng: fastrand::Rng,
    durability: Durability,
    data: Vec<u8>,
    begun: Instant,
    writes: u64,
    purged_segments: u64,
    rewritten_bytes: u64,
    forced: u64,
    purging: Duration,
    blocking_groups: Vec<BlockingGroup>,
}

impl Load {
    fn new(log: LogEngine, options: &Options) -> Load {
        let mut rng = fastrand::Rng::with_seed(options.seed);
        let mut data = vec![0; ENTRY_BYTES];
        rng.fill(&mut data);
        Load {
            log,
            rng,
            durability: if options.sync { Durability::Synced } else { Durability::Buffered },
            data,
            begun: Instant::now(),
            writes: 0,
            purged_segments: 0,
            rewritten_bytes: 0,
            forced: 0,
            purging: Duration::ZERO,
            blocking_groups: Vec::new(),
        }
    }

    fn is_over(&self, writes: Option<u64>, time: Option<Duration>) -> bool {
        writes.is_some_and(|writes| self.writes >= writes)
            || time.is_some_and(|time| self.begun.elapsed() >= time)
    }

    /// Some writes, then a purge.
    fn round(&mut self, writes: Option<u64>) -> Result<(), Error> {
        for _ in 0..ROUND_WRITES {
            self.append()?;
            if writes.is_some_and(|writes| self.writes >= writes) {
                break;
            }
        }
        self.purge()
    }

    fn append(&mut self) -> Result<(), Error> {
        let region = self.draw(128.0, 96.0);
        let last = self.log.group(region).map_or(0, |group| group.last_index());
        let index = last + 1;
        let entry = Entry { index, term: 1, kind: 0, data: self.data.clone().into() };
        let mut batch = LogBatch::new();
        batch.append(region, &[entry]);
        batch.put(region, LAST_INDEX, &index.to_le_bytes());
        let distance = self.draw(32.0, 16.0);
        if index.is_multiple_of(distance) && index > distance {
            batch.compact_to(region, index - distance, 1);
        }
        self.log.write(batch, self.durability).wait()?;
        self.writes += 1;
        Ok(())
    }

    fn purge(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        let purged = self.log.purge_expired_files()?;
        self.purged_segments += purged.segments;
        self.rewritten_bytes += purged.rewritten_bytes;
        self.blocking_groups = purged.blocking_groups;
        if purged.excess_bytes > 0 {
            self.compact_by_force()?;
        }
        self.purging += begin.elapsed();
        Ok(())
    }

    /// Compacts the regions that hold the oldest segment.
    fn compact_by_force(&mut self) -> Result<(), Error> {
        let mut batch = LogBatch::new();
        for holder in self.blocking_groups.iter().filter(|holder| holder.entries) {
            let last = self.log.group(holder.group).map_or(0, |group| group.last_index());
            if last > KEPT_BY_FORCE {
                batch.compact_to(holder.group, last - KEPT_BY_FORCE, 1);
                self.forced += 1;
            }
        }
        if !batch.is_empty() {
            self.log.write(batch, self.durability).wait()?;
        }
        Ok(())
    }

    /// The values of the columns.
    fn figures(&self) -> [String; COLUMNS.len()] {
        let stats = self.log.stats();
        let entry_bytes = (self.writes * ENTRY_BYTES as u64).max(1);
        [
            self.writes.to_string(),
            (stats.bytes_written >> 20).to_string(),
            format!("{:.3}", stats.bytes_written as f64 / entry_bytes as f64),
            (stats.live_bytes >> 20).to_string(),
            (stats.segment_bytes >> 20).to_string(),
            stats.segments.to_string(),
            self.purged_segments.to_string(),
            (self.rewritten_bytes >> 20).to_string(),
            self.forced.to_string(),
            self.purging.as_millis().to_string(),
            self.blocking_groups.len().to_string(),
        ]
    }

    /// The figures at the end, and what they come to.
    fn summary(&self) -> Table {
        let seconds = self.begun.elapsed().as_secs_f64();
        let mib = ((self.writes * ENTRY_BYTES as u64) >> 20) as f64;
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let rates = [
            ("seconds", format!("{seconds:.1}")),
            ("writes a second", format!("{:.0}", self.writes as f64 / seconds)),
            ("entries, MiB a second", format!("{:.0}", mib / seconds)),
        ];
        let figures = COLUMNS.into_iter().zip(self.figures());
        for (name, value) in figures.chain(rates) {
            table.add_row([Cell::new(name), Cell::new(value).set_alignment(CellAlignment::Right)]);
        }
        table
    }

    /// A whole number from a normal distribution, at least 1.
    fn draw(&mut self, mean: f64, deviation: f64) -> u64 {
        loop {
            let (radius, angle) = (1.0 - self.rng.f64(), self.rng.f64());
            let unit = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
            let number = mean + deviation * unit;
            if number >= 1.0 {
                return number as u64;
            }
        }
    }
}
