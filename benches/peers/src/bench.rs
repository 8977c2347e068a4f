//! Shared by all workloads: engines, place, rounds, and the records.

use crate::data::Kind;
use crate::engines::Contender;
use crate::log::Result;
use crate::record::{Metric, Records};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use peers::measure;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One run of this program.
#[derive(Debug)]
pub struct Bench {
    /// The engines that are measured.
    pub engines: Vec<Contender>,
    /// How often, each engine once a round.
    pub rounds: usize,
    /// How long one measurement of a load lasts.
    pub time: Duration,
    /// Only what takes little time.
    pub quick: bool,
    /// Contents of the entries.
    pub data: Kind,
    /// A case is measured only if its name holds this.
    pub only: String,
    /// And only if it is one of these, where there are any.
    pub cases: Vec<String>,
    /// Where logs are made, and removed again.
    pub dir: PathBuf,
    /// Measurements so far.
    pub records: Records,
    /// Tells on the terminal what is done at the moment.
    pub progress: ProgressBar,
}

/// A line on the terminal that says what is done, and for how long the program runs.
pub fn spinner() -> ProgressBar {
    let progress = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{elapsed_precise} {msg}");
    progress.set_style(style.expect("the template is valid"));
    progress
}

impl Bench {
    /// Whether a case is to be measured.
    pub fn wants(&self, case: &str) -> bool {
        let is_named = self.cases.is_empty() || self.cases.iter().any(|named| named == case);
        is_named && case.contains(&self.only)
    }

    /// The engines in the order of a round: each round begins with another one, so that none always
    /// comes after the same neighbour.
    pub fn in_order(&self, round: usize) -> Vec<Contender> {
        let mut engines = self.engines.clone();
        let count = engines.len();
        engines.rotate_left(round % count.max(1));
        engines
    }

    /// An empty directory for a log, on a disk that has nothing left to write.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        self.remove(&dir)?;
        fs::create_dir_all(&dir)?;
        measure::settle(&self.dir)?;
        Ok(dir)
    }

    /// Removes a log.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn remove(&self, dir: &Path) -> Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Says what is done now.
    pub fn say(&self, workload: &str, case: &str, round: usize, engine: Contender) {
        let rounds = self.rounds;
        self.progress.set_message(format!("{workload}: {case}: {engine}, {}/{rounds}", round + 1));
        self.progress.tick();
    }

    /// Keeps the percentiles of a round.
    pub fn add_latency(
        &mut self,
        workload: &str,
        case: &str,
        engine: Contender,
        latency: &Histogram<u64>,
    ) {
        let quantiles = [
            (Metric::P50Us, 0.5),
            (Metric::P99Us, 0.99),
            (Metric::P999Us, 0.999),
            (Metric::P9999Us, 0.9999),
        ];
        for (metric, quantile) in quantiles {
            self.records.add(workload, case, engine, metric, us_at(latency, quantile));
        }
    }
}

/// The time within which this part of all writes was done, in us.
pub fn us_at(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_first_once() {
        let engines = vec![Contender::Raftlog, Contender::RaftEngine, Contender::Rocksdb];
        let mut bench = Bench {
            engines: engines.clone(),
            rounds: 3,
            time: Duration::ZERO,
            quick: true,
            data: Kind::Half,
            only: "kill".to_owned(),
            cases: Vec::new(),
            dir: PathBuf::new(),
            records: Records::default(),
            progress: ProgressBar::hidden(),
        };
        let first: Vec<Contender> = (0..3).map(|r| bench.in_order(r)[0]).collect();
        assert_eq!(first, engines);
        assert_eq!(bench.in_order(4), bench.in_order(1));
        assert!(bench.wants("after kill -9") && !bench.wants("after a clean close"));
        bench.cases = ["a".to_owned(), "kill".to_owned(), "close".to_owned()].into();
        assert!(bench.wants("kill") && !bench.wants("close") && !bench.wants("after kill -9"));
    }
}
