//! The lines of the log about elections: one for all regions whose leader is another since the last
//! one, for a store that ends takes a thousand leaders along.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use flotilla_region::{RegionId, StoreId};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{MissedTickBehavior, interval};

use crate::driver::router::Router;
use crate::driver::routes::RouteChange;

/// Between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Regions of one leader that a line names at most.
const REGIONS_NAMED_MAX: usize = 8;

/// Logs elections as long as the node runs.
pub(crate) async fn run(router: Router, own: StoreId) {
    let mut changes = router.changes();
    let mut elections = Elections::default();
    let mut lines = interval(LINE_INTERVAL);
    lines.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Ok(RouteChange::Role(change)) => {
                    let leader = change.leader.map(|leader| leader.store);
                    elections.note(change.region, leader);
                }
                Ok(_) => {}
                Err(RecvError::Lagged(count)) => elections.unheard += count,
                Err(RecvError::Closed) => return,
            },
            _ = lines.tick() => {
                if let Some(line) = elections.line(own) {
                    tracing::info!("{line}");
                }
            }
        }
    }
}

/// The elections since the last line.
#[derive(Debug, Default)]
struct Elections {
    /// The last leader of each region that had one. A region that was removed stays: a number.
    leaders: BTreeMap<RegionId, StoreId>,
    /// The regions with a new leader, by leader.
    new: BTreeMap<StoreId, RegionTally>,
    /// Changes of regions that came too fast to be counted.
    unheard: u64,
}

/// How many regions, and the first of them.
#[derive(Debug, Default)]
struct RegionTally {
    count: usize,
    named: Vec<RegionId>,
}

impl Elections {
    /// A region has this leader now, or none that is known.
    fn note(&mut self, region: RegionId, leader: Option<StoreId>) {
        let Some(leader) = leader else { return };
        if self.leaders.insert(region, leader) == Some(leader) {
            // It was elected again, or heard of again.
            return;
        }
        let tally = self.new.entry(leader).or_default();
        tally.count += 1;
        if tally.named.len() < REGIONS_NAMED_MAX {
            tally.named.push(region);
        }
    }

    /// The line that is due, if there was an election.
    fn line(&mut self, own: StoreId) -> Option<String> {
        let new = std::mem::take(&mut self.new);
        let unheard = std::mem::take(&mut self.unheard);
        if new.is_empty() && unheard == 0 {
            return None;
        }
        let mut line = "leaders were elected:".to_owned();
        for (place, (leader, RegionTally { count, named })) in new.into_iter().enumerate() {
            let named_count = named.len();
            let named: Vec<_> = named.iter().map(ToString::to_string).collect();
            let which =
                if leader == own { "this store".to_owned() } else { format!("store {leader}") };
            let separator = if place == 0 { "" } else { ";" };
            let noun = if count == 1 { "region" } else { "regions" };
            // A String takes every write.
            let _ = write!(line, "{separator} {which} leads {noun} {}", named.join(", "));
            if count > named_count {
                let _ = write!(line, " and {} more", count - named_count);
            }
        }
        if unheard > 0 {
            let _ = write!(line, "; {unheard} changes came too fast to be told apart");
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_elections_are_one_line() {
        let mut elections = Elections::default();
        assert_eq!(elections.line(StoreId(1)), None);
        for region in 2..1_002 {
            elections.note(RegionId(region), Some(StoreId(1 + region % 2)));
            elections.note(RegionId(region), None);
        }
        let line = elections.line(StoreId(1)).unwrap();
        let here = "this store leads regions 2, 4, 6, 8, 10, 12, 14, 16 and 492 more";
        let there = "store 2 leads regions 3, 5, 7, 9, 11, 13, 15, 17 and 492 more";
        assert_eq!(line, format!("leaders were elected: {here}; {there}"));
        assert_eq!(elections.line(StoreId(1)), None, "it is said once");
    }

    #[test]
    fn a_leader_that_is_elected_again_is_no_news() {
        let mut elections = Elections::default();
        elections.note(RegionId(7), Some(StoreId(2)));
        assert_eq!(
            elections.line(StoreId(1)).unwrap(),
            "leaders were elected: store 2 leads region 7"
        );
        elections.note(RegionId(7), None);
        elections.note(RegionId(7), Some(StoreId(2)));
        assert_eq!(elections.line(StoreId(1)), None);
        elections.note(RegionId(7), Some(StoreId(1)));
        elections.unheard = 3;
        assert_eq!(
            elections.line(StoreId(1)).unwrap(),
            "leaders were elected: this store leads region 7; 3 changes came too fast to be told \
             apart"
        );
    }
}
