//! A process of its own that opens a log, perhaps appends to it, and then closes it or is killed.
//!
//! The cost of opening is measured here, in a process that has done nothing else; and only a
//! process of its own can be killed.

use crate::data::{Data, Kind};
use crate::engines::Contender;
use crate::log::{Append, RaftLog, Result, Settings};
use clap::{Args, ValueEnum};
use peers::measure;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// How many groups the log has. A child appends to them in turn.
pub const GROUPS: u64 = 128;
/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 1024;

/// The task of a child.
#[derive(Clone, Debug, Args)]
pub struct Task {
    /// Which engine.
    pub engine: Contender,
    /// Where its log is.
    pub dir: PathBuf,
    /// How many entries to append after opening, at least.
    #[arg(long, default_value_t = 0)]
    pub entries: u64,
    /// How many of them in one write.
    #[arg(long, default_value_t = 1)]
    pub at_a_time: u64,
    /// Their contents.
    #[arg(long, value_enum, default_value_t = Kind::Half)]
    pub data: Kind,
    /// How it ends.
    #[arg(long, value_enum, default_value_t = End::Close)]
    pub end: End,
}

/// How a child ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum End {
    /// The log is closed.
    Close,
    /// The process is killed while the log is open.
    Kill,
}

/// The results of a child.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Time to open the log.
    pub open_seconds: f64,
    /// Growth of the heap by opening it, in bytes.
    pub open_heap_bytes: u64,
    /// Growth of the heap by opening it and appending, in bytes.
    pub heap_bytes: u64,
    /// Memory of the index as the engine reports it, if it does.
    pub index_bytes: Option<u64>,
    /// Entries that were there when it was opened.
    pub entries_before: u64,
    /// Entries that are there now.
    pub entries: u64,
}

/// Starts a child and returns what it saw, when it has ended.
///
/// # Errors
///
/// If the child fails; its own words go to the terminal.
pub fn run(task: &Task) -> Result<Seen> {
    let end = if task.end == End::Close { "close" } else { "kill" };
    let data = if task.data == Kind::Half { "half" } else { "random" };
    let mut child = Command::new(std::env::current_exe()?)
        .arg("child")
        .arg(task.engine.to_string())
        .arg(&task.dir)
        .args(["--entries", &task.entries.to_string()])
        .args(["--at-a-time", &task.at_a_time.to_string()])
        .args(["--data", data, "--end", end])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let stdout = child.stdout.take().ok_or("a child without an output")?;
    BufReader::new(stdout).read_line(&mut line)?;
    if task.end == End::Kill {
        child.kill()?;
    }
    let status = child.wait()?;
    if line.is_empty() || (task.end == End::Close && !status.success()) {
        return Err(format!("{} in a process of its own: {status}", task.engine).into());
    }
    Ok(serde_json::from_str(&line)?)
}

/// Is the child.
///
/// # Errors
///
/// Errors of the engine or the disk.
pub fn be(task: &Task) -> Result<()> {
    let data = Data::new(task.data, ENTRY_BYTES as usize);
    let heap_before = measure::heap_bytes()?;
    let begin = Instant::now();
    let log = task.engine.open(&task.dir, Settings::default())?;
    let open_seconds = begin.elapsed().as_secs_f64();
    let open_heap_bytes = measure::heap_bytes()?.saturating_sub(heap_before);
    let entries_before = count(log.as_ref())?;
    append(log.as_ref(), task, &data)?;
    let seen = Seen {
        open_seconds,
        open_heap_bytes,
        heap_bytes: measure::heap_bytes()?.saturating_sub(heap_before),
        index_bytes: log.index_bytes(),
        entries_before,
        entries: count(log.as_ref())?,
    };
    println!("{}", serde_json::to_string(&seen)?);
    std::io::stdout().flush()?;
    if task.end == End::Kill {
        // The parent never writes: this waits for the kill, or ends if the parent is gone.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Err("nobody has killed this process".into());
    }
    log.close()
}

fn count(log: &dyn RaftLog) -> Result<u64> {
    (1..=GROUPS).map(|g| log.last_index(g)).sum()
}

fn append(log: &dyn RaftLog, task: &Task, data: &Data) -> Result<()> {
    let mut next: Vec<u64> =
        (1..=GROUPS).map(|g| Ok(1 + log.last_index(g)?)).collect::<Result<_>>()?;
    let mut writer = log.writer();
    for turn in 0..task.entries.div_ceil(task.at_a_time) {
        let group = turn % GROUPS;
        let first = &mut next[group as usize];
        let data = data.entries(turn, task.at_a_time as usize);
        writer.append(Append {
            group: 1 + group,
            first: *first,
            data,
            state: None,
            sync: false,
        })?;
        *first += task.at_a_time;
    }
    Ok(())
}
