//! Goals, and whether they are met.

use crate::bench::Sizes;
use crate::cases;
use crate::cold;
use crate::engines::Contender::{self, Bbolt, BboltSynced, Lmdb, LmdbWritemap, Pagestore, Redb};
use crate::record::Records;
use peers::figures::{Bound, ratio};

/// A figure of a case of an engine.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The case's name.
    pub case: String,
    /// The engine.
    pub engine: Contender,
    /// The figure's name, with its unit.
    pub figure: &'static str,
}

/// One thing that must hold.
#[derive(Clone, Debug)]
pub struct Goal {
    /// Our figure.
    pub ours: Seen,
    /// In units of the best of these; or as it is, if there are none.
    pub others: Vec<Seen>,
    /// The bound.
    pub bound: Bound,
}

impl Seen {
    /// Its median, if it was measured.
    pub fn median(&self, records: &Records) -> Option<f64> {
        records.median(&self.case, self.engine, self.figure)
    }
}

impl Goal {
    /// The best of the others that were measured.
    pub fn best(&self, records: &Records) -> Option<(&Seen, f64)> {
        let measured = self.others.iter().filter_map(|seen| Some((seen, seen.median(records)?)));
        match self.bound {
            Bound::AtLeast(_) => measured.max_by(|a, b| a.1.total_cmp(&b.1)),
            Bound::AtMost(_) => measured.min_by(|a, b| a.1.total_cmp(&b.1)),
        }
    }

    /// The figure of the bound, if it was measured.
    pub fn value(&self, records: &Records) -> Option<f64> {
        let ours = self.ours.median(records);
        if self.others.is_empty() {
            return ours;
        }
        ratio(ours, self.best(records).map(|(_, value)| value))
    }
}

/// All goals of a run of these sizes.
pub fn goals(sizes: &Sizes) -> Vec<Goal> {
    let mut goals = Goals(Vec::new());
    goals.commits();
    goals.reads();
    goals.beside();
    goals.scattered(&sizes.scattered);
    goals.add(cases::DEFRAGMENTED, "file/live", Bound::AtMost(1.2), vec![]);
    for figure in ["write p99 us", "read p99 us"] {
        let before = ours(cases::HALVED, figure);
        goals.add(cases::DEFRAGMENTED, figure, Bound::AtMost(1.5), vec![before]);
    }
    goals.add(cases::KILLED, "open ms", Bound::AtMost(100.0), vec![]);
    goals.against(cases::KILLED, "open ms", Bound::AtMost(0.01), &[Redb]);
    goals.against(cold::GETS, "gets/s", Bound::AtLeast(3.0), &[Redb]);
    goals.against(cold::BATCHES, "gets/s", Bound::AtLeast(3.0), &[Redb]);
    goals.against(cold::SCANS, "keys/s", Bound::AtLeast(3.0), &[Redb]);
    goals.against(cold::COMMITS, "puts/s", Bound::AtLeast(1.5), &[Redb]);
    goals.against(cold::COMMITS_AHEAD, "puts/s", Bound::AtLeast(1.5), &[Redb]);
    goals.0
}

fn ours(case: &str, figure: &'static str) -> Seen {
    Seen { case: case.to_owned(), engine: Pagestore, figure }
}

struct Goals(Vec<Goal>);

impl Goals {
    fn add(&mut self, case: &str, figure: &'static str, bound: Bound, others: Vec<Seen>) {
        self.0.push(Goal { ours: ours(case, figure), others, bound });
    }

    fn against(&mut self, case: &str, figure: &'static str, bound: Bound, peers: &[Contender]) {
        let of = |engine: &Contender| Seen { engine: *engine, ..ours(case, figure) };
        self.add(case, figure, bound, peers.iter().map(of).collect());
    }

    fn commits(&mut self) {
        let cpu = "cpu us/put";
        self.add(cases::COMMITS, cpu, Bound::AtMost(3.5), vec![]);
        self.against(cases::COMMITS, cpu, Bound::AtMost(0.333), &[Redb]);
        self.against(cases::COMMITS, cpu, Bound::AtMost(0.55), &[Lmdb]);
        self.against(cases::COMMITS, cpu, Bound::AtMost(0.55), &[LmdbWritemap]);
        for (threads, least) in [(1, 1.8), (8, 5.0)] {
            let peers = [Redb, Lmdb, LmdbWritemap, Bbolt, BboltSynced];
            self.against(&cases::durable(threads), "commits/s", Bound::AtLeast(least), &peers);
        }
        let batched = Seen { engine: Bbolt, ..ours(&cases::batched(8), "commits/s") };
        self.add(&cases::durable(8), "commits/s", Bound::AtLeast(1.0), vec![batched]);
    }

    fn reads(&mut self) {
        for threads in [1, 2] {
            let case = cases::gets(threads);
            self.against(&case, "gets/s", Bound::AtLeast(1.3), &[Lmdb]);
            self.against(&case, "gets/s", Bound::AtLeast(2.0), &[Redb]);
        }
        let alone = ours(&cases::gets(1), "gets/s");
        self.add(&cases::gets(2), "gets/s", Bound::AtLeast(1.7), vec![alone]);
        let peers = [Redb, Lmdb, LmdbWritemap, Bbolt];
        self.against(cases::SCANS, "keys/s", Bound::AtLeast(1.2), &peers);
    }

    fn beside(&mut self) {
        for figure in ["write p99 us", "read p99 us"] {
            let alone = ours(&cases::beside(0), figure);
            self.add(&cases::beside(1), figure, Bound::AtMost(1.5), vec![alone]);
            let alone = ours(&cases::growing(0), figure);
            self.add(&cases::growing(1), figure, Bound::AtMost(1.5), vec![alone]);
        }
    }

    fn scattered(&mut self, scattered: &[u64]) {
        for pages in scattered.iter().copied() {
            for case in [cases::large, cases::large_again] {
                if pages != scattered[0] {
                    let few = ours(&case(scattered[0]), "puts/s");
                    self.add(&case(pages), "puts/s", Bound::AtLeast(0.77), vec![few]);
                }
                self.against(&case(pages), "puts/s", Bound::AtLeast(1.5), &[Bbolt]);
            }
            self.add(&cases::opened(pages), "open ms", Bound::AtMost(100.0), vec![]);
        }
        let (few, many) = (scattered[0], scattered[scattered.len() - 1]);
        let figure = "cpu ns/put of 1 to 8 pages";
        let with_few = ours(&cases::churned(few), figure);
        self.add(&cases::churned(many), figure, Bound::AtMost(2.0), vec![with_few]);
        let figure = "bytes for free space a commit";
        let million = scattered.iter().copied().find(|pages| *pages >= 1_000_000).unwrap_or(many);
        self.against(&cases::free_space(million), figure, Bound::AtMost(0.01), &[BboltSynced]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Records {
        let mut records = Records::default();
        for (engine, value) in [(Pagestore, 6.0), (Redb, 2.0), (Lmdb, 3.0)] {
            records.add_one("a", engine, "x", value);
        }
        records
    }

    fn goal(bound: Bound, peers: &[Contender]) -> Goal {
        let mut goals = Goals(Vec::new());
        goals.against("a", "x", bound, peers);
        goals.0.remove(0)
    }

    #[test]
    fn the_best_peer_is_the_one_that_is_hard_to_reach() {
        let most = goal(Bound::AtLeast(1.0), &[Redb, Lmdb, Bbolt]);
        assert_eq!(most.value(&records()), Some(2.0));
        let least = goal(Bound::AtMost(1.0), &[Redb, Lmdb, Bbolt]);
        assert_eq!(least.value(&records()), Some(3.0));
        assert_eq!(goal(Bound::AtMost(1.0), &[Bbolt]).value(&records()), None);
        assert_eq!(goal(Bound::AtMost(1.0), &[]).value(&records()), Some(6.0));
    }

    #[test]
    fn every_size_has_its_goals() {
        for sizes in [Sizes::quick(1), Sizes::full(false, 1), Sizes::full(true, 1)] {
            let goals = goals(&sizes);
            let large = goals.iter().filter(|goal| goal.ours.case.starts_with("16 KiB")).count();
            assert_eq!(large, 2 * (2 * sizes.scattered.len() - 1));
        }
    }
}
