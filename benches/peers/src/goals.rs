//! Goals against the peers, and whether they are met.

use crate::append::{self, Case};
use crate::bench::Bench;
use crate::child::End;
use crate::churn;
use crate::engines::Contender;
use crate::fetch;
#[cfg(feature = "mixed")]
use crate::mixed;
use crate::open;
use crate::record::{Metric, Records};
use peers::figures::{Bound, ratio};

/// One thing that must hold.
#[derive(Clone, Debug)]
pub struct Goal {
    /// The workload it is about.
    pub workload: &'static str,
    /// The case of it.
    pub case: String,
    /// The figure that is compared.
    pub metric: Metric,
    /// With whom.
    pub peer: Contender,
    /// The bound.
    pub bound: Bound,
}

impl Goal {
    /// Our median in units of the peer's, if both were measured.
    pub fn ratio(&self, records: &Records) -> Option<f64> {
        let of = |engine| records.median(self.workload, &self.case, engine, self.metric);
        ratio(of(Contender::Raftlog), of(self.peer))
    }
}

/// All goals of a run.
pub fn goals(bench: &Bench) -> Vec<Goal> {
    let mut goals = Goals(Vec::new());
    goals.append();
    goals.open(*open::sizes(bench.quick).last().expect("some size is opened"));
    goals.add(open::MEMORY, open::memory_case(), Metric::HeapMibPerMillion, Bound::AtMost(0.2));
    for (case, least) in fetch::CASES.into_iter().zip([2.0, 2.0, 10.0]) {
        goals.add(fetch::NAME, case.name(), Metric::EntriesPerSecond, Bound::AtLeast(least));
    }
    let churn = churn::case_name(bench);
    goals.add(churn::NAME, churn.clone(), Metric::WrittenPerByte, Bound::AtMost(0.9));
    goals.add(churn::NAME, churn.clone(), Metric::PurgingP999Us, Bound::AtMost(0.5));
    goals.add(churn::NAME, churn.clone(), Metric::DuringPurgeP999Us, Bound::AtMost(0.5));
    let rows = [
        (append::NAME, synced(64).name(), Metric::EntriesPerSecond, Bound::AtLeast(2.5)),
        (churn::NAME, churn, Metric::WrittenPerByte, Bound::AtMost(0.6)),
    ];
    goals.0.extend(rows.map(|(workload, case, metric, bound)| Goal {
        workload,
        case,
        metric,
        peer: Contender::Rocksdb,
        bound,
    }));
    #[cfg(feature = "mixed")]
    goals.mixed();
    goals.0
}

fn synced(threads: u64) -> Case {
    Case { bytes: 1024, threads, sync: true, groups: None }
}

struct Goals(Vec<Goal>);

impl Goals {
    fn add(&mut self, workload: &'static str, case: String, metric: Metric, bound: Bound) {
        self.0.push(Goal { workload, case, metric, peer: Contender::RaftEngine, bound });
    }

    fn append(&mut self) {
        for (threads, least) in [(64, 1.4), (8, 1.6), (1, 1.1)] {
            let case = synced(threads).name();
            let rate = Metric::EntriesPerSecond;
            self.add(append::NAME, case.clone(), rate, Bound::AtLeast(least));
            if threads == 64 {
                self.add(append::NAME, case, Metric::P99Us, Bound::AtMost(1.0));
            }
        }
        for threads in [8, 64] {
            let case = Case { sync: false, ..synced(threads) }.name();
            let rate = Metric::EntriesPerSecond;
            self.add(append::NAME, case.clone(), rate, Bound::AtLeast(2.0));
            self.add(append::NAME, case, Metric::P99Us, Bound::AtMost(0.5));
        }
        for bytes in [128, 1024] {
            let case = Case { bytes, sync: false, ..synced(1) }.name();
            self.add(append::NAME, case, Metric::CpuNsPerEntry, Bound::AtMost(0.8));
        }
    }

    /// Of the experiment that the log was made for: what replacing RocksDB has brought elsewhere,
    /// and behind raft-engine in nothing.
    #[cfg(feature = "mixed")]
    fn mixed(&mut self) {
        let goal = |case: &str, metric, peer, bound| Goal {
            workload: mixed::NAME,
            case: case.to_owned(),
            metric,
            peer,
            bound,
        };
        let open = |metric, peer, bound| goal(mixed::OPEN, metric, peer, bound);
        let (rocksdb, raft_engine) = (Contender::Rocksdb, Contender::RaftEngine);
        self.0.push(open(Metric::DeviceKibPerCommit, rocksdb, Bound::AtMost(0.75)));
        self.0.push(open(Metric::P999Us, rocksdb, Bound::AtMost(0.8)));
        let peak = mixed::peak_case(mixed::TERMINALS);
        self.0.push(goal(&peak, Metric::CommitsPerSecond, raft_engine, Bound::AtLeast(1.0)));
        for metric in [
            Metric::P50Us,
            Metric::P99Us,
            Metric::P999Us,
            Metric::P9999Us,
            Metric::CpuUsPerCommit,
            Metric::DeviceKibPerCommit,
            Metric::LogDiskMib,
        ] {
            self.0.push(open(metric, raft_engine, Bound::AtMost(1.0)));
        }
    }

    fn open(&mut self, mib: u64) {
        for at_a_time in [1, 4] {
            for end in [End::Close, End::Kill] {
                let case = open::case_name(mib, at_a_time, end);
                self.add(open::NAME, case, Metric::EntriesPerSecond, Bound::AtLeast(10.0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_compares_our_median_with_the_right_peer() {
        let goal = Goal {
            workload: "append",
            case: "a".to_owned(),
            metric: Metric::P99Us,
            peer: Contender::Rocksdb,
            bound: Bound::AtMost(1.0),
        };
        let mut records = Records::default();
        assert_eq!(goal.ratio(&records), None);
        for (engine, value) in
            [(Contender::Raftlog, 3.0), (Contender::RaftEngine, 1.0), (Contender::Rocksdb, 4.0)]
        {
            records.add("append", "a", engine, Metric::P99Us, value);
        }
        assert_eq!(goal.ratio(&records), Some(0.75));
    }
}
