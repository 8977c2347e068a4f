//! Detects lasting trouble: a store without a connection, a lost quorum, regions without leaders.
//!
//! Figures and the time go in, lines for the log come out. Each trouble is reported once, when it
//! has lasted for a while, with its cause; and once when it is over. A trouble that ends before is
//! not reported: a store that restarts and an election are no news.

use std::collections::BTreeMap;
use std::fmt;

use flotilla_region::{RegionId, StoreId, Time};

/// How long a connection, or a quorum, is missing before that is reported.
const CONNECTION_AWAY_MS: u64 = 3_000;

/// How long a region is without a leader before that is reported.
const LEADER_AWAY_MS: u64 = 10_000;

/// Regions that a line names at most.
const REGIONS_NAMED_MAX: usize = 8;

/// Another store of the registry, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerSample {
    /// Its id.
    pub(crate) store: StoreId,
    /// Its name.
    pub(crate) name: String,
    /// Where it is to be reached.
    pub(crate) address: String,
    /// Whether messages flow to it.
    pub(crate) is_connected: bool,
    /// The last error of the connection.
    pub(crate) fault: Option<String>,
}

/// A look at the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthSample {
    /// All stores of the registry but this one.
    pub(crate) peers: Vec<PeerSample>,
    /// Regions with a replica here.
    pub(crate) region_count: usize,
    /// Those of them whose leader is not known here.
    pub(crate) leaderless: Vec<RegionId>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HealthLine {
    /// Something has been wrong for a while.
    Trouble(String),
    /// It is over.
    Recovery(String),
}

/// Remembers since when each trouble lasts, and whether it was reported.
#[derive(Debug, Default)]
pub(crate) struct HealthMonitor {
    connections: BTreeMap<StoreId, TroubleSpan>,
    quorum: TroubleSpan,
    leaders: TroubleSpan,
    leaderless_since: BTreeMap<RegionId, Time>,
}

impl HealthMonitor {
    /// Takes a sample, and returns the lines that are due now.
    pub(crate) fn observe(&mut self, now: Time, sample: &HealthSample) -> Vec<HealthLine> {
        let mut lines = Vec::new();
        self.observe_connections(now, sample, &mut lines);
        self.observe_quorum(now, sample, &mut lines);
        self.observe_leaders(now, sample, &mut lines);
        lines
    }

    fn observe_connections(
        &mut self,
        now: Time,
        sample: &HealthSample,
        lines: &mut Vec<HealthLine>,
    ) {
        for peer in &sample.peers {
            let PeerSample { store, name, address, fault, .. } = peer;
            let span = self.connections.entry(*store).or_default();
            match span.advance(now, !peer.is_connected, CONNECTION_AWAY_MS) {
                Some(SpanChange::Lasts) => lines.push(HealthLine::Trouble(format!(
                    "no connection to {name} (store {store}) at {address}: {}",
                    fault.as_deref().unwrap_or("no attempt has ended yet")
                ))),
                Some(SpanChange::Over(lasted)) => lines.push(HealthLine::Recovery(format!(
                    "connected to {name} (store {store}) at {address} again, after {lasted}"
                ))),
                None => {}
            }
        }
    }

    fn observe_quorum(&mut self, now: Time, sample: &HealthSample, lines: &mut Vec<HealthLine>) {
        let quorum = Quorum::of(sample);
        match self.quorum.advance(now, quorum.connected < quorum.needed, CONNECTION_AWAY_MS) {
            Some(SpanChange::Lasts) => {
                let missing = sample.peers.iter().filter(|peer| !peer.is_connected);
                let missing: Vec<_> = missing.map(|peer| peer.name.as_str()).collect();
                lines.push(HealthLine::Trouble(format!(
                    "no quorum: this store is {quorum}, itself included, and {} are needed; {} {} \
                     missing. Regions have no leader until enough stores run and reach each other",
                    quorum.needed,
                    missing.join(", "),
                    if missing.len() == 1 { "is" } else { "are" }
                )));
            }
            Some(SpanChange::Over(lasted)) => lines.push(HealthLine::Recovery(format!(
                "there is a quorum again, after {lasted}: this store is {quorum}"
            ))),
            None => {}
        }
    }

    fn observe_leaders(&mut self, now: Time, sample: &HealthSample, lines: &mut Vec<HealthLine>) {
        let before = std::mem::take(&mut self.leaderless_since);
        let since = |region: &RegionId| before.get(region).copied().unwrap_or(now);
        self.leaderless_since =
            sample.leaderless.iter().map(|region| (*region, since(region))).collect();
        // A region that has just lost its leader does not make an old trouble a new one, and one
        // that has found one again does not end it for the others.
        let oldest = self.leaderless_since.values().min().copied();
        let is_trouble = match self.leaders.is_reported {
            true => oldest.is_some(),
            false => oldest.is_some_and(|oldest| now >= oldest.after_ms(LEADER_AWAY_MS)),
        };
        match self.leaders.advance_from(oldest.unwrap_or(now), now, is_trouble, 0) {
            Some(SpanChange::Lasts) => lines.push(HealthLine::Trouble(leaderless(sample))),
            Some(SpanChange::Over(lasted)) => {
                let count = sample.region_count;
                let all = if count == 1 { "the region has a leader" } else { "all have leaders" };
                lines.push(HealthLine::Recovery(format!(
                    "{all} again, after {lasted}; regions here: {count}"
                )));
            }
            None => {}
        }
    }
}

fn leaderless(sample: &HealthSample) -> String {
    let named: Vec<_> =
        sample.leaderless.iter().take(REGIONS_NAMED_MAX).map(ToString::to_string).collect();
    let count = sample.leaderless.len();
    let more = match count - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "no leader for more than {} s: {count} of {} regions here, {}{more}; this store is {}",
        LEADER_AWAY_MS / 1000,
        sample.region_count,
        named.join(", "),
        Quorum::of(sample)
    )
}

/// How many stores are connected, and how many a majority of the registry is.
struct Quorum {
    connected: usize,
    known: usize,
    needed: usize,
}

impl Quorum {
    fn of(sample: &HealthSample) -> Self {
        let known = sample.peers.len() + 1;
        let connected = sample.peers.iter().filter(|peer| peer.is_connected).count() + 1;
        Self { connected, known, needed: known / 2 + 1 }
    }
}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connected to {} of {} stores", self.connected, self.known)
    }
}

/// One trouble: its beginning, and whether it was reported.
#[derive(Clone, Copy, Debug, Default)]
struct TroubleSpan {
    since: Option<Time>,
    is_reported: bool,
}

/// The report that a trouble is due.
enum SpanChange {
    /// It has lasted long enough.
    Lasts,
    /// It was reported, and is over.
    Over(TroubleDuration),
}

impl TroubleSpan {
    fn advance(&mut self, now: Time, is_trouble: bool, after_ms: u64) -> Option<SpanChange> {
        self.advance_from(now, now, is_trouble, after_ms)
    }

    /// The same for a trouble that began at `began`, if it is a new one.
    fn advance_from(
        &mut self,
        began: Time,
        now: Time,
        is_trouble: bool,
        after_ms: u64,
    ) -> Option<SpanChange> {
        if !is_trouble {
            let ended = std::mem::take(self);
            let since = ended.since.filter(|_| ended.is_reported)?;
            return Some(SpanChange::Over(TroubleDuration { ms: now.0.saturating_sub(since.0) }));
        }
        let since = *self.since.get_or_insert(began);
        if self.is_reported || now < since.after_ms(after_ms) {
            return None;
        }
        self.is_reported = true;
        Some(SpanChange::Lasts)
    }
}

/// How long a trouble lasted.
struct TroubleDuration {
    ms: u64,
}

impl fmt::Display for TroubleDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.ms / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(connected: [bool; 2], leaderless: impl IntoIterator<Item = u64>) -> HealthSample {
        let peer = |(at, is_connected): (usize, bool)| PeerSample {
            store: StoreId(at as u64 + 2),
            name: format!("s{}", at + 2),
            address: format!("h:{}", at + 2),
            is_connected,
            fault: (!is_connected).then(|| "connection refused".to_owned()),
        };
        HealthSample {
            peers: connected.into_iter().enumerate().map(peer).collect(),
            region_count: 17,
            leaderless: leaderless.into_iter().map(RegionId).collect(),
        }
    }

    /// The lines for one sample each second, from second `from` on, for `seconds` seconds.
    fn watch(
        monitor: &mut HealthMonitor,
        from: u64,
        seconds: u64,
        sample: &HealthSample,
    ) -> Vec<(u64, HealthLine)> {
        let at = |second: u64| Time((from + second) * 1000);
        (0..seconds)
            .flat_map(|second| {
                let lines = monitor.observe(at(second), sample);
                lines.into_iter().map(move |line| (from + second, line))
            })
            .collect()
    }

    fn trouble(second: u64, words: &str) -> (u64, HealthLine) {
        (second, HealthLine::Trouble(words.to_owned()))
    }

    fn recovery(second: u64, words: &str) -> (u64, HealthLine) {
        (second, HealthLine::Recovery(words.to_owned()))
    }

    #[test]
    fn a_store_without_a_connection_is_told_once_with_its_cause_and_once_when_it_is_back() {
        let mut monitor = HealthMonitor::default();
        let told = watch(&mut monitor, 0, 100, &sample([true, false], []));
        let words = "no connection to s3 (store 3) at h:3: connection refused";
        assert_eq!(told, [trouble(3, words)]);
        let told = watch(&mut monitor, 100, 100, &sample([true, true], []));
        let words = "connected to s3 (store 3) at h:3 again, after 100 s";
        assert_eq!(told, [recovery(100, words)]);
    }

    #[test]
    fn a_quorum_that_is_missing_is_told_once_with_the_stores_that_are_missing() {
        let mut monitor = HealthMonitor::default();
        let told = watch(&mut monitor, 0, 60, &sample([false, false], []));
        let quorum = "no quorum: this store is connected to 1 of 3 stores, itself included, and 2 \
                      are needed; s2, s3 are missing. Regions have no leader until enough stores \
                      run and reach each other";
        assert_eq!(told.len(), 3, "two connections and the quorum: {told:?}");
        assert_eq!(told[2], trouble(3, quorum));
        let told = watch(&mut monitor, 60, 60, &sample([false, true], []));
        let words = "there is a quorum again, after 60 s: this store is connected to 2 of 3 stores";
        assert_eq!(told[1], recovery(60, words));
        assert_eq!(told.len(), 2, "{told:?}");
    }

    #[test]
    fn what_ends_soon_is_not_told() {
        let mut monitor = HealthMonitor::default();
        for from in [0, 10, 20] {
            let told = watch(&mut monitor, from, 3, &sample([false, false], [1, 2]));
            assert_eq!(told, [], "from {from} on");
            assert_eq!(watch(&mut monitor, from + 3, 7, &sample([true, true], [])), []);
        }
    }

    #[test]
    fn regions_without_leaders_are_told_once_however_they_come_and_go() {
        let mut monitor = HealthMonitor::default();
        let told = watch(&mut monitor, 0, 12, &sample([true, true], 1..=10));
        let words = "no leader for more than 10 s: 10 of 17 regions here, 1, 2, 3, 4, 5, 6, 7, 8 \
                     and 2 more; this store is connected to 3 of 3 stores";
        assert_eq!(told, [trouble(10, words)]);
        // Another one has lost its leader as all others found theirs.
        assert_eq!(watch(&mut monitor, 12, 30, &sample([true, true], [11])), []);
        let told = watch(&mut monitor, 42, 30, &sample([true, true], []));
        assert_eq!(told, [recovery(42, "all have leaders again, after 42 s; regions here: 17")]);
        let told = watch(&mut monitor, 72, 11, &sample([true, true], [3]));
        assert_eq!(told.len(), 1, "a new trouble is told anew: {told:?}");
    }

    #[test]
    fn regions_that_take_turns_without_a_leader_are_no_trouble() {
        let mut monitor = HealthMonitor::default();
        for from in 0..40 {
            let told = watch(&mut monitor, from, 1, &sample([true, true], [from / 9]));
            assert_eq!(told, [], "second {from}");
        }
    }

    #[test]
    fn a_store_alone_has_its_quorum() {
        let alone = HealthSample { region_count: 17, ..HealthSample::default() };
        assert_eq!(watch(&mut HealthMonitor::default(), 0, 60, &alone), []);
    }
}
