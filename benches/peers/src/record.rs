//! Measurements: one record for each workload, case, engine and metric, a value for each round.

use crate::engines::Contender;
use peers::figures::median;
use serde::{Deserialize, Serialize};

/// The meaning of a value, and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Entries a second.
    EntriesPerSecond,
    /// Half of all took at most so many us.
    P50Us,
    /// 99 % took at most so many us.
    P99Us,
    /// 99.9 % took at most so many us.
    P999Us,
    /// 99.99 % took at most so many us.
    P9999Us,
    /// KiB read from the disk for each call.
    ReadKibPerCall,
    /// CPU time of all threads, ns an entry.
    CpuNsPerEntry,
    /// Seconds until the log is open.
    OpenSeconds,
    /// Bytes written to the disk, by whomever, for each byte of entries.
    WrittenPerByte,
    /// Bytes of pages that the process made dirty for each byte of entries.
    DirtiedPerByte,
    /// 99.9 % of the writes from the first needed purge on took at most so many us.
    PurgingP999Us,
    /// 99.9 % of the writes during whose time a call to purge ran took at most so many us.
    DuringPurgeP999Us,
    /// Bytes on disk at the end, MiB.
    DiskMib,
    /// The most bytes on disk after any purge, MiB.
    DiskMibMax,
    /// Bytes that the process passed to the kernel to be written for each byte of entries.
    PassedPerByte,
    /// Groups that the log asked to compact, over all purges.
    GroupsAsked,
    /// Growth of the heap for each million entries, MiB, in the process that wrote them.
    HeapMibPerMillion,
    /// Growth of the heap for each million entries, MiB, in a process that opened the log.
    OpenedHeapMibPerMillion,
    /// Transactions a second, those that only read included.
    TransactionsPerSecond,
    /// Transactions a second that wrote.
    CommitsPerSecond,
    /// CPU time of all threads, us for each transaction that wrote.
    CpuUsPerCommit,
    /// Bytes that the device has counted for each transaction that wrote, KiB.
    DeviceKibPerCommit,
    /// Of these, those that the pages have not written: logs and the file system's metadata, KiB.
    LogKibPerCommit,
    /// Bytes in calls that write, without those of the pages, likewise, KiB.
    LogCallsKibPerCommit,
    /// Bytes that the pages have written for each transaction that wrote, KiB.
    PagesKibPerCommit,
    /// Bytes of pages of the cache that the process made dirty, likewise, KiB.
    DirtiedKibPerCommit,
    /// Bytes on disk of all logs, the most that was seen, MiB.
    LogDiskMib,
    /// Bytes on disk of all page files, the most that was seen, MiB.
    PagesDiskMib,
    /// 99.9 % of the transactions that only read took at most so many us.
    ReadP999Us,
    /// The longest of all, ms.
    LongestMs,
}

impl Metric {
    /// The name in tables and plots, with its unit.
    pub fn name(self) -> &'static str {
        match self {
            Metric::EntriesPerSecond => "entries/s",
            Metric::P50Us => "p50 us",
            Metric::P99Us => "p99 us",
            Metric::P999Us => "p99.9 us",
            Metric::P9999Us => "p99.99 us",
            Metric::ReadKibPerCall => "read KiB/call",
            Metric::CpuNsPerEntry => "cpu ns/entry",
            Metric::OpenSeconds => "open s",
            Metric::WrittenPerByte => "written/byte",
            Metric::DirtiedPerByte => "dirtied/byte",
            Metric::PurgingP999Us => "p99.9 us once purging",
            Metric::DuringPurgeP999Us => "p99.9 us beside a purge",
            Metric::DiskMib => "disk MiB",
            Metric::DiskMibMax => "disk MiB at most",
            Metric::PassedPerByte => "passed/byte",
            Metric::GroupsAsked => "groups asked",
            Metric::HeapMibPerMillion => "heap MiB/million",
            Metric::OpenedHeapMibPerMillion => "heap MiB/million, opened",
            Metric::TransactionsPerSecond => "transactions/s",
            Metric::CommitsPerSecond => "commits/s",
            Metric::CpuUsPerCommit => "cpu us/commit",
            Metric::DeviceKibPerCommit => "device KiB/commit",
            Metric::LogKibPerCommit => "of it not pages, KiB",
            Metric::LogCallsKibPerCommit => "written by calls, not pages, KiB",
            Metric::PagesKibPerCommit => "pages KiB/commit",
            Metric::DirtiedKibPerCommit => "dirtied KiB/commit",
            Metric::LogDiskMib => "logs on disk MiB",
            Metric::PagesDiskMib => "pages on disk MiB",
            Metric::ReadP999Us => "reads p99.9 us",
            Metric::LongestMs => "longest ms",
        }
    }
}

/// The values of one metric in all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The workload's name, as on the command line.
    pub workload: String,
    /// The parameters of this case.
    pub case: String,
    /// The engine.
    pub engine: Contender,
    /// The figure.
    pub metric: Metric,
    /// One value a round, in the order of the rounds.
    pub rounds: Vec<f64>,
}

impl Record {
    /// The value that stands for all rounds.
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }
}

/// All records, in the order in which they came.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Records {
    /// The records.
    pub records: Vec<Record>,
}

impl Records {
    /// Adds one round's value.
    pub fn add(
        &mut self,
        workload: &str,
        case: &str,
        engine: Contender,
        metric: Metric,
        value: f64,
    ) {
        let same = |r: &&mut Record| {
            r.workload == workload && r.case == case && r.engine == engine && r.metric == metric
        };
        match self.records.iter_mut().find(same) {
            Some(record) => record.rounds.push(value),
            None => self.records.push(Record {
                workload: workload.to_owned(),
                case: case.to_owned(),
                engine,
                metric,
                rounds: vec![value],
            }),
        }
    }

    /// The median of what was measured, if it was.
    pub fn median(
        &self,
        workload: &str,
        case: &str,
        engine: Contender,
        metric: Metric,
    ) -> Option<f64> {
        let same = |r: &&Record| {
            r.workload == workload && r.case == case && r.engine == engine && r.metric == metric
        };
        self.records.iter().find(same).map(Record::median)
    }

    /// Workloads and their cases, each once, in the order in which they came.
    pub fn cases(&self) -> Vec<(&str, &str)> {
        let mut cases = Vec::new();
        for record in &self.records {
            let case = (record.workload.as_str(), record.case.as_str());
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peers::figures::ratio;

    #[test]
    fn rounds_of_one_case_come_together_and_others_stay_apart() {
        let mut records = Records::default();
        for (case, engine, value) in [
            ("a", Contender::Raftlog, 1.0),
            ("b", Contender::Raftlog, 5.0),
            ("a", Contender::Raftlog, 3.0),
            ("a", Contender::RaftEngine, 4.0),
        ] {
            records.add("append", case, engine, Metric::P50Us, value);
        }
        let ours = records.median("append", "a", Contender::Raftlog, Metric::P50Us);
        assert_eq!(ours, Some(2.0));
        let theirs = records.median("append", "a", Contender::RaftEngine, Metric::P50Us);
        assert_eq!(ratio(ours, theirs), Some(0.5));
        assert_eq!(records.median("append", "b", Contender::RaftEngine, Metric::P50Us), None);
        assert_eq!(records.median("append", "a", Contender::Raftlog, Metric::P99Us), None);
        assert_eq!(records.cases(), [("append", "a"), ("append", "b")]);
    }
}
