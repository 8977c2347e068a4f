//! Reads of a log that is larger than memory, by a process in a cgroup whose limit is a quarter of
//! the log: single entries at random, and ranges of 64.
//!
//! The log has 1 KiB entries in 16 groups, one an append in turn. Each measurement begins without a
//! byte of it in the page cache.

use crate::bench::Bench;
use crate::data::{Data, Kind};
use crate::engines::Contender;
use crate::fetch::{self, Case};
use crate::log::{Append, Result, Settings};
use crate::record::Metric;
use clap::Args;
use peers::cgroup::{MemoryCgroup, drop_cached};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// The workload's name.
pub const NAME: &str = "cold";
/// One measurement takes so many times as long as others: the disk has its own pace.
const LONGER: u32 = 5;

/// Entries in a read.
const LENGTHS: [u64; 2] = [1, 64];

/// The task of a child: it opens the log, reads for a while, and closes it.
#[derive(Clone, Debug, Args)]
pub struct Task {
    /// Which engine.
    pub engine: Contender,
    /// Where its log is.
    pub dir: PathBuf,
    /// Entries of each group.
    #[arg(long)]
    pub per_group: u64,
    /// Entries in a read.
    #[arg(long)]
    pub entries: u64,
    /// How long it reads.
    #[arg(long)]
    pub seconds: f64,
}

/// The results of a child.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Seen {
    reads_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    read_bytes_per_read: f64,
}

fn name(entries: u64) -> String {
    let read = if entries == 1 { "a random entry" } else { "a range of 64" };
    format!("{read}, log larger than memory")
}

/// Fills a log without a limit, and then reads it with one.
///
/// # Errors
///
/// The first error of an engine or the disk.
pub fn run(bench: &mut Bench) -> Result<()> {
    let mib: u64 = if bench.quick { 512 } else { 1024 };
    let per_group = (mib << 10) / fetch::GROUPS;
    let lengths: Vec<u64> = LENGTHS.into_iter().filter(|n| bench.wants(&name(*n))).collect();
    if lengths.is_empty() {
        return Ok(());
    }
    let cgroup = match MemoryCgroup::new((mib << 20) / 4) {
        Ok(cgroup) => cgroup,
        Err(why) => {
            println!("log larger than memory: skipped: no cgroup can be made here: {why}");
            return Ok(());
        }
    };
    for engine in bench.engines.clone() {
        let dir = bench.fresh(&format!("cold-{engine}"))?;
        fill(bench.data, engine, &dir, per_group)?;
    }
    for entries in lengths {
        for round in 0..bench.rounds {
            for engine in bench.in_order(round) {
                bench.say(NAME, &name(entries), round, engine);
                let dir = bench.dir.join(format!("cold-{engine}"));
                drop_cached(&dir)?;
                let seconds = (bench.time * LONGER).as_secs_f64();
                let task = Task { engine, dir, per_group, entries, seconds };
                let seen = start(&cgroup, &task)?;
                keep(bench, engine, entries, seen);
            }
        }
    }
    let engines = bench.engines.clone();
    engines.iter().try_for_each(|engine| bench.remove(&bench.dir.join(format!("cold-{engine}"))))
}

fn keep(bench: &mut Bench, engine: Contender, entries: u64, seen: Seen) {
    let name = name(entries);
    for (metric, value) in [
        (Metric::EntriesPerSecond, seen.reads_per_second * entries as f64),
        (Metric::P50Us, seen.p50_us),
        (Metric::P99Us, seen.p99_us),
        (Metric::ReadKibPerCall, seen.read_bytes_per_read / 1024.0),
    ] {
        bench.records.add(NAME, &name, engine, metric, value);
    }
}

fn fill(data: Kind, engine: Contender, dir: &Path, per_group: u64) -> Result<()> {
    let data = Data::new(data, fetch::ENTRY_BYTES);
    let log = engine.open(dir, Settings::default())?;
    let mut writer = log.writer();
    for first in 1..=per_group {
        for group in 1..=fetch::GROUPS {
            let data = data.entries(first + group, 1);
            writer.append(Append { group, first, data, state: None, sync: false })?;
        }
    }
    drop(writer);
    log.close()
}

fn start(cgroup: &MemoryCgroup, task: &Task) -> Result<Seen> {
    let output = cgroup
        .command(std::env::current_exe()?.as_os_str())
        .arg("cold-child")
        .arg(task.engine.to_string())
        .arg(&task.dir)
        .args(["--per-group", &task.per_group.to_string()])
        .args(["--entries", &task.entries.to_string()])
        .args(["--seconds", &task.seconds.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{} in a cgroup: {}", task.engine, output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Is the child.
///
/// # Errors
///
/// Errors of the engine or the disk.
pub fn be(task: &Task) -> Result<()> {
    let log = task.engine.open(&task.dir, Settings::default())?;
    let case = Case { entries: task.entries, appended: 1 };
    let before = read_bytes()?;
    let time = Duration::try_from_secs_f64(task.seconds)?;
    let measured = fetch::read(log.as_ref(), &case, task.per_group, time)?;
    let latency = &measured.latency;
    let seen = Seen {
        reads_per_second: measured.rate(),
        p50_us: crate::bench::us_at(latency, 0.5),
        p99_us: crate::bench::us_at(latency, 0.99),
        read_bytes_per_read: (read_bytes()? - before) as f64 / measured.calls.max(1) as f64,
    };
    println!("{}", serde_json::to_string(&seen)?);
    log.close()
}

/// Bytes that this process has made the kernel read from the disk.
fn read_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.ok_or("the kernel does not count bytes read")?.parse()?)
}
