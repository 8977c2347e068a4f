//! Requests to an engine and its answers: lines of JSON between this program and the process
//! that has the engine open.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One thing to do; each is timed where it is done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "load", rename_all = "snake_case")]
pub enum Load {
    /// Puts the keys from `first` on, `keys` of them, a thousand a commit, and makes them durable.
    Fill {
        first: u64,
        keys: u64,
        value_bytes: usize,
        /// Whether in the order of keys.
        in_order: bool,
    },
    /// Replaces random keys, without a sync in the commits; at the end all is made durable, and
    /// that is timed as well.
    Commits {
        keys: u64,
        value_bytes: usize,
        commits: u64,
        puts: u64,
        /// Whether the engine is told the keys of a commit before its first put.
        reads_ahead: bool,
        seed: u64,
        /// At most for so long; 0: no limit.
        ms: u64,
    },
    /// Threads replace one random key a commit, durable when it returns.
    Durable {
        keys: u64,
        value_bytes: usize,
        threads: u64,
        ms: u64,
        seed: u64,
        /// Whether the engine's own way to put several callers' writes into one commit is used.
        batch: bool,
    },
    /// Threads get random keys, a thousand in one read transaction.
    Gets { keys: u64, threads: u64, ms: u64, seed: u64 },
    /// Gets random keys, so many in a batch, by the engine's own call if it has one.
    GetBatches { keys: u64, length: u64, ms: u64, seed: u64 },
    /// Scans from random keys on, each in a read transaction of its own.
    Scans { keys: u64, length: u64, ms: u64, seed: u64 },
    /// A paced writer and a paced reader of ten keys, beside scans without pause.
    Beside(Beside),
    /// Puts as many values of a page each as are asked for and deletes every second one.
    Scatter { pages: u64 },
    /// Puts one new value a commit, without a sync, for so long or so many.
    Large { value_bytes: usize, ms: u64, puts: u64, first: u64 },
    /// Replaces random ones of a thousand values of one to eight pages, one a commit, without a
    /// sync.
    Churn { commits: u64, seed: u64 },
    /// Commits of so many random puts, each made durable: what is written for free space alone.
    FreeSpace { keys: u64, value_bytes: usize, commits: u64, puts: u64, seed: u64 },
    /// Deletes every second key.
    DeleteHalf { keys: u64 },
    /// Reads everything and compares.
    Prove { keys: u64 },
    /// Figures of the file.
    Status,
    /// Answers, and then replaces random keys without pause until the process is killed.
    WriteOn { keys: u64, value_bytes: usize },
    /// Closes the store as it should be closed, and ends.
    Close,
}

/// See [`Load::Beside`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Beside {
    /// How many keys there are.
    pub keys: u64,
    /// How many threads scan.
    pub scanners: u64,
    /// How many keys a scan takes.
    pub length: u64,
    /// How many scans are made in one read transaction.
    pub scans_each: u64,
    /// Length of the values that are put, in bytes.
    pub value_bytes: usize,
    /// Whether new keys are put, so that the file grows.
    pub grow: bool,
    /// Where the new keys begin.
    pub first: u64,
    /// Puts a second, one a commit, without a sync.
    pub writes_per_second: u64,
    /// Reads of ten keys a second.
    pub reads_per_second: u64,
    /// Whether the file is defragmented meanwhile, until it is done; or else for so long:
    pub defragment: bool,
    /// How long.
    pub ms: u64,
    /// Where chance begins.
    pub seed: u64,
}

/// The results, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it could not be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The engine cannot do this: its place in the tables says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Figures by their names, which say the unit.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
}

impl Outcome {
    /// Adds a figure.
    pub fn add(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value);
    }

    /// Adds percentiles of times in ns, under names that begin with `what`.
    pub fn add_times(&mut self, what: &str, times: &mut [u64]) {
        times.sort_unstable();
        let at = |quantile: f64| {
            let place = (times.len() as f64 * quantile) as usize;
            times.get(place.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            self.add(&format!("{what} {name} us"), at(quantile) as f64 / 1000.0);
        }
    }
}
